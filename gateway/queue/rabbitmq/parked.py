"""The parked letters: read by one process at a time, on one channel that is then closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from aiormq.abc import DeliveredMessage

import durable
from channels.message import MAX_KEY_BYTES
from gateway.queue.mailbox import Parked, ParkedAs
from gateway.queue.rabbitmq.connection import AmqpChannel, Link, NotFound, Sending, headers_of
from gateway.queue.rabbitmq.consumer import RabbitLetter
from gateway.queue.rabbitmq.topology import PROBE, Names, exclusively

RETURN_WITHIN_S = 15.0
# The broker closes the connection over a header of more than a frame, and the letter would come for ever.
MAX_REASON_CHARS = 2_000
MAX_SENT_ID_BYTES = 255
_NO_QUEUE = "no queue '"
_Send = Callable[[tuple[str, str], Sending], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Held:
    message: DeliveredMessage
    parked: Parked

    def is_copy_of(self, other: _Held) -> bool:
        """Say whether it is the same letter, parked twice."""
        mine, its = self.parked, other.parked
        return (mine.box, mine.body) == (its.box, its.body)


class _Reading:
    """All parked letters on one channel, from which some may be removed."""

    def __init__(self, channel: AmqpChannel) -> None:
        self.channel = channel
        self.held: list[_Held] = []

    def pick(self, id_: str, key: str | None) -> list[_Held]:
        """Find the copies of one letter: more than one where an acknowledgement was lost after parking.

        Of several letters under one key it is the oldest: anybody may publish under one id twice.
        """
        found = [copy for copy in self.held if copy.parked.id == id_ and key in (None, copy.parked.key)]
        if len({copy.parked.key for copy in found}) > 1:
            raise LookupError(f"several parked letters have the id {id_}: name the key")
        oldest = min(found, key=lambda copy: copy.parked.parked_at, default=None)
        return [copy for copy in found if oldest is not None and copy.is_copy_of(oldest)]

    async def remove(self, found: list[_Held]) -> Parked | None:
        """Remove the copies for good."""
        for copy in found:
            await self.channel.ack(copy.message)
            self.held.remove(copy)
        return found[0].parked if found else None


class ParkedQueue:
    """Lists, replays and drops parked letters."""

    def __init__(self, names: Names, send: _Send, attached: Callable[[], Link]) -> None:
        self._names, self._send, self._attached = names, send, attached
        self._reading = asyncio.Lock()

    async def park(self, letter: RabbitLetter, listed: ParkedAs) -> None:
        """Store the letter among the parked ones (it is not acknowledged here)."""
        if not letter.parked_id:
            letter.parked_id, letter.parked_at = sendable_id(letter.id), durable.now().isoformat()
        headers: dict[str, str | int | bool] = {
            "reason": listed.reason[:MAX_REASON_CHARS],
            "from": letter.stream.queue,
            "attempts": listed.attempts,
            "parked_at": letter.parked_at,
        }
        if listed.key is not None and len(listed.key) <= MAX_KEY_BYTES:
            headers["key"] = listed.key
        sending = Sending(self._names.parked_exchange, "", letter.body, id=letter.parked_id, headers=headers)
        await self._send(("parked", letter.parked_id), sending)

    async def all(self) -> list[Parked]:
        """Return all, oldest first; each is left where it was."""
        async with self._read() as reading:
            return sorted((copy.parked for copy in reading.held), key=lambda parked: parked.parked_at)

    async def replay(self, id_: str, key: str | None) -> Parked | None:
        """Put one back at the end of its box, then remove it here."""
        async with self._read() as reading:
            found = reading.pick(id_, key)
            if found:
                parked = found[0].parked
                exchange, route = self._names.way_back(parked.origin, parked.key)
                key_fits = parked.key is not None and len(parked.key) <= MAX_KEY_BYTES
                headers: dict[str, str | int | bool] = {"key": parked.key or ""} if key_fits else {}
                sending = Sending(exchange, route, parked.body, id=sendable_id(parked.id), headers=headers)
                # A crash behind this line leaves it parked and in its box: known by its id, and never lost.
                await self._send((parked.box, parked.key or ""), sending)
            return await reading.remove(found)

    async def drop(self, id_: str, key: str | None) -> Parked | None:
        """Remove one for good."""
        async with self._read() as reading:
            return await reading.remove(reading.pick(id_, key))

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[_Reading]:
        link = self._attached()
        async with self._reading, exclusively(link, self._names.parked_lock):
            channel = await link.channel()
            reading = _Reading(channel)
            try:
                await self._read_all(reading)
                yield reading
            finally:
                await channel.close()
            if reading.held:
                await self._returned(link, len(reading.held))

    async def _read_all(self, reading: _Reading) -> None:
        try:
            while (message := await reading.channel.get(self._names.parked)) is not None:
                if PROBE not in headers_of(message):
                    reading.held.append(_Held(message, self._parked(message)))
        except NotFound as error:
            # Somebody deleted it, and what was in it: it is made anew with the next letter. One whose node is
            # away is not found, either, and is still full.
            if _NO_QUEUE not in str(error):
                raise

    async def _returned(self, link: Link, count: int) -> None:
        """Wait until what was read is back: a quorum queue returns it a moment after the channel's end."""
        channel = await link.channel()
        end = asyncio.get_running_loop().time() + RETURN_WITHIN_S
        try:
            while (await channel.declare_queue(self._names.parked, passive=True)).ready < count:
                if asyncio.get_running_loop().time() > end:
                    return
                await asyncio.sleep(0.02)
        finally:
            await channel.close()

    def _parked(self, message: DeliveredMessage) -> Parked:
        headers = headers_of(message)
        origin = _text(headers, "from")
        key = headers.get("key")
        attempts = headers.get("attempts")
        return Parked(
            id=message.header.properties.message_id or "",
            box=self._names.box_of(origin),
            key=key if isinstance(key, str) else None,
            reason=_text(headers, "reason"),
            origin=origin,
            attempts=attempts if type(attempts) is int else 0,
            parked_at=_time(_text(headers, "parked_at")),
            body=message.body,
        )


def sendable_id(id_: str) -> str:
    """Return a message id as it may be sent: a foreign one, read as far as possible, may have grown."""
    return id_ if 0 < len(id_.encode("utf-8", "replace")) <= MAX_SENT_ID_BYTES else durable.new_id()


def _text(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name, "")
    return value if isinstance(value, str) else str(value)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
