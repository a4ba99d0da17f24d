"""What is told on the exchange of the daemons ends nothing but itself, whatever it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.queue.mailbox import INBOUND
from gateway.queue.rabbitmq.beat import Beat
from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.presence import Presence
from gateway.queue.rabbitmq.topology import Names
from tests.gateway.on_rabbit import opened
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.until import until

pytestmark = guarantee(
    "failures", "A malformed announcement does not stop a gateway process from hearing the others."
)

SAID: dict[str, Any] = json.loads(Beat("secret", 4, 1).to_bytes())
ODD = {
    "a number beyond all": json.dumps(SAID).replace('"number": 1', '"number": 1e999').encode(),
    "as many partitions": json.dumps({**SAID, "partitions": float("inf")}).encode(),
    "lists in lists": b"[" * 100_000,
    "a name with half of a character": json.dumps({**SAID, "daemon": "secret\ud800"}).encode(),
}


async def never() -> Link:
    await asyncio.Event().wait()
    raise AssertionError


async def dropped(body: bytes) -> None: ...


def unheard(error: BaseException) -> None:
    raise AssertionError(error)


def hearing(bodies: Sequence[bytes]) -> Presence:
    """A daemon that hears these, and then nothing."""

    @asynccontextmanager
    async def listen() -> AsyncIterator[AsyncIterator[bytes]]:
        yield heard()

    async def heard() -> AsyncIterator[bytes]:
        for body in bodies:
            yield body
        await asyncio.Event().wait()

    return Presence(
        Names("chat", 4),
        daemon="me",
        tell=dropped,
        listen=listen,
        attached=never,
        blocked=lambda: False,
        probe=lambda partition: None,
    )


@pytest.mark.parametrize("what", ODD)
async def test_after_an_odd_beat_the_others_are_heard(what: str) -> None:
    """It is told once, and not what it says."""
    one = hearing([ODD[what], ODD[what], Beat("other", 4, 1).to_bytes()])
    with capture_logs() as logs:
        async with one.taking(unheard):
            await until(lambda: one.others == 1, 10)

    told = [log for log in logs if log["event"] == "presence.odd_beat"]
    assert len(told) == 1
    assert "secret" not in str(told)


async def test_letters_end_with_what_ended_a_part_of_it(
    broker: Broker, broker_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without beats it would be taken for dead and stay in its lines: the daemon is started anew."""

    def broken(self: Presence) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(Presence, "_ask_for_proof", broken)
    async with opened(broker.url, broker_name) as mailbox, mailbox.take(INBOUND) as letters:
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="nobody foresaw this"):
                await anext(aiter(letters))
