"""Which mailbox a gateway has: the one that its configuration names."""

from __future__ import annotations

from gateway.config.settings import Settings
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox


def open_mailbox(settings: Settings, *, reports: bool = True) -> Mailbox:
    """Choose the mailbox that ``broker.url`` names.

    ``reports``: the log says when its broker is away; else it is for the caller to say, from its health.
    """
    if settings.broker.embedded:
        return EmbeddedMailbox(settings.workspace / "state")
    # A start with the embedded queue is quicker without the AMQP client.
    from gateway.queue.rabbitmq.mailbox import RabbitMailbox
    from gateway.queue.rabbitmq.tls import TlsFiles

    broker = settings.broker
    return RabbitMailbox(
        broker.url,
        name=broker.name,
        partitions=broker.partitions,
        queue_type=broker.queue_type,
        heartbeat_s=broker.heartbeat_s,
        reports=reports,
        tls=TlsFiles(broker.ca_file, broker.cert_file, broker.key_file),
    )
