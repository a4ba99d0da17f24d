"""What the memory of a scope said before: lists the versions with what each change did, and puts one back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import structlog

from session.context.profile import PROFILE_FILE
from session.context.scopes import Scope
from session.disk.state import locked
from session.disk.threads import start_thread
from session.errors import NotNow
from session.memory.consolidation import MemoryNotes
from session.memory.facts import FACTS, read_fact
from session.memory.known_facts import KnownFacts
from session.memory.notes import MEMORY, Notes
from session.memory.versions import Version
from session.store.store import Store
from session.transcript.key import SessionKey

T = TypeVar("T")

log = structlog.get_logger("memory")

MAX_SHOWN_CHARS = 120
# A consolidation of the same scope may be asking its model meanwhile.
BUSY_S = 60.0
NOTICE_S = 2.0


@dataclass(frozen=True, slots=True)
class Restored:
    """What stands again in ``file``; ``former`` is the version of what stood there, None where nothing did.

    ``changed`` is False where the file said so already.
    """

    version: str
    file: str
    changed: bool
    former: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what other programs see."""
        return {
            "version": self.version,
            "file": self.file,
            "changed": self.changed,
            "former": self.former,
        }


class FormerMemory:
    """Lists and restores the versions of scopes."""

    def __init__(self, memory: MemoryNotes, known: KnownFacts, *, store: Store) -> None:
        self._memory = memory
        self._known = known
        self._store = store

    async def history(self, key: str, scope: Scope, *, file: str = "") -> list[dict[str, Any]]:
        """List the versions of a scope's memory, the newest first; what was just edited by hand among them.

        Args:
            key: a conversation of the scope.
            scope: whose.
            file: ``MEMORY.md``, ``USER.md`` or ``facts.jsonl``; empty: all.

        Raises:
            StoreError: they cannot be read.
        """
        notes = self._memory.notes(scope)
        if not await asyncio.to_thread(notes.versions.folder.is_dir):
            return []
        with contextlib.suppress(NotNow):
            # While somebody else works on it, edits are kept by whoever writes next.
            await self._under_lock(key, scope, partial(self._notice, scope), within_s=NOTICE_S)

        def look() -> list[dict[str, Any]]:
            known = notes.versions.all(file)
            texts = [version.read() for version in known]
            rows = [
                _row(version, text, _after(at, known, texts, notes))
                for at, (version, text) in enumerate(zip(known, texts, strict=True))
            ]
            return rows[::-1]

        return await asyncio.to_thread(look)

    async def restore(self, key: str, scope: Scope, id_: str) -> Restored | None:
        """Put a version in the place of what its file says now, which becomes a version itself.

        Returns:
            What was done; None where the scope has no version of this id.

        Raises:
            NotNow: another process works on this memory.
            StoreError: the disk refused; the file is as it was.
        """
        done = await self._under_lock(key, scope, partial(self._restore, scope, id_), within_s=BUSY_S)
        if done is not None and done.changed:
            log.info("memory.restored", key=key, scope=scope.name, file=done.file, version=id_)
        return done

    async def texts(self, scope: Scope) -> list[dict[str, Any]]:
        """List ``file, text, digest`` of MEMORY.md and USER.md as they stand.

        Raises:
            StoreError: one cannot be read.
        """
        notes = self._memory.notes(scope)

        def look() -> list[dict[str, Any]]:
            standing = {file: _standing(notes, file) for file in (MEMORY, PROFILE_FILE)}
            return [
                {"file": file, "text": data.decode("utf-8", "replace"), "digest": _digest(data)}
                for file, data in standing.items()
            ]

        return await asyncio.to_thread(look)

    async def edit(
        self, key: str, scope: Scope, file: str, text: str, *, was: str | None
    ) -> dict[str, Any] | None:
        """Write a person's text into MEMORY.md or USER.md; what stood there becomes a version.

        Args:
            key: a conversation of the scope.
            scope: whose.
            file: which.
            text: what it says from now on.
            was: the digest of the text that was edited; None: whatever stands there.

        Returns:
            ``file, changed, former, digest``; None where another text stands there, and nothing was written.

        Raises:
            NotNow: another process works on this memory.
            StoreError: the disk refused; the file is as it was.
        """
        data = text.encode()
        done = await self._under_lock(
            key, scope, partial(self._edit, scope, file, data, was), within_s=BUSY_S
        )
        if done is not None and done["changed"]:
            log.info("memory.edited", key=key, scope=scope.name, file=file)
        return done

    def _edit(self, scope: Scope, file: str, data: bytes, was: str | None) -> dict[str, Any] | None:
        notes = self._memory.notes(scope)
        old = _standing(notes, file)
        if was is not None and was != _digest(old):
            return None
        former = notes.restore(file, data, "edit")
        return {"file": file, "changed": old != data, "former": former, "digest": _digest(data)}

    async def _under_lock(self, key: str, scope: Scope, job: Callable[[], T], *, within_s: float) -> T:
        """Run a disk job while nobody else works on the memory, and no conversation of the key is cleared.

        Raises:
            NotNow: somebody works on it for longer than that.
        """
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(within_s):
                    await held.enter_async_context(self._memory.scope_states.open(scope.name))
            except TimeoutError as error:
                until = self._memory.clock() + timedelta(seconds=within_s)
                raise NotNow(
                    "this memory is being changed right now",
                    reason="busy",
                    until=until,
                    hint="try again in a moment",
                ) from error
            stem = await self._store.stem(SessionKey(key))
            layout = self._store.layout

            def work() -> T:
                # What was cleared in between would be there again.
                with locked(layout.lock(stem)):
                    return job()

            return await start_thread(work, name="notes")

    def _notice(self, scope: Scope) -> None:
        self._memory.notes(scope).notice()
        self._known.file(scope).notice()

    def _restore(self, scope: Scope, id_: str) -> Restored | None:
        notes = self._memory.notes(scope)
        version = next((one for one in notes.versions.all() if one.id == id_), None)
        if version is None:
            return None
        if version.file == FACTS:
            changed = bool(self._known.file(scope).restore(version))
            newest = notes.versions.all(FACTS)[-1].id if changed else None
            return Restored(id_, FACTS, changed, newest if newest != id_ else None)
        data = version.read()
        if data == _standing(notes, version.file):
            return Restored(id_, version.file, False)
        return Restored(id_, version.file, True, notes.restore(version.file, data))


def changed(before: str, after: str) -> str:
    """Say in short how two texts differ: how many lines came and went, and which headings went."""
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    more, less = (new - old).total(), (old - new).total()
    said = f"+{more} -{less} lines"
    gone = [_short(line.lstrip("#").strip()) for line in old - new if line.startswith("#")]
    return f"{said}; headings gone: {', '.join(gone)}" if gone else said


def _row(version: Version, text: bytes, after: bytes | None) -> dict[str, Any]:
    if version.file == FACTS:
        said = _facts_changed(text.splitlines())
    else:
        said = changed(text.decode("utf-8", "replace"), (after or b"").decode("utf-8", "replace"))
    return {
        "version": version.id,
        "file": version.file,
        "at": f"{version.at:%Y-%m-%dT%H:%M:%SZ}",
        "cause": version.cause,
        "bytes": len(text),
        "changed": said,
    }


def _after(at: int, known: Sequence[Version], texts: Sequence[bytes], notes: Notes) -> bytes | None:
    """Return what took the place of a version: of a text the next one of its file, else what stands there."""
    file = known[at].file
    if file == FACTS:
        return None
    later = (texts[n] for n in range(at + 1, len(known)) if known[n].file == file)
    return next(later, None) or _standing(notes, file)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _standing(notes: Notes, file: str) -> bytes:
    return notes.memory() if file == MEMORY else notes.profile()


def _facts_changed(lines: Sequence[bytes]) -> str:
    texts = [fact.text for line in lines if (fact := read_fact(line)) is not None]
    if not texts:
        return "no fact"
    more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"was: {_short(texts[0])}{more}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN_CHARS else line[: MAX_SHOWN_CHARS - 1] + "…"
