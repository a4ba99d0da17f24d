"""What ``/memory`` shows of a chat, its facts numbered, and what ``/forget`` takes out by such a number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from session.context.request import Request
from session.context.scopes import Scope
from session.disk.state import read_state, write_state
from session.disk.threads import start_thread
from session.memory.known_facts import KnownFacts
from session.store.store import Session

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


class Remembered:
    """Answers ``/memory`` and ``/forget``.

    Args:
        known: the facts.
        state: the folder in which is kept what a chat was shown.
        notes: returns the MEMORY.md of a scope.
        scope_of: returns what a message may see.
    """

    def __init__(
        self,
        known: KnownFacts,
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

        Raises:
            StoreError: the facts cannot be read, or the numbers not be kept.
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

        Raises:
            StoreError: the disk refused; call it again.
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
            if isinstance(chosen, _Refused):
                return chosen.text
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


@dataclass(frozen=True, slots=True)
class _Refused:
    text: str


def _chosen(rest: str, ids: Sequence[str]) -> int | _Refused:
    """Read a number from 1 on as a place in ``ids``."""
    if not ids:
        return _Refused(NO_FACTS)
    word = rest.strip().rstrip(".")
    if not (word.isascii() and word.isdigit() and len(word) < 9):
        return _Refused(NO_NUMBER)
    if not 1 <= int(word) <= len(ids):
        return _Refused(NO_SUCH_NUMBER.format(len(ids)))
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
