"""One lane per key: its messages run one at a time, in order, while the lanes of other keys go on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import durable
from channels.message import Inbound
from durable import first_of
from gateway.dispatch.policy import Verdict
from gateway.observer import TurnFigures
from gateway.queue.mailbox import Letter
from session.errors import ModelAway
from session.models.model import Model
from session.turn.turn import StopSwitch

# The wait before a try that needs nothing but that the one before has ended.
SOON_S = 0.05


@dataclass(slots=True)
class Tries:
    """What became of the tries at a message in this process; of earlier ones its journal knows.

    Args:
        waits: those that ended in a wait.
        away: those that ended because the model was away or limited the rate.
        counted: those whose failure counts against the message.
        rate_limits: rate limits that it met while other messages were answered.
        crashes: those that ended in an error nobody foresaw.
        fenced: those that ended because the conversation was cleared or replaced.
        parkings: how often it was to be parked.
        recorded: the journal holds a start of its turn that was neither ended nor struck out here.
        struck: a start was struck out. The next one is recorded: only the very first is known without.
    """

    waits: int = 0
    away: int = 0
    counted: int = 0
    rate_limits: int = 0
    crashes: int = 0
    fenced: int = 0
    parkings: int = 0
    recorded: bool = False
    struck: bool = False


@dataclass(eq=False, slots=True)
class Hold:
    """A lane that waits for its model, from ``not_before`` (loop time) on; ``paced``: for a rate limit."""

    not_before: float
    paced: bool
    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class PendingMessage:
    """A message in its lane with its delivery, from its arrival to its end.

    Args:
        letter: its delivery; a newer one once that is lost.
        since: loop time at which it came into the lane, seconds.
        queued_at: the same by the clock on the wall.
        heads: it was the first of its lane when it came, so that a death may have cut its turn short.
        settled: the delivery that was acknowledged. If ``letter`` is a newer one, that one still has to be.
        copies: other deliveries under its id, put beside it: each has an acknowledgement of its own.
        verdict: why it is to be parked.
        parking: set when the try to park it has ended.
        held: what of the workspace refused at the last try.
        begun_at: loop time of its first try, seconds.
        woken: ends its wait for the other parts of its album or long text.
        tried: a try of it has begun.
        away_at: when a try first met an outage of the model.
        away: what its last try failed with, where that was an outage or a rate limit.
        away_told: the chat was notified of that.
        asked_at: loop time of the last try's turn, seconds.
        answers: how many messages its model had answered at the last failed try; None without one.
        hold: what its lane waits for while the model is away.
        admitted: it is within the limits of its person and day.
        disk_told: the chat knows that the disk takes nothing.
        parted: a session ended before it, and its chat was told.
        apart: a turn of several messages failed with it, so that it is asked alone.
        deleted: its message was taken back; where its turn has not begun at the next try, it has none.
        edited: what its message was edited to as the first of its lane; asked unless its question is stored.
        last: its person is over the limit by now, so that no message of theirs stops its turn.
        model: what its turn asks; None where it has not begun.
        asking: the tool that waits for a person's word.
        figures: what its turn took here so far.
        agent: the agent that its command is bound to, and ``typed`` what the person wrote with the command.
    """

    inbound: Inbound
    letter: Letter
    since: float
    heads: bool = False
    stop: StopSwitch = field(default_factory=StopSwitch)
    tries: Tries = field(default_factory=Tries)
    settled: Letter | None = None
    copies: list[Letter] = field(default_factory=list)
    verdict: Verdict | None = None
    parking: asyncio.Event | None = None
    held: str = ""
    begun_at: float = 0.0
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    tried: bool = False
    away_at: datetime | None = None
    away: ModelAway | None = None
    away_told: bool = False
    asked_at: float = 0.0
    answers: int | None = None
    hold: Hold | None = None
    admitted: bool = False
    disk_told: bool = False
    parted: bool = False
    apart: bool = False
    deleted: bool = False
    edited: str | None = None
    last: bool = False
    model: Model | None = None
    asking: str = ""
    queued_at: datetime = field(default_factory=durable.now)
    figures: TurnFigures = field(default_factory=TurnFigures)
    agent: str = ""
    typed: str = ""

    def come_again(self, letter: Letter) -> None:
        """Take a further delivery under its id: its next delivery where it is lost, else a copy."""
        if self.letter.lost:
            self.letter = letter
        else:
            self.copies.append(letter)

    def left(self) -> Iterator[Letter]:
        """Yield what came under its id and is still to be acknowledged when it has ended."""
        newer = self.settled is not None and self.letter is not self.settled
        yield from (each for each in ([self.letter] if newer else []) + self.copies if not each.lost)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """The verdict that the head of the lane must wait ``after_s`` seconds, or until ``woken`` is set."""

    after_s: float
    woken: asyncio.Event | None = None


Work = Callable[[PendingMessage], Awaitable[RetryAfter | None]]


@dataclass(eq=False, slots=True)
class Lane:
    """The waiting messages of one key; the first one is the one that runs.

    ``nudge`` ends the pause in which the first message is. The chat was told that many wait where it is
    ``crowded``, and that further ones are refused where it is ``flooded``.
    """

    key: str
    entries: deque[PendingMessage] = field(default_factory=deque)
    running: PendingMessage | None = None
    nudge: asyncio.Event | None = None
    crowded: bool = False
    flooded: bool = False
    _by_id: dict[str, PendingMessage] = field(default_factory=dict)

    def find(self, message_id: str) -> PendingMessage | None:
        """Return the entry of this message, running or waiting."""
        return self._by_id.get(message_id)

    def add(self, entry: PendingMessage) -> None:
        """Put an entry at the end."""
        self.entries.append(entry)
        self._by_id[entry.inbound.id] = entry

    def shift(self) -> PendingMessage:
        """Take the first entry out and return it."""
        return self._by_id.pop(self.entries.popleft().inbound.id)

    def drop_lost(self) -> None:
        """Take out what waits at the end and is lost, before another message is put there.

        Lost deliveries come again in their order: one that did not come before the new one comes behind it,
        or is another process's by now.
        """
        while self.entries:
            entry = self.entries[-1]
            if entry is self.running or not entry.letter.lost or any(entry.left()):
                break
            del self._by_id[self.entries.pop().inbound.id]
        if self.nudge is not None and not self.entries:
            # Whose pause it was is gone, and the one that comes now has not begun.
            self.nudge.set()


class Lanes:
    """All lanes of a daemon; at most ``concurrent`` turns run at once.

    ``work`` does one try of an entry and returns None when the message has ended.
    """

    def __init__(self, work: Work, *, group: asyncio.TaskGroup, concurrent: int) -> None:
        self._work = work
        self._group = group
        self._gate = asyncio.Semaphore(concurrent)
        self._lanes: dict[str, Lane] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = asyncio.Event()
        # Whether turns were cancelled.
        self._cut = False
        # When each key was closed, loop time; once for each erasure that still goes on.
        self._closed: dict[str, list[float]] = {}
        self._reopened = asyncio.Event()

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def get(self, key: str) -> Lane | None:
        """Return the lane of ``key`` while it has messages."""
        return self._lanes.get(key)

    def add(self, inbound: Inbound, letter: Letter) -> PendingMessage | None:
        """Put a message at the end of its lane.

        Returns:
            Its entry. None: the message is in the lane already, and only got a further acknowledgement.
        """
        lane = self._lanes.get(inbound.key)
        if lane is None:
            lane = self._lanes[inbound.key] = Lane(inbound.key)
        elif (entry := lane.find(inbound.id)) is not None:
            entry.come_again(letter)
            return None
        else:
            lane.drop_lost()
        now = asyncio.get_running_loop().time()
        entry = PendingMessage(inbound, letter, now, heads=not lane.entries)
        lane.add(entry)
        if inbound.key not in self._tasks and not self._closing.is_set():
            self._idle.clear()
            task = self._group.create_task(self._run(lane), name=f"lane {inbound.key}")
            self._tasks[inbound.key] = task
        return entry

    def stop(self, key: str, asked_id: str = "", *, interrupted: bool = False) -> PendingMessage | None:
        """Pull the switch of the turn that runs, or waits for its next try. None: nothing was stopped.

        ``interrupted``: its message is answered together with that of ``asked_id``.
        """
        entry = self.begun(key)
        if entry is None or entry.stop.pulled or entry.inbound.id == asked_id:
            return None
        entry.stop.pull(asked_id, interrupted=interrupted)
        nudge = self._lanes[key].nudge
        if nudge is not None:
            nudge.set()
        return entry

    def begun(self, key: str) -> PendingMessage | None:
        """Return the entry whose turn runs, or waits for its next try, or for a place to have that."""
        lane = self._lanes.get(key)
        if lane is None or lane.running is not None:
            return lane.running if lane is not None else None
        return lane.entries[0] if lane.entries and lane.entries[0].tried else None

    def asking(self, key: str, message_id: str) -> Inbound | None:
        """Return the message whose turn runs for a key, by its id; None where it does not run here."""
        lane = self._lanes.get(key)
        entry = lane.running if lane is not None else None
        return entry.inbound if entry is not None and entry.inbound.id == message_id else None

    def close(self, key: str) -> None:
        """Let no turn begin of what comes for a key from now on, until it is opened as often as closed."""
        self._closed.setdefault(key, []).append(asyncio.get_running_loop().time())

    def reopen(self, key: str) -> None:
        """End one ``close``."""
        since = self._closed.pop(key, [])[:-1]
        if since:
            self._closed[key] = since
        self._reopened.set()
        self._reopened = asyncio.Event()

    def _is_closed(self, lane: Lane) -> bool:
        since = self._closed.get(lane.key)
        return since is not None and bool(lane.entries) and lane.entries[0].since >= since[0]

    async def parked_whole(self, message_id: str, key: str | None) -> None:
        """Return when no message of this id, of ``key`` or of any chat, is in the midst of being parked."""
        for lane in self:
            entry = lane.find(message_id) if key in (None, lane.key) else None
            if entry is not None and entry.parking is not None:
                await entry.parking.wait()

    async def drain(self, within_s: float) -> bool:
        """Start nothing new and let running turns end; cancel what still runs after ``within_s`` seconds.

        Returns:
            Whether all ended by themselves.
        """
        self._closing.set()
        try:
            # A supervisor kills what does not end in time: turns that are cancelled before count as no death.
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            await self.cancel()
            return False
        return not self._cut

    async def cancel(self) -> None:
        """End all running turns at once; their messages come again."""
        self._closing.set()
        tasks = list(self._tasks.values())
        self._cut = self._cut or any(entry.begun_at for lane in self for entry in lane.entries)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # A task that is cancelled before its first step never takes itself out.
        self._tasks.clear()
        self._idle.set()

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.entries and not self._closing.is_set():
                if lane.key in self._closed and self._is_closed(lane):
                    await first_of(self._closing.wait(), self._reopened.wait())
                    continue
                again = await self._head(lane)
                if again is not None:
                    await self._pause(lane, again)
        finally:
            del self._tasks[lane.key]
            if not lane.entries or self._closing.is_set():
                self._lanes.pop(lane.key, None)
            if not self._tasks:
                self._idle.set()

    async def _head(self, lane: Lane) -> RetryAfter | None:
        """Do one try of the first message; return what the lane then waits for."""
        async with self._gate:
            if self._closing.is_set() or (lane.key in self._closed and self._is_closed(lane)):
                return None
            # The one that was first before the wait for a place may have been dropped.
            entry = lane.entries[0]
            pulled = entry.stop.pulled
            if entry.letter.lost:
                # It comes again, and is then a message like any other.
                self._shift(lane)
                return None
            lane.running, entry.tried = entry, True
            try:
                again = await self._work(entry)
            finally:
                lane.running = None
        if again is None:
            self._shift(lane)
            return None
        # A stop that was pulled in this try is seen by the next one, which must not wait for it.
        return again if entry.stop.pulled == pulled else None

    def _shift(self, lane: Lane) -> None:
        """Take the first entry out; what was put back or published twice gets a place of its own."""
        entry = lane.shift()
        if entry.copies or entry.letter is not entry.settled:
            for letter in entry.left():
                self.add(entry.inbound, letter)

    async def _pause(self, lane: Lane, again: RetryAfter) -> None:
        """Wait without holding a place among the running turns."""
        lane.nudge = asyncio.Event()
        events = [self._closing, lane.nudge, *([again.woken] if again.woken is not None else [])]
        try:
            await first_of(*(event.wait() for event in events), timeout_s=again.after_s)
        finally:
            lane.nudge = None
