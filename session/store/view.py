"""A conversation as it is read: lines, exchanges, and what its chat was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from session.errors import StoreError
from session.models.model import Totals
from session.transcript.archive import previous_in
from session.transcript.index import Exchange, spent
from session.transcript.journal import Build, Journal, JournalState, Record, SessionPlace, Told
from session.transcript.key import SessionKey
from session.transcript.transcript import Transcript, decode, dump, read_time

_STOPPED_BY = b'"stopped_by"'
# A ``/stop`` that comes again, after a crash or from its platform, does so within so many lines.
_STOPPED_WITHIN = 1000


class View:
    """Reads one conversation. Indexes count the message lines, from 0."""

    def __init__(
        self,
        transcript: Callable[[], Transcript],
        journal_state: Callable[[], JournalState],
        record: Record | None,
        clock: Callable[[], datetime],
        *,
        key: SessionKey,
        stem: str,
        path: Path,
    ) -> None:
        """Read what is held, or was read once.

        Args:
            transcript: returns what the transcript holds, at each look.
            journal_state: returns what the journal says, at each look.
            record: adds an entry to the journal; None refuses.
            clock: the time now, aware.
            key: whose conversation it is.
            stem: the name of the key's files, without a suffix.
            path: the transcript, or the archive of one that ended.
        """
        self.key = key
        self.stem = stem
        self.path = path
        self._transcript = transcript
        self._journal_state = journal_state
        self.clock = clock
        self.journal = Journal(journal_state, record or _refuse, clock)

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
        return self._journal_state()

    def raw(self, index: int) -> bytes:
        """Return the bytes of a message line, without its newline."""
        return self._transcript().messages[index]

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

    def totals(self) -> Totals:
        """Sum up the session's turns, tokens and price."""
        return self._transcript().index.totals()

    # -- what the chat was told ------------------------------------------------------------------------

    def finals(self) -> int:
        """Count the final lines that were sent as a reply."""
        return len(self._transcript().index.finals)

    @property
    def seq(self) -> int:
        """Count the replies and notices of the key so far."""
        return self._journal_state().seq(self._place())

    def seq_of(self, message_id: str) -> int:
        """Return the number of the reply to a message; 0 where it has none, or the journal forgot it."""
        transcript, journal_state = self._transcript(), self._journal_state()
        finals = transcript.index.finals
        exchange = transcript.index.find(message_id)
        if exchange is not None and exchange.final is not None:
            number = _position(finals, exchange.final)
            seq = number and journal_state.seq_of_final(self._place(), number)
            if seq:
                return seq
        # It may have been said before this session began: then the journal has its number.
        known = self.journal.known(message_id)
        return (known and known.seq) or 0

    def told(self, after: int = 0) -> list[Told]:
        """List the replies and notices with a seq above ``after``, as far back as the journal goes."""
        transcript, journal_state, place = self._transcript(), self._journal_state(), self._place()
        told = journal_state.told(after)
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

    def _place(self) -> SessionPlace:
        transcript = self._transcript()
        return SessionPlace(transcript.session_id, len(transcript.index.finals))


def _position(finals: Sequence[int], at: int) -> int:
    """Return which of the final lines stands at ``at``, from 1; 0 for none."""
    for back, final in enumerate(reversed(finals)):
        if final == at:
            return len(finals) - back
        if final < at:
            break
    return 0


async def _refuse(build: Build) -> JournalState:
    raise StoreError("this conversation was opened read-only")
