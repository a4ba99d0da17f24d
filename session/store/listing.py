"""Lists, checks and searches the sessions of a workspace; a bad file never hides a good one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import structlog

from session.disk.layout import Layout, Seen, seen
from session.errors import StoreError
from session.models.model import Totals
from session.transcript import archive
from session.transcript.agent import DEFAULT, agent_in, shown
from session.transcript.archive import Archived, previous_in, session_in
from session.transcript.history import deleted, is_deletion, new_texts, with_text
from session.transcript.index import copies_behind
from session.transcript.line import first_line, taken_back, time_of
from session.transcript.lines import walk
from session.transcript.loading import load
from session.transcript.repair import plain_text
from session.transcript.transcript import Transcript, decode, parse, read_time, stamp

log = structlog.get_logger("sessions")

PREVIEW_CHARS = 160
# White space is folded, so that more than a preview's length has to be read.
PREVIEW_READ_CHARS = 4 * PREVIEW_CHARS


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session of the listing; times are ISO 8601 with offset, empty where nothing says them."""

    id: str
    key: str
    stem: str
    path: Path
    name: str | None
    created_at: str
    last_message_at: str
    updated_at: str
    message_count: int
    model: str | None
    source: str
    cron_job_id: str | None
    active: bool
    agent: str = DEFAULT
    totals: Totals = field(default_factory=Totals)
    # The beginning of the newest message, for a list of chats, and who said it.
    last_text: str = ""
    last_role: str = ""
    # When the file changed, in nanoseconds since 1970.
    changed_ns: int = 0
    # When its newest message was said, in microseconds since 1970.
    last_us: int = 0

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands among others, the highest place first."""
        return (self.last_us, self.id)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that the listing shows to other programs."""
        return {
            "id": self.id,
            "key": self.key,
            "name": self.name,
            "created_at": self.created_at or None,
            "last_message_at": self.last_message_at or None,
            "message_count": self.message_count,
            "model": self.model,
            "source": self.source,
            "cron_job_id": self.cron_job_id,
            "active": self.active,
            "agent": self.agent,
            "metrics": {**self.totals.usage.shown(), "turns": self.totals.turns},
        }


class Listing:
    """Makes rows, and keeps them as long as their files do not change."""

    def __init__(self, layout: Layout, zone: tzinfo) -> None:
        self._layout = layout
        self._zone = zone
        self._rows: dict[Path, tuple[Seen, SessionRow]] = {}

    def rows(self, *, ended: bool = True) -> list[SessionRow]:
        """List the sessions, newest message first; ended ones only where asked for."""
        known = self._rows
        fresh: dict[Path, tuple[Seen, SessionRow]] = {}
        active: dict[str, SessionRow] = {}
        rows: list[SessionRow] = []
        for path in transcripts(self._layout):
            row = self._row(path, path.stem, known, fresh, active=True)
            if row is not None:
                active[row.id] = row
                rows.append(row)
        for found in archive.everywhere(self._layout) if ended else ():
            if found.session_id in active:
                # A crash left this copy of the active session: its ending has not ended.
                continue
            row = self._row(found.path, found.stem, known, fresh, active=False)
            if row is not None:
                rows.append(row)
        self._rows = fresh if ended else {**known, **fresh}
        return sorted(rows, key=lambda row: row.place, reverse=True)

    def _row(
        self,
        path: Path,
        stem: str,
        known: dict[Path, tuple[Seen, SessionRow]],
        fresh: dict[Path, tuple[Seen, SessionRow]],
        *,
        active: bool,
    ) -> SessionRow | None:
        now = seen(path)
        old = known.get(path)
        if old is not None and old[0] == now:
            fresh[path] = old
            return old[1]
        try:
            found = load(path, stem, self._layout.index(stem) if active else None)
        except StoreError:
            return None
        if found is None:
            return None
        row = make_row(found[0], path, self._zone, active=active, changed_ns=found[1][2])
        fresh[path] = (found[1], row)
        return row


def make_row(
    transcript: Transcript, path: Path, zone: tzinfo, *, active: bool, changed_ns: int = 0
) -> SessionRow:
    """Describe one transcript."""
    inner = transcript.inner
    at = transcript.index.last_message()
    newest = decode(transcript.messages[at]) if at >= 0 else {}
    last = time_of(newest)
    written = _written_at(transcript, len(transcript.messages) - 1)
    updated = read_time(transcript.metadata.get("updated_at"))
    times = [at for at in (updated, written) if at is not None]
    created = transcript.created_at
    channel = transcript.key.partition(":")[0]
    return SessionRow(
        id=transcript.session_id,
        key=transcript.key,
        stem=transcript.stem,
        path=path,
        name=_text(inner.get("name")),
        created_at=stamp(created, zone) if created else "",
        last_message_at=stamp(last, zone) if last else "",
        updated_at=stamp(max(times), zone) if times else "",
        message_count=message_count(transcript),
        model=_text(inner.get("model")),
        source=_text(inner.get("source")) or ("cron" if channel == "cron" else "interactive"),
        cron_job_id=_text(inner.get("cron_job_id")),
        active=active,
        agent=shown(agent_in(inner)),
        totals=transcript.index.totals(),
        last_text=" ".join(plain_text(newest.get("content"))[:PREVIEW_READ_CHARS].split())[:PREVIEW_CHARS],
        last_role=str(newest.get("role") or ""),
        changed_ns=changed_ns,
        last_us=round(last.timestamp() * 1_000_000) if last else 0,
    )


def message_count(transcript: Transcript) -> int:
    """Count the messages of a session, without our own records and what was withdrawn or deleted."""
    messages = transcript.messages
    records = [(at, decode(messages[at])) for at in transcript.index.records]
    gone = {at for at, _ in records}
    for at, line in records:
        gone.update(taken_back(line, at))
    if any(is_deletion(line) for _, line in records):
        gone |= deleted([decode(raw) for raw in walk(messages, 0)])
    return len(messages) - len(gone)


def last_message_at(transcript: Transcript) -> datetime | None:
    """Return when the newest message was said, whatever records stand behind it; None where none says so."""
    return _written_at(transcript, transcript.index.last_message())


def _written_at(transcript: Transcript, at: int) -> datetime | None:
    line = decode(transcript.messages[at]) if at >= 0 else {}
    return time_of(line)


def transcripts(layout: Layout) -> Iterator[Path]:
    """List the active transcripts by name, without what cannot be looked at, as a link to itself."""
    try:
        # Of thousands of files the folder itself says what they are: no path is made or looked at for that.
        with os.scandir(layout.sessions) as found:
            names = sorted(each.name for each in found if each.name.endswith(".jsonl") and _is_file(each))
    except FileNotFoundError:
        return
    for name in names:
        yield layout.sessions / name


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError as error:
        log.warning("session.unreachable", file=entry.name, error=str(error.strerror))
        return False


def said_since(layout: Layout, since_ns: float, most: int) -> list[Path]:
    """List the active transcripts that were written since, the newest first, at most so many.

    One that cannot be looked at is left out.
    """
    found: list[tuple[int, Path]] = []
    for path in transcripts(layout):
        try:
            now = seen(path)
        except StoreError as error:
            log.warning("session.unreachable", file=path.name, error=str(error))
            continue
        if now is not None and now[2] >= since_ns:
            found.append((now[2], path))
    return [path for _, path in sorted(found, reverse=True)[:most]]


def key_at(path: Path, stem: str) -> str:
    """Read whose a transcript is; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            first = first_line(file)
    except OSError:
        return ""
    return parse(first, stem=stem).key if first is not None else ""


_BETWEEN, _MORE = "; ", " more damaged lines"
_SHOWN = 3
Fix = Callable[[Transcript, Archived | None], None]


def verify(layout: Layout, fix: Fix | None) -> list[dict[str, Any]]:
    """Report the transcripts with a problem; ``fix`` repairs one, an ended one where it lies."""
    report = []
    for path in transcripts(layout):
        row = _check(layout, path, path.stem, fix, None)
        if row is not None:
            report.append(row)
    for found in archive.everywhere(layout):
        row = _check(layout, found.path, found.stem, fix, found)
        if row is not None:
            report.append(row)
    return report


def _check(
    layout: Layout, path: Path, stem: str, fix: Fix | None, ended: Archived | None
) -> dict[str, Any] | None:
    row: dict[str, Any] = {"file": str(path.relative_to(layout.workspace)), "problem": "", "repaired": False}
    try:
        found = load(path, stem)
        if found is None:
            return None
        transcript = found[0]
        row["problem"] = _BETWEEN.join(problems(transcript))
        if not row["problem"]:
            return None
        if fix is not None:
            fix(transcript, ended)
            row["repaired"] = True
    except StoreError as error:
        row["problem"] = row["problem"] or str(error)
    return row


def brief(problem: str) -> str:
    """Shorten what ``verify`` says of a file to fit a table: three faults, and how many more there are."""
    faults = problem.split(_BETWEEN)
    left = faults[_SHOWN:]
    if not left:
        return problem
    more = sum(int(fault.removesuffix(_MORE)) if fault.endswith(_MORE) else 1 for fault in left)
    return _BETWEEN.join([*faults[:_SHOWN], f"and {more} more"])


def problems(transcript: Transcript) -> list[str]:
    """Say in words what a reader could stumble over."""
    damage = transcript.damage
    found = list(damage.problems)
    if damage.unnamed:
        found.append(f"{damage.unnamed}{_MORE}")
    if transcript.torn:
        found.append(
            f"an unfinished line or NUL bytes at the end ({transcript.size - transcript.keep} bytes)"
        )
    if damage.nameless:
        found.append(f"{damage.nameless} records that are not messages")
    offset = transcript.metadata.get("last_consolidated", 0)
    if type(offset) is not int or not 0 <= offset <= len(transcript.messages) + len(damage.strays):
        found.append("last_consolidated is out of range, so it counts as 0")
    return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# How much is read of all files together.
MAX_BYTES = 256 * 2**20
EXCERPT_CHARS = 160


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that holds all words; ``seq`` counts the session's messages from 1."""

    id: str
    seq: int
    role: str
    timestamp: str
    text: str
    active: bool

    def as_dict(self) -> dict[str, Any]:
        """Return what other programs see."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits, newest first; ``all`` says that nothing was left out for its number or the files' size."""

    hits: list[Hit]
    all: bool


def search(
    layout: Layout, stem: str, key: str, words: str, *, limit: int, tools: bool = False
) -> SearchResult:
    """Find the messages of people and model that hold all ``words``, in whatever case.

    ``tools``: and the results of tools.

    Raises:
        StoreError: the active transcript cannot be read; an ended session that cannot is passed over.
    """
    wanted = words.casefold().split()
    roles = ("user", "assistant", "tool") if tools else ("user", "assistant")
    hits: list[Hit] = []
    left = MAX_BYTES
    copies = _Copies()
    for path, transcript in _sessions(layout, stem, key):
        left -= transcript.size
        if left < 0:
            return SearchResult(hits, False)
        active = path == layout.transcript(stem)
        found = copies.found_in(transcript)
        texts = new_texts((at, decode(transcript.messages[at])) for at in transcript.index.records)
        for at in range(len(transcript.messages) - 1, -1, -1):
            if at in found:
                continue
            hit = _hit(transcript, at, wanted, roles=roles, active=active, texts=texts)
            if hit is not None and len(hits) == limit:
                return SearchResult(hits, False)
            if hit is not None:
                hits.append(hit)
    return SearchResult(hits, True)


class _Copies:
    """What a compaction copied from one session into the next, as far as the search has come."""

    def __init__(self) -> None:
        self._searched: set[str] = set()
        self._lines: set[bytes] = set()

    def found_in(self, transcript: Transcript) -> set[int]:
        """Return the places of a session's lines that were found in one before it."""
        messages = transcript.messages
        opening = decode(messages[0]) if messages else {}
        copies = range(1, 1 + copies_behind(opening))
        found = set[int]()
        # An archive that was opened again is searched before the session that has the copies.
        if session_in(previous_in(opening) or "") in self._searched:
            found.update(copies)
        if self._lines:
            found.update(at for at, raw in enumerate(walk(messages, 0)) if raw in self._lines)
        self._searched.add(transcript.session_id)
        self._lines.update(messages[copies.start : copies.stop])
        return found


def _sessions(layout: Layout, stem: str, key: str) -> Iterator[tuple[Path, Transcript]]:
    path, seen = layout.transcript(stem), set[str]()
    read = load(path, stem, layout.index(stem))
    if read is not None:
        transcript = read[0]
        if transcript.key == key:
            seen.add(transcript.session_id)
            yield path, transcript
    for found in reversed(archive.of_stem(layout, stem)):
        if found.session_id in seen:
            continue
        seen.add(found.session_id)
        try:
            read = load(found.path, stem)
        except StoreError:
            # A damaged session hides no other one.
            continue
        if read is not None and (transcript := read[0]).key == key:
            yield found.path, transcript


def _hit(
    transcript: Transcript,
    at: int,
    wanted: list[str],
    *,
    roles: Sequence[str],
    active: bool,
    texts: Mapping[str, tuple[int, str]],
) -> Hit | None:
    line = with_text(decode(transcript.messages[at]), at, texts)
    role = line.get("role")
    if role not in roles:
        return None
    text = plain_text(line.get("content"))
    folded = text.casefold()
    if not wanted or not all(word in folded for word in wanted):
        return None
    return Hit(
        transcript.session_id,
        at + 1,
        str(role),
        str(line.get("timestamp", "")),
        _excerpt(text, folded.find(wanted[0])),
        active,
    )


def _excerpt(text: str, at: int) -> str:
    start = max(0, at - EXCERPT_CHARS // 2)
    piece = " ".join(text[start : start + EXCERPT_CHARS].split())
    before, after = "…" if start else "", "…" if start + EXCERPT_CHARS < len(text) else ""
    return f"{before}{piece}{after}"
