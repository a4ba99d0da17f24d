"""A worker that is killed in the middle of many turns is replaced, and all of them go on at once."""

from __future__ import annotations

import os
import signal
from asyncio import Event
from collections import Counter
from collections.abc import Collection
from itertools import islice
from pathlib import Path

import pytest

from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.gateway_team import workers
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.support.until import until
from tests.support.verdict import check

PARTITIONS = 8
NO_JOBS = {"facts.enabled": False, "memory.window": 100_000}


def chats(count: int, partitions: Collection[int]) -> list[str]:
    """Name chats of these partitions."""
    found = (f"c{number}" for number in range(10_000))
    mine = (c for c in found if partition_of(slot_of(f"foreign:{c}"), PARTITIONS) in partitions)
    return list(islice(mine, count))


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
async def test_all_turns_of_a_killed_worker_go_on_side_by_side(
    tmp_path: Path, broker: Broker, broker_name: str, queue_type: str
) -> None:
    """64 turns run when kill -9 ends their worker: the next one asks for all of them, waiting for none."""
    async with ModelServer() as model, Steady(broker.url, name=broker_name) as client:
        talk = Talk(client, model)
        config = with_model(model, **on(broker, broker_name, partitions=PARTITIONS), **NO_JOBS)
        config |= {"broker.queue_type": queue_type, "limits.workers": 2}
        async with Daemon(tmp_path, role="session", config=config) as daemon:
            before = await workers(daemon)
            assert [row["partitions"] for row in before] == [[0, 2, 4, 6], [1, 3, 5, 7]]
            names, neighbour = chats(64, before[0]["partitions"]), chats(1, before[1]["partitions"])
            await talk.say(*names, *neighbour)
            await until(lambda: len(talk.asked()) == 65, 60)
            os.kill(before[0]["pid"], signal.SIGKILL)
            # The broker's heartbeat, twice 10 s at least, has no part in it.
            await until(lambda: all(talk.asked()[f"{name}-0"] == 2 for name in names), 15)
            after = await workers(daemon)
            assert [row["partitions"] for row in after] == [row["partitions"] for row in before]
            assert after[0]["pid"] != before[0]["pid"]
            assert after[1]["pid"] == before[1]["pid"]
            talk.go.set()
            await talk.all_answered()
            assert await daemon.stop() == 0

    assert check(tmp_path, talk.sent).sound
    assert talk.asked() == {f"{name}-0": 2 for name in names} | {f"{neighbour[0]}-0": 1}
