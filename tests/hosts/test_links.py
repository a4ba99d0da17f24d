"""Two and three daemons, the line of one of which is broken in every way that lines break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
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
PACE_S = 0.5
# Through such a line nothing comes.
SEVERS = ("deaf", "mute", "silence")


def chats() -> list[str]:
    """Name a chat of each partition."""
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(partition_of(slot_of(f"foreign:c{number}"), PARTITIONS), f"c{number}")
    return [found[partition] for partition in range(PARTITIONS)]


@dataclass
class Links:
    """Some daemons with their lines, and people who write: each the next message once one was answered."""

    workspace: Path
    client: Steady
    model: ModelServer
    daemons: Sequence[Daemon]
    lines: Sequence[Proxy]
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

    def replied(self) -> list[int]:
        """Count the turns that each daemon has ended."""
        return [daemon.log.count(b'"event":"turn.replied"') for daemon in self.daemons]

    async def all_even(self) -> None:
        """Write until each daemon has served its share of the partitions in one round."""

        async def even() -> bool:
            before = self.replied()
            await self.say()
            await until(lambda: sum(self.replied()) >= sum(before) + PARTITIONS)
            # As fast as people write; a round that finds them uneven is no reason to hurry.
            await asyncio.sleep(PACE_S)
            served = [after - each for after, each in zip(self.replied(), before, strict=True)]
            return served == [PARTITIONS // len(self.daemons)] * len(self.daemons)

        await until(even, 120)

    async def broken(self, name: str) -> None:
        """Break the line of the first daemon while people write, mend it, and wait for all to be even."""
        line, asked = self.lines[0], len(self.model.seen)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.say())
            # Turns run when it happens.
            await until(lambda: len(self.model.seen) > asked)
            break_line(line, name)
        before = self.replied()
        await self.say()
        if name in SEVERS:
            # Whatever the broken one ran before, it is served by the others now.
            assert self.replied()[0] == before[0]
        await line.resume()
        await self.all_even()

    def verify(self) -> None:
        """Nothing is lost, stored twice or out of its order, in the files as in what was told."""
        assert check(self.workspace, self.sent).sound
        for chat in chats():
            told = [
                reply["in_reply_to"] for reply in self.client.replies if reply["key"] == f"foreign:{chat}"
            ]
            assert list(dict.fromkeys(told)) == self.sent[f"foreign_{chat}"]
        texts = {(reply["id"], reply["text"]) for reply in self.client.replies}
        assert max(Counter(id_ for id_, _ in texts).values()) == 1


@asynccontextmanager
async def linked(workspace: Path, broker: Broker, name: str, *, count: int) -> AsyncIterator[Links]:
    """Start so many daemons; at the end they end in good order, and all is verified."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        model.delay_s = 0.3
        client = await stack.enter_async_context(Steady(broker.url, name=name))
        lines = [await stack.enter_async_context(Proxy(broker.port)) for _ in range(count)]
        config = with_model(model, **on(broker, name, partitions=PARTITIONS))
        config |= {"broker.heartbeat_s": 10, "facts.enabled": False}
        daemons = [
            Daemon(workspace, role="session", config=config | {"broker.url": url})
            for url in (broker.url.replace(str(broker.port), str(line.port)) for line in lines)
        ]
        async with asyncio.TaskGroup() as starts:
            for daemon in daemons:
                starts.create_task(stack.enter_async_context(daemon))
        links = Links(workspace, client, model, daemons, lines)
        await links.all_even()
        yield links
        for daemon in daemons:
            assert await daemon.stop() == 0
        links.verify()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2, 3])
async def test_whatever_becomes_of_a_line(
    tmp_path: Path, broker: Broker, broker_name: str, count: int
) -> None:
    """While people write nothing is lost, stored twice or reordered; each time all have their share again."""
    async with linked(tmp_path, broker, broker_name, count=count) as links:
        for harm in LINES:
            await links.broken(harm)
