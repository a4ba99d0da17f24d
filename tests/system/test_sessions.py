"""A whole gateway ends a silent session, sums it up, names it, and goes back to it, over both brokers."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from session.turn.commands import REOPENED
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, contents, head_of, is_named, lines_of, on, transcript, with_model
from tests.support.until import until
from tests.support.verdict import check

IDLE: dict[str, Any] = {"session.idle_hours": 4}


KEY, STEM = "web:ann", "web_ann"


async def say(daemon: Daemon, id_: str, text: str) -> str:
    answer = await answer_to(daemon, KEY, id_, text)
    assert answer["kind"] == "reply"
    return str(answer["reply"])


def age(path: Path, hours: float) -> None:
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        at = datetime.fromisoformat(line["timestamp"]) - timedelta(hours=hours)
        line["timestamp"] = at.isoformat(timespec="microseconds")
    new = path.with_suffix(".aged")
    new.write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]))
    new.rename(path)


def metadata(workspace: Path, stem: str) -> list[dict[str, Any]]:
    """Line 1's metadata of the ended sessions, oldest first."""
    return [head_of(path)["metadata"] for path in archives(workspace, stem)]


async def told(daemon: Daemon, key: str = KEY, last: str = "last") -> list[dict[str, Any]]:
    """What a chat was told up to the answer to its message ``last``, as a client that comes late reads it."""
    found: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=30) as client:
        first = {"Last-Event-ID": "0"}
        async with client.stream("GET", f"{daemon.url}/v1/events?key={key}", headers=first) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    found.append(json.loads(line.removeprefix("data:")))
                    if found[-1]["kind"] == "reply" and found[-1]["in_reply_to"].endswith(last):
                        return found
    return found


def said(model: ModelServer) -> list[str]:
    """The history of the newest request, without what the gateway put before its newest message."""
    history = [str(line["content"]) for line in model.turns[-1].messages if line["role"] != "system"]
    return [*history[:-1], history[-1].rpartition("</gateway-context>")[2].strip()]


async def test_a_session_ends_for_silence_is_summed_up_and_taken_back(
    tmp_path: Path, queue: dict[str, Any]
) -> None:
    async with (
        ModelServer() as model,
        Daemon(tmp_path, config=with_model(model, **IDLE, **queue)) as daemon,
    ):
        assert await say(daemon, "1", "one") == "stub: one"
        await until(lambda: is_named(tmp_path, STEM), 120)

        age(transcript(tmp_path, STEM), 5)
        assert await say(daemon, "2", "two") == "stub: two"
        assert said(model) == ["two"]
        system = model.turns[-1].messages[0]["content"]
        assert "] It ended with the question: one" in system or "] Summary" in system
        await until(lambda: [one.get("summary", "")[:7] for one in metadata(tmp_path, STEM)] == ["Summary"])
        (summary,) = (one["summary"] for one in metadata(tmp_path, STEM))
        assert await say(daemon, "3", "three") == "stub: three"
        assert f"] {summary}" in model.turns[-1].messages[0]["content"]
        _, listed = await command(tmp_path, "sessions", "list", "--json")
        assert "Name 1" in [row["name"] for row in json.loads(listed)]

        assert await say(daemon, "4", "/resume") == REOPENED.format(" (Name 1)", 6)
        assert await say(daemon, "last", "five") == "stub: five"
        assert said(model) == ["one", "stub: one", "two", "stub: two", "three", "stub: three", "five"]
        notices = [event["id"] for event in await told(daemon) if event["kind"] == "notice"]
        assert notices == ["web:2#notice.idle"]
        assert metadata(tmp_path, STEM) == []
        assert await daemon.stop() == 0
    assert check(tmp_path, {STEM: [f"web:{i}" for i in ("1", "2", "3", "last")]}).sound


async def test_what_waited_in_the_queue_is_measured_by_its_reception(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Put hours late into a queue, a message belongs to the talk in which it was received."""
    async with ModelServer() as model:
        config = with_model(model, **IDLE, **on(broker, broker_name))
        async with (
            Daemon(tmp_path, role="session", config=config),
            Steady(broker.url, name=broker_name) as client,
        ):
            await client.put(inbound("foreign:ann", "1", "one"))
            # Nobody else writes the file once it has its name.
            await until(lambda: is_named(tmp_path, "foreign_ann"), 120)
            age(transcript(tmp_path, "foreign_ann"), 30)
            line = lines_of(tmp_path, "foreign_ann")[-1]
            received = datetime.fromisoformat(line["timestamp"]) + timedelta(hours=3)
            await client.put(inbound("foreign:ann", "2", "two", received_at=received.isoformat()))
            await client.answered("1#reply", "2#reply")

            assert said(model) == ["one", "stub: one", "two"]
            assert [reply["kind"] for reply in client.replies] == ["reply", "reply"]


POINTS = [
    "checkpoint.after:1",
    "checkpoint.after:2",
    "append.after:1",
    "state_file.after:1",
    "settle.before:1",
]


@guarantee("once", "A session that ends after silence ends once and announces it once, across kills.")
@pytest.mark.parametrize("point", POINTS)
async def test_a_boundary_over_a_kill_is_drawn_and_told_once(tmp_path: Path, point: str) -> None:
    """Wherever it dies, the message is asked once more at most, behind one boundary, told under one id."""
    async with ModelServer() as model:
        config = with_model(model, **IDLE)
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, "web:ann", "1", "one")
            await until(lambda: is_named(tmp_path, "web_ann"), 120)
            assert await daemon.stop() == 0
        age(transcript(tmp_path, "web_ann"), 5)

        async with Daemon(tmp_path, config=config, kill_at=point) as dying:
            first = asyncio.create_task(ask(dying, "web:ann", "last", "two", wait_s=20))
            assert await dying.died() == -signal.SIGKILL
            await first
        async with Daemon(tmp_path, config=config) as daemon:
            answer = await answer_to(daemon, "web:ann", "last", "two")
            assert answer["reply"] == "stub: two"
            events = await told(daemon)
            await until(
                lambda: [bool(one.get("summary")) for one in metadata(tmp_path, "web_ann")] == [True], 120
            )
            assert await daemon.stop() == 0

    assert [event["id"] for event in events] == ["web:1#reply", "web:last#notice.idle", "web:last#reply"]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert contents(tmp_path, "web_ann") == ["one", "stub: one", "two", "stub: two"]
    assert len(model.turns) <= 3


async def test_the_one_message_of_a_chat_without_a_daemon_is_named_in_the_end(tmp_path: Path) -> None:
    """The process that answered it is gone before the model was asked for a name; the next daemon asks."""
    async with ModelServer() as model:
        config = with_model(model)
        code, said = await command(tmp_path, "chat", "-m", "hello", "--key", "cli:ann", config=config)
        async with Daemon(tmp_path, config=config) as daemon:
            jobs = tmp_path / "state" / "jobs"
            await until(lambda: is_named(tmp_path, "cli_ann"), 120)
            await until(lambda: not list(jobs.glob("*.json")), 120)
            assert await daemon.stop() == 0

    assert (code, said) == (0, "stub: hello\n")
    assert list(jobs.glob("*.json")) == []
