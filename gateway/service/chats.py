"""Where clients hand in messages, wait for answers and look on, whether over HTTP or in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import durable
from channels.message import Inbound
from gateway.dispatch.control_order import OWN, StopOrder, WatchOrder
from gateway.dispatch.events import FILES, Event, of_told, read_event
from gateway.errors import MailboxDown
from gateway.service.client_message import ForeignChannels
from gateway.service.outcome import Outcome
from gateway.service.records import Record
from session.transcript.key import SessionKey, slot_of
from session.turn.joining import served, stopped_before
from session.turn.turn import TOGETHER

if TYPE_CHECKING:
    from gateway.app.application import Application
    from gateway.app.wiring_session import SessionServices
    from session.store.store import Store, View

# An event or a heartbeat (None), and the seq to resume from.
Shown = tuple[Event | None, int | None]
ACCEPT_WITHIN_S = 5.0
WATCH_S = 60.0
# Sooner than the watch ends: a client may be slow to take an event.
WATCH_EVERY_S = WATCH_S / 2
HEARTBEAT_S = 15.0
# A client that takes nothing for so long is cut.
SLOW_S = 20.0
# An event may be lost on its way, so that the record is asked again after these times.
LOOK_AFTER_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
EMITTED_MAX = 1_000


class Conflict(Exception):
    """The id stands for another text in this chat."""


class Closing(Exception):
    """The daemon ends; what was accepted stays accepted."""


class ChatService:
    """Serves the clients of one application."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.closing = asyncio.Event()
        self.accept_within_s = ACCEPT_WITHIN_S
        self.heartbeat_s = HEARTBEAT_S
        self.slow_s = SLOW_S
        settings = application.settings
        self._channels = ForeignChannels(settings.state / "client-channels.json", settings)

    @property
    def store(self) -> Store:
        """The conversations.

        Raises:
            MailboxDown: the application is not open yet.
        """
        return self._services.store

    @property
    def _services(self) -> SessionServices:
        if self.application.services is None:
            raise MailboxDown("the gateway is still starting")
        return self.application.services

    @property
    def record(self) -> Record:
        """What is stored of the chats; as ``store``."""
        return Record(self.store, self._services.enclosed_before)

    # -- handing in --------------------------------------------------------------------------------

    async def accept(self, message: Inbound) -> Outcome | None:
        """Return once the message is durable; the same id in the same chat is the same message.

        Returns:
            How it ended, where it was handed in before; it is answered again to who looks on.

        Raises:
            Conflict: the id is stored with another text.
            MailboxDown: the queue did not confirm in time; hand in the same id again.
            TooManyChannels: as ``ForeignChannels.check``.
        """
        outcome = await self._known(message)
        await self._put(message)
        return outcome

    async def _known(self, message: Inbound) -> Outcome | None:
        standing = await self.record.standing(message.key, message.id)
        if standing.text is not None and standing.text != message.text:
            raise Conflict(message.id)
        return standing.outcome

    async def _put(self, message: Inbound) -> None:
        await asyncio.to_thread(self._channels.check, message.channel)
        try:
            async with asyncio.timeout(self.accept_within_s):
                while True:
                    # A broker that went away may have stored it: the same id again is the same message.
                    try:
                        await self.application.intake.accept(message)
                    except MailboxDown:
                        await asyncio.sleep(0.1)
                        await self.application.mailbox.ready()
                    else:
                        return
        except TimeoutError:
            raise MailboxDown("the queue did not confirm the message in time") from None

    async def ask(self, message: Inbound, *, within_s: float | None) -> Outcome | None:
        """Hand in a message and wait for how it ends; None when ``within_s`` seconds ran out first.

        Without ``within_s`` it waits for ever.

        Raises:
            Conflict, MailboxDown: as ``accept``.
            Closing: the daemon ends; the message is accepted.
        """
        # Listening begins before the record is looked at: an answer given between the two would be missed.
        async with self._listen(message.key, reads=False) as bodies:
            known = await self._known(message)
            if known is not None:
                return known
            await self._put(message)
            heard = self._events(message.key, bodies, LOOK_AFTER_S, reads=False, of=message.id)
            async with aclosing(heard) as events:
                try:
                    async with asyncio.timeout(within_s):
                        return await self._outcome(message, events)
                except TimeoutError:
                    return (await self.record.standing(message.key, message.id)).outcome

    async def follow(
        self, message: Inbound, *, reads: bool = True, new: bool = False
    ) -> AsyncGenerator[Event | Outcome | None]:
        """Hand in a message; yield None once it is durable, what its turn shows, and at last how it ended.

        None comes again after each ``heartbeat_s`` seconds in which nothing was shown. Without ``reads`` the
        text of its answer is not wanted before its end. A ``new`` one has an id that nobody knew until now,
        and so is looked for nowhere.

        Raises:
            Conflict, MailboxDown, Closing: as ``ask``.
        """
        async with self._listen(message.key, draft=True, reads=reads) as bodies:
            known = None if new else await self._known(message)
            if known is not None:
                yield None
                yield known
                return
            await self._put(message)
            yield None
            # A client may be slow for longer than a listener may be behind: what is heard is kept here.
            shown: asyncio.Queue[Event | None] = asyncio.Queue()
            heard = self._events(message.key, bodies, LOOK_AFTER_S, reads=reads, of=message.id)
            async with aclosing(heard) as events:
                ending = asyncio.ensure_future(self._outcome(message, events, shown.put_nowait))
                ending.add_done_callback(lambda _: shown.put_nowait(None))
                try:
                    async for each in self._shown(shown):
                        yield each
                    yield ending.result()
                finally:
                    ending.cancel()
                    await asyncio.gather(ending, return_exceptions=True)

    async def _shown(self, shown: asyncio.Queue[Event | None]) -> AsyncGenerator[Event | None]:
        """Yield what is put there, up to the None at its end; None after each ``heartbeat_s`` seconds."""
        while True:
            try:
                async with asyncio.timeout(self.heartbeat_s):
                    each = await shown.get()
            except TimeoutError:
                yield None
                continue
            if each is None:
                return
            yield each

    async def _outcome(
        self,
        message: Inbound,
        events: AsyncIterator[Event | None],
        show: Callable[[Event], None] = lambda _: None,
    ) -> Outcome:
        """Wait for the event that ends the message; where it was lost, the record knows."""
        files = ""
        async for event in events:
            if event is not None and event.in_reply_to == message.id and not event.ends:
                show(event)
            if event is None or (event.in_reply_to == message.id and event.reason == TOGETHER):
                standing = await self.record.standing(message.key, message.id)
                if standing.outcome is not None:
                    return standing.outcome
            elif event.in_reply_to == message.id and event.ends:
                return Outcome("reply" if event.kind == "reply" else "notice", event.text, files)
            elif event.in_reply_to == message.id and event.reason == FILES:
                files = event.text
        raise Closing

    async def stop(self, key: str) -> None:
        """Stop the turn that runs for ``key``, wherever it does."""
        await self.application.intake.stop(key)

    async def break_off(self, message: Inbound) -> None:
        """Stop the turn of a message, wherever it runs, unless it has ended or answers others as well."""
        # An older daemon would stop whatever runs by now.
        if (await self.record.standing(message.key, message.id)).outcome is not None:
            return
        if _answers_others(await self.store.look(SessionKey(message.key)), message.id):
            return
        order = StopOrder(id=f"{OWN}{durable.new_id()}", key=message.key, only=message.id)
        await self.application.mailbox.tell("control", slot_of(message.key), order.to_bytes())

    # -- looking on --------------------------------------------------------------------------------

    async def watch(self, key: str, *, draft: bool = False, reads: bool = True) -> None:
        """Have every daemon send all events of this key for a minute, with ``draft`` the text so far too.

        Without ``reads`` nobody wants the text of an answer before its end.
        """
        slot = slot_of(key)
        self.application.events.watch([slot], WATCH_S, reads=reads)
        order = WatchOrder(
            id=durable.new_id(),
            slots=[slot],
            for_s=WATCH_S,
            draft=key if draft else None,
            reads=None if reads else False,
        )
        await self.application.mailbox.tell("control", slot, order.to_bytes())

    async def stream(
        self, key: str, last: int | None = None, *, drafts: bool = False
    ) -> AsyncGenerator[Shown]:
        """Yield the events of a chat until the daemon ends, each with the seq to resume from.

        Replies and notices come once and without a gap: from the record those above ``last``, then those
        that are told, and from the record again what was lost on the way. An event without a resume point
        must not move the client's own. None in place of an event is a heartbeat; with a seq it is where a
        stream begins whose client gave no ``last``.

        With ``drafts`` an answer that is being written already comes as one ``draft`` with its text so far,
        and pieces come only behind the ``started`` or ``draft`` of their turn: each has its place.
        """
        begun: str | None = None
        async with self._listen(key, draft=drafts) as bodies:
            known = await self.record.last_seq(key)
            emitted = _Emitted(known if last is None else min(last, known))
            if last is not None:
                for event in await self._missed(key, emitted):
                    yield event, emitted.add(event.seq)
            else:
                emitted.floor = 0
                yield None, known
            async with aclosing(self._events(key, bodies, (self.heartbeat_s,))) as events:
                async for heard in events:
                    if heard is None:
                        for event in await self._missed(key, emitted):
                            yield event, emitted.add(event.seq)
                        yield None, None
                        continue
                    # An event between this one and the last was lost on its way: the record has it.
                    if heard.told and heard.seq > emitted.high + 1:
                        for event in await self._missed(key, emitted, before=heard.seq):
                            yield event, emitted.add(event.seq)
                    # A client that came in the middle cannot place a piece before its turn's text so far.
                    if heard.kind in ("started", "draft"):
                        begun = heard.in_reply_to
                    placed = heard.kind != "delta" or heard.in_reply_to == begun
                    if (heard.kind == "draft" and not drafts) or (drafts and not placed):
                        continue
                    if not heard.told or heard.seq <= 0:
                        yield heard, None
                    elif heard.seq not in emitted:
                        yield heard, emitted.add(heard.seq)

    async def _missed(self, key: str, emitted: _Emitted, *, before: int | None = None) -> list[Event]:
        """List what is on record above all that was emitted."""
        told = await self.record.told(key, emitted.high)
        return [of_told(key, one) for one in told if before is None or one.seq < before]

    @asynccontextmanager
    async def _listen(
        self, key: str, *, draft: bool = False, reads: bool = True
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self.application.mailbox.listen("events", [slot_of(key)]) as bodies:
            await self.watch(key, draft=draft, reads=reads)
            yield bodies

    async def _events(
        self,
        key: str,
        bodies: AsyncIterator[bytes],
        pauses_s: Sequence[float],
        *,
        reads: bool = True,
        of: str | None = None,
    ) -> AsyncGenerator[Event | None]:
        """Yield the events of ``key``; None after each pause without one. Ends when the daemon does.

        Other keys of the slot end no pause, nor do other messages than ``of``: a busy chat would keep whoever
        waits for one that is lost from the record. The watch that ``_listen`` began goes on meanwhile.
        """
        next_of = _Next(bodies)
        closing = asyncio.ensure_future(self.closing.wait())
        closing.add_done_callback(lambda _: next_of.end())
        clock = asyncio.get_running_loop().time
        quiet = 0
        pause_ends, watch_again = clock() + pauses_s[0], clock() + WATCH_EVERY_S
        try:
            while not self.closing.is_set():
                if clock() >= watch_again:
                    await self.watch(key, reads=reads)
                    watch_again = clock() + WATCH_EVERY_S
                body = await next_of.within(min(pause_ends, watch_again) - clock())
                event = read_event(body) if body is not None else None
                if event is not None and event.key != key:
                    event = None
                if event is not None:
                    yield event
                if event is None or of not in (None, event.in_reply_to):
                    if clock() < pause_ends and not self.closing.is_set():
                        continue
                    quiet += 1
                    # A daemon that began to listen meanwhile knows of no watch.
                    await self.watch(key, reads=reads)
                    watch_again = clock() + WATCH_EVERY_S
                    yield None
                pause_ends = clock() + pauses_s[min(quiet, len(pauses_s) - 1)]
        finally:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)


def _answers_others(view: View, message_id: str) -> bool:
    """Say whether the turn of a message that began answers other messages as well."""
    if view.find(message_id) is None:
        # Its own line may be still to be stored; a turn that was stopped for it stands there already.
        return stopped_before(view, len(view)) is not None
    return any(line["message_id"] != message_id for line in served(view, message_id))


class _Next:
    """Waits for what is heard, in the task that asks: a task for each would come a few rounds later."""

    def __init__(self, bodies: AsyncIterator[bytes]) -> None:
        self._bodies = bodies
        self._limit: asyncio.Timeout | None = None

    async def within(self, pause_s: float) -> bytes | None:
        """Return the next one; None where none came in time, or before ``end``."""
        try:
            async with asyncio.timeout(pause_s) as self._limit:
                return await anext(self._bodies, None)
        except TimeoutError:
            return None
        finally:
            self._limit = None

    def end(self) -> None:
        """End the wait that is under way."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(0.0)


class _Emitted:
    """Which seqs of a chat one stream has shown."""

    def __init__(self, high: int) -> None:
        # The highest seq shown, or the one from which the stream began.
        self.high = high
        # Up to here every seq counts as shown.
        self.floor = high
        self._seqs: set[int] = set()

    def __contains__(self, seq: int) -> bool:
        return seq <= self.floor or seq in self._seqs

    def add(self, seq: int) -> int | None:
        """Note a seq; return it where the stream can be resumed from it: where none above it was shown."""
        self._seqs.add(seq)
        if len(self._seqs) > EMITTED_MAX:
            self.floor = max(self.floor, self.high - EMITTED_MAX // 2)
            self._seqs = {one for one in self._seqs if one > self.floor}
        if seq < self.high:
            return None
        self.high = seq
        return seq
