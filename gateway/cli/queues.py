"""``queues repartition``: another number of inbound queues, with what waits in them."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from gateway.app.daemons import others
from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from gateway.errors import ConfigError, MailboxDown, MailboxError, Unreachable

if TYPE_CHECKING:
    from gateway.queue.rabbitmq.repartition import Moved

MAX = 256


def repartition(args: argparse.Namespace) -> int:
    """Move all that waits into so many queues, and say what to configure."""
    settings = settings_of(args)
    if settings.broker.embedded:
        raise ConfigError(
            ["the embedded queue has no partitions"],
            hint='set broker.url = "amqp://…" to share the work among several processes',
        )
    if not 1 <= args.count <= MAX:
        raise ConfigError(
            [f"the number of partitions must be 1 to {MAX}"], hint="chat-gateway queues repartition --help"
        )
    if running := [each for each in others(settings.workspace) if "role channels" not in each]:
        raise MailboxError(
            f"processes of this workspace are still running: {', '.join(running)}",
            hint="stop all but those of role channels, then run this again",
        )
    try:
        moved = asyncio.run(_move(settings, args.count))
    except MailboxDown as error:
        raise Unreachable(str(error), hint=error.hint or "run it again once RabbitMQ answers") from error
    if moved.before == moved.partitions:
        output.words(f"there are {moved.partitions} partitions already")
        return 0
    messages = output.counted(moved.letters, "message")
    output.words(f"moved {messages} from {moved.before} to {moved.partitions} partitions")
    if settings.broker.partitions != moved.partitions:
        output.words(
            f"set broker.partitions = {moved.partitions} for all processes of role session, then start them"
        )
    return 0


async def _move(settings: Settings, count: int) -> Moved:
    # Other verbs start quicker without the AMQP client.
    from gateway.queue.rabbitmq.connection import Link
    from gateway.queue.rabbitmq.declare import Topology
    from gateway.queue.rabbitmq.repartition import repartition
    from gateway.queue.rabbitmq.tls import TlsFiles
    from gateway.queue.rabbitmq.topology import Names

    broker = settings.broker
    tls = TlsFiles(broker.ca_file, broker.cert_file, broker.key_file)
    title = f"{broker.name} repartition"
    link = await Link.open(broker.url, title=title, heartbeat_s=broker.heartbeat_s, tls=tls)
    try:
        return await repartition(link, Topology(Names(broker.name, count), broker.queue_type))
    finally:
        await link.close()
