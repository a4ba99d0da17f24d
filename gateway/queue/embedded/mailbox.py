"""The mailbox that needs nothing installed: a SQLite table as the log, memory in front of it, one daemon.

The table says what exists; memory says who gets it next. A put waits until its batch is committed, then its
letter goes straight to the taker of its box. Only where more waits than memory may hold, or where nobody
takes, are letters read back, in the order of their rows.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

import durable
from durable import Commit, Conflict, Job
from gateway.errors import GatewayError, LetterLost, MailboxDown
from gateway.queue.embedded.buffer import Buffer, EmbeddedLetter
from gateway.queue.embedded.table import Inserted, QueueRow, QueueTable
from gateway.queue.feed import BYTES_MAX, Fanout, HeldBytes
from gateway.queue.mailbox import (
    INBOUND,
    Behind,
    Depth,
    Health,
    InMemory,
    Letter,
    Mark,
    Parked,
    ParkedAs,
    Post,
    Topic,
    Waiting,
)
from gateway.state import open_state
from session.errors import StoreError
from session.store.state import StoreState, workspace_state

T = TypeVar("T")
log = structlog.get_logger("embedded")
# Letters of one box in memory, those being worked on included.
WINDOW = 100_000
# Letters read at once: few enough that the loop never stands still for what comes of them.
LOAD = 500
LOAD_BYTES = 4 * 2**20


class EmbeddedMailbox:
    """A durable queue in the state database, for the one gateway that holds the folder.

    Args:
        state: ``state/`` of the workspace; it is made where there is none.
        window: how many letters of a box are in memory at most, taken ones included.
        window_bytes: how large the bodies in memory may be, of all boxes together.
        probe_s: how often a disk that refused is tried again while nobody writes.
        now: the clock, UTC.
        at: called in the writing thread with the name of each instant of a commit.
    """

    def __init__(
        self,
        state: Path,
        *,
        window: int = WINDOW,
        window_bytes: int = BYTES_MAX,
        probe_s: float = 1.0,
        now: Callable[[], datetime] = durable.now,
        at: Callable[[str], None] | None = None,
    ) -> None:
        self._state = workspace_state(state)
        self._state.at = at or self._state.at
        assert isinstance(self._state.database, durable.StateDatabase)
        self._table = QueueTable(self._state.database)
        self._window, self._bytes_held = window, HeldBytes(window_bytes)
        self._probe_s = probe_s
        self._now = now
        self._open = False
        self._up = asyncio.Event()
        self._over: GatewayError | None = None
        self._health = Health(up=False, since=now(), error="not open yet")
        self._boxes: dict[str, Buffer] = {}
        self._fanout = Fanout()

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self) -> None:
        """Write what is asked until cancelled; then write what still waits.

        Raises:
            StateInUse, NewerState, MailboxError: the state database cannot be opened.
        """
        self._over = None
        try:
            async with open_state(self._state):
                self._state.watchers.append(self._settled)
                try:
                    self._start(await self._state.ask(Job(self._table.load_counts, writes=False)))
                    await self._probe()
                finally:
                    self._close()
        except GatewayError as error:
            # Whoever waits for the queue to be ready must hear of it, too, and not wait for ever.
            self._over = error
            self._up.set()
            raise
        finally:
            # What still waited was written when the state was closed.
            if self._settled in self._state.watchers:
                self._state.watchers.remove(self._settled)
            for box in self._boxes.values():
                box.forget()

    async def ready(self) -> None:
        """Return once letters can be put and taken (the disk takes them); raises what ended ``serve``."""
        await self._up.wait()
        if self._over is not None:
            raise self._over

    def health(self) -> Health:
        """Say whether the last write was taken by the disk."""
        return self._health

    def _start(self, counts: Mapping[str, int]) -> None:
        self._open = True
        self._went(None)
        for name in {*self._boxes, *counts}:
            box = self._box(name)
            box.restart(counts.get(name, 0), self._table.last_seq)
            self._refill(box)

    async def _probe(self) -> None:
        """While the disk refuses and nobody writes, try it again and again; raises what broke the writer."""
        while True:
            try:
                async with asyncio.timeout(None if self._health.up else self._probe_s):
                    await self._state.progress()
            except TimeoutError:
                # A disk that has room again tells nobody: only a write finds out.
                if self._state.idle:
                    self._ask(QueueTable.touch)

    def _close(self) -> None:
        self._open = False
        self._up.clear()
        self._health = Health(up=False, since=self._now(), error="closed")

    def _ask(
        self,
        run: Callable[[QueueTable], T],
        applied: Callable[[T | Exception], None] | None = None,
        *,
        writes: bool = True,
    ) -> asyncio.Future[T]:
        """Add to the next batch. ``applied`` sees the outcome before anyone who waits for the future."""
        if not self._open:
            raise MailboxDown("the queue is not open")
        return self._state.ask(Job(partial(run, self._table), writes), applied)

    def _settled(self, asked: Sequence[durable.Asked], outcomes: Sequence[object]) -> None:
        """Bring memory up to the table."""
        failure = next((each for each in outcomes if isinstance(each, durable.StateUnavailable)), None)
        if failure is not None or any(each.job.writes for each in asked):
            self._went(failure)
        for box in self._boxes.values():
            self._refill(box)

    def _went(self, failure: durable.StateUnavailable | None) -> None:
        """Remember whether the disk took the last batch."""
        if self._open and self._health.up != (failure is None):
            self._health = Health(failure is None, self._now(), str(failure) if failure else "")
            if failure is None:
                self._up.set()
            else:
                self._up.clear()
                # The log may lie on the same full disk.
                with suppress(OSError):
                    log.error("queue.refused", error=str(failure))

    # ── putting, settling, parking ────────────────────────────────────────────────────────────────────────

    async def put(self, post: Post) -> None:
        """Return when ``post`` is on disk.

        Raises:
            MailboxDown: the disk refused; it is not stored.
            ValueError: its names are no valid text; it never will be.
        """
        await self._change((post,))

    async def settle(
        self, letter: Letter, puts: Sequence[Post] = (), *, behind: Behind | None = None
    ) -> None:
        """Store ``puts`` and remove ``letter`` in one transaction, with or after what it is ``behind``.

        Raises:
            MailboxDown: the disk refused; nothing changed.
            LetterLost: the puts are durable, the letter comes again.
        """
        mine = _mine(letter)
        if mine.lost:
            await self._change(puts)
            raise LetterLost(f"{mine.box} {mine.id}: given back before it was settled")
        try:
            await self._change(puts, mine, behind=None if behind is None else behind.commit)
        except (Conflict, MailboxDown):
            if behind is None:
                raise
            # What it hangs on was not written, or not in one piece with it: that tells why, or is by now.
            await behind.durable()
            await self._change(puts, mine)

    async def _change(
        self,
        puts: Sequence[Post],
        letter: EmbeddedLetter | None = None,
        also: Callable[[QueueTable], None] | None = None,
        behind: Commit | None = None,
    ) -> None:
        """Remove ``letter``, do ``also``, append ``puts``: one transaction, then memory follows.

        Raises:
            Conflict: the rows of ``behind`` were not written; nothing was done.
        """
        if letter is None and also is None and not puts:
            return
        at = self._now()

        def change(table: QueueTable) -> list[Inserted]:
            if behind is not None and not behind.written:
                raise Conflict("what it hangs on")
            if letter is not None:
                table.remove(letter.row)
            if also is not None:
                also(table)
            return [table.insert(post, at) for post in puts]

        def applied(outcome: list[Inserted] | Exception) -> None:
            failed = isinstance(outcome, Exception)
            if letter is not None:
                self._box(letter.box).freed(letter, removed=not failed)
            if not isinstance(outcome, Exception):
                for post, row in zip(puts, outcome, strict=True):
                    if row.stored:
                        stored = QueueRow(row.seq, post.key, post.id, post.body, post.headers)
                        self._box(post.box).stored(stored)

        done = self._ask(change, applied)
        if letter is not None:
            # The box is not passed on before the outcome: a refused change brings the letter back.
            letter.busy += 1
        await _result(done)

    async def park(self, letter: Letter, listed: ParkedAs, *, mark: Mark | None = None) -> None:
        """Move ``letter`` to the parked ones: one transaction, or two with ``mark`` awaited between them.

        A letter that was parked and not removed (``mark`` failed, the process was killed) replaces its parked
        copy when it is parked again.

        Raises:
            MailboxDown: the disk refused; the letter is where it was.
            LetterLost: it is parked, and comes again all the same.
        """
        mine = _mine(letter)
        if mine.erased:
            return
        id_ = mine.id or durable.new_id()
        parked = Parked(
            id_, mine.box, listed.key, listed.reason, mine.box, listed.attempts, self._now(), mine.body
        )
        set_aside = partial(QueueTable.park, parked=parked, line=mine.key or "")
        if mark is None:
            await self._change((), None if mine.lost else mine, set_aside)
        else:
            await self._change((), None, set_aside)
            await mark()
            await self._change((), None if mine.lost else mine)
        if mine.lost:
            raise LetterLost(f"{mine.box} {mine.id}: given back before it was parked")

    async def parked(self) -> list[Parked]:
        """List the parked letters, oldest first."""
        return await _result(self._ask(QueueTable.parked, writes=False))

    async def replay(self, id: str, *, key: str | None = None) -> Parked | None:
        """Put a parked letter back at the end of its box; of one parked twice under one key, the older."""
        at = self._now()
        back: list[tuple[Inserted, QueueRow]] = []

        def replay(table: QueueTable) -> Parked | None:
            back.clear()
            found = table.unpark(id, key)
            if found is None:
                return None
            parked, line = found
            row = table.insert(Post(parked.box, line, parked.id, parked.body), at)
            back.append((row, QueueRow(row.seq, line, parked.id, parked.body)))
            return parked

        def applied(outcome: Parked | Exception | None) -> None:
            if isinstance(outcome, Parked):
                for inserted, row in back:
                    if inserted.stored:
                        self._box(outcome.box).stored(row)

        return await _result(self._ask(replay, applied))

    async def drop(self, id: str, *, key: str | None = None) -> Parked | None:
        """Remove a parked letter for good; as ``replay``."""
        found = await _result(self._ask(lambda table: table.unpark(id, key)))
        return found[0] if found else None

    async def erase(self, keys: Collection[str]) -> list[bytes]:
        """Remove every letter of these keys, also from the file's bytes; return their bodies.

        Raises:
            MailboxDown: the disk refused; call it again.
        """

        def applied(outcome: tuple[list[bytes], Mapping[str, int]] | Exception) -> None:
            if not isinstance(outcome, Exception):
                for name, box in self._boxes.items():
                    box.erase(keys, left=outcome[1].get(name, 0))

        bodies, _ = await _result(self._ask(lambda table: table.erase(keys), applied))
        try:
            await self._state.compact()
        except durable.StateUnavailable as error:
            raise MailboxDown(str(error), hint=error.hint) from error
        return bodies

    async def bodies_with(self, text: bytes) -> list[bytes]:
        """Return every body that holds ``text``, of letters that are not settled yet or are parked."""
        return await _result(self._ask(lambda table: table.bodies_with(text), writes=False))

    async def depths(self, channels: Collection[str] = (), *, recent: bool = False) -> Mapping[str, Depth]:
        """Count what waits or is being worked on, by box; ``inbound`` and ``parked`` always among them."""
        self._box(INBOUND)
        names = list(self._boxes)

        def look(table: QueueTable) -> tuple[list[datetime | None], tuple[int, datetime | None]]:
            return [table.oldest(name) for name in names], table.parked_depth()

        oldest, parked = await _result(self._ask(look, writes=False))
        found = {name: Depth(self._boxes[name].count, at) for name, at in zip(names, oldest, strict=True)}
        return found | {"parked": Depth(*parked)}

    async def waiting(self, message_id: str) -> Sequence[Waiting]:
        """List the letters with this id, or put for the message of it, that are not settled."""
        return await _result(self._ask(lambda table: table.waiting(message_id), writes=False))

    def in_memory(self) -> InMemory:
        """Say what of the letters this process holds, and how much it may."""
        letters = sum(box.held for box in self._boxes.values())
        return InMemory(letters, self._bytes_held.total, self._bytes_held.max_bytes)

    # ── taking ────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        """Open the box; the first taker gets its letters, the next one when the first has left."""
        taken = self._box(box)
        taker = taken.join()
        self._refill(taken)
        try:
            yield taker
        finally:
            taken.leave(taker)
            self._refill(taken)

    def _box(self, name: str) -> Buffer:
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = Buffer(name, self._window, self._bytes_held)
        return box

    def _refill(self, box: Buffer) -> None:
        """Have the next letters of the box read, where there are some and they fit."""
        if not self._open or not self._health.up or not box.wants_rows():
            return
        box.loading = True
        visit, after = box.visit, box.read_to
        limit, max_bytes = min(box.free, LOAD), min(box.free_bytes, LOAD_BYTES)
        read = partial(QueueTable.load, name=box.name, after=after, limit=limit, max_bytes=max_bytes)

        def applied(outcome: tuple[list[QueueRow], bool] | Exception) -> None:
            if box.visit == visit:
                box.loading = False
                if not isinstance(outcome, Exception):
                    box.loaded(*outcome)

        self._ask(read, applied, writes=False)

    async def tell(self, topic: Topic, slot: int, body: bytes) -> None:
        """Hand ``body`` to whoever listens now."""
        self._fanout.tell(topic, slot, body)

    def listen(
        self, topic: Topic, slots: Collection[int] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Receive what is told while the context is open; who is 1,000 messages behind loses the oldest."""
        return self._fanout.listen(topic, slots)


async def _result(done: asyncio.Future[T]) -> T:
    try:
        return await done
    except durable.StateUnavailable as error:
        raise MailboxDown(str(error), hint=error.hint) from error


def _mine(letter: Letter) -> EmbeddedLetter:
    if not isinstance(letter, EmbeddedLetter):
        raise TypeError(f"a letter of another mailbox: {letter!r}")
    return letter


# ── an embedded queue whose gateway takes from a broker by now ────────────────────────────────────────────

_WAITING: Final = "SELECT count(*) FROM queue"
_PARKED: Final = "SELECT count(*) FROM parked"
CURE: Final = 'start once with broker.url = "embedded", until they are answered; or move the file away'


async def left_behind(state: Path) -> str:
    """Say how many messages wait there, and how many are parked; empty where there are none."""
    path = state / durable.STATE_FILE
    if not path.exists():
        return ""
    try:
        waiting, parked = await (_counted_here(path) if workspace_state(state).remote else _counted(state))
    except (StoreError, sqlite3.Error):
        return ""
    if not waiting and not parked:
        return ""
    counts = "1 waiting letter" if waiting == 1 else f"{waiting} waiting letters"
    if parked:
        counts += f" and {parked} parked"
    lie = "lies" if (waiting, parked) == (1, 0) else "lie"
    return f"{counts} {lie} in {path}, the embedded queue, from which nothing is taken with a broker.url"


async def _counted(state: Path) -> tuple[int, int]:
    database = StoreState(state)
    try:
        ((waiting,),) = await database.read(_WAITING)
        ((parked,),) = await database.read(_PARKED)
    finally:
        await database.aclose()
    return waiting, parked


async def _counted_here(path: Path) -> tuple[int, int]:
    """Count in a file that nobody uses any more: the state database is on a server."""
    with durable.reading(path) as file:
        return file.execute(_WAITING).fetchone()[0], file.execute(_PARKED).fetchone()[0]
