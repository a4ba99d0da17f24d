"""``queues repartition``: another number of inbound queues, with what waits in them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.cli.root import COUNT, GlobalOptions, group
from gateway.errors import ConfigError, MailboxDown, MailboxError, Unreachable

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.queue.rabbitmq.repartition import Moved

queues = group("queues")
MAX = 256


@queues.command()
@click.argument(
    "count", metavar="N", type=COUNT, help="new number, 1 to 256; set broker.partitions to the same"
)
def repartition(opts: GlobalOptions, count: int) -> None:
    """Change the number of inbound queues on RabbitMQ; waiting messages keep their order.

    Stop all processes of role session first; those of role channels may keep running. If it is interrupted,
    run it again: no message is lost.
    """
    from gateway.app.daemons import others

    settings = settings_of(opts)
    if settings.broker.embedded:
        raise ConfigError(
            ["the embedded queue has no partitions"],
            hint='set broker.url = "amqp://…" to share the work among several processes',
        )
    if not 1 <= count <= MAX:
        raise ConfigError(
            [f"the number of partitions must be 1 to {MAX}"], hint="chat-gateway queues repartition --help"
        )
    if running := [each for each in others(settings.workspace) if "role channels" not in each]:
        raise MailboxError(
            f"processes of this workspace are still running: {', '.join(running)}",
            hint="stop all but those of role channels, then run this again",
        )
    try:
        moved = asyncio.run(_move(settings, count))
    except MailboxDown as error:
        raise Unreachable(str(error), hint=error.hint or "run it again once RabbitMQ answers") from error
    if moved.before == moved.partitions:
        output.words(f"there are {moved.partitions} partitions already")
        return
    messages = output.counted(moved.letters, "message")
    output.words(f"moved {messages} from {moved.before} to {moved.partitions} partitions")
    if settings.broker.partitions != moved.partitions:
        output.words(
            f"set broker.partitions = {moved.partitions} for all processes of role session, then start them"
        )


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
