"""Which mailbox a gateway has: the one that its configuration names."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config.settings import Settings
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox


def open_mailbox(
    settings: Settings,
    *,
    reports: bool = True,
    follows: bool = False,
    takes: Collection[int] | None = None,
) -> Mailbox:
    """Choose the mailbox that ``broker.url`` names.

    ``follows``: it takes no inbound letters, and puts them into whatever partitions there are.

    ``takes``: the partitions of RabbitMQ whose letters it takes; None: all.

    ``reports``: the log says when its broker is away; else it is for the caller to say, from its health.
    """
    if settings.broker.embedded:
        return EmbeddedMailbox(settings.workspace / "state")
    # A start with the embedded queue is quicker without the AMQP client.
    from gateway.queue.rabbitmq.access import TlsFiles
    from gateway.queue.rabbitmq.broker import RabbitMailbox

    broker = settings.broker
    return RabbitMailbox(
        broker.url,
        name=broker.name,
        partitions=broker.partitions,
        queue_type=broker.queue_type,
        heartbeat_s=broker.heartbeat_s,
        reports=reports,
        follows=follows,
        takes=takes,
        tls=TlsFiles(broker.ca_file, broker.cert_file, broker.key_file),
    )
