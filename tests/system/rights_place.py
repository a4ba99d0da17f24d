"""Users of the broker with the rights of their roles, made as the page says, and what they may not do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelAccessRefused

from tests.support.broker import BIN, Broker
from tests.support.harness import ROOT

PARTITIONS = 4
Deed = Callable[[AbstractChannel, str], Awaitable[object]]


def user(broker: Broker, name: str, *role: str) -> str:
    """Make a user with the rights of a role, as the page says; return its address."""
    login = f"{role[0]}-{name}"
    broker.ctl("add_user", login, "pw")
    run(broker, name, "rights.sh", role[0], login, *role[1:])
    return broker.url.replace("guest:guest", f"{login}:pw")


def run(broker: Broker, name: str, script: str, *words: str) -> None:
    """Run one of the scripts for the broker."""
    environment = {**os.environ, **broker.environment(), "RABBITMQCTL": f"{BIN}/rabbitmqctl --quiet"}
    done = subprocess.run(
        [ROOT / "deploy" / "rabbitmq" / script, *words],
        env={**environment, "NAME": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def consume(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).get(fail=False)


async def publish(channel: AbstractChannel, exchange: str, route: str) -> None:
    message = aio_pika.Message(b"{}")
    if exchange:
        await (await channel.get_exchange(exchange, ensure=False)).publish(message, route)
    else:
        await channel.default_exchange.publish(message, route)


async def _bind(channel: AbstractChannel, queue: str, exchange: str, route: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).bind(exchange, route)


async def _purge(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).purge()


async def _delete(channel: AbstractChannel, queue: str) -> None:
    await channel.queue_delete(queue, if_unused=False, if_empty=False)


DEEDS: dict[str, Deed] = {
    "take inbound letters": lambda at, name: consume(at, f"{name}.inbound.{PARTITIONS}.00"),
    "take another platform's replies": lambda at, name: consume(at, f"{name}.outbound.discord"),
    "have another platform's replies copied": lambda at, name: _bind(
        at, f"{name}.outbound.telegram", f"{name}.outbound", "discord"
    ),
    "write to another platform": lambda at, name: publish(at, f"{name}.outbound", "discord"),
    "write to a queue by its name": lambda at, name: publish(at, "", f"{name}.outbound.discord"),
    "stop turns": lambda at, name: publish(at, f"{name}.control", ""),
    "read what is parked": lambda at, name: consume(at, f"{name}.parked"),
    "take the record of partitions away": lambda at, name: _purge(at, f"{name}.topology"),
    "empty the inbound queues": lambda at, name: _purge(at, f"{name}.inbound.{PARTITIONS}.00"),
    "delete an inbound queue": lambda at, name: _delete(at, f"{name}.inbound.{PARTITIONS}.00"),
    "make a queue": lambda at, name: at.declare_queue(f"{name}.mine"),
    "look on at all chats": lambda at, name: _bind(at, f"{name}.outbound.telegram", f"{name}.events", "#"),
}


async def allowed(url: str, name: str) -> list[str]:
    """Try each of ``DEEDS`` as the user of an address; return those that the broker let happen."""
    done = []
    async with await aio_pika.connect(url) as connection:
        for deed, tried in DEEDS.items():
            try:
                await tried(await connection.channel(), name)
            except ChannelAccessRefused:
                continue
            done.append(deed)
        at = await connection.channel()
        await publish(at, f"{name}.inbound", "000")
        await consume(at, f"{name}.outbound.telegram")
    return done
