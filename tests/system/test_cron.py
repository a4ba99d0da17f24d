"""Whole gateways with cron jobs: made by the command line, run by the clock, answered in a chat."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import contents, lines_of, on, with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, told, with_telegram


async def test_a_job_made_while_it_runs_answers_in_its_chat(tmp_path: Path) -> None:
    """Made by another process, it is picked up; its answers go to the chat that it names."""
    async with TelegramServer() as server:
        server.add_chat(ADA)
        async with Daemon(tmp_path, config=with_telegram(server)):
            await told(
                tmp_path, "cron", "add", "--every", "1s", "--message", "tick", "--to", f"telegram:{ADA}"
            )
            await server.until(lambda: len(server.sent_to(ADA)) >= 2, timeout_s=120)
            (row,) = json.loads(await told(tmp_path, "cron", "list", "--json"))
            await told(tmp_path, "cron", "remove", row["id"])

    key = f"cron_{row['id']}"
    lines = lines_of(tmp_path, key)
    assert {sent.text for sent in server.sent_to(ADA)} == {"echo: tick"}
    assert len({line["message_id"] for line in lines if line["role"] == "user"}) >= 2
    sessions = json.loads(await told(tmp_path, "sessions", "list", "--json"))
    assert [(one["key"], one["source"], one["cron_job_id"]) for one in sessions] == [
        (f"cron:{row['id']}", "cron", row["id"])
    ]


async def test_a_job_is_run_by_hand_once(tmp_path: Path) -> None:
    """``cron run`` works beside the schedule, through the running daemon and without one."""
    await told(tmp_path, "cron", "add", "--at", "2099-01-01T09:00", "--message", "one day")
    (row,) = json.loads(await told(tmp_path, "cron", "list", "--json"))
    await told(tmp_path, "cron", "run", row["id"])
    async with Daemon(tmp_path) as daemon:
        await daemon.said("turn.replied")
        await told(tmp_path, "cron", "run", row["id"])
        await daemon.said("turn.replied", 2)

    assert contents(tmp_path, f"cron_{row['id']}") == ["one day", "echo: one day"] * 2


@guarantee("once", "A cron job runs once for each slot, however many processes run the schedule.")
async def test_two_schedulers_fire_each_slot_once(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """Two processes with adapters, one of them killed in between: no slot is asked twice."""
    config = on(broker, broker_name, partitions=4)
    async with (
        Daemon(tmp_path, role="session", config=config) as session,
        Daemon(tmp_path, role="channels", config=config) as first,
        Daemon(tmp_path, role="channels", config=config),
    ):
        await told(tmp_path, "cron", "add", "--every", "1s", "--message", "tick")
        await session.said("turn.replied", 3)
        await first.kill()
        # The slot of the kill may come twice, and is asked once.
        await session.said("turn.replied", 8)
        (row,) = json.loads(await told(tmp_path, "cron", "list", "--json"))
        await told(tmp_path, "cron", "remove", row["id"])
        # A turn that is under way ends.
        await session.stop()

    lines = lines_of(tmp_path, f"cron_{row['id']}")
    asked = [line["message_id"] for line in lines if line["role"] == "user"]
    assert len(asked) == len(set(asked)) >= 7
    assert len([line for line in lines if line.get("final")]) == len(asked)


async def test_a_run_whose_turn_fails_says_so_in_the_list(tmp_path: Path) -> None:
    """Its history has the error; changes that a nanobot of another user left, unreadable, end nothing."""
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        await told(tmp_path, "cron", "add", "--every", "1s", "--message", "[[refuse]]")
        (tmp_path / "cron" / "action.jsonl").mkdir()
        await daemon.said("letter.parked", 2)
        rows = json.loads(await told(tmp_path, "cron", "list", "--json"))
        (tmp_path / "cron" / "action.jsonl").rmdir()
        async with asyncio.timeout(90):
            history: list[dict[str, str]] = []
            while "error" not in {entry["status"] for entry in history}:
                (row,) = json.loads(await told(tmp_path, "cron", "list", "--json"))
                history = row["state"]["runHistory"]
        await told(tmp_path, "cron", "remove", row["id"])
        assert await daemon.stop() == 0

    assert ["problem" in row for row in rows] == [False, True]
    assert b"clock.crashed" not in daemon.log
    assert "refused" in {entry["error"] for entry in history}


async def test_an_outage_of_the_model_ends_in_one_run(tmp_path: Path) -> None:
    """Runs that wait for the model make way for the newest; a job that wants all of its runs keeps them."""
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        model.away = True
        await told(tmp_path, "cron", "add", "--every", "1s", "--message", "one is enough")
        await told(tmp_path, "cron", "add", "--every", "1s", "--missed", "all", "--message", "each of them")
        await daemon.said("run.replaced", 4)
        rows = json.loads(await told(tmp_path, "cron", "list", "--json"))
        for row in rows:
            await told(tmp_path, "cron", "disable", row["id"])
        model.away = False
        once, each = (row["id"] for row in sorted(rows, key=lambda row: "missed" in row["schedule"]))
        await until(lambda: len(answers(tmp_path, each)) >= 4, within_s=120)
        await until(lambda: len(answers(tmp_path, once)) >= 1, within_s=60)
        assert await daemon.stop() == 0

    # The run that was under way as the outage began, and the newest.
    assert len(answers(tmp_path, once)) <= 2


def answers(place: Path, job_id: str) -> list[dict[str, object]]:
    return [line for line in lines_of(place, f"cron_{job_id}") if line.get("final")]
