"""What people see and change of memory: ``/memory``, ``/forget``, former versions, edits on the page."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from session.context.profile import PROFILE_FILE
from session.context.request import Request
from session.context.scopes import Scope
from session.disk.state import read_state, write_state
from session.disk.threads import start_thread
from session.errors import NotNow
from session.memory.consolidation import MemoryNotes
from session.memory.fact_store import FACTS, FactStore, read_fact
from session.memory.notes import MEMORY, Notes, Version
from session.memory.scope_state import content_digest
from session.store.store import Session

T = TypeVar("T")
log = structlog.get_logger("memory")

MAX_NOTES_CHARS = 3_500
# So many facts are shown in a chat, the newest.
SHOWN = 30
# Commands of which is remembered what they took out.
FORGOT_MAX = 100

FACTS_HEAD = "Facts (/forget 1 deletes the first one):"
FORGOTTEN = "Forgotten: {}"
GONE = "This fact no longer exists."
NO_FACTS = "No facts are known about this chat."
NO_NUMBER = "Add the number of a fact from /memory, such as /forget 1."
NO_SUCH_NUMBER = "The facts in /memory are numbered from 1 to {}."
MORE = "… ({} older ones)"


@dataclass(slots=True)
class _Shown:
    """Which facts stood under which number when a chat was last shown them, and what commands took out."""

    ids: list[str] | None = None
    forgot: dict[str, str] = field(default_factory=dict)


class MemoryCommands:
    """Answers ``/memory`` and ``/forget``.

    Raises StoreError if the disk refuses; the command can be repeated.

    ``state`` is the folder that keeps what a chat was shown, ``notes`` returns the MEMORY.md of a scope.
    """

    def __init__(
        self,
        known: FactStore,
        state: Path,
        *,
        notes: Callable[[Scope], Awaitable[str]],
        scope_of: Callable[[Session, Request], Awaitable[Scope]],
    ) -> None:
        self._known = known
        self._state = state
        self._notes = notes
        self._scope_of = scope_of

    async def show(self, session: Session, request: Request) -> str:
        """Return the notes and the facts, the newest first; empty where nothing is remembered.

        The numbers mean these facts until they are shown again, whatever is learnt meanwhile.
        """
        scope = await self._scope_of(session, request)
        notes = _shortened(await self._notes(scope))
        facts = (await self._known.holding(scope))[::-1]
        shown = facts[:SHOWN]
        path = self._path(session)
        # Numbers of an earlier look mean nothing any more where nothing is left to show.
        there = await asyncio.to_thread(path.exists)
        if shown or there:
            await self._keep(path, [fact.id for fact in shown])
        rows = [f"{number}. {fact.told}" for number, fact in enumerate(shown, 1)]
        if len(facts) > len(shown):
            rows.append(MORE.format(len(facts) - len(shown)))
        return "\n\n".join(filter(None, [notes, "\n".join([FACTS_HEAD, *rows]) if rows else ""]))

    async def forget(self, session: Session, request: Request, rest: str) -> str:
        """Take out the fact that stood under this number when the chat was last shown them.

        The same command again, as after a crash, means the same fact.
        """
        scope = await self._scope_of(session, request)
        path = self._path(session)
        shown = await start_thread(lambda: _read(path), name="facts")
        id_ = shown.forgot.get(request.id)
        if id_ is None:
            ids = shown.ids
            if ids is None:
                ids = [fact.id for fact in (await self._known.holding(scope))[::-1][:SHOWN]]
            chosen = _chosen(rest, ids)
            if isinstance(chosen, str):
                return chosen
            id_ = ids[chosen]
            # On disk before the fact goes: done again, the number could mean another one.
            await self._keep(path, ids, {request.id: id_})
        gone = await self._known.forget(session.key, scope, id_)
        return FORGOTTEN.format(gone.text) if gone is not None else GONE

    def _path(self, session: Session) -> Path:
        return self._state / "facts" / f"{session.stem}.json"

    async def _keep(self, path: Path, ids: Sequence[str], forgot: Mapping[str, str] | None = None) -> None:
        def keep() -> None:
            taken = {**_read(path).forgot, **(forgot or {})}
            kept = dict(list(taken.items())[-FORGOT_MAX:])
            write_state(path, {"shown": list(ids), "forgot": kept})

        await start_thread(keep, name="facts")


def _chosen(rest: str, ids: Sequence[str]) -> int | str:
    if not ids:
        return NO_FACTS
    word = rest.strip().rstrip(".")
    if not (word.isascii() and word.isdigit() and len(word) < 9):
        return NO_NUMBER
    if not 1 <= int(word) <= len(ids):
        return NO_SUCH_NUMBER.format(len(ids))
    return int(word) - 1


def _read(path: Path) -> _Shown:
    content = read_state(path)
    ids, forgot = content.get("shown"), content.get("forgot")
    return _Shown(
        [str(id_) for id_ in ids] if isinstance(ids, list) else None,
        {str(id_): str(fact) for id_, fact in (forgot if isinstance(forgot, dict) else {}).items()},
    )


def _shortened(text: str) -> str:
    text = text.strip()
    if len(text) <= MAX_NOTES_CHARS:
        return text
    return f"{text[:MAX_NOTES_CHARS]}\n… ({len(text) - MAX_NOTES_CHARS} more characters)"


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
        return asdict(self)


class MemoryHistory:
    """Lists and restores the versions of scopes.

    Raises StoreError if the disk refuses; the file is then as it was.
    """

    def __init__(self, memory: MemoryNotes, known: FactStore) -> None:
        self._memory = memory
        self._known = known

    async def history(self, key: str, scope: Scope, *, file: str = "") -> list[dict[str, Any]]:
        """List the versions of a scope's memory, the newest first; what was just edited by hand among them.

        ``key`` is a conversation of the scope; ``file`` is ``MEMORY.md``, ``USER.md`` or ``facts.jsonl``,
        empty: all.
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

        Returns what was done; None where the scope has no version of this id.

        Raises:
            NotNow: somebody else works on this memory.
        """
        done = await self._under_lock(key, scope, partial(self._restore, scope, id_), within_s=BUSY_S)
        if done is not None and done.changed:
            log.info("memory.restored", key=key, scope=scope.name, file=done.file, version=id_)
        return done

    async def texts(self, scope: Scope) -> list[dict[str, Any]]:
        """List ``file, text, digest`` of MEMORY.md and USER.md as they stand."""
        notes = self._memory.notes(scope)

        def look() -> list[dict[str, Any]]:
            standing = {file: _standing(notes, file) for file in (MEMORY, PROFILE_FILE)}
            return [
                {"file": file, "text": data.decode("utf-8", "replace"), "digest": content_digest(data)}
                for file, data in standing.items()
            ]

        return await asyncio.to_thread(look)

    async def edit(
        self, key: str, scope: Scope, file: str, text: str, *, was: str | None
    ) -> dict[str, Any] | None:
        """Write a person's text into MEMORY.md or USER.md; what stood there becomes a version.

        ``was`` is the digest of the text that was edited; None: whatever stands there.

        Returns ``file, changed, former, digest``; None where another text stands there: nothing is written.

        Raises:
            NotNow: somebody else works on this memory.
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
        if was is not None and was != content_digest(old):
            return None
        former = notes.restore(file, data, "edit")
        return {"file": file, "changed": old != data, "former": former, "digest": content_digest(data)}

    async def _under_lock(self, key: str, scope: Scope, job: Callable[[], T], *, within_s: float) -> T | None:
        """Run a disk job while nobody else works on the memory, and no conversation of the key is cleared.

        Raises:
            NotNow: somebody works on it for longer than that.
        """
        async with self._memory.scope_states.open(scope.name, within_s=within_s):
            # What was cleared in between would be there again.
            return await self._memory.unconsolidated.while_there(key, None, job)

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
