"""Polls Telegram for updates and hands them on, chat by chat; Telegram forgets none that is not confirmed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

import durable
from channels.base import Arrival, Emit, Site
from channels.errors import ChannelError, CredentialsRefused, SendLater, SendNever
from channels.parts import Batch, Parts
from channels.storage import first_start
from channels.tables import TelegramTable as Table
from channels.telegram.client import NoAnswer, Taken, WebhookSet, Wire
from channels.telegram.updates import (
    ALLOWED,
    PRESS,
    SkippedUpdate,
    TelegramBot,
    bots_named,
    kind_of,
    read,
)

MAX_PENDING = 1_000


class UpdateWindow:
    """The updates that Telegram still keeps for us, in the order in which they came.

    Telegram forgets what lies before the offset of a poll. Ids are compared with nothing but each other's
    place in that order: after a quiet week they begin again anywhere.
    """

    def __init__(self) -> None:
        # Update id → whether it is confirmed, oldest first.
        self._done: dict[int, bool] = {}
        self._left = 0
        self._offset: int | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._head_done = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether no further update may begin."""
        return self._left >= MAX_PENDING

    def offset(self) -> int | None:
        """Return the offset for the next poll, which forgets the confirmed updates before the first other.

        Returns:
            None before the first update: Telegram then begins with the oldest that it keeps.
        """
        for update_id, done in list(self._done.items()):
            if not done:
                self._offset = update_id
                break
            del self._done[update_id]
            self._offset = update_id + 1
        self._head_done.clear()
        return self._offset

    def admit(self, update_ids: Sequence[int]) -> set[int]:
        """Take in what a poll brought; return the ids that were not here before."""
        fresh = {update_id for update_id in update_ids if update_id not in self._done}
        for update_id in update_ids:
            if update_id in fresh:
                self._done[update_id] = False
        self._left += len(fresh)
        if self._left:
            self._idle.clear()
        return fresh

    def confirm(self, update_id: int) -> None:
        """Note that an update is durable, or dismissed."""
        if self._done[update_id]:
            return
        self._done[update_id] = True
        self._left -= 1
        if next(iter(self._done)) == update_id:
            self._head_done.set()
        if not self._left:
            self._idle.set()

    async def settle(self, within_s: float) -> bool:
        """Wait until nothing is under way, at most ``within_s`` seconds; say whether that came true."""
        return await _wait(self._idle, within_s)

    async def move(self, within_s: float) -> bool:
        """Wait until the oldest update is confirmed, at most ``within_s`` seconds; say whether it is."""
        return await _wait(self._head_done, within_s)


async def _wait(event: asyncio.Event, within_s: float) -> bool:
    await durable.first_of(event.wait(), timeout_s=within_s)
    return event.is_set()


log = structlog.get_logger(__name__)

_ANSWER: Final = "answerCallbackQuery"
# What Telegram shows above a chat, as it counts.
_MAX_UNITS: Final = 200


class OpenPresses:
    """The presses of this process that Telegram was not told an answer to; it takes one for each.

    Args:
        rests_after_s: how long words for the presser are waited for.
    """

    def __init__(self, wire: Wire, *, rests_after_s: float) -> None:
        self._wire = wire
        self._rests_after_s = rests_after_s
        self._open: dict[str, asyncio.Event] = {}

    def begin(self, query: str) -> None:
        """Note a press; ``wait`` is to follow."""
        self._open[query] = asyncio.Event()

    async def wait(self, query: str) -> None:
        """Let the button rest when nothing was said to its presser in time; nobody minds where that fails."""
        told = self._open.get(query)
        if told is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rests_after_s):
                await told.wait()
        if self._open.pop(query, None) is None:
            return
        try:
            await self._wire.call(_ANSWER, callback_query_id=query)
        except ChannelError as error:
            log.debug("press.unanswered", error=str(error))

    def dismiss(self, query: str) -> None:
        """Let the button rest now: nothing will be said."""
        if query in self._open:
            self._open[query].set()

    async def tell(self, query: str, text: str) -> bool:
        """Show words to the presser alone; False where that cannot be done any more, and nothing was shown.

        Raises:
            ChannelDown, SendLater, SendUnknown: as ``Channel.send``; a second try returns False.
        """
        if query not in self._open or len(text.encode("utf-16-le", "replace")) // 2 > _MAX_UNITS:
            return False
        # Whoever waits finds it answered.
        self._open.pop(query).set()
        try:
            await self._wire.call(_ANSWER, callback_query_id=query, text=text, show_alert=True)
        except SendNever as error:
            log.info("press.refused", error=str(error))
            return False
        return True


# While an update is under way, a poll answers at once; one that repeats its offset within half a second
# gets a single update.
_PACE_S: Final = 0.6
_SLOWEST_PACE_S: Final = 2.0
# The most that one poll brings.
_BATCH: Final = 100
_PAUSES_S: Final = (1.0, 30.0)
_CONFLICT_PAUSES_S: Final = (5.0, 30.0)
# The bot may be renamed while it runs: so long its name is believed.
_NAME_S: Final = 3_600.0
# After so many in a row the connection is built anew.
_STALLS: Final = 2

Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Times:
    """How an adapter pauses, and how long its last word may take, a poll may be late, a button may turn."""

    sleep: Sleep = asyncio.sleep
    farewell_s: float = 1.0
    grace_s: float = 10.0
    press_s: float = 3.0


class TelegramIngress:
    """One run of the receiving side; made anew for each."""

    def __init__(self, wire: Wire, table: Table, site: Site, times: Times, presses: OpenPresses) -> None:
        self._wire = wire
        self._presses = presses
        self._site = site
        self._times = times
        self._beat_within_s = 2 * (table.poll_timeout_s + table.request_timeout_s)
        self._blocked_s = max(table.poll_timeout_s, _SLOWEST_PACE_S)
        self._window = UpdateWindow()
        # The offset of the last poll.
        self._asked: int | None = None
        # Chat → its last update under way.
        self._tails: dict[str, asyncio.Task[bool]] = {}
        self._parts: Parts[int] = Parts(lambda batch: None)
        self._failures = 0
        self._stalls = 0
        # When the bot's name was asked for last, and names of bots that were not it.
        self._named_at = 0.0
        self._others: set[str] = set()
        self._webhook_removed = False
        # Updates of a poll that were written before the first start.
        self._old = 0

    async def run(self, emit: Emit) -> None:
        """Receive until cancelled.

        Raises:
            CredentialsRefused: Telegram does not know the token.
            ChannelError: the time of the first start cannot be kept.
        """
        me = await self._introduce()
        began = self._site.first_start(self._wire.time.now())
        # Whole seconds, as Telegram's own dates are: a message of the very second of the start is not old.
        began = began.astimezone(UTC).replace(microsecond=0)
        since = await asyncio.to_thread(first_start, self._site.state, "telegram", str(me.id), began)
        await self._patiently("deleteWebhook")
        # The first poll ends when somebody writes, or after half a minute: until then it is as good as any.
        self._site.pulse.beat(within_s=self._beat_within_s)
        try:
            async with asyncio.TaskGroup() as tasks:
                run = _Run(me, since, emit, tasks)
                self._parts = Parts(lambda batch: self._hand_on(batch, run))
                try:
                    await self._receive(run)
                finally:
                    self._parts.close()
        except asyncio.CancelledError:
            # The next poll would confirm it; where none comes, a restart would get these updates again.
            await self._farewell()
            raise
        except BaseExceptionGroup as group:
            error = group.exceptions[0]
            raise error from error.__cause__

    async def _introduce(self) -> TelegramBot:
        while True:
            found = await self._patiently("getMe")
            try:
                me = TelegramBot(int(found["id"]), str(found["username"]))
            except (KeyError, TypeError, ValueError):
                await self._suffer(ChannelError("Telegram's answer to getMe does not describe a bot"))
            else:
                self._named_at = durable.monotonic()
                return me

    async def _renamed(self, run: _Run, updates: Iterable[Mapping[str, Any]]) -> _Run:
        """Ask for the bot's name once an hour, and where an unknown name that may be its own is mentioned."""
        names = {name for update in updates for name in bots_named(update)}
        unknown = names - self._others - {run.me.username.casefold()}
        if not unknown and durable.monotonic() - self._named_at < _NAME_S:
            return run
        try:
            found = await self._wire.call("getMe")
            me = TelegramBot(int(found["id"]), str(found["username"]))
        except (ChannelError, KeyError, TypeError, ValueError) as error:
            # The name known so far stands; the next poll shows whether Telegram answers.
            log.warning("name.unknown", error=str(error))
            return run
        # A name that was another's an hour ago may be the bot's by now.
        self._others = unknown if durable.monotonic() - self._named_at >= _NAME_S else self._others | unknown
        self._others.discard(me.username.casefold())
        self._named_at = durable.monotonic()
        if me.username != run.me.username:
            log.info("bot.renamed", username=me.username)
        return replace(run, me=me)

    async def _patiently(self, method: str) -> Any:
        while True:
            try:
                result = await self._wire.call(method)
            except ChannelError as error:
                await self._suffer(error)
            else:
                self._failures = self._stalls = 0
                return result

    async def _receive(self, run: _Run) -> None:
        pace_s = _PACE_S
        while True:
            began = durable.monotonic()
            updates = await self._poll()
            if updates is None:
                continue
            fresh = self._window.admit(list(updates))
            run = await self._renamed(run, [updates[update_id] for update_id in fresh])
            for update_id in updates:
                if update_id in fresh:
                    self._begin(update_id, updates[update_id], run)
            if self._old:
                log.info("updates.skipped_as_old", count=self._old, first_start=run.since.isoformat())
                self._old = 0
            # The next part may be among what the next poll brings.
            pace_s = _PACE_S if fresh or self._parts.waiting else min(1.5 * pace_s, _SLOWEST_PACE_S)
            if await self._window.settle(pace_s):
                if not fresh:
                    await asyncio.sleep(began + _PACE_S - durable.monotonic())
            elif self._window.full or (len(updates) >= _BATCH and not fresh):
                await self._window.move(self._blocked_s)

    async def _poll(self) -> dict[int, dict[str, Any]] | None:
        """Return the updates that Telegram keeps, by id, in its order; None after a failure and its pause."""
        self._asked = self._window.offset()
        try:
            found = await self._wire.poll(self._asked, ALLOWED)
        except ChannelError as error:
            if isinstance(error, WebhookSet) and not self._webhook_removed:
                # Set again after this, it is not a leftover: whoever does it wants it there.
                self._webhook_removed = True
                log.warning(
                    "webhook.removed",
                    hint="if it is set again, another program uses this bot: give it its own bot",
                )
                await self._patiently("deleteWebhook")
            else:
                await self._suffer(error)
            return None
        self._failures = self._stalls = 0
        self._site.pulse.beat(within_s=self._beat_within_s)
        updates: dict[int, dict[str, Any]] = {}
        for update in found:
            if isinstance(update, dict) and type(update.get("update_id")) is int:
                updates[update["update_id"]] = update
            else:
                log.warning("update.skipped", reason="it has no update_id")
        return updates

    def _begin(self, update_id: int, update: dict[str, Any], run: _Run) -> None:
        found = read(update, run.me, self._wire.download)
        pressed = update.get("callback_query")
        press = str(pressed.get("id") or "") if isinstance(pressed, dict) else ""
        if press:
            self._presses.begin(press)
            run.tasks.create_task(self._presses.wait(press), name="telegram press")
        if isinstance(found, Arrival) and found.sent_at is not None and found.sent_at < run.since:
            found = SkippedUpdate(kind_of(update), "written before the first start")
            self._old += 1
        if isinstance(found, SkippedUpdate):
            level = log.warning if found.strange else log.debug
            level("update.skipped", update=update_id, kind=found.kind, reason=found.reason)
            self._window.confirm(update_id)
            self._presses.dismiss(press)
            return
        for batch in self._parts.take(found, update_id):
            self._hand_on(batch, run)

    def _hand_on(self, batch: Batch[int], run: _Run) -> None:
        """Emit some arrivals of one chat, after those of it that are under way."""
        first, update_id = batch[0]
        chats = {first.chat_id, first.moved_from or first.chat_id}
        before = {self._tails[chat] for chat in chats if chat in self._tails}
        carried = self._carry(batch, before, run.emit)
        task = run.tasks.create_task(carried, name=f"telegram update {update_id}")
        self._tails.update(dict.fromkeys(chats, task))
        task.add_done_callback(lambda done: self._leave(chats, done))

    def _leave(self, chats: set[str], task: asyncio.Task[bool]) -> None:
        for chat in chats:
            if self._tails.get(chat) is task:
                del self._tails[chat]

    async def _carry(self, batch: Batch[int], before: set[asyncio.Task[bool]], emit: Emit) -> bool:
        """Emit after the ones before in the same chat; none overtakes one that failed."""
        if before:
            await asyncio.wait(before)
            # Telegram still has the one that failed: what overtook it would be answered out of order.
            if not all(_carried(task) for task in before):
                return False
        for arrival, _ in batch:
            if not await emit(arrival):
                self._presses.dismiss(str(arrival.meta.get(PRESS) or ""))
        # Only now: what is confirmed is forgotten by the next poll. A kill before it costs a repeat.
        for _, update_id in batch:
            self._window.confirm(update_id)
        return True

    async def _suffer(self, error: ChannelError) -> None:
        """Tell the pulse what is wrong and wait before the next try; a refused token ends it."""
        self._site.pulse.fail(str(error))
        if isinstance(error, CredentialsRefused):
            raise error
        if isinstance(error, NoAnswer):
            self._stalls += 1
            if self._stalls >= _STALLS:
                self._stalls = 0
                # A connection that a router dropped in silence answers no poll, whatever the next one asks.
                await self._wire.rebuild()
        pause_s = _pause(error, self._failures)
        self._failures += 1
        log.warning("poll.failed", error=str(error), again_in_s=pause_s)
        await self._times.sleep(pause_s)

    async def _farewell(self) -> None:
        """Let Telegram forget what was confirmed since the last poll, so that it need not come again."""
        offset = self._window.offset()
        if offset is not None and offset != self._asked:
            # Where it fails they come again at the next start, and the queue knows their ids.
            with contextlib.suppress(ChannelError):
                await self._wire.forget(offset, self._times.farewell_s)


@dataclass(frozen=True, slots=True)
class _Run:
    me: TelegramBot
    since: datetime
    emit: Emit
    tasks: asyncio.TaskGroup


def _carried(task: asyncio.Task[bool]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result()


def _pause(error: ChannelError, failures: int) -> float:
    least_s, most_s = _CONFLICT_PAUSES_S if isinstance(error, Taken) else _PAUSES_S
    pause_s = min(least_s * 2.0 ** min(failures, 10), most_s)
    return max(pause_s, error.after_s) if isinstance(error, SendLater) else pause_s
