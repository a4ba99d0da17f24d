"""Sends one piece until its platform took it or refused it, or nobody can know which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

import durable
from channels.base import Channel, Edits, Piece, Presses, Rendered, Types
from channels.errors import (
    ChannelDown,
    ChannelError,
    ChatMoved,
    SendLater,
    SendNever,
    SendUnknown,
)
from channels.message import Button, Outbound
from gateway.errors import SendLogDown
from gateway.observer import PlatformCall
from gateway.outbound.copies import Copies
from gateway.outbound.pieces import RateLimit, is_group, nonce
from gateway.outbound.send_log import SendLog
from gateway.queue.retry import back_off_s
from session.transcript.line import read_time

T = TypeVar("T")
log = structlog.get_logger("delivery")

# Between two tries while the platform is away.
MAX_WAIT_S = 15.0
# Sends with an unknown outcome, where the platform does not recognise a repeat.
UNKNOWN_MAX = 2
# The same where it was our own process that died, each time, in mid-send.
DEATHS_MAX = 3
CRASHES_MAX = 2
MOVES_MAX = 5
# Questions whether a platform is back, some seconds apart, and how long one may take: in the end it is tried
# without, for one that answers nothing but sends.
QUESTIONS_MAX = 240
QUESTION_S = 10.0
# A file may take this many times as long as a text.
FILE_TIMES = 5
# Where a repeat is safe a file is given up when its sends of unknown outcome, with the waits behind them,
# took so long: one that a slow line always cuts off would hold up its chat for ever.
FILE_DOUBT_S = 600.0


# How a call is counted that ended in an error; any other has an unknown outcome.
_RESULTS = (
    (SendLater, "limited"),
    (ChatMoved, "moved"),
    (SendNever, "refused"),
    (ChannelDown, "down"),
)


class Gone(Exception):
    """The letter is no longer ours; it comes again, and goes on at this piece."""


class PieceRefused(Exception):
    """The piece will not be sent; ``str(error)`` is the reason."""


class Undecided(PieceRefused):
    """It is given up, though it may have been sent."""


@dataclass(slots=True)
class Errand:
    """One piece on its way.

    Args:
        unknown: how many sends of it have an unknown outcome.
        last: nothing of the letter follows.
        closing: it is the last of the letter's text, and has its buttons.
        ours: whether its letter can still be settled here.
        caption: what is shown beside it, where it is a file.
        doubt_s: what its sends of unknown outcome took, with the waits behind them.
    """

    out: Outbound
    number: int
    content: Rendered | Path
    unknown: int
    last: bool
    ours: Callable[[], bool]
    closing: bool = False
    caption: str = ""
    doubt_s: float = 0.0


class PieceSender:
    """Calls a channel on behalf of many chats, at most ``at_once`` calls at a time.

    ``busy`` holds the tasks whose call is under way, ``last_error`` words for the operator.
    """

    def __init__(
        self,
        *,
        channel: Channel,
        send_log: SendLog,
        limiter: RateLimit,
        copies: Copies,
        at_once: int,
        timeout_s: float,
        sleep: Callable[[float], Awaitable[object]],
        now: Callable[[], float] = durable.monotonic,
        called: Callable[[PlatformCall], None] = lambda call: None,
    ) -> None:
        self._called = called
        self.busy: set[asyncio.Task[object]] = set()
        self.last_error = ""
        self._channel = channel
        self._send_log = send_log
        self._limiter = limiter
        self._copies = copies
        self._slots = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._now = now

    async def send(self, errand: Errand) -> None:
        """Return when the platform has accepted the piece and that is on disk.

        Raises:
            PieceRefused: the platform never will, or it may have and would show it twice.
            Gone: the letter is lost.
        """
        out, number = errand.out, errand.number
        tries = crashes = moves = 0
        most = DEATHS_MAX
        while True:
            if self._channel.safe_to_repeat:
                # What is sent in its place has its nonce: where the file is there after all, it stays.
                if isinstance(errand.content, Path) and errand.doubt_s >= FILE_DOUBT_S:
                    raise PieceRefused("unknown")
            elif errand.unknown >= most:
                raise Undecided("unknown")
            chat_id = self._send_log.address(out.chat_id)
            if errand.unknown and not self._channel.safe_to_repeat:
                await self._back(errand, chat_id)
            try:
                await self._once(errand, chat_id)
            except SendLater as error:
                # The platform took nothing: noted, so that a death from here on puts no try in doubt.
                await self._not_sent(errand)
                await self._pause(errand, chat_id, error)
            except ChatMoved as error:
                await self._not_sent(errand)
                moves += 1
                if moves > MOVES_MAX:
                    raise PieceRefused(f"refused: {error}") from error
                # It is on disk before the next try: what waits in the queue still has the old address.
                await self._move(chat_id, error.to)
            except SendNever as error:
                await self._not_sent(errand)
                self._note(errand, error)
                raise PieceRefused(f"refused: {error}") from error
            except ChannelDown as error:
                await self._not_sent(errand)
                tries += 1
                await self._wait(errand, error, tries)
            except (SendUnknown, TimeoutError) as error:
                # The platform may have taken it: how often it may be tried blindly is bounded.
                errand.unknown += 1
                most = UNKNOWN_MAX
                errand.doubt_s += await self._wait(errand, error, errand.unknown)
            except Gone:
                raise
            except Exception as error:
                # One piece ends here: the adapter itself failed, perhaps after the platform took it.
                log.exception("send.crashed", key=out.key, id=out.id, piece=number)
                errand.unknown += 1
                most = UNKNOWN_MAX
                crashes += 1
                if crashes >= CRASHES_MAX:
                    raise Undecided(f"failed: {type(error).__name__}") from error
                await self._wait(errand, error, crashes)
            else:
                return

    async def _back(self, errand: Errand, chat_id: str) -> None:
        """Return when the platform answers again, as far as it can be asked what changes nothing.

        An outage that answers with errors would use up the few blind tries within a second.
        """
        channel = self._channel
        if not isinstance(channel, Types):
            return
        for tries in range(1, QUESTIONS_MAX + 1):
            try:
                async with self._slots, asyncio.timeout(QUESTION_S):
                    await channel.typing(chat_id)
            except (ChannelDown, SendUnknown, TimeoutError) as error:
                await self._wait(errand, error, tries)
            except Exception:  # noqa: BLE001 - whatever it says, it is there
                return
            else:
                return
            if not errand.ours():
                raise Gone

    async def _once(self, errand: Errand, chat_id: str) -> None:
        out, number = errand.out, errand.number
        async with self._call_of(errand, chat_id), self._leaving(errand.content) as content:
            piece = Piece(
                chat_id=chat_id,
                content=content,
                nonce=nonce(out.id, number),
                reply_to=out.reply_to if number == 0 and chat_id == out.chat_id else None,
                buttons=self._buttons(out) if errand.closing else (),
                meta=out.meta,
                caption=errand.caption if isinstance(content, Path) else "",
                first=number == 0,
            )
            # If the process dies from here on, nobody can know whether the platform took it.
            await self.durably(lambda: self._send_log.trying(out.key, out.id, number))
            with self._heard(errand):
                async with asyncio.timeout(self._time_for(content)):
                    platform_id = await self._channel.send(piece)
            if errand.closing and out.replaced_by:
                await self.note_draft(out, platform_id, later=out.replaced_by)
            await self._accepted(errand, platform_id)

    @asynccontextmanager
    async def _leaving(self, content: Rendered | Path) -> AsyncIterator[Rendered | Path]:
        """Have what a channel is given: a text as it is, of a file a copy that nothing else can replace."""
        if isinstance(content, Path):
            async with self._copies.of(content) as copy:
                yield copy
        else:
            yield content

    @contextmanager
    def _heard(self, errand: Errand) -> Iterator[None]:
        """Tell how the call to the platform within ended, and how long it took."""
        began_ns, began, result = durable.wall_ns(), self._now(), "accepted"
        try:
            yield
        except BaseException as error:
            result = next((name for kind, name in _RESULTS if isinstance(error, kind)), "unknown")
            raise
        finally:
            took_s, out = self._now() - began, errand.out
            errand.doubt_s += took_s if result == "unknown" else 0.0
            call = PlatformCall(self._channel.name, out.key, out.id, errand.number, result, began_ns, took_s)
            self._called(call)

    async def _accepted(self, errand: Errand, platform_id: str) -> None:
        out, queued_at = errand.out, read_time(errand.out.created_at)
        await self.durably(
            lambda: self._send_log.sent(
                *(out.key, out.id, errand.number),
                platform_id=platform_id,
                last=errand.last,
                queued_at=queued_at,
            )
        )

    def _buttons(self, out: Outbound) -> Sequence[Button]:
        channel = self._channel
        return out.buttons[: channel.buttons_max] if isinstance(channel, Presses) else ()

    async def note_draft(self, out: Outbound, platform_id: str, *, later: str) -> None:
        """Note what the letter ``later`` changes when it comes: to it this message is a draft."""

        async def note() -> None:
            if await self._send_log.begin_preview(out.key, later) is not None:
                await self._send_log.preview_sent(out.key, later, platform_id)

        await self.durably(note)

    async def edit(self, errand: Errand, draft: str) -> bool:
        """Turn a draft into the piece; False where it is not there any more and the piece must be sent.

        The same edit may be made again and again, so that an unknown outcome is no question here.
        """
        out, channel, content = errand.out, self._channel, errand.content
        assert isinstance(channel, Edits)
        assert isinstance(content, Rendered)
        tries = 0
        while True:
            chat_id = self._send_log.address(out.chat_id)
            try:
                async with self._call_of(errand, chat_id):
                    with self._heard(errand):
                        async with asyncio.timeout(self._timeout_s):
                            await channel.edit(chat_id, draft, content)
                    await self._accepted(errand, draft)
            except SendLater as error:
                await self._pause(errand, chat_id, error)
            except (ChannelDown, SendUnknown, TimeoutError) as error:
                tries += 1
                await self._wait(errand, error, tries)
            except Gone:
                raise
            except Exception as error:
                # The draft ends here, and the piece is sent anew.
                if not isinstance(error, SendNever):
                    log.exception("edit.crashed", key=out.key, id=out.id)
                log.info("draft.given_up", key=out.key, id=out.id, error=str(error))
                await self.durably(lambda: self._send_log.drop_preview(out.key, out.id))
                return False
            else:
                return True

    @asynccontextmanager
    async def _call_of(self, errand: Errand, chat_id: str) -> AsyncIterator[None]:
        """Wait until this chat may be written to and a call is free, then hold that call."""
        await self._limiter.wait(chat_id, group=is_group(chat_id, errand.out.meta))
        async with self._slots:
            # The letter may have been lost while the chat waited for its turn: another process sends it then.
            if not errand.ours():
                raise Gone
            task = asyncio.current_task()
            assert task is not None
            self.busy.add(task)
            try:
                yield
            finally:
                self.busy.discard(task)

    async def durably(self, write: Callable[[], Awaitable[T]]) -> T:
        """Ask the send log until it answers: nothing may be sent that cannot be recorded."""
        tries = 0
        while True:
            try:
                return await write()
            except SendLogDown as error:
                tries += 1
                self.last_error = str(error)
                # The log may lie on the same full disk.
                with suppress(OSError):
                    log.error("send_log.refused", error=str(error), hint=error.hint)
                await self._sleep(back_off_s(tries))

    async def _not_sent(self, errand: Errand) -> None:
        await self.durably(lambda: self._send_log.not_sent(errand.out.key, errand.out.id, errand.number))

    async def _move(self, old: str, new: str) -> None:
        log.info("chat.moved", channel=self._channel.name, old=old, new=new)
        await self.durably(lambda: self._send_log.moved(old, new))

    async def _pause(self, errand: Errand, chat_id: str, error: SendLater) -> None:
        await self._limiter.pause(chat_id, error.after_s)
        log.info("send.limited", key=errand.out.key, id=errand.out.id, after_s=round(error.after_s, 2))

    async def _wait(self, errand: Errand, error: Exception, tries: int) -> float:
        """Wait before the next try; return how long, in seconds."""
        self._note(errand, error)
        wait = min(back_off_s(tries, spread=durable.uniform()), MAX_WAIT_S)
        log.warning(
            "send.delayed",
            key=errand.out.key,
            id=errand.out.id,
            piece=errand.number,
            cause=type(error).__name__,
            error=str(error),
            hint=getattr(error, "hint", ""),
            wait_s=round(wait, 2),
        )
        await self._sleep(wait)
        return wait

    def _note(self, errand: Errand, error: Exception) -> None:
        said = str(error) if isinstance(error, ChannelError) else type(error).__name__
        self.last_error = f"{errand.out.key}: {said}"

    def _time_for(self, content: Rendered | Path) -> float:
        """Return how long the call for a piece may take, in seconds."""
        return self._timeout_s * (FILE_TIMES if isinstance(content, Path) else 1)
