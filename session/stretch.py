"""Messages of a session that memory does not hold yet, of an active session or of an ended one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from session import archive, ended, summary
from session.archive import Archived
from session.fence import Fence, Wait
from session.hop import start_thread
from session.key import SessionKey
from session.line import is_ulid
from session.loading import load
from session.notes import Mark
from session.store import Store
from session.transcript import Transcript, decode, read_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The messages of a session from ``start`` (its ``last_consolidated``) to its end, at one moment.

    ``ended`` says that no more will come; ``group`` that the session is one of a group chat; ``before`` names
    the session whose compaction opened this one.
    """

    key: str
    stem: str
    session_id: str
    ended: bool
    group: bool
    start: int
    lines: Sequence[Mapping[str, Any]]
    before: str | None = None

    def mark(self, count: int) -> Mark:
        """Name the first ``count`` messages of it."""
        return Mark(self.session_id, self.start, self.start + count, summary.digest(self.lines[:count]))


class Stretches:
    """Reads stretches without owning their keys, and moves ``last_consolidated`` behind what memory holds."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self, key: str, session_id: str | None = None) -> Stretch | None:
        """Read what is left of a session; None where it has no message, or is gone.

        Args:
            key: the conversation.
            session_id: which of its sessions, the active one included; None means the active one.

        Raises:
            NewerFormat, StoreError: the files cannot be read.
        """
        view = await self._store.look(SessionKey(key))
        if session_id is None or view.session_id == session_id:
            transcript, has_ended = view.transcript, False
        else:
            found = await asyncio.to_thread(self._archived, view.stem, session_id)
            if found is None:
                return None
            transcript, has_ended = found[1], True
        if not transcript.messages:
            return None
        return await asyncio.to_thread(self._stretch, key, view.stem, transcript, has_ended)

    async def is_group(self, key: str) -> tuple[str, bool]:
        """Return the stem of a conversation, and whether its newest session with lines is a group's."""
        view = await self._store.look(SessionKey(key))

        def look() -> bool:
            if view.transcript.messages:
                return _in_group(view.transcript)
            for found in reversed(archive.of_stem(self._store.layout, view.stem)):
                transcript = _read(found)
                if transcript is not None:
                    return _in_group(transcript)
            return False

        return view.stem, await asyncio.to_thread(look)

    async def holds(self, key: str, mark: Mark) -> bool:
        """Say whether the marked messages still stand in their session, unchanged."""
        view = await self._store.look(SessionKey(key))

        def look() -> bool:
            transcript: Transcript | None = view.transcript
            if view.session_id != mark.session_id:
                found = self._archived(view.stem, mark.session_id)
                transcript = found[1] if found is not None else None
            raw = transcript.messages[mark.start : mark.stop] if transcript is not None else []
            return len(raw) == mark.stop - mark.start and summary.digest(map(decode, raw)) == mark.digest

        return await asyncio.to_thread(look)

    async def while_there(self, key: str, session_id: str, job: Callable[[], T]) -> T | None:
        """Run a disk job under the lock of ``key``: its session can neither be cleared nor deleted meanwhile.

        Returns:
            What the job does; None where the session is gone, and it was not run.

        Raises:
            StoreError: the lock cannot be had, or as the job.
        """
        layout, owner = self._store.layout, self._store.owner
        stem = await self._store.stem(SessionKey(key))

        def work() -> T | None:
            with Fence(layout, stem, owner=owner).hold(Wait()):
                return job() if ended.is_there(layout, stem, session_id) else None

        return await start_thread(work, name="notes")

    async def move_pointer(self, key: str, mark: Mark) -> None:
        """Let the session say that memory holds the marked messages; one that is gone says nothing.

        Raises:
            StoreError: it could not be written.
        """
        view = await self._store.look(SessionKey(key))
        active = view.session_id == mark.session_id
        if active and (view.last_consolidated >= mark.stop or await self._move_active(key, mark)):
            return
        # An ended session is renewed without owning its key: another daemon may be in the middle of a turn.
        await start_thread(lambda: self._renew(view.stem, mark), name="archive")

    async def _move_active(self, key: str, mark: Mark) -> bool:
        async with self._store.open(SessionKey(key)) as session:
            return await session.checkpoint(last_consolidated=mark.stop, of=mark.session_id)

    def _archived(self, stem: str, session_id: str) -> tuple[Archived, Transcript] | None:
        return ended.find(self._store.layout, stem, session_id)

    def _stretch(self, key: str, stem: str, transcript: Transcript, has_ended: bool) -> Stretch:
        start = transcript.last_consolidated
        return Stretch(
            key=key,
            stem=stem,
            session_id=transcript.session_id,
            ended=has_ended,
            group=_in_group(transcript),
            start=start,
            lines=[decode(raw) for raw in transcript.messages[start:]],
            before=_before(transcript),
        )

    def _renew(self, stem: str, mark: Mark) -> None:
        """Renew line 1 of an ended session, under the lock of its key."""
        store = self._store
        fence = Fence(store.layout, stem, owner=store.owner)

        def head_of(transcript: Transcript) -> bytes | None:
            stop = min(mark.stop, len(transcript.messages))  # a compaction may have taken the rest away
            if transcript.last_consolidated >= stop:
                return None
            last = read_time(transcript.metadata.get("updated_at")) or store.clock()
            return transcript.head(now=last, offset=stop)

        ended.renew_head(fence, store.layout, stem, mark.session_id, head_of)


def _read(found: Archived) -> Transcript | None:
    read = load(found.path, found.stem)
    return read[0] if read is not None else None


def _before(transcript: Transcript) -> str | None:
    previous, opening = transcript.inner.get("previous_session"), decode(transcript.messages[0])
    return str(previous) if opening.get("kind") == "compact" and is_ulid(previous) else None


def _in_group(transcript: Transcript) -> bool:
    return any(b'"group"' in raw and decode(raw).get("group") is True for raw in transcript.messages)
