"""A whole gateway ends a silent session, sums it up, names it, and goes back to it, over both brokers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from session.turn.commands import REOPENED
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, contents, head_of, is_named, lines_of, on, transcript, with_model
from tests.support.until import until
from tests.support.verdict import check

IDLE: dict[str, Any] = {"session.idle_hours": 4}


class Chat:
    """One conversation, over HTTP or as a foreign program on RabbitMQ."""

    def __init__(self, workspace: Path, daemon: Daemon, client: Steady | None) -> None:
        self.key = "web:ann" if client is None else "foreign:ann"
        self.stem = self.key.replace(":", "_")
        self._workspace = workspace
        self._daemon = daemon
        self._client = client

    async def say(self, id_: str, text: str, **fields: Any) -> str:
        if self._client is None:
            answer = await ask(self._daemon, self.key, id_, text)
            assert answer is not None
            assert answer["kind"] == "reply"
            return str(answer["reply"])
        await self._client.put(inbound(self.key, id_, text, **fields))
        return (await self._client.answered(f"{id_}#reply"))[f"{id_}#reply"]

    async def notices(self) -> list[str]:
        """The ids of the notices that the chat was told, in order."""
        if self._client is not None:
            return [reply["id"] for reply in self._client.replies if reply["kind"] == "notice"]
        return [event["id"] for event in await told(self._daemon, self.key) if event["kind"] == "notice"]

    def silent_for(self, hours: float) -> None:
        """Let all that was said in the active session have been said so much earlier."""
        age(self._workspace / "sessions" / f"{self.stem}.jsonl", hours)

    def ended(self) -> list[dict[str, Any]]:
        return metadata(self._workspace, self.stem)


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


async def told(daemon: Daemon, key: str) -> list[dict[str, Any]]:
    """What the chat was told, as a client that comes late reads it."""
    found: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=30) as client:
        last = {"Last-Event-ID": "0"}
        async with client.stream("GET", f"{daemon.url}/v1/events?key={key}", headers=last) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    found.append(json.loads(line.removeprefix("data:")))
                    if found[-1]["kind"] == "reply" and found[-1]["in_reply_to"].endswith("last"):
                        return found
    return found


@asynccontextmanager
async def chatting(
    kind: str, workspace: Path, model: ModelServer, broker: Broker, name: str
) -> AsyncIterator[Chat]:
    config = with_model(model, **IDLE)
    async with AsyncExitStack() as stack:
        client = None
        if kind == "rabbitmq":
            config |= on(broker, name)
        role = "all" if kind == "embedded" else "session"
        daemon = await stack.enter_async_context(Daemon(workspace, role=role, config=config))
        if kind == "rabbitmq":
            client = await stack.enter_async_context(Steady(broker.url, name=name))
        yield Chat(workspace, daemon, client)
        assert await daemon.stop() == 0


def said(model: ModelServer) -> list[str]:
    """The history of the newest request, without what the gateway put before its newest message."""
    history = [str(line["content"]) for line in model.turns[-1].messages if line["role"] != "system"]
    return [*history[:-1], history[-1].rpartition("</gateway-context>")[2].strip()]


@pytest.mark.parametrize("kind", ["embedded", "rabbitmq"])
async def test_a_session_ends_for_silence_is_summed_up_and_taken_back(
    tmp_path: Path, kind: str, broker: Broker, broker_name: str
) -> None:
    async with (
        ModelServer() as model,
        chatting(kind, tmp_path, model, broker, broker_name) as chat,
    ):
        assert await chat.say("1", "one") == "stub: one"
        await until(lambda: is_named(tmp_path, chat.stem), 120)

        chat.silent_for(5)
        assert await chat.say("2", "two") == "stub: two"
        assert said(model) == ["two"]
        system = model.turns[-1].messages[0]["content"]
        assert "] It ended with the question: one" in system or "] Summary" in system
        await until(lambda: [one.get("summary", "")[:7] for one in chat.ended()] == ["Summary"], 120)
        (summary,) = (one["summary"] for one in chat.ended())
        assert await chat.say("3", "three") == "stub: three"
        assert f"] {summary}" in model.turns[-1].messages[0]["content"]
        _, listed = await command(tmp_path, "sessions", "list", "--json")
        assert "Name 1" in [row["name"] for row in json.loads(listed)]

        assert await chat.say("4", "/resume") == REOPENED.format(" (Name 1)", 6)
        assert await chat.say("last", "five") == "stub: five"
        assert said(model) == ["one", "stub: one", "two", "stub: two", "three", "stub: three", "five"]
        assert [id_.rpartition(":")[2] for id_ in await chat.notices()] == ["2#notice.idle"]
        assert chat.ended() == []
    ids = ["1", "2", "3", "last"]
    assert check(tmp_path, {chat.stem: [f"web:{i}" if kind == "embedded" else i for i in ids]}).sound


async def test_what_waited_in_the_queue_is_measured_by_its_reception(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Put hours late into a queue, a message belongs to the talk in which it was received."""
    async with (
        ModelServer() as model,
        chatting("rabbitmq", tmp_path, model, broker, broker_name) as chat,
    ):
        await chat.say("1", "one")
        # Nobody else writes the file from here on.
        await until(lambda: is_named(tmp_path, chat.stem), 120)
        chat.silent_for(30)
        line = lines_of(tmp_path, chat.stem)[-1]
        received = datetime.fromisoformat(line["timestamp"]) + timedelta(hours=3)
        await chat.say("2", "two", received_at=received.isoformat())

        assert said(model) == ["one", "stub: one", "two"]
        assert await chat.notices() == []


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
            answer = await ask(daemon, "web:ann", "last", "two")
            assert answer is not None
            assert answer["reply"] == "stub: two"
            events = await told(daemon, "web:ann")
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
