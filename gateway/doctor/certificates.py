"""Says until when the broker's certificate is valid."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from urllib.parse import urlsplit

import durable
from gateway.config.settings import Broker
from gateway.doctor.finding import Finding
from gateway.errors import MailboxDown

WITHIN_S = 8.0
DAYS = 30
CURE = "renew it on the broker"


async def check(broker: Broker) -> list[Finding]:
    """Return level, text and cure; nothing without TLS, or where the broker's own check tells why not."""
    if not broker.url.startswith("amqps:"):
        return []
    from gateway.queue.rabbitmq.access import TLS_PORT, TlsFiles

    parts = urlsplit(broker.url)
    files = TlsFiles(broker.ca_file, broker.cert_file, broker.key_file)
    try:
        context = await asyncio.to_thread(files.context)
        async with asyncio.timeout(WITHIN_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or TLS_PORT, ssl=context)
    except (OSError, TimeoutError, MailboxDown):
        return []
    valid_until = writer.get_extra_info("peercert")["notAfter"]
    writer.transport.abort()
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(valid_until), UTC)
    return [_judged(until)]


def _judged(until: datetime) -> Finding:
    now = durable.now()
    if until < now:
        return "fail", f"the broker's certificate was valid until {until:%Y-%m-%d %H:%M} UTC", CURE
    days = (until - now).days
    text = f"the broker's certificate is valid until {until:%Y-%m-%d}, for {days} days"
    return ("warn", text, CURE) if days < DAYS else ("ok", text, "")
