"""Lists what was asked in a time and what became of it, by transcripts and journals; reads, for threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from session.disk.layout import Layout, read_file, seen
from session.store.listing import transcripts
from session.store.naming import owner_of
from session.transcript import archive, journal_lines
from session.transcript.attachments import attachments_of
from session.transcript.history import is_record
from session.transcript.journal_lines import Entry
from session.transcript.life import SAID, Mentions, Step, in_order, of_journal, of_lines
from session.transcript.line import decode, read_time
from session.transcript.loading import load
from session.transcript.repair import plain_text
from session.transcript.transcript import Transcript

Line = Mapping[str, Any]
# What of a time is asked for, but cannot be told whole.
FOREIGN: Final = "messages that another program wrote"
EDITS: Final = "edits and deletions of messages"
RESULTS: Final = "results of subagents, which are started anew"
UNBEGUN: Final = "messages that ended before a turn began, whose text is not kept"
# What the journal says of those of them that came too late.
_DROPPED: Final = {"edit": EDITS, "subagent": RESULTS}
_RESULT: Final = "#result"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """One message: when its channel handed it in, what was typed by whom, and what became of it.

    ``reply`` is what the turn of its own ended with; ``files`` are the names of what came along.
    """

    key: str
    id: str
    at: datetime
    text: str
    sender: str = ""
    files: Sequence[str] = ()
    reply: str = ""
    steps: Sequence[Step] = ()


def stems(layout: Layout) -> list[str]:
    """List the conversations that have a transcript, an ended session, or commands in a journal alone."""
    journals = (path.stem for path in layout.keys.glob("*.log"))
    return sorted({*(path.stem for path in transcripts(layout)), *archive.stems(layout), *journals})


@dataclass(slots=True)
class _Session:
    """The lines of one session, and which of them tell of which message."""

    transcript: Transcript
    source: str
    lines: Sequence[bytes]
    mentions: Mentions = field(default_factory=Mentions)

    def steps(self, id_: str) -> list[Step]:
        among = self.mentions.of(id_)
        return of_lines(
            self.lines, id_, session_id=self.transcript.session_id, source=self.source, among=among
        )


@dataclass(slots=True)
class Conversation:
    """What the files of one conversation tell of a time.

    Args:
        layout: where they lie.
        stem: that of their names.
        since: from when on messages count, aware.
        until: before when.
        left_out: what cannot be told, in words, each with how much of it there was; filled by ``messages``.
    """

    layout: Layout
    stem: str
    since: datetime
    until: datetime
    key: str = ""
    left_out: Counter[str] = field(default_factory=Counter)
    _sessions: list[_Session] = field(default_factory=list)
    # What the journal says of each message.
    _entries: dict[str, list[Entry]] = field(default_factory=dict)
    _commands: dict[str, Entry] = field(default_factory=dict)
    # Each message by its id; None: one that is counted as left out.
    _asked: dict[str, Asked | None] = field(default_factory=dict)
    # What the lines say that end a turn, by the id of its message.
    _replies: dict[str, str] = field(default_factory=dict)

    def read(self) -> bool:
        """Read what may tell of the time; say whether there is any.

        Raises:
            SessionError: a file cannot be read.
        """
        for _ in range(_TRIES):
            paths = [*self._paths()]
            self._sessions = []
            for path, source in paths:
                if (read := load(path, self.stem)) is not None:
                    self._sessions.append(_Session(read[0], source, list(read[0].messages)))
                    self.key = read[0].key
            # A session that ended or was opened again meanwhile was in neither place.
            if paths == [*self._paths()]:
                break
        if (journal := read_file(self.layout.journal(self.stem))) is not None:
            for entry, _ in journal_lines.read(journal[0])[0]:
                ids = entry.get("ids") if entry.get("do") == "ended" else [entry.get("id")]
                for id_ in ids if isinstance(ids, dict | list) else ():
                    self._entries.setdefault(str(id_), []).append(entry)
                if SAID in entry:
                    self._commands[str(entry.get("id"))] = entry
            self.key = self.key or owner_of(self.layout, self.stem) or ""
        return bool(self.key)

    def _paths(self) -> Iterator[tuple[Path, str]]:
        for ended in archive.of_stem(self.layout, self.stem):
            # Its name tells the second alone.
            if ended.ended_at + timedelta(seconds=1) > self.since:
                yield ended.path, "archive"
        active = self.layout.transcript(self.stem)
        now = seen(active)
        if now is not None and now[2] >= self.since.timestamp() * 1e9:
            yield active, "transcript"

    def messages(self) -> Iterator[Asked]:
        """Yield the messages of the time, commands behind all others."""
        for session in self._sessions:
            for at, raw in enumerate(session.lines):
                session.mentions.take(at, line := decode(raw))
                self._take(line, session.lines[at + 1 : at + 2])
        for id_, entry in self._commands.items():
            self._replies.setdefault(id_, str(entry.get("text") or ""))
            if id_ not in self._asked and self._is_of_time(entry):
                self._asked[id_] = self._message(entry, id_, str(entry[SAID]))
        for reason in self._unbegun():
            self.left_out[_DROPPED.get(reason, UNBEGUN)] += 1
        for id_, asked in self._asked.items():
            if asked is not None:
                yield replace(asked, reply=self._replies.get(id_, ""), steps=self._steps(id_))

    def _take(self, line: Line, following: Sequence[bytes]) -> None:
        """Take in one line of a transcript; ``following`` is the one behind it."""
        id_ = line.get("message_id")
        if isinstance(id_, str) and line.get("final") is True:
            self._replies[id_] = plain_text(line.get("content"))
        if not self._is_of_time(line):
            return
        if line.get("role") == "user" and not is_record(line):
            self._take_asked(line, id_)
        elif line.get("kind") == "note":
            self.left_out[EDITS] += 1
        elif line.get("kind") == "undo" and isinstance(id_, str) and id_ not in self._commands:
            # The words stand in the journal for two days; later the lines alone say which command it was.
            is_retry = any(decode(raw).get("message_id") == id_ for raw in following)
            self._asked[id_] = self._message(line, id_, "/retry" if is_retry else "/undo")

    def _take_asked(self, line: Line, id_: object) -> None:
        if not isinstance(id_, str) or not id_:
            self.left_out[FOREIGN] += 1
        elif id_.endswith(_RESULT):
            self.left_out[RESULTS] += id_ not in self._asked
            self._asked[id_] = None
        elif (before := self._asked.get(id_)) is None or before.text != "/retry":
            typed = line.get("typed")
            text = typed if isinstance(typed, str) and typed else plain_text(line.get("content"))
            self._asked[id_] = self._message(line, id_, text)

    def _is_of_time(self, found: Line) -> bool:
        at = _came(found)
        return at is not None and self.since <= at < self.until

    def _message(self, found: Line, id_: str, text: str) -> Asked:
        at = _came(found)
        assert at is not None
        sender = found.get("sender")
        sender = sender if isinstance(sender, Mapping) else {}
        who = str(sender.get("name") or sender.get("username") or sender.get("id") or "")
        files = [file.name or file.kind for file in attachments_of(found)]
        return Asked(self.key, id_, at, text, who, files)

    def _steps(self, id_: str) -> list[Step]:
        steps = of_journal(self._entries.get(id_, ()), id_)
        return in_order([*steps, *(step for session in self._sessions for step in session.steps(id_))])

    def _unbegun(self) -> Iterator[str]:
        """Yield of each message that ended, and of whose text nothing is kept, the journal's reason.

        What was cleared is to be found no more; what was handed on is told where it went.
        """
        for id_, entries in self._entries.items():
            ends = [entry for entry in entries if entry.get("do") == "end"]
            if any(entry.get("kind") == "cleared" or entry.get("to") for entry in ends):
                continue
            if id_ not in self._asked and any(self._is_of_time(entry) for entry in ends):
                yield str(ends[-1].get("reason"))


def _came(found: Line) -> datetime | None:
    """Return when a line's or entry's message came in, else when it was written."""
    for name in ("received_at", "timestamp", "at"):
        if (at := read_time(found.get(name))) is not None:
            return at.astimezone(UTC)
    return None
