"""Two daemons on hosts of their own, one of which is parted from the broker in mid-turn, and joined again.

Run by ``test_namespaces.py`` in a network of its own: ``python -m tests.hosts.parted_hosts FOLDER``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.hosts.hosts import HUB, Hosts
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.harness import Daemon
from tests.support.place import contents, on, transcript
from tests.support.ports import KeptPort
from tests.support.until import until

PARTITIONS = 4
HEARTBEAT_S = 2
# Longer than it takes until the other one has the turns of the parted one.
TURN_S = 9.0


def chats() -> list[str]:
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(partition_of(slot_of(f"foreign:c{number}"), PARTITIONS), f"c{number}")
    return list(found.values())


async def main(folder: Path) -> None:
    port = KeptPort()
    with Hosts(2) as hosts, Broker(config=(f"listeners.tcp.2 = {HUB}:{port.port}",)) as broker:
        broker.user("far", "far")
        config = on(f"amqp://far:far@{HUB}:{port.port}/", "chat", partitions=PARTITIONS)
        config |= {"broker.heartbeat_s": HEARTBEAT_S, "model.echo_delay_s": TURN_S}
        one, other = (
            Daemon(folder, role="session", config=config, prefix=hosts.prefix(number)) for number in range(2)
        )
        async with Steady(broker.url) as client, one, other:

            async def say(round_: int) -> list[str]:
                ids = [f"{chat}-{round_}" for chat in chats()]
                for chat, id_ in zip(chats(), ids, strict=True):
                    await client.put(inbound(f"foreign:{chat}", id_, id_))
                return [f"{id_}#reply" for id_ in ids]

            await one.said('"event":"queue.moved"', PARTITIONS // 2)
            replies = await say(0)
            await until(lambda: all(stored(folder, chat, f"{chat}-0") for chat in chats()), 60)
            hosts.unplug(0)
            await client.answered(*replies)
            # It has not heard of it, ends its turns, and meets the fence.
            await one.said('"event":"turn.fenced"', PARTITIONS // 2)
            hosts.plug_in(0)
            await one.said('"event":"broker.connected"', 2)
            await other.said('"event":"queue.moved"', PARTITIONS // 2)
            await client.answered(*await say(1))
            assert await one.stop() == 0
            assert await other.stop() == 0
        report(folder, client, (one, other))


def stored(folder: Path, chat: str, id_: str) -> bool:
    path = transcript(folder, f"foreign_{chat}")
    return path.exists() and id_ in path.read_text()


def report(folder: Path, client: Steady, daemons: Iterable[Daemon]) -> None:
    """Print what the test compares."""
    told = [reply["text"] for reply in client.replies]
    found = {chat: contents(folder, f"foreign_{chat}") for chat in chats()}
    fenced = [daemon.log.count(b'"event":"turn.fenced"') for daemon in daemons]
    replied = [daemon.log.count(b'"event":"turn.replied"') for daemon in daemons]
    print(json.dumps({"stored": found, "told": sorted(told), "fenced": fenced, "replied": replied}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
