"""Messages of a session that memory does not hold yet, of an active session or of an ended one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from session.context.scopes import Chat, answers_in, chat_in
from session.disk.layout import Layout, Seen, seen
from session.disk.state import locked
from session.disk.threads import start_thread
from session.memory.note_taking import digest
from session.memory.notes import Mark
from session.store import archived
from session.store.listing import transcripts
from session.store.store import Store, View
from session.transcript import archive
from session.transcript.agent import agent_in
from session.transcript.key import SessionKey
from session.transcript.line import is_ulid
from session.transcript.loading import load, read_beginning
from session.transcript.transcript import Transcript, decode, read_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unconsolidated:
    """The messages of a session from ``start`` (its ``last_consolidated``) to its end, at one moment.

    ``ended`` says that no more will come; ``chat`` what is known of the chat; ``before`` names the session
    whose compaction opened this one; ``answers`` the chats that a job has answered in it; ``agent`` whose
    session it is.
    """

    key: str
    stem: str
    session_id: str
    ended: bool
    chat: Chat | None
    start: int
    lines: Sequence[Mapping[str, Any]]
    before: str | None = None
    answers: tuple[str, ...] = ()
    agent: str = ""

    def waits(self, end: int, *, had_ended: bool) -> bool:
        """Say whether messages before ``end`` are left, and a session that had ended is not active again."""
        return self.start < end and (self.ended or not had_ended)

    def mark(self, count: int) -> Mark:
        """Name the first ``count`` messages of it."""
        return Mark(self.session_id, self.start, self.start + count, digest(self.lines[:count]))


class UnconsolidatedReader:
    """Reads messages without owning their keys; moves ``last_consolidated`` behind what memory holds.

    Raises StoreError if the disk refuses.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self, key: str, session_id: str | None = None) -> Unconsolidated | None:
        """Read what is left of a session; None where it has no message, or is gone.

        ``session_id`` names the session, None the active one.
        """
        view, layout = await self._store.look(SessionKey(key)), self._store.layout
        has_ended = session_id not in (None, view.session_id)

        def read() -> Unconsolidated | None:
            transcript = session_of(view, layout, session_id)
            if transcript is None or not transcript.messages:
                return None
            return self._behind(key, view, transcript, has_ended)

        return await asyncio.to_thread(read)

    async def stem(self, key: str) -> str:
        """Return the name of a conversation's files."""
        return await self._store.stem(SessionKey(key))

    async def holds(self, key: str, mark: Mark) -> bool:
        """Say whether the marked messages still stand in their session, unchanged."""
        view = await self._store.look(SessionKey(key))

        def look() -> bool:
            transcript = session_of(view, self._store.layout, mark.session_id)
            raw = transcript.messages[mark.start : mark.stop] if transcript is not None else []
            return len(raw) == mark.stop - mark.start and digest(map(decode, raw)) == mark.digest

        return await asyncio.to_thread(look)

    async def while_there(self, key: str, session_id: str | None, job: Callable[[], T]) -> T | None:
        """Run a disk job under the lock of ``key``: its session can neither be cleared nor deleted meanwhile.

        Returns what the job does; None where the session (None: any) is gone, and it was not run.
        """
        layout = self._store.layout
        stem = await self._store.stem(SessionKey(key))

        def work() -> T | None:
            with locked(layout.lock(stem)):
                there = session_id is None or archived.is_there(layout, stem, session_id)
                return job() if there else None

        return await start_thread(work, name="notes")

    async def move_pointer(
        self, key: str, mark: Mark, *, had_ended: bool = False, asked: bool = False
    ) -> None:
        """Let the session say that memory holds the marked messages; one that is gone says nothing.

        ``had_ended``: it was an ended one when they were marked. If it has been opened again since, its
        history begins where it began all the same.

        ``asked``: a person waits for it, so that a turn which another process runs may have to begin again.

        Raises:
            NotNow: the session is active, and another process may run its turns.
            StoreError: it could not be written.
        """
        view = await self._store.look(SessionKey(key))
        active = view.session_id == mark.session_id
        if active and view.last_consolidated >= mark.stop:
            return
        if active and await self._move_active(key, mark, had_ended=had_ended, asked=asked):
            return
        # An ended session is renewed without owning its key: another daemon may be in the middle of a turn.
        await start_thread(lambda: self._renew(view.stem, mark), name="archive")

    async def _move_active(self, key: str, mark: Mark, *, had_ended: bool, asked: bool) -> bool:
        store = self._store
        async with (store.open if asked else store.open_unasked)(SessionKey(key)) as session:
            # As it stands in a session that was opened again after its messages had gone into memory.
            reopened = {"history_from": session.history_start, "consolidated": mark.stop}
            return await session.checkpoint(
                metadata={"reopened": reopened} if had_ended else None,
                last_consolidated=mark.stop,
                of=mark.session_id,
            )

    def _behind(self, key: str, view: View, transcript: Transcript, has_ended: bool) -> Unconsolidated:
        start = transcript.last_consolidated
        return Unconsolidated(
            key=key,
            stem=view.stem,
            session_id=transcript.session_id,
            ended=has_ended,
            chat=chat_in(transcript) or known_chat(view, self._store.layout),
            start=start,
            lines=[decode(raw) for raw in transcript.messages[start:]],
            before=_before(transcript),
            answers=answers_in(transcript.inner),
            agent=agent_in(transcript.inner),
        )

    def _renew(self, stem: str, mark: Mark) -> None:
        store = self._store

        def head_of(transcript: Transcript) -> bytes | None:
            # A compaction may have taken some of these messages away.
            stop = min(mark.stop, len(transcript.messages))
            if transcript.last_consolidated >= stop:
                return None
            last = read_time(transcript.metadata.get("updated_at")) or store.clock()
            return transcript.head(now=last, offset=stop)

        archived.renew_head(store.layout, stem, mark.session_id, head_of)


def session_of(view: View, layout: Layout, session_id: str | None) -> Transcript | None:
    """Return a session of a conversation, None: the active one; None where it is gone. For threads."""
    if session_id in (None, view.session_id):
        return view.transcript
    found = archived.find(layout, view.stem, str(session_id))
    return found[1] if found is not None else None


def _before(transcript: Transcript) -> str | None:
    previous, opening = transcript.inner.get("previous_session"), decode(transcript.messages[0])
    return str(previous) if opening.get("kind") == "compact" and is_ulid(previous) else None


def known_chat(view: View, layout: Layout) -> Chat | None:
    """Return what the active session of a key, else the newest ended one that knows, says of the chat."""
    known = chat_in(view.transcript)
    for found in reversed(archive.of_stem(layout, view.stem)) if known is None else ():
        read = load(found.path, found.stem)
        known = chat_in(read[0]) if read is not None else None
        if known is not None:
            break
    return known


def known_answers(view: View, layout: Layout) -> tuple[str, ...]:
    """Return which chats a job has answered, as its active session says, else the newest ended one."""
    found = answers_in(view.metadata)
    if found or not (ended := archive.of_stem(layout, view.stem)):
        return found
    transcript = read_beginning(ended[-1].path, view.stem)
    return answers_in(transcript.inner) if transcript is not None else ()


def stems_on_disk(layout: Layout, of: Callable[[str], bool] = lambda stem: True) -> dict[str, str]:
    """List the keys of all conversations with the names of their files; blocks, for threads.

    ``of`` says by the name of the files which conversations are wanted; no file of another one is read.
    """
    newest = {path.stem: path for path in transcripts(layout) if of(path.stem)}
    for stem in archive.stems(layout):
        # Of those without an active session the newest ended one tells.
        if stem not in newest and of(stem) and (path := archive.newest(layout, stem)) is not None:
            newest[stem] = path
    keys = ((stem, _key_at(path, stem, seen(path))) for stem, path in newest.items())
    return {key: stem for stem, key in keys if key is not None}


# They are asked for by each search.
@lru_cache(maxsize=20_000)
def _key_at(path: Path, stem: str, now: Seen | None) -> str | None:
    head = read_beginning(path, stem) if now is not None else None
    return head.key if head is not None else None
