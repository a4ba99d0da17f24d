"""What a scope's memory remembers between its steps: an answer on its way, failures, how far it looked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import MISSING, asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import durable
from session.context.scopes import Scope
from session.disk.state import let_go, read_state, try_lock, write_state
from session.disk.threads import start_thread
from session.errors import NotNow, loggable
from session.memory.notes import Mark

Line = Mapping[str, Any]

BUSY_S = 10.0
# After so many failures in a row, with these waits between them, a model is not asked again.
TRIES = 3
BACK_OFF_S = (60.0, 600.0)
FAILURES_KEPT = timedelta(days=30)
# Sessions of which is remembered up to where facts were drawn from them, those looked at last.
LOOKED_AT_MAX = 2_000
# Messages that are known to have been looked at, wherever they stand by now.
SEEN_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer on its way into the files: stored before the first of them is touched, gone after the last.

    ``base`` is the digest of the MEMORY.md that it was made from; ``memory`` is None where that stays;
    ``merged`` says that it was shortened for its size, ``ended`` that its session had ended by then.
    """

    key: str
    session_id: str
    start: int
    stop: int
    digest: str
    entry: str
    memory: str | None
    base: str
    merged: bool = False
    ended: bool = False

    @classmethod
    def of(
        cls,
        key: str,
        mark: Mark,
        *,
        entry: str = "",
        memory: str | None = None,
        base: str = "",
        merged: bool = False,
    ) -> Stored:
        """Make an answer about the marked messages of a conversation; empty: they say nothing."""
        return cls(key, mark.session_id, mark.start, mark.stop, mark.digest, entry, memory, base, merged)

    @property
    def mark(self) -> Mark:
        """What its paragraph in HISTORY.md is known by."""
        return Mark(self.session_id, self.start, self.stop, self.digest)


@dataclass(frozen=True, slots=True)
class Done:
    """What a consolidation did: messages moved, those of them kept raw, calls of the model, its scope."""

    messages: int = 0
    raw: int = 0
    calls: int = 0
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """How often a session's messages from ``start`` on failed in a row, and when to try them again."""

    start: int
    count: int
    until: float


@dataclass
class ScopeState:
    """The state of one scope, while its lock is ours."""

    path: Path
    answer: Stored | None = None
    failures: dict[str, Failure] = field(default_factory=dict)
    # How many messages of each session were looked at for facts, the one looked at last behind the others.
    looked_at: dict[str, int] = field(default_factory=dict)
    # Digests of the ids with which each of these stretches ended.
    seen: list[str] = field(default_factory=list)

    async def save(self) -> None:
        """Write the state; on return it survives a power cut."""
        content = {
            "answer": asdict(self.answer) if self.answer is not None else None,
            "failures": {session: asdict(failure) for session, failure in self.failures.items()},
            "looked_at": dict([*self.looked_at.items()][-LOOKED_AT_MAX:]),
            "seen": self.seen[-SEEN_MAX:],
        }
        await start_thread(lambda: write_state(self.path, content), name="scope-state")

    def note_looked_at(self, key: str, session_id: str, lines: Sequence[Line], count: int) -> None:
        """Remember that ``count`` messages of a session were looked at, the last of which are ``lines``.

        They come into another session as a compaction keeps them, and as two sessions are joined again: they
        are known by the id of the newest.
        """
        self.looked_at.pop(session_id, None)
        self.looked_at[session_id] = count
        last = next((digest for line in reversed(lines) if (digest := _digest_of(key, line))), "")
        if last:
            self.seen = [*(each for each in self.seen if each != last), last]

    def looked_up_to(self, key: str, session_id: str, lines: Sequence[Line], start: int) -> int:
        """Return how many messages of a session were looked at, of which ``lines`` stand behind ``start``."""
        seen, upto = {*self.seen}, self.looked_at.get(session_id, 0)
        for at in range(len(lines) - 1, max(upto - start, 0) - 1, -1):
            if _digest_of(key, lines[at]) in seen:
                return start + at + 1
        return upto

    def failure(self, session_id: str, start: int) -> Failure:
        """Return the failures of the messages from ``start`` on; a session that got further has none."""
        known = self.failures.get(session_id)
        return known if known is not None and known.start == start else Failure(start, 0, 0.0)

    def check_rest(self, subject: str, start: int, now: datetime) -> Failure:
        """Return the failures so far.

        Raises:
            NotNow: the next try comes later.
        """
        failure = self.failure(subject, start)
        if failure.until > now.timestamp():
            until = datetime.fromtimestamp(failure.until, UTC)
            raise NotNow("the last attempt failed", reason="failed", until=until)
        return failure

    async def count_failure(
        self,
        subject: str,
        start: int,
        error: Exception,
        now: datetime,
        *,
        waits_s: Sequence[float] = BACK_OFF_S,
    ) -> None:
        """Count a failure, over restarts; return once no try is left.

        Raises:
            NotNow: the next try comes later.
        """
        count = self.failure(subject, start).count + 1
        left = count <= len(waits_s)
        until = now + timedelta(seconds=waits_s[count - 1] if left else 0.0)
        self.failures[subject] = Failure(start, count, until.timestamp())
        await self.save()
        if left:
            why = f"the model's answer cannot be used: {loggable(error)}"
            raise NotNow(why, reason="failed", until=until) from error

    def forget(self, session_id: str, now: datetime) -> None:
        """Strike out the failures of a session, and those of sessions that nobody asked for in a month."""
        oldest = (now - FAILURES_KEPT).timestamp()
        self.failures = {
            session: failure
            for session, failure in self.failures.items()
            if session != session_id and failure.until >= oldest
        }


class ScopeStates:
    """Opens the states of scopes, each for one writer at a time over all processes.

    Raises NewerFormat and StoreError if a file cannot be used.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._folder = folder
        self._clock = clock
        # Whoever holds or awaits a lock keeps it there; behind the last one it goes.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def open(self, name: str, *, within_s: float | None = None) -> AsyncIterator[ScopeState]:
        """Hold the state of a scope for the block; whoever else of this process wants it waits in line.

        Raises:
            NotNow: another process holds it, or this one for longer than ``within_s``.
            NewerFormat, StoreError: its file cannot be used.
        """
        lock = self._locks.setdefault(name, asyncio.Lock())
        path = self._folder / f"{name}.json"
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(within_s):
                    await held.enter_async_context(lock)
            except TimeoutError as error:
                raise self._busy("this memory is being changed right now") from error
            taking = start_thread(lambda: self._take(path), name="scope-state")
            try:
                fd, scope_state = await taking
            except asyncio.CancelledError:
                # The thread ends all the same, and a lock that it took would shut the scope for good.
                if taking.done() and taking.exception() is None:
                    let_go(taking.result()[0])
                raise
            try:
                yield scope_state
            finally:
                let_go(fd)

    async def looked_at(self, name: str, session_id: str) -> int:
        """Return how many messages of a session were looked at for facts, as its file has it now."""
        path = self._folder / f"{name}.json"
        return (await asyncio.to_thread(_read, path)).looked_at.get(session_id, 0)

    async def waiting(self) -> list[str]:
        """Name the scopes in whose states an answer waits."""

        def look() -> list[str]:
            paths = sorted(self._folder.rglob("*.json"))
            found = [path for path in paths if _read(path).answer is not None]
            return [path.relative_to(self._folder).as_posix().removesuffix(".json") for path in found]

        return await asyncio.to_thread(look)

    def _busy(self, words: str) -> NotNow:
        until = self._clock() + timedelta(seconds=BUSY_S)
        return NotNow(words, reason="busy", until=until, hint="try again in a moment")

    def _take(self, path: Path) -> tuple[int, ScopeState]:
        fd = try_lock(path.with_suffix(".lock") if path.suffix else path)
        if fd is None:
            raise self._busy("another process is changing this memory")
        try:
            return fd, _read(path)
        except BaseException:
            let_go(fd)
            raise


def content_digest(data: bytes) -> str:
    """Return what tells one MEMORY.md from another."""
    return hashlib.sha256(data).hexdigest()


def _digest_of(key: str, line: Line) -> str:
    """Return what a message of a conversation is known by; empty where it has no id."""
    id_ = line.get("message_id")
    if not isinstance(id_, str) or not id_:
        return ""
    return hashlib.blake2b(f"{key} {id_}".encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _read(path: Path) -> ScopeState:
    content = read_state(path)
    failures, looked_at, seen = content.get("failures"), content.get("looked_at"), content.get("seen")
    return ScopeState(
        path,
        _read_as(Stored, content.get("answer")),
        {
            str(session): failure
            for session, raw in (failures if isinstance(failures, dict) else {}).items()
            if (failure := _read_as(Failure, raw)) is not None
        },
        {
            str(session): count
            for session, count in (looked_at if isinstance(looked_at, dict) else {}).items()
            if type(count) is int
        },
        [each for each in (seen if isinstance(seen, list) else []) if isinstance(each, str)],
    )


def _read_as(kind: Callable[..., Any], raw: object) -> Any:
    """Build a dataclass from its own fields; None where one without a default is not there."""
    known = kind.__dataclass_fields__.values()  # type: ignore[attr-defined]
    if not isinstance(raw, Mapping):
        return None
    if any(each.name not in raw and each.default is MISSING for each in known):
        return None
    return kind(**{each.name: raw[each.name] for each in known if each.name in raw})
