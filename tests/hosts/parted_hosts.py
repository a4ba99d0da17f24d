"""Three gateways on hosts of their own: the one that works is killed, frozen and parted, while people write.

Run by ``test_namespaces.py`` in a network of its own: ``python -m tests.hosts.parted_hosts FOLDER``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.hosts.hosts import HUB, Hosts, ip
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.harness import Daemon
from tests.support.place import on
from tests.support.ports import KeptPort
from tests.support.postgres import Postgres
from tests.support.until import until
from tests.support.verdict import check

CHATS = ("c0", "c1", "c2", "c3", "c4", "c5")
# An address of the hub that the state database has for itself: a host can be cut off from it alone.
DATABASE = "10.77.0.200"
HEARTBEAT_S = 2
PACE_S = 0.3
# A gateway that says nothing lives for 20 s.
WITHIN_S = 60.0


class Team:
    """The gateways, of which one works."""

    def __init__(self, folder: Path, hosts: Hosts, config: dict[str, object]) -> None:
        self.hosts = hosts
        self.daemons = [
            Daemon(folder, role="session", config=config, prefix=hosts.prefix(number)) for number in range(3)
        ]

    async def start(self) -> None:
        await self.daemons[0].start()
        for number in (1, 2):
            await self.stand_by(number)

    async def stand_by(self, number: int) -> None:
        """Start one that finds the place taken."""
        daemon = self.daemons[number]
        daemon.log.clear()
        await daemon.start(wait=False)
        await daemon.said("state.standby")

    async def taken_over(self, former: int) -> int:
        """Wait until another one works; return its number."""
        others = [number for number in range(3) if number != former]

        def ready() -> list[int]:
            return [number for number in others if b"\nready" in self.daemons[number].log]

        (number,) = await until(ready, WITHIN_S)
        return number

    async def ended(self, number: int) -> None:
        """Wait until one notices that it was taken over, and have it stand by."""
        assert await self.daemons[number].died(WITHIN_S) == 69
        await self.stand_by(number)


class People:
    """They write into all chats, in turn, whatever happens."""

    def __init__(self, client: Steady) -> None:
        self.client = client
        self.sent: dict[str, list[str]] = {f"foreign_{chat}": [] for chat in CHATS}

    async def write(self) -> None:
        for number in itertools.count():
            for chat in CHATS:
                id_ = f"{chat}-{number}"
                await self.client.put(inbound(f"foreign:{chat}", id_, id_))
                self.sent[f"foreign_{chat}"].append(id_)
            await asyncio.sleep(PACE_S)

    async def all_answered(self) -> None:
        ids = [f"{id_}#reply" for ids in self.sent.values() for id_ in ids]
        await self.client.answered(*ids, within_s=WITHIN_S)


async def main(folder: Path) -> None:
    port = KeptPort()
    config_of_broker = (f"listeners.tcp.2 = {HUB}:{port.port}",)
    with Hosts(3) as hosts:
        ip("address", "add", f"{DATABASE}/32", "dev", "hub")
        with Broker(config=config_of_broker) as broker, Postgres(address=DATABASE) as postgres:
            broker.user("far", "far")
            config: dict[str, object] = on(f"amqp://far:far@{HUB}:{port.port}/", "chat", partitions=4)
            config |= {
                "broker.heartbeat_s": HEARTBEAT_S,
                "state.url": postgres.url,
                "model.echo_delay_s": 0.2,
            }
            team = Team(folder, hosts, config)
            async with Steady(broker.url) as client:
                await harmed(team, People(client), folder)


async def harmed(team: Team, people: People, folder: Path) -> None:
    await team.start()
    writing = asyncio.create_task(people.write())
    try:
        works = 0
        for harm in (killed, frozen, parted, without_database, without_broker):
            await until(lambda: all(len(ids) % 3 == 2 for ids in people.sent.values()), WITHIN_S)
            works = await harm(team, works)
    finally:
        writing.cancel()
        await asyncio.wait([writing])
    await people.all_answered()
    for daemon in team.daemons:
        await daemon.stop()
    report(team.daemons, people, folder)


async def killed(team: Team, works: int) -> int:
    await team.daemons[works].kill()
    other = await team.taken_over(works)
    await team.stand_by(works)
    return other


async def frozen(team: Team, works: int) -> int:
    await team.daemons[works].freeze()
    other = await team.taken_over(works)
    team.daemons[works].signal(signal.SIGCONT)
    await team.ended(works)
    return other


async def parted(team: Team, works: int) -> int:
    """Neither the database nor the broker is reached."""
    team.hosts.unplug(works)
    other = await team.taken_over(works)
    team.hosts.plug_in(works)
    await team.ended(works)
    return other


async def without_database(team: Team, works: int) -> int:
    """The broker is reached: it would hand the messages to nobody else as long as this one takes them."""
    return await _without(DATABASE, team, works)


async def without_broker(team: Team, works: int) -> int:
    """The database is reached, so that nobody can take it over as long as this one works."""
    return await _without(HUB, team, works)


async def _without(address: str, team: Team, works: int) -> int:
    hole = ("blackhole", f"{address}/32")
    ip("route", "add", *hole, prefix=team.hosts.prefix(works))
    assert await team.daemons[works].died(WITHIN_S) == 69
    other = await team.taken_over(works)
    ip("route", "del", *hole, prefix=team.hosts.prefix(works))
    await team.stand_by(works)
    return other


def report(daemons: Sequence[Daemon], people: People, folder: Path) -> None:
    """Print what the test compares."""
    wrong = [reply["text"] for reply in people.client.replies if not reply["text"].startswith("echo: c")]
    parked = sum(daemon.log.count(b"letter.parked") for daemon in daemons)
    verdict = check(folder, people.sent)
    print(json.dumps({**asdict(verdict), "wrong": wrong, "parked": parked}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
