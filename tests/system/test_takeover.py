"""One daemon takes over from another that was killed or frozen: at once, and asks nothing without need."""

from __future__ import annotations

import signal
from asyncio import Event
from collections import Counter
from pathlib import Path

import pytest

from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, transcript, with_model
from tests.support.until import until
from tests.support.verdict import check

PARTITIONS = 8
NO_JOBS = {"facts.enabled": False, "memory.window": 100_000}


def chats(each: int) -> list[str]:
    """Name ``each`` chats of each partition, those of one partition in a row."""
    found: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    for number in range(10_000):
        mine = found[partition_of(slot_of(f"foreign:c{number}"), PARTITIONS)]
        if len(mine) < each:
            mine.append(f"c{number}")
    return [chat for mine in found.values() for chat in mine]


class Talk:
    """Messages that are put, and what the model was asked for; nothing is answered before ``go`` is set."""

    def __init__(self, client: Steady, model: ModelServer) -> None:
        self.client, self.model = client, model
        self.go = Event()
        self.sent: dict[str, list[str]] = {}
        model.chooses = lambda seen: Reply(f"re {seen.text}", held=self.go)

    async def say(self, *chats: str) -> None:
        for chat in chats:
            ids = self.sent.setdefault(f"foreign_{chat}", [])
            ids.append(f"{chat}-{len(ids)}")
            await self.client.put(inbound(f"foreign:{chat}", ids[-1], ids[-1]))

    def asked(self) -> Counter[str]:
        """Count the requests for each message."""
        return Counter(seen.text.splitlines()[-1] for seen in self.model.turns)

    async def all_answered(self) -> None:
        ids = [id_ for of in self.sent.values() for id_ in of]
        await self.client.answered(*(f"{id_}#reply" for id_ in ids))


@guarantee("loss", "All turns that a crash interrupted resume side by side, in another process as well.")
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_all_turns_of_a_killed_daemon_go_on_side_by_side(
    tmp_path: Path, broker: Broker, broker_name: str, queue_type: str
) -> None:
    """64 turns run when kill -9 ends their daemon: the other one asks for all of them, waiting for none."""
    names = chats(64 // PARTITIONS)
    async with ModelServer() as model, Steady(broker.url, name=broker_name) as client:
        talk = Talk(client, model)
        config = with_model(model, **on(broker, broker_name, partitions=PARTITIONS), **NO_JOBS)
        config["broker.queue_type"] = queue_type
        first, second = (Daemon(tmp_path, role="session", config=config) for _ in range(2))
        async with first, second:
            await talk.say(*names)
            await until(lambda: len(talk.asked()) == len(names), 60)
            await first.kill()
            # The broker's heartbeat, twice 10 s at least, has no part in it.
            await until(lambda: min(talk.asked().values()) == 2, 15)
            assert set(talk.asked().values()) == {2}
            talk.go.set()
            await talk.all_answered()
            assert await second.stop() == 0

    assert check(tmp_path, talk.sent).sound
    assert set(talk.asked().values()) == {2}


@guarantee("writer", "A frozen process that wakes after a take-over writes nothing and sends no request.")
async def test_a_frozen_daemon_wakes_and_does_nothing(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Its partitions go to the other when the broker misses it; awake again it writes and asks nothing."""
    by_two = chats(2)
    running, later = by_two[::2], by_two[1::2]
    async with ModelServer() as model, Steady(broker.url, name=broker_name) as client:
        talk = Talk(client, model)
        config = with_model(model, **on(broker, broker_name, partitions=PARTITIONS), **NO_JOBS)
        config["broker.heartbeat_s"] = 2
        one, other = (Daemon(tmp_path, role="session", config=config) for _ in range(2))
        async with one, other:
            # Each has its half.
            await one.said('"event":"queue.moved"', PARTITIONS // 2)
            await talk.say(*running)
            await until(lambda: len(talk.asked()) == len(running))
            await one.freeze()
            # The broker still hands it these.
            await talk.say(*later)
            await until(lambda: len(talk.asked()) == len(by_two), 60)
            await until(lambda: talk.asked().total() == len(by_two) + len(running) // 2, 60)
            # A question is stored a moment after the model was asked.
            await until(lambda: all(f'"{chat}-0"'.encode() in stored(tmp_path, chat) for chat in by_two))
            before = written(tmp_path)
            one.signal(signal.SIGCONT)
            await one.said('"event":"broker.connected"', 2)
            # The other one met it, missed it and meets it again.
            await other.said('"event":"daemons.changed"', 3)

            assert written(tmp_path) == before
            talk.go.set()
            await talk.all_answered()
            await talk.say(*by_two)
            await talk.all_answered()
            assert await one.stop() == 0
            assert await other.stop() == 0

    assert check(tmp_path, talk.sent).sound
    asked = talk.asked()
    assert {chat: asked[f"{chat}-0"] for chat in later} == dict.fromkeys(later, 1)
    assert sorted(asked[f"{chat}-0"] for chat in running) == [1] * 4 + [2] * 4
    assert all(asked[f"{chat}-1"] == 1 for chat in by_two)


def stored(workspace: Path, chat: str) -> bytes:
    path = transcript(workspace, f"foreign_{chat}")
    return path.read_bytes() if path.exists() else b""


def written(workspace: Path) -> dict[str, bytes]:
    """Read all that a turn writes."""
    folders = (workspace / "sessions", workspace / "state" / "keys")
    return {
        str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()
    }
