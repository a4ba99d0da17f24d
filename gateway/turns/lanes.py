"""One line per key: its letters run one at a time, in order, while the lines of other keys go on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from channels.message import Inbound
from durable import first_of
from gateway.queue.mailbox import Letter
from gateway.turns.policy import Verdict
from session.turn.turn import Request, StopSwitch


@dataclass(eq=False, slots=True)
class Entry:
    """A letter in its lane. ``letter`` is exchanged when the same message is delivered again.

    ``ended`` is the one that is gone from its queue: where another is in its place, that one is not.
    """

    inbound: Inbound
    letter: Letter
    since: float  # loop time at which it came into the lane, seconds
    stop: StopSwitch = field(default_factory=StopSwitch)
    tries: int = 0  # tries in this process that ended in a wait
    crashes: int = 0  # tries that ended in an error nobody foresaw
    told: bool = False  # the chat knows that the disk is full
    held: str = ""  # what of the workspace refused at the last try
    begun_at: float = 0.0  # loop time of its first try, seconds
    admitted: bool = False  # it is within the limits of its person and day
    parted: bool = False  # a session ended before it, and its chat was told
    away_at: datetime | None = None  # when a try first met an outage
    asked: Request | None = None  # what a command has the model asked
    verdict: Verdict | None = None  # once it is to be parked
    parking: asyncio.Event | None = None  # set when the try to park it has ended
    ended: Letter | None = None
    # It was the first of its lane when it came: its turn may have been the one that a death cut short.
    heads: bool = False
    # The journal holds a start of its turn that this process neither ended nor struck out.
    recorded: bool = False
    # A start of it was struck out: the next one is recorded, since only the first one is known without.
    struck: bool = False
    # Tries to park it.
    parkings: int = 0
    # Tries that ended because another process owned the key.
    fenced: int = 0


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """The verdict that the head of the lane must wait ``after_s`` seconds, or until ``woken`` is set."""

    after_s: float
    woken: asyncio.Event | None = None


Work = Callable[[Entry], Awaitable[RetryAfter | None]]


class Lane:
    """The waiting letters of one key; the first one is the one that runs."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.entries: deque[Entry] = deque()
        self._by_id: dict[str, Entry] = {}
        self.running: Entry | None = None
        self.nudge: asyncio.Event | None = None  # ends the pause that the first letter is in
        self.crowded = False  # the chat was told that many wait
        # The chat was told that further ones are refused.
        self.flooded = False

    def find(self, message_id: str) -> Entry | None:
        """Return the entry of this message, running or waiting."""
        return self._by_id.get(message_id)

    def add(self, entry: Entry) -> None:
        """Put an entry at the end."""
        self.entries.append(entry)
        self._by_id[entry.inbound.id] = entry

    def shift(self) -> None:
        """Take the first entry out."""
        del self._by_id[self.entries.popleft().inbound.id]


class Lanes:
    """All lanes of a daemon; at most ``concurrent`` turns run at once.

    ``work`` does one try of an entry and returns None when the letter has ended.
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

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def get(self, key: str) -> Lane | None:
        """Return the lane of ``key`` while it has letters."""
        return self._lanes.get(key)

    def add(self, inbound: Inbound, letter: Letter) -> Entry | None:
        """Put a letter at the end of its lane; None where its message is in the lane already.

        A message that is delivered again while it waits or runs only gets its new acknowledgement.
        """
        lane = self._lanes.get(inbound.key)
        if lane is None:
            lane = self._lanes[inbound.key] = Lane(inbound.key)
        entry = lane.find(inbound.id)
        if entry is not None:
            entry.letter = letter
            if entry is lane.running:
                letter.begin()
            return None
        now = asyncio.get_running_loop().time()
        entry = Entry(inbound, letter, now, heads=not lane.entries)
        lane.add(entry)
        if inbound.key not in self._tasks and not self._closing.is_set():
            self._idle.clear()
            task = self._group.create_task(self._run(lane), name=f"lane {inbound.key}")
            self._tasks[inbound.key] = task
        return entry

    def stop(self, key: str, asked_id: str = "") -> Entry | None:
        """Pull the switch of the turn that runs, or waits for its next try; None where there is none."""
        entry = self.begun(key)
        if entry is None or entry.stop.pulled or entry.inbound.id == asked_id:
            return None
        entry.stop.pull()
        nudge = self._lanes[key].nudge
        if nudge is not None:
            nudge.set()
        return entry

    def begun(self, key: str) -> Entry | None:
        """Return the entry whose turn runs, or waits for its next try."""
        lane = self._lanes.get(key)
        if lane is None:
            return None
        return lane.entries[0] if lane.nudge is not None and lane.entries else lane.running

    async def parked_whole(self, message_id: str, key: str | None) -> None:
        """Return when no letter of this id, of ``key`` or of any chat, is in the midst of being parked."""
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
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            await self.cancel()
            return False
        return True

    async def cancel(self) -> None:
        """End all running turns at once; their letters come again."""
        self._closing.set()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._tasks.clear()  # one that was cancelled before its first step has not taken itself out
        self._idle.set()

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.entries and not self._closing.is_set():
                switch = lane.entries[0].stop
                pulled = switch.pulled
                again = await self._head(lane)
                if again is not None and switch.pulled == pulled:  # a stop in this try is seen by the next
                    await self._pause(lane, again)
        finally:
            del self._tasks[lane.key]
            if not lane.entries or self._closing.is_set():
                self._lanes.pop(lane.key, None)
            if not self._tasks:
                self._idle.set()

    async def _head(self, lane: Lane) -> RetryAfter | None:
        entry = lane.entries[0]
        async with self._gate:
            if self._closing.is_set():
                return None
            if not entry.letter.begin():
                lane.shift()  # it comes again, here or elsewhere, and then anew
                return None
            lane.running = entry
            try:
                again = await self._work(entry)
            finally:
                lane.running = None
        if again is None:
            lane.shift()
            if entry.ended is not None and entry.letter is not entry.ended:
                self.add(entry.inbound, entry.letter)  # put back, or published twice: it came meanwhile
        return again

    async def _pause(self, lane: Lane, again: RetryAfter) -> None:
        """Wait without holding a place among the running turns."""
        lane.nudge = asyncio.Event()
        events = [self._closing, lane.nudge, *([again.woken] if again.woken is not None else [])]
        try:
            await first_of(*(event.wait() for event in events), timeout_s=again.after_s)
        finally:
            lane.nudge = None
