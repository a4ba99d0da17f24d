"""Ends, clears, splits and reopens a session, under the lock of its key. Runs in threads.

Every change goes in one order, since a crash may follow each step. The archive is whole on disk first. Then
the journal knows the ids that ended, and what is about to happen. Then one rename, or one removal, is the
change itself. Until that step the transcript stands as it was, and the change is simply done again. What a
crash leaves in the archive is a copy of the active session, which the next ending takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import durable
from durable import Change, make_folder, write_all, write_lines
from session.disk.state import locked
from session.errors import NoSession
from session.store import archived, places
from session.store.archived import archive_file, keep_beside, remove_archive
from session.store.derived import forget, forget_index
from session.store.media import AwaitedFiles, Named, let_go, named_in, named_in_files
from session.store.writer import Line, TranscriptWriter, again, merged, originals_of
from session.transcript import archive, history
from session.transcript.agent import AGENT, agent_in
from session.transcript.history import is_record
from session.transcript.journal import KEPT, Entry, JournalState, Known, SessionPlace
from session.transcript.key import split
from session.transcript.line import time_of
from session.transcript.loading import load
from session.transcript.repair import plain_text
from session.transcript.transcript import Transcript, decode, dump, encode, fresh, read_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionChange:
    """Transcript and journal of a key while it is locked, both known to be as we left them.

    ``fd`` is the open transcript, None where there is none. ``now`` is the one time of all that the change
    writes. What ``journal`` adds is committed with the next change of the transcript.
    """

    writer: TranscriptWriter
    fd: int | None
    now: datetime
    pending: list[Change]

    @property
    def transcript(self) -> Transcript:
        """The session that is active, until ``begin_anew`` or ``remove``."""
        return self.writer.transcript

    @property
    def journal_state(self) -> JournalState:
        """What the journal says."""
        return self.writer.journal.state

    def archive(
        self,
        stop: int,
        *,
        metadata: Mapping[str, Any] | None = None,
        ended_at: datetime | None = None,
        more: Sequence[bytes] = (),
    ) -> Path:
        """Put the first ``stop`` messages, then ``more``, into the archive; the transcript stays as it is.

        Args:
            stop: how many messages ended.
            metadata: what is merged into its line 1.
            ended_at: when it ended; None is now.
            more: lines behind them.

        Returns:
            The archive, durable.
        """
        writer, transcript = self.writer, self.transcript
        assert self.fd is not None
        writer.keep_original(self.fd)
        folder = writer.layout.archive(writer.stem)
        make_folder(folder)
        at = ended_at or self.now
        older = archive.of_stem(writer.layout, writer.stem)
        path = folder / archive.name_behind(at, transcript.session_id, older)
        with archive_file(path) as target:
            write_all(target, self._head_of_archive(stop, metadata, at))
            if stop < len(transcript.messages):
                write_lines(target, islice(transcript.messages, stop))
            else:
                writer.write_body(target, self.fd)
            write_all(target, b"".join(raw + b"\n" for raw in more))
        for stale in older:
            # An ending that a crash cut short left it, under the second of that time.
            if stale.path != path and stale.session_id == transcript.session_id:
                remove_archive(stale.path)
        return path

    def _head_of_archive(self, stop: int, metadata: Mapping[str, Any] | None, at: datetime) -> bytes:
        transcript = self.transcript
        ended = at.astimezone(UTC).isoformat(timespec="microseconds")
        own = {"session_id": transcript.session_id, "ended_at": ended, "reopened": None}
        since = {"history_from": min(transcript.history_start, stop)}
        inner = merged(transcript.inner, {**(metadata or {}), **own, **since})
        return transcript.head(now=at, inner=inner, offset=min(transcript.last_consolidated, stop))

    def ended(self, path: Path, *, stop: int, following: str) -> Entry:
        """Build what the journal keeps of the session that ends: its recent ids, and the count for the next.

        ``following`` is the ULID of the next one, empty for none.
        """
        transcript, state = self.transcript, self.journal_state
        return {
            **self.entry("ended"),
            "session": transcript.session_id,
            "next": following,
            "archive": path.name,
            "seq": self.seq,
            "ids": recent_ids(transcript, state, self.now, stop=stop),
        }

    def base(self, session_id: str, *, finals: int) -> Entry:
        """Build the entry by which the count of replies goes on in a session with ``finals`` answers."""
        return {**self.entry("base"), "session": session_id, "seq": self.seq, "finals": finals}

    def entry(self, do: str) -> Entry:
        """Begin an entry of the journal."""
        return {"at": self.now.astimezone(UTC).isoformat(), "do": do}

    @property
    def seq(self) -> int:
        """How many replies and notices the key had so far."""
        return self.journal_state.seq(place_of(self.transcript))

    def journal(self, *entries: Entry) -> None:
        """Add entries to the journal, with the next change of the transcript or at the end of this one."""
        self.pending.extend(self.writer.journal.changes(entries))
        self.writer.journal.added(entries)

    def journal_anew(self, *entries: Entry) -> None:
        """Put these entries alone in the journal's place, with the next change of the transcript."""
        self.pending.extend(self.writer.journal.replacing(entries))
        self.writer.journal.forget()

    def _taken(self) -> list[Change]:
        changes = list(self.pending)
        self.pending.clear()
        return changes

    def go_on(
        self, path: Path, *, stop: int, inner: Mapping[str, Any] | None = None, more: Sequence[Line] = ()
    ) -> None:
        """Begin the session that follows the one whose first ``stop`` messages lie in the archive ``path``.

        ``inner`` is merged into its metadata, ``more`` are its lines.
        """
        old, following = self.transcript, durable.new_id(self.now)
        self.journal(self.ended(path, stop=stop, following=following))
        own = {"session_id": following, "previous_session": old.session_id, **(inner or {})}
        new = fresh(old.stem, self.writer.key, now=self.now, inner=merged(for_the_next(old.inner), own))
        self.begin_anew(new, more=more)

    def begin_anew(self, new: Transcript, *, body: Sequence[bytes] = (), more: Sequence[Line] = ()) -> None:
        """Put ``new`` in the transcript's place, with the lines of ``body``, then ``more``."""
        self.writer.begin_anew(new, body=body, more=more, changes=self._taken())

    def renew(
        self,
        *,
        inner: Mapping[str, Any] | None = None,
        offset: int | None = None,
        more: Sequence[Line] = (),
    ) -> None:
        """Write the transcript anew with other metadata, a file where there was none, and ``more`` lines."""
        self.writer.renew(self.fd, inner=inner, offset=offset, more=more, changes=self._taken())

    def remove(self) -> None:
        """Delete the transcript, and what is derived of it."""
        self.writer.remove(self._taken())


def changed(writer: TranscriptWriter, job: Callable[[SessionChange], T]) -> T:
    """Run ``job`` under the lock of the key, again where its transcript was written meanwhile.

    What the journal got is committed at the end.

    Raises:
        Fenced, StoreError.
    """

    def once() -> T:
        with locked(writer.layout.lock(writer.stem)):
            try:
                with writer.reading() as fd:
                    writer.journal.refresh(writer.state)
                    change = SessionChange(writer, fd, writer.clock(), [])
                    outcome = job(change)
                    if change.pending:
                        writer.state.write_now(change.pending)
                    return outcome
            except BaseException:
                # What was added to the journal in memory may not be in the database.
                writer.journal.forget()
                raise

    return again(once)


def place_of(transcript: Transcript) -> SessionPlace:
    """Say where a session stands, for the journal's count."""
    return SessionPlace(transcript.session_id, len(transcript.index.finals))


class Parted:
    """The lines of a session from ``first_kept`` on, as they stand in the next one behind ``behind`` lines.

    Our own records count anew. A summary among them speaks of what stays behind and does so too, at the
    archive's end; a withdrawal that reaches over the cut stands on both sides of it.
    """

    def __init__(self, old: Transcript, first_kept: int, *, behind: int = 0) -> None:
        self.moved: list[Line] = []
        self.left_behind: list[bytes] = []
        # Where each line stands in the next session; for one that stays behind, the line that follows it.
        places: list[int] = []
        for at, raw in enumerate(old.messages[first_kept:], first_kept):
            line, written = decode(raw), raw
            places.append(len(self.moved) + behind)
            if is_record(line) and line["kind"] in ("overlay", "compact"):
                self.left_behind.append(raw)
                continue
            since = line.get("from")
            if is_record(line) and line["kind"] == "undo" and type(since) is int and 0 <= since <= at:
                if since < first_kept:
                    self.left_behind.append(raw)
                line = {**line, "from": places[max(since - first_kept, 0)]}
                written = encode(line)
            self.moved.append((written, line))
        self._first = first_kept
        self._before = [at - behind for at in [*places, len(self.moved) + behind]]

    def before(self, stop: int) -> int:
        """Count the moved lines that stood before ``stop``, which is no less than ``first_kept``."""
        return self._before[stop - self._first]


def ended_before(transcript: Transcript, journal_state: JournalState, now: datetime) -> int:
    """Return where a turn begins that has not ended, which is the number of messages where none runs."""
    count = len(transcript.messages)
    # Our own records may come at any moment of a turn.
    last = transcript.index.last_message()
    newest = decode(transcript.messages[last]) if last >= 0 else {}
    own, part_of = newest.get("message_id"), newest.get("part_of")
    # A message that entered a running turn is a part of that.
    id_ = part_of if isinstance(part_of, str) else own
    if not isinstance(id_, str) or journal_state.known(id_, now) is not None:
        return count
    found = transcript.index.find(id_)
    if found is None:
        # Another thread is just storing the question, of which the index does not know yet.
        return last if id_ == own else count
    return found.start if found.final is None else count


def recent_ids(
    transcript: Transcript, journal_state: JournalState, now: datetime, *, stop: int | None = None
) -> dict[str, dict[str, Any]]:
    """Collect the ids of the last 48 h before ``stop`` with their ends, as the journal keeps them."""
    place = place_of(transcript)
    numbers = {
        at: journal_state.seq_of_final(place, number) for number, at in enumerate(transcript.index.finals, 1)
    }
    ids: dict[str, dict[str, Any]] = {}

    def is_recent(line: Mapping[str, Any]) -> bool:
        at = read_time(line.get("timestamp"))
        return at is None or now - at <= KEPT

    for id_, found in transcript.index.ends(is_recent).items():
        if stop is not None and found.start >= stop:
            continue
        before = journal_state.known(id_, now)
        line = decode(transcript.messages[found.final]) if found.final is not None else {}
        if before is not None and before.kind != "archived" and (not line or line.get("stopped") is True):
            ids[id_] = _end_known(before, is_final=bool(line))
        elif found.final is None:
            ids[id_] = {"final": False}
        else:
            # Without a number of this session it was said before that began, or was opened again.
            seq = numbers.get(found.final) or (before.seq if before is not None else None)
            ids[id_] = _end_shown(id_, line, seq)
    return ids


def _end_known(known: Known, *, is_final: bool) -> dict[str, Any]:
    """Say how an id ended whose lines show no answer, as the journal has it.

    What stands there already would be forgotten sooner than the other ids of the session.
    """
    end = {"final": is_final, "kind": known.kind, "text": known.text, "reason": known.reason}
    return end if known.seq is None else end | {"seq": known.seq}


def _end_shown(id_: str, line: Mapping[str, Any], seq: int | None) -> dict[str, Any]:
    # The answer of a job that was to be told to nobody stays untold.
    unsent = line.get("unsent") is True
    text = line.get("content")
    end: dict[str, Any] = {"final": True, "text": text if isinstance(text, str) and not unsent else ""}
    if line.get("message_id") != id_:
        end["by"] = line.get("message_id")
    elif seq is not None and not unsent:
        end["seq"] = seq
    if line.get("stopped") is True:
        end["stopped"] = True
    return end


# stays: of the conversation; every session that follows has it too.
# renewed: every session has a value of its own, which is written as it begins.
# goes_on: of what is talked about; a session that a compaction begins has it too, any other does not.
# ends: of one session alone, which has it again when it is reopened.
# reopens: of how a session ended; it is gone when the session is reopened.
Lasting = Literal["stays", "renewed", "goes_on", "ends", "reopens"]

FIELDS: Mapping[str, Lasting] = {
    "session_id": "renewed",
    "previous_session": "renewed",
    "model": "stays",
    "source": "stays",
    "cron_job_id": "stays",
    "chat": "stays",
    "agent": "stays",
    "answers_to": "goes_on",
    "name": "goes_on",
    "instructions": "goes_on",
    "resumed_at": "ends",
    "parted_from": "ends",
    "parted_by": "ends",
    "turned_by": "ends",
    "imported": "ends",
    "ended_at": "reopens",
    "ended_by": "reopens",
    "summary": "reopens",
    "last_words": "reopens",
    "history_from": "reopens",
    "reopened": "reopens",
}


def for_the_next(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the session that follows an ended one has of its metadata."""
    return _only(inner, lambda lasting: lasting in ("stays", "renewed"))


def for_the_compacted(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the session that goes on from a summary has of the metadata before."""
    return _only(inner, lambda lasting: lasting in ("stays", "renewed", "goes_on"))


def for_the_reopened(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an ended session has of its metadata once it is the active one again."""
    return _only(inner, lambda lasting: lasting != "reopens")


def _only(inner: Mapping[str, Any], wanted: Callable[[Lasting], bool]) -> dict[str, Any]:
    # A field that another program wrote is not ours to drop.
    return {name: value for name, value in inner.items() if wanted(FIELDS.get(name, "stays"))}


# Messages at the end of a session among which its last words are looked for.
LOOKED_AT = 200
MAX_WORDS_CHARS = 300


def fresh_at(transcript: Transcript) -> datetime | None:
    """Return when a person or the model last said something; system messages and cron do not count.

    A session that was opened again is as fresh as that moment. Where there is nothing else, the newest line
    counts, in a cron job's own conversation any line. None for a session without messages, and where no
    line says when it was written.
    """
    spoken = _spoken_at(transcript)
    opened = read_time(transcript.inner.get("resumed_at"))
    return max((at for at in (spoken, opened) if at is not None), default=None) if spoken else None


def is_idle(transcript: Transcript, *, received_at: datetime | None, now: datetime, limit: timedelta) -> bool:
    """Say whether a message comes so late that a new session should begin for it.

    Args:
        transcript: the active session.
        received_at: when the message was accepted; None counts as now, and so does a time yet to come.
        now: the time now.
        limit: how long a chat may be silent; zero is for ever.
    """
    if limit <= timedelta(0):
        return False
    fresh = fresh_at(transcript)
    at = now if received_at is None else min(received_at, now)
    return fresh is not None and at - fresh > limit


def last_words(transcript: Transcript) -> str:
    """Quote the last question that got an answer, and the answer; empty where there is none.

    It stands for the summary of a session that has none yet.
    """
    start = max(len(transcript.messages) - LOOKED_AT, 0)
    lines = [decode(raw) for raw in transcript.messages[start:]]
    answer = ""
    for _, line in reversed(list(history.sendable(lines, start=start))):
        said = " ".join(plain_text(line.get("content")).split())
        if line.get("role") == "user" and said and answer:
            return f"It ended with the question: {_cut(said)} — and the answer: {_cut(answer)}"
        if line.get("role") == "assistant" and not answer:
            answer = said
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS_CHARS else f"{text[:MAX_WORDS_CHARS]}…"


def _spoken_at(transcript: Transcript) -> datetime | None:
    newest: datetime | None = None
    of_cron = split(transcript.key)[0] == "cron"
    for line in _backwards(transcript.messages):
        at = time_of(line)
        if at is None:
            continue
        if of_cron or not (line.get("role") == "system" or _from_cron(line)):
            return at
        newest = newest or at
    return newest


def _backwards(messages: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    return (decode(raw) for raw in reversed(messages))


def _from_cron(line: Mapping[str, Any]) -> bool:
    id_ = line.get("message_id")
    return isinstance(id_, str) and id_.startswith("cron:")


# The lines are the last to go, and an index is open in other processes.
_REMOVED_APART = ("transcript", "index", "recall")


def end(
    writer: TranscriptWriter,
    *,
    metadata: Mapping[str, Any] | None = None,
    ended: Callable[[Transcript], datetime | None] = lambda _: None,
) -> Path | None:
    """Archive the session and begin a fresh one; return the archive, None where there was no message.

    ``ended``, asked under the lock, says of one in which no turn runs when it ended; None is now. Done again
    after a crash, it replaces its own archive. The lines of a turn that still runs go over into the fresh
    session, where it goes on.

    Raises:
        Fenced, StoreError.
    """

    def job(change: SessionChange) -> Path | None:
        transcript = change.transcript
        stop = ended_before(transcript, change.journal_state, change.now)
        if change.fd is None or not stop:
            return None
        at = ended(transcript) if stop == len(transcript.messages) else None
        parted = Parted(transcript, stop)
        path = change.archive(stop, metadata=metadata, ended_at=at, more=parted.left_behind)
        change.go_on(path, stop=stop, more=parted.moved)
        return path

    return changed(writer, job)


def clear(
    writer: TranscriptWriter,
    *,
    ids: Sequence[str],
    of: str | None,
    everything: bool,
    awaited: AwaitedFiles,
) -> bool:
    """Delete the active transcript, see ``Store.clear``: recent ids and given ones are journalled as cleared.

    Raises:
        Moved, NewerFormat, StoreError.
    """
    layout, stem = writer.layout, writer.stem

    def job(change: SessionChange) -> bool:
        if of is not None and change.transcript.session_id != of:
            return False
        # No turn keeps a vector from here on: a write asks for the session first.
        forget(layout, stem)
        files = media_of(writer, ended=everything)
        if everything:
            _remove_the_rest(change)
        _journal_cleared(change, ids, everything=everything)
        if change.fd is not None:
            for copy in originals_of(writer.path):
                remove_archive(copy)
            change.remove()
        # Both behind the lines, or a search that runs at this moment would take them in again.
        forget(layout, stem)
        forget_index(layout, stem)
        let_go(layout, files, awaited, now=change.now)
        return change.fd is not None

    return changed(writer, job)


def _journal_cleared(change: SessionChange, ids: Sequence[str], *, everything: bool) -> None:
    place = place_of(change.transcript)
    cleared = dict.fromkeys([*recent_ids(change.transcript, change.journal_state, change.now), *ids])
    entries: list[Entry] = [{**change.entry("end"), "id": id_, "kind": "cleared"} for id_ in cleared]
    if change.fd is not None or (everything and change.seq):
        # The count goes on behind it. While the lines still stand, after a crash, their numbers are the same.
        entries.append(change.base(place.session, finals=place.finals))
    if everything:
        # In one rename: nothing else stays of the journal, and at no moment is there less than this.
        change.journal_anew(*entries)
    elif entries:
        change.journal(*entries)


def media_of(writer: TranscriptWriter, *, ended: bool = True) -> Named:
    """Return the files of ``media/`` that a chat names; with ``ended`` its ended sessions count as well."""
    older = archive.of_stem(writer.layout, writer.stem) if ended else ()
    found = named_in_files(ended.path for ended in older)
    for name, at in named_in(writer.transcript.messages).items():
        found[name] = max(at, found.get(name, at))
    return found


def _remove_the_rest(change: SessionChange) -> None:
    """Delete all else of a chat but lines and journal; who renews an ended session waits for our lock."""
    writer = change.writer
    layout, stem = writer.layout, writer.stem
    scopes = places.with_agents(layout, [f"chats/{stem}"])
    own = chain(places.of_key(layout, writer.key, stem), *(places.of_scope(layout, each) for each in scopes))
    places.remove(found for found in own if found.place.kind not in _REMOVED_APART)
    for scope in scopes:
        places.remove_trees(layout, stem=stem, scope=scope)


def close(
    writer: TranscriptWriter,
    *,
    of: str | None,
    ended: Callable[[Transcript], datetime | None] = lambda _: None,
) -> str | None:
    """End the session without beginning another; return its ULID, None where nothing was archived.

    Where a turn runs, a fresh session begins with its lines, in which it goes on. A session without a
    message leaves no archive.

    Where ``of`` names a ULID that the active session has not, nothing happens. ``ended``, asked under the
    lock, says when it ended; None is now.

    Raises:
        Fenced, StoreError.
    """

    def job(change: SessionChange) -> tuple[str | None, bool]:
        transcript = change.transcript
        if change.fd is None or of not in (None, transcript.session_id):
            return None, False
        stop = ended_before(transcript, change.journal_state, change.now)
        if stop < len(transcript.messages):
            return transcript.session_id, True
        if stop:
            path = change.archive(stop, ended_at=ended(transcript))
            change.journal(change.ended(path, stop=stop, following=""))
        change.remove()
        return (transcript.session_id if stop else None), False

    closed, runs = changed(writer, job)
    return None if runs and end(writer) is None else closed


def split_after_idle(
    writer: TranscriptWriter,
    *,
    by: str,
    due: Callable[[Transcript], bool],
) -> bool:
    """End the session for the message ``by``, before which nobody said anything, and begin a fresh one.

    The fresh one knows by which message it came to be, and which archive it goes on from, so that ``reopen``
    can put both together again. Where an exchange has not ended yet nothing happens, nor where ``due``, asked
    under the lock, says no.

    Returns:
        Whether a session ended.

    Raises:
        Fenced, StoreError.
    """

    def job(change: SessionChange) -> bool:
        old = change.transcript
        stop = len(old.messages)
        runs = ended_before(old, change.journal_state, change.now) < stop
        if change.fd is None or not stop or runs or not due(old):
            return False
        path = change.archive(stop, metadata={"last_words": last_words(old) or None})
        change.go_on(path, stop=stop, inner={"parted_from": path.name, "parted_by": by})
        return True

    return changed(writer, job)


def turn_to(writer: TranscriptWriter, *, agent: str, by: str) -> bool:
    """End the session of another agent for the message ``by``, and begin one of ``agent`` (empty: default).

    All lines stay in the archive: none of them goes over into the session of another agent. The new one knows
    by which message it came to be.

    Returns:
        Whether a session ended; False where it is ``agent``'s already, or had no message.

    Raises:
        Fenced, StoreError.
    """

    def job(change: SessionChange) -> bool:
        old = change.transcript
        if agent_in(old.inner) == agent or change.fd is None or not old.messages:
            return False
        path = change.archive(len(old.messages))
        change.go_on(path, stop=len(old.messages), inner={AGENT: agent or None, "turned_by": by})
        return True

    return changed(writer, job)


def roll_over(
    writer: TranscriptWriter,
    *,
    first_kept: int,
    record: Callable[[str, int], Mapping[str, Any]],
    still: Callable[[Transcript], bool],
) -> str | None:
    """Archive a session that is too long and begin another: a summary, then the messages from ``first_kept``.

    The archive is the whole session but for the turn that runs, whose lines move over. What is kept stands in
    both: the ``compact`` line counts these copies (``kept``), and memory takes them from the archive alone.
    The new session goes on under the name, model and instructions of the old, and with its count of replies.

    Args:
        writer: writes the transcript.
        first_kept: index of the first message that follows the summary.
        record: makes the line that stands for those before, given the archive's file name and how many lines
            behind it are copies of what the archive holds.
        still: says under the lock whether the transcript is still one that the summary fits.

    Returns:
        The ULID of the session that ended; None where ``still`` said no, and nothing was written.

    Raises:
        Fenced, StoreError.
    """

    def job(change: SessionChange) -> str | None:
        old = change.transcript
        if change.fd is None or not still(old):
            return None
        stop = max(ended_before(old, change.journal_state, change.now), first_kept)
        kept = Parted(old, first_kept, behind=1)
        records = Parted(old, stop).left_behind
        path = change.archive(stop, metadata={"ended_by": archive.COMPACTION}, more=records)
        line = record(path.name, kept.before(stop))
        known = kept.before(max(stop, old.last_consolidated))
        new = _begun(change, offset=1 + known if known else 0)
        finals = sum(1 for at in old.index.finals if at >= first_kept)
        ended = change.ended(path, stop=stop, following=new.session_id)
        change.journal(ended, change.base(new.session_id, finals=finals))
        change.begin_anew(new, more=[(encode(line), line), *kept.moved])
        return old.session_id

    return changed(writer, job)


def _begun(change: SessionChange, *, offset: int) -> Transcript:
    old, now = change.transcript, change.now
    inner = for_the_compacted(old.inner)
    inner |= {"session_id": durable.new_id(now), "previous_session": old.session_id}
    if offset:
        inner["reopened"] = {"history_from": 0, "consolidated": offset}
    new = fresh(old.stem, change.writer.key, now=now, inner=inner)
    new.metadata["last_consolidated"] = offset
    return new


# Messages of a session that are moved behind those of another.
JOINED_MAX = 2_000
# What in a record of ours counts the messages of its session.
_PLACES = ("from", "first_kept")


@dataclass(frozen=True, slots=True)
class Swap:
    """What opening a session again did: ``left`` is the ULID of the one that ended for it, empty for none."""

    session: str
    left: str


def reopen(writer: TranscriptWriter, *, session_id: str, by: str = "") -> Swap:
    """Let an ended session be the active one again; the one that was active is archived.

    It keeps its ULID, and its history begins where it began when it ended, whatever went into memory since.
    Done again it ends in the same. The lines of a turn that runs come behind those of the session. ``by`` is
    the id of the command that asks for it; the journal knows its aim before anything moves.

    Where the active one began for silence, right behind the session that is asked for, there was no boundary:
    all its lines come behind those of the session, and it is no more.

    Raises:
        NoSession: this key has no such session, or its file cannot be read.
        Fenced, StoreError.
    """

    def job(change: SessionChange) -> Swap:
        if change.fd is not None and change.transcript.session_id == session_id:
            return _done_before(change, session_id, by)
        return _reopen(change, session_id, by)

    return changed(writer, job)


def _reopen(change: SessionChange, session_id: str, by: str) -> Swap:
    writer = change.writer
    found = archived.find(writer.layout, writer.stem, session_id)
    if found is None or (found[1].key, found[1].session_id) != (writer.key, session_id):
        raise NoSession(f"{writer.key} has no closed session {session_id}", hint="chat-gateway sessions list")
    path, back = found[0].path, found[1]
    if change.fd is None:
        # ``begin_anew`` takes the place of a file: one is there before the journal speaks of it.
        change.renew()
    old, now = change.transcript, change.now
    stop = ended_before(old, change.journal_state, now)
    joined = change.fd is not None and _goes_on_from(old, path)
    left = old.session_id if stop and not joined else ""
    if joined:
        writer.keep_original(change.fd)
    entries: list[Entry] = []
    if by:
        entries.append({**change.entry("reopen"), "id": by, "session": session_id, "left": left})
    if stop and change.fd is not None:
        kept = path if joined else change.archive(stop, more=Parted(old, stop).left_behind)
        entries.append(change.ended(kept, stop=stop, following=session_id))
    finals = len(back.index.finals) + (len(old.index.finals) if joined else 0)
    change.journal(*entries, change.base(session_id, finals=finals))
    behind = _moved(old, len(back.messages)) if joined else _running(old, stop)
    change.begin_anew(_head(back, now), body=back.messages, more=behind)
    _take_away(path, back)
    return Swap(session_id, left)


def _goes_on_from(transcript: Transcript, path: Path) -> bool:
    """Say whether a session began for silence behind this very archive, and nothing of it was left behind."""
    if transcript.inner.get("parted_from") != path.name or len(transcript.messages) > JOINED_MAX:
        return False
    kinds = {decode(transcript.messages[at]).get("kind") for at in transcript.index.records}
    return transcript.last_consolidated == 0 and not kinds & {"overlay", "compact"}


def _moved(transcript: Transcript, count: int) -> list[Line]:
    """Return all lines of a session that ``count`` others come to stand before; records follow their aims."""
    lines: list[Line] = [(raw, decode(raw)) for raw in transcript.messages]
    for at in transcript.index.records:
        line = decode(transcript.messages[at])
        line |= {name: line[name] + count for name in _PLACES if type(line.get(name)) is int}
        lines[at] = (dump(line), line)
    return lines


def _running(transcript: Transcript, start: int) -> list[Line]:
    lines = [(raw, decode(raw)) for raw in transcript.messages[start:]]
    return [(raw, line) for raw, line in lines if not is_record(line)]


def _done_before(change: SessionChange, session_id: str, by: str) -> Swap:
    """Finish what a crash interrupted behind the rename: the file in the archive is a copy by now."""
    writer = change.writer
    for found in archive.of_stem(writer.layout, writer.stem):
        if found.session_id == session_id:
            read = load(found.path, writer.stem)
            _take_away(found.path, read[0] if read is not None else Transcript(writer.stem))
    aim = change.journal_state.reopening(by)
    return Swap(session_id, aim.left if aim is not None and aim.session == session_id else "")


def _head(back: Transcript, now: datetime) -> Transcript:
    """Begin a transcript with the line 1 of an ended session, as that of an active one."""
    offset, since = back.last_consolidated, back.inner.get("history_from")
    if type(since) is not int or not 0 <= since <= offset:
        since = 0 if offset == len(back.messages) else offset
    opened = {"history_from": since, "consolidated": offset} if since < offset else None
    resumed = now.astimezone(UTC).isoformat(timespec="microseconds")
    own = {"session_id": back.session_id, "reopened": opened, "resumed_at": resumed}
    inner = merged(for_the_reopened(back.inner), own)
    head = Transcript(back.stem, metadata=decode(back.head(now=now, inner=inner)))
    head.damage.heads = 1
    return head


def _take_away(path: Path, content: Transcript) -> None:
    """Remove the file of a session that is active again; one that holds more than its lines is kept aside."""
    if content.needs_copy:
        keep_beside(path)
    remove_archive(path)
