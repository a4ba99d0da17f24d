"""One conversation: as it is read, and every way of writing it while it is held open."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from durable import Change
from session.store import rollover
from session.store.cache import Ahead, Handle
from session.store.rollover import place_of
from session.store.writer import Line, OnlyIf, TranscriptWriter
from session.transcript.archive import previous_in
from session.transcript.index import Exchange, spent
from session.transcript.journal import Build, Journal, JournalState, Told
from session.transcript.key import SessionKey
from session.transcript.loading import read_beginning
from session.transcript.transcript import Transcript, decode, dump, encode, read_time

T = TypeVar("T")
_STOPPED_BY = b'"stopped_by"'
# A ``/stop`` that comes again, after a crash or from its platform, does so within so many lines.
_STOPPED_WITHIN = 1000


class View:
    """Reads one conversation. Indexes count the message lines, from 0."""

    def __init__(
        self,
        transcript: Callable[[], Transcript],
        journal: Journal,
        *,
        key: SessionKey,
        stem: str,
        path: Path,
    ) -> None:
        """Read what is held, or was read once.

        Args:
            transcript: returns what the transcript holds, at each look.
            journal: that of the key.
            key: whose conversation it is.
            stem: the name of the key's files, without a suffix.
            path: the transcript, or the archive of one that ended.
        """
        self.key = key
        self.stem = stem
        self.path = path
        self._transcript = transcript
        self.journal = journal
        self.clock = journal.clock

    def __len__(self) -> int:
        return len(self._transcript().messages)

    def __bool__(self) -> bool:
        return True

    @property
    def session_id(self) -> str:
        """The ULID of the session."""
        return self._transcript().session_id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Line 1's ``metadata``."""
        return MappingProxyType(self._transcript().inner)

    @property
    def last_consolidated(self) -> int:
        """How many messages memory holds already, from the first on."""
        return self._transcript().last_consolidated

    @property
    def history_start(self) -> int:
        """Where the history begins that a model is sent."""
        return self._transcript().history_start

    @property
    def created_at(self) -> datetime | None:
        """When the session began (aware); None where nothing says so."""
        return self._transcript().created_at

    @property
    def transcript(self) -> Transcript:
        """What the file holds, its damage included."""
        return self._transcript()

    @property
    def journal_state(self) -> JournalState:
        """What the key's journal says."""
        return self.journal.state

    def line(self, index: int) -> dict[str, Any]:
        """Read a message line."""
        return decode(self._transcript().messages[index])

    def lines(self, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """Read the message lines from ``start`` to before ``stop``."""
        return [decode(raw) for raw in self._transcript().messages[start:stop]]

    def records(self) -> list[int]:
        """List the indexes of our own ``role: system`` lines: overlay, undo, note, compact."""
        return list(self._transcript().index.records)

    @property
    def previous_archive(self) -> str | None:
        """The archive of what a compaction summarised, as the newest ``compact`` line names it; else None."""
        for at in reversed(self._transcript().index.records):
            line = self.line(at)
            if line.get("kind") == "compact":
                return previous_in(line)
        return None

    def find(self, message_id: str) -> Exchange | None:
        """Return what the session shows of a message id: its last occurrence; None where it shows nothing."""
        return self._transcript().index.find(message_id)

    def find_sent(self, platform_id: str) -> int | None:
        """Return the index of the newest user line whose message has this id on its platform."""
        name = dump({"": platform_id})[4:-1]
        # Every JSON writer spells such an id alike.
        plain = platform_id.isascii() and platform_id.isalnum()
        messages = self._transcript().messages
        for at in range(len(messages) - 1, -1, -1):
            if name not in messages[at] and (plain or b"\\" not in messages[at]):
                continue
            line = decode(messages[at])
            if line.get("role") == "user" and line.get("platform_id") == platform_id:
                return at
        return None

    def stopped_by(self, message_id: str) -> str | None:
        """Return whose turn a message stopped, by its id; None where none of the newest lines says so."""
        messages = self._transcript().messages
        for raw in reversed(messages[-_STOPPED_WITHIN:]):
            if _STOPPED_BY in raw and (line := decode(raw)).get("stopped_by") == message_id:
                return str(line.get("message_id"))
        return None

    def spent(self, message_id: str) -> tuple[int, int]:
        """Sum up the prompt and completion tokens of the turn that answered a message; 0 where none did."""
        exchange = self.find(message_id)
        if exchange is None or exchange.final is None:
            return 0, 0
        counts = [spent(line.get("usage")) for line in self.lines(exchange.start, exchange.final + 1)]
        return sum(each[0] for each in counts), sum(each[1] for each in counts)

    # -- what the chat was told ------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """Count the replies and notices of the key so far."""
        return self.journal.state.seq(place_of(self._transcript()))

    def seq_of(self, message_id: str) -> int:
        """Return the number of the reply to a message; 0 where it has none, or the journal forgot it."""
        transcript, journal_state = self._transcript(), self.journal.state
        finals = transcript.index.finals
        exchange = transcript.index.find(message_id)
        if exchange is not None and exchange.final is not None:
            number = bisect_right(finals, exchange.final)
            if number and finals[number - 1] == exchange.final:
                seq = journal_state.seq_of_final(place_of(transcript), number)
                if seq:
                    return seq
        # It may have been said before this session began: then the journal has its number.
        known = self.journal.known(message_id)
        return (known and known.seq) or 0

    def told(self, after: int = 0) -> list[Told]:
        """List the replies and notices with a seq above ``after``, as far back as the journal goes."""
        transcript, journal_state = self._transcript(), self.journal.state
        place, told = place_of(transcript), journal_state.told(after)
        finals = transcript.index.finals
        for number in range(len(finals), 0, -1):
            seq = journal_state.seq_of_final(place, number)
            if seq is None or seq <= after:
                break
            line = decode(transcript.messages[finals[number - 1]])
            # The answer of a job that was to be told to nobody.
            if line.get("unsent") is True:
                continue
            text = line.get("content")
            at = read_time(line.get("timestamp"))
            id_ = str(line.get("message_id", ""))
            told.append(
                Told(seq, "reply", id_, text if isinstance(text, str) else "", "", at and at.astimezone(UTC))
            )
        # an ending that a crash cut short stands in the journal while its lines still stand in the transcript
        return sorted({one.seq: one for one in told}.values(), key=lambda one: one.seq)


class Session(View):
    """One conversation held open by a turn or a command: everything of a view, and writing."""

    def __init__(self, handle: Handle) -> None:
        """Write by the writer that ``handle`` has."""
        assert handle.writer is not None
        writer, epoch = handle.writer, handle.epoch

        # It holds no session, as its method would: a ring for each turn is the collector's work.
        async def record(build: Build) -> JournalState:
            rows = writer.journal
            return await handle.write(
                epoch, lambda: rows.record(writer.state, build, lambda: place_of(writer.transcript))
            )

        journal = Journal(lambda: writer.journal.state, record, writer.clock)
        super().__init__(
            lambda: writer.transcript, journal, key=handle.key, stem=writer.stem, path=writer.path
        )
        self._handle = handle
        self._writer = writer
        self._epoch = epoch

    async def append(self, lines: Sequence[Mapping[str, Any]]) -> int:
        """Write message lines; on return they are in the file and survive a power cut.

        Returns:
            The index of the first line written.

        Raises:
            LineTooLong: a line is over MAX_LINE_BYTES; nothing was written.
            Fenced: the conversation was ended, cleared or replaced meanwhile; nothing was written.
            StoreError: the disk refused; nothing was written.
        """
        first = await self.append_if(lines, lambda _: True)
        assert first is not None
        return first

    async def append_ahead(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the last lines of a turn as ``append`` does, without waiting for the disk where that goes.

        They are known at once. Until ``ahead`` says that they are durable nobody may be told of them, and
        nothing else of the conversation is written.

        Raises:
            LineTooLong, Fenced, StoreError: as ``append``.
        """
        handle, writer = self._handle, self._writer
        pairs: list[Line] = [(encode(line), line) for line in lines]
        await handle.turn.acquire()
        commit = None
        try:
            handle.begin_write(self._epoch)
            commit = writer.append_ahead(pairs)
        finally:
            if commit is None:
                handle.turn.release()
        if commit is None:
            await self.append(lines)
            return

        async def finish() -> None:
            try:
                await writer.finish_ahead(commit, pairs)
            finally:
                handle.turn.release()

        handle.ahead = Ahead(commit, asyncio.create_task(finish(), name="append"))

    @property
    def ahead(self) -> Ahead | None:
        """The lines that ``append_ahead`` has handed over, while the conversation is open."""
        return self._handle.ahead

    async def append_if(
        self, lines: Sequence[Mapping[str, Any]], only_if: OnlyIf, changes: Sequence[Change] = ()
    ) -> int | None:
        """Write lines and ``changes``, as ``append`` does, onto a transcript that ``only_if`` accepts.

        Returns:
            The index of the first line written. None: the transcript is no longer one that ``only_if``
            accepts; nothing was written.

        Raises:
            LineTooLong, Fenced, StoreError: as ``append``.
        """
        if not lines:
            return len(self)
        pairs: list[Line] = [(encode(line), line) for line in lines]

        return await self._handle.write(
            self._epoch, lambda: self._writer.append(pairs, changes, only_if=only_if)
        )

    async def checkpoint(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        last_consolidated: int | None = None,
        of: str | None = None,
    ) -> bool:
        """Renew line 1: ``metadata`` is merged into the old (None removes a name).

        Args:
            metadata: what changes in it.
            last_consolidated: how many messages memory holds now.
            of: the ULID that the active session must still have.

        Returns:
            False where it has another; nothing was written.

        Raises:
            Fenced, StoreError: as ``append``; the file is as it was.
        """
        return await self.change(
            lambda writer: writer.checkpoint(inner=metadata, offset=last_consolidated, of=of)
        )

    async def remember(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into line 1's metadata; before the first line they come into the file with that.

        Raises:
            Fenced, StoreError: as ``append``; the file is as it was.
        """
        if self._writer.exists:
            await self.checkpoint(metadata=facts)
        else:
            self._writer.transcript.inner.update(facts)

    async def end(self, *, metadata: Mapping[str, Any] | None = None) -> Path | None:
        """Archive the session, with ``metadata`` merged into its line 1, and begin a fresh one.

        Returns:
            The archive; None where there was no message, and nothing was archived.

        Raises:
            Fenced, StoreError: call it again; what was done by half is replaced.
        """
        return await self.change(partial(rollover.end, metadata=metadata))

    async def change(self, job: Callable[[TranscriptWriter], T]) -> T:
        """Run a disk job that ends the session or puts another in its place.

        Raises:
            Fenced: the conversation was cleared or replaced meanwhile; nothing was done.
            Exception: what the job raises.
        """

        def once() -> T:
            self._handle.begin_write(self._epoch)
            return job(self._writer)

        return await self._handle.run(self._writer.state, once)

    def is_still(self, session_id: str) -> bool:
        """Say by the file as it is whether this is the active session; for threads.

        Raises:
            NewerFormat, StoreError: they cannot be read.
        """
        found = read_beginning(self._writer.path, self.stem)
        return found is not None and found.session_id == session_id
