"""A gateway, alone and with workers, whose line to the broker is broken in every way that lines break."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import on, with_model
from tests.support.proxy import LINES, Proxy, break_line
from tests.support.until import until
from tests.support.verdict import check

pytestmark = guarantee(
    "loss", "A slow, silent or broken network link to the broker loses and reorders no message."
)

PARTITIONS = 6
BROKEN_S = 8.0


def chats() -> list[str]:
    """Name a chat of each partition."""
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(partition_of(slot_of(f"foreign:c{number}"), PARTITIONS), f"c{number}")
    return [found[partition] for partition in range(PARTITIONS)]


@dataclass
class People:
    """They write in a chat of each partition, the next message once all were answered."""

    client: Steady
    sent: dict[str, list[str]] = field(default_factory=dict)

    async def say(self) -> None:
        """Write one message in each chat, and return when all are answered."""
        ids = []
        for chat in chats():
            mine = self.sent.setdefault(f"foreign_{chat}", [])
            mine.append(f"{chat}-{len(mine)}")
            ids.append(mine[-1])
            await self.client.put(inbound(f"foreign:{chat}", mine[-1], mine[-1]))
        await self.client.answered(*(f"{id_}#reply" for id_ in ids), within_s=120)

    def verify(self, workspace: Path) -> None:
        """Nothing is lost, stored twice or out of its order, in the files as in what was told."""
        assert check(workspace, self.sent).sound
        for chat in chats():
            told = [
                reply["in_reply_to"] for reply in self.client.replies if reply["key"] == f"foreign:{chat}"
            ]
            assert list(dict.fromkeys(told)) == self.sent[f"foreign_{chat}"]
        texts = {(reply["id"], reply["text"]) for reply in self.client.replies}
        assert max(Counter(id_ for id_, _ in texts).values()) == 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [1, 2])
async def test_whatever_becomes_of_a_line(
    tmp_path: Path, broker: Broker, broker_name: str, count: int
) -> None:
    """While people write nothing is lost, stored twice or reordered; once it is mended all are answered."""
    async with (
        ModelServer() as model,
        Steady(broker.url, name=broker_name) as client,
        Proxy(broker.port) as line,
    ):
        model.delay_s = 0.3
        people = People(client)
        config = with_model(model, **on(broker, broker_name, partitions=PARTITIONS))
        config |= {"broker.heartbeat_s": 2, "facts.enabled": False, "limits.workers": count}
        config["broker.url"] = broker.url.replace(str(broker.port), str(line.port))
        async with Daemon(tmp_path, role="session", config=config) as daemon:
            await people.say()
            for harm in LINES:
                asked = len(model.seen)
                async with asyncio.TaskGroup() as group:
                    group.create_task(people.say())
                    # Turns run when it happens.
                    await until(lambda asked=asked: len(model.seen) > asked)
                    break_line(line, harm)
                    # Longer than it takes until either end gives the connection up.
                    await asyncio.sleep(BROKEN_S)
                    await line.resume()
                await people.say()
            assert await daemon.stop() == 0
        people.verify(tmp_path)
