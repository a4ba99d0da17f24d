"""Whole gateways with jobs that people make in their chats: made once, run once, changed by their owners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, told, with_telegram

BOB = 87654321
GROUP = -100777
TOOLS = ["schedule"]


def call(action: str, **arguments: Any) -> str:
    return f"[[tool:schedule {json.dumps({'action': action, **arguments})}]]"


def soon(seconds: float = 6) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def texts(server: TelegramServer, chat: int = ADA) -> list[str]:
    return [sent.text for sent in server.sent_to(chat)]


async def jobs(workspace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await told(workspace, "cron", "list", "--json"))
    return found


async def until_jobs(workspace: Path, fits: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    async with asyncio.timeout(90):
        while not fits(found := await jobs(workspace)):
            pass
    return found


def results(workspace: Path, stem: str) -> list[str]:
    return [line["content"] for line in lines_of(workspace, stem) if line["role"] == "tool"]


# -- made in a chat ------------------------------------------------------------------------------------


async def test_a_reminder_made_in_a_chat_comes_there_as_part_of_the_conversation(tmp_path: Path) -> None:
    """It runs in the chat's own lane: the model sees what was said before, and who asks; then it is gone.

    Of a job of its own session the other chat sees the answer alone.
    """
    async with TelegramServer() as server, ModelServer() as model:
        for chat in (ADA, BOB):
            server.add_chat(chat)
        async with Daemon(tmp_path, config=with_model(model, **with_telegram(server))):
            server.write(ADA, f"remind me {call('add', at=soon(), message='call mum')}")
            server.write(BOB, f"do it {call('add', at=soon(), message='look', session='job')}")
            for chat in (ADA, BOB):
                await server.until(lambda chat=chat: len(server.sent_to(chat)) == 2, timeout_s=120)
            assert await until_jobs(tmp_path, lambda rows: not rows) == []
        (asked,) = (seen.messages for seen in model.turns if seen.text.endswith("call mum"))

    assert texts(server, BOB) == ["stub: do it", "stub: look"]
    assert len(lines_of(tmp_path, f"telegram_{BOB}")) == 4
    (own,) = (tmp_path / "sessions").glob("cron_*.jsonl")
    assert "look" in own.read_text()
    assert "call mum" not in own.read_text()
    assert texts(server) == ["stub: remind me", "stub: call mum"]
    said = [(line["role"], line.get("message_id", "")) for line in lines_of(tmp_path, f"telegram_{ADA}")]
    assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert all(message_id.startswith("cron:") for _, message_id in said[4:])
    assert "remind me" in str(asked[:-1])
    assert "asked by: the clock, for the job “call mum” that was due at 2" in asked[-1]["content"]
    assert asked[-1]["content"].endswith("call mum")


@guarantee("once", "A job that is requested in a chat is created once, wherever the gateway is killed.")
@pytest.mark.parametrize("point", ["tool.before:1", "jobs.before:1", "jobs.after:1", "tool.after:1"])
async def test_a_kill_while_a_job_is_made_makes_it_at_most_once(tmp_path: Path, point: str) -> None:
    """In the write, before it and behind it: the turn goes on, the same wish again makes no second job."""
    add = call("add", at="2099-01-01T09:00", message="party")
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        config = with_model(model, **with_telegram(server))
        async with Daemon(tmp_path, config=config, kill_at=point) as daemon:
            # Told that nobody knows what came of it, the model asks for the same again.
            server.write(ADA, f"plan {add} {add}")
            await daemon.reborn()
            await server.until(lambda: len(server.sent_to(ADA)) == 1, timeout_s=120)
            (row,) = await jobs(tmp_path)

    assert texts(server) == ["stub: plan"]
    first, second = results(tmp_path, f"telegram_{ADA}")
    assert first == "outcome unknown: interrupted"
    assert second.startswith(f"job {row['id']} created: at 2099-01-01 09:00 UTC")
    assert row["payload"]["owner"]["chat"] == f"telegram:{ADA}"
    assert row["payload"]["owner"]["id"] == str(ADA)


@guarantee("once", "Each run of a job is answered once, wherever the gateway is killed.")
@pytest.mark.parametrize(
    ("queue", "point"),
    [
        ("rabbitmq", "publish.after:1"),
        *(("embedded", at) for at in ("ask.before:1", "append.after:1", "settle.before:1", "settle.after:1")),
    ],
    indirect=["queue"],
)
async def test_a_kill_in_a_run_answers_it_once(tmp_path: Path, queue: dict[str, Any], point: str) -> None:
    """A job in its chat's lane, between two messages, dies in the midst of its turn."""
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        config = with_model(model, **with_telegram(server), **queue)
        async with Daemon(tmp_path, config=config) as quiet:
            server.write(ADA, f"one {call('add', at=soon(8), message='the job')}")
            await quiet.said("letter.delivered")
            await quiet.stop()
        async with Daemon(tmp_path, config=config, kill_at=point) as daemon:
            await daemon.reborn()
            await server.until(lambda: len(server.sent_to(ADA)) >= 2, timeout_s=120)
            server.write(ADA, "two")
            await server.until(lambda: len(server.sent_to(ADA)) >= 3, timeout_s=120)

    assert texts(server) == ["stub: one", "stub: the job", "stub: two"]
    lines = lines_of(tmp_path, f"telegram_{ADA}")
    assert [line["content"] for line in lines if line["role"] == "user"][1:] == ["the job", "two"]


# -- who may change what -------------------------------------------------------------------------------


@guarantee(
    "security", "A job is changed only by its owner, its direct chat, approved people and the command line."
)
async def test_a_stranger_in_a_group_removes_no_job_of_another(tmp_path: Path) -> None:
    """A forged call in Bob's name changes nothing; Ada's own does, and of another chat nobody sees any."""
    async with TelegramServer() as server, ModelServer() as model:
        for chat in (ADA, BOB):
            server.add_chat(chat)
        server.add_chat(GROUP, type="supergroup")
        more = {"tools.groups": TOOLS, **with_telegram(server, groups="all")}
        async with Daemon(tmp_path, config=with_model(model, **more)):
            server.write(GROUP, f"a {call('add', every='1d', message='water the plants')}", user=ADA)
            await server.until(lambda: len(server.sent_to(GROUP)) == 1, timeout_s=120)
            (row,) = await jobs(tmp_path)
            forged = call("remove", id=row["id"])
            server.write(GROUP, f"b {call('list')} {forged}", user=BOB)
            await server.until(lambda: len(server.sent_to(GROUP)) == 2, timeout_s=120)
            server.write(BOB, f"c {call('list')} {forged}")
            await server.until(lambda: len(server.sent_to(BOB)) == 1, timeout_s=120)
            assert [each["id"] for each in await jobs(tmp_path)] == [row["id"]]
            server.write(GROUP, f"d {forged}", user=ADA)
            await server.until(lambda: len(server.sent_to(GROUP)) == 3, timeout_s=120)
            assert await jobs(tmp_path) == []

    made, listed, refused, removed = results(tmp_path, f"telegram_{GROUP}")
    assert made.startswith(f"job {row['id']} created: every 1d")
    assert row["id"] in listed
    assert "water the plants" in listed
    assert refused.startswith("error: ")
    assert "can change the job" in refused
    assert removed == f"job {row['id']} removed"
    assert results(tmp_path, f"telegram_{BOB}") == [
        "this chat has no jobs",
        f"error: this chat has no job {row['id']}; list shows the jobs of this chat",
    ]


@guarantee("security", "A running job creates no jobs and can end only itself.")
async def test_a_job_makes_no_jobs_but_may_end_itself(tmp_path: Path) -> None:
    """A chain of jobs cannot grow: in the turn of a job nothing is added; it removes none but itself."""
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        async with Daemon(tmp_path, config=with_model(model, **with_telegram(server))):
            # What Telegram says of the chat is known from its first message on.
            server.write(ADA, "hi")
            await server.until(lambda: texts(server) == ["stub: hi"], timeout_s=120)
            to = ("--to", f"telegram:{ADA}", "--session", "chat")
            other = await told(tmp_path, "cron", "add", "--every", "1d", "--message", "x", *to)
            forged = f"{call('add', every='1d', message='more')} {call('remove', id=other.strip())}"
            await told(tmp_path, "cron", "add", "--at", soon(8), "--message", f"go {forged}", *to)
            await server.until(lambda: texts(server)[1:] == ["stub: go"], timeout_s=120)
            rows = await jobs(tmp_path)

    assert sorted(row["payload"]["message"][:2] for row in rows) == ["go", "x"]
    made, removed = results(tmp_path, f"telegram_{ADA}")
    assert made.startswith("error: a scheduled job cannot create jobs")
    assert removed.startswith("error: ")
