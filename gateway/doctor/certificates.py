"""Says until when the broker's certificate is valid, and the one that the gateway shows it."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import durable
from gateway.config.settings import Broker
from gateway.doctor.finding import Finding
from gateway.errors import MailboxDown

WITHIN_S = 8.0
DAYS = 30
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_INTEGER, _SEQUENCE, _UTC_TIME, _TIME = 0x02, 0x30, 0x17, 0x18


async def check(broker: Broker) -> list[Finding]:
    """Return level, text and cure; nothing without TLS, or where the broker's own check tells why not."""
    if not broker.url.startswith("amqps:"):
        return []
    from gateway.queue.rabbitmq.tls import TLS_PORT, TlsFiles

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
    return [_judged("the broker's certificate", until, "renew it on the broker")]


def own(broker: Broker) -> list[Finding]:
    """Say until when the gateway's own certificate is valid; nothing where there is none.

    It is read from its file, so that it is told whether the broker answers or not. What cannot be read is
    for the broker's check to tell.
    """
    if not broker.cert_file:
        return []
    try:
        until = valid_until(Path(broker.cert_file).read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError):
        return []
    name = f"the gateway's own certificate {broker.cert_file}"
    return [_judged(name, until, "renew broker.cert_file with its key; the next connection uses them")]


def valid_until(pem: str) -> datetime:
    """Return until when the first certificate of a PEM text is valid.

    Raises:
        ValueError: there is none in it.
    """
    begin = pem.index(_BEGIN)
    der = ssl.PEM_cert_to_DER_cert(pem[begin : pem.index(_END, begin) + len(_END)])
    try:
        _, certificate, _ = _element(der, 0)
        _, signed, _ = _element(certificate, 0)
        # The version, which the oldest kind leaves out; the number, the kind of signature, the issuer.
        kind, _, at = _element(signed, 0)
        for _ in range(2 if kind == _INTEGER else 3):
            _, _, at = _element(signed, at)
        kind, validity, _ = _element(signed, at)
        _, _, at = _element(validity, 0)
        form, text, _ = _element(validity, at)
    except IndexError as error:
        raise ValueError("the certificate is truncated") from error
    if kind != _SEQUENCE or form not in (_UTC_TIME, _TIME):
        raise ValueError("the certificate has an unknown format")
    # Two digits of the year stand for 1950 to 2049, as RFC 5280 has it.
    century = b"" if form == _TIME else b"19" if text[:2] >= b"50" else b"20"
    return datetime.strptime((century + text).decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Read one element of DER: its kind, what it holds, and where the next one begins."""
    kind, size, start = der[at], der[at + 1], at + 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[at + 2 : start], "big")
    if start + size > len(der):
        raise IndexError("an element is longer than its container")
    return kind, der[start : start + size], start + size


def _judged(whose: str, until: datetime, cure: str) -> Finding:
    now = durable.now()
    if until < now:
        return "fail", f"{whose} was valid until {until:%Y-%m-%d %H:%M} UTC", cure
    days = (until - now).days
    text = f"{whose} is valid until {until:%Y-%m-%d}, for {days} days"
    return ("warn", text, cure) if days < DAYS else ("ok", text, "")
