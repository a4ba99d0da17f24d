"""The index of a scope's words: which files it has taken in, how far, and where each text stands in them.

The texts themselves are not in it: FTS5 keeps their words alone, and what is found is read from its file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from session.recall.ranking import GAP, Row, matching, said_on
from session.recall.words import indexed
from session.store.derived import DerivedFile, set_up

T = TypeVar("T")
Kind = Literal["message", "history", "memory", "fact"]
VERSION: Final = 3
BUSY_S = 0.5
MERGE_PAGES = 200
ASSISTANT: Final = 1
_TABLES: Final = (
    """
    CREATE TABLE sources (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, key TEXT NOT NULL,
    stem TEXT NOT NULL, session TEXT NOT NULL, path TEXT NOT NULL, inode INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime INTEGER NOT NULL, base INTEGER NOT NULL, lines INTEGER NOT NULL,
    next INTEGER NOT NULL, rows INTEGER NOT NULL, chain INTEGER NOT NULL, UNIQUE (kind, stem, session))
    """,
    "CREATE TABLE speakers (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "INSERT INTO speakers VALUES (1, 'assistant')",
    """
    CREATE TABLE places (id INTEGER PRIMARY KEY, source INTEGER NOT NULL, seq INTEGER NOT NULL,
    at INTEGER NOT NULL, size INTEGER NOT NULL, speaker INTEGER NOT NULL, question INTEGER NOT NULL,
    digest INTEGER NOT NULL)
    """,
    "CREATE TABLE days (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, day TEXT NOT NULL)",
    "CREATE TABLE state (ghosts INTEGER NOT NULL, next INTEGER NOT NULL, source INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0, 1, 0)",
    """
    CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='porter unicode61 remove_diacritics 2')
    """,
    "INSERT INTO texts (texts, rank) VALUES ('pgsz', 1000)",
    f"PRAGMA user_version={VERSION}",
)


class OtherVersion(sqlite3.DatabaseError):
    """Another version of this program wrote the index; it is begun anew, as a damaged one."""

    sqlite_errorcode = sqlite3.SQLITE_NOTADB


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is in the index, and how far: ``lines`` lines, up to byte ``next`` behind ``base``.

    ``base`` is where its body begins; ``chain`` a checksum over the lines that were taken in; ``rows`` counts
    the places that were given out, those taken back included.
    """

    id: int
    kind: Kind
    key: str
    stem: str
    session: str
    path: str
    inode: int = 0
    size: int = 0
    mtime: int = 0
    base: int = 0
    lines: int = 0
    next: int = 0
    rows: int = 0
    chain: int = 0

    @property
    def name(self) -> tuple[str, str, str]:
        """What stays of it while its file is renewed or renamed."""
        return (self.kind, self.stem, self.session)

    @property
    def seen(self) -> tuple[int, int, int]:
        """The file as it was when it was read to its end; zeros until then."""
        return (self.inode, self.size, self.mtime)


@dataclass(frozen=True, slots=True)
class Piece:
    """A text that can be found: ``at`` and ``size`` say which bytes behind its source's base hold it.

    ``day`` begins with the ISO date on which it was said, where that is known.
    """

    text: str
    seq: int
    at: int
    size: int
    digest: int
    speaker: str = ""
    question: bool = False
    day: str = ""


class Place(NamedTuple):
    """Where a row stands; a search makes hundreds of them."""

    row: Row
    source: int
    seq: int
    at: int
    size: int
    speaker: int
    question: bool
    digest: int


_COLUMNS = ", ".join(field.name for field in fields(Source))
_PLACE = "SELECT id, source, seq, at, size, speaker, question, digest FROM places WHERE"


class WordIndex(DerivedFile):
    """The index of one scope; for threads and several processes. Nothing raises but where it is said."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _prepare, busy_s=BUSY_S)
        # Set where one thread of this process brings it up to date.
        self.updating = threading.Lock()
        self._known: tuple[object, list[Source]] = (None, [])

    def inode(self) -> int:
        """Return which file it is now; another one has been begun anew. 0 without one."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    # -- what is in it -----------------------------------------------------------------------------

    def sources(self) -> list[Source] | None:
        """List the files that it has taken in; None where it cannot be read."""

        def look(file: sqlite3.Connection) -> list[Source]:
            # Hundreds of them are asked for by each search: they are the same until somebody writes.
            (written,) = file.execute("PRAGMA data_version").fetchone()
            now = (file, written, file.total_changes)
            known, sources = self._known
            if known != now:
                sources = [Source(*row) for row in file.execute(f"SELECT {_COLUMNS} FROM sources")]  # noqa: S608
                self._known = (now, sources)
            return list(sources)

        return self.run(look)

    def ghosts(self) -> tuple[int, int]:
        """Count the rows whose words are still in it though they are found no more, and all others."""
        query = "SELECT ghosts, (SELECT count(*) FROM places) FROM state"
        return self.run(lambda file: tuple(file.execute(query).fetchone())) or (0, 0)

    def places_of(self, source: Source) -> list[Place]:
        """List the rows of a source."""
        query = f"{_PLACE} source = ?"
        return self.run(lambda file: [*map(_place, file.execute(query, (source.id,)))]) or []

    def begin(self, source: Source) -> Source | None:
        """Take a file in, of which nothing is known yet; None where another process was first."""

        def add(file: sqlite3.Connection) -> Source:
            names = [field.name for field in fields(Source)][1:]
            marks = ", ".join("?" * len(names))
            added = file.execute(
                f"INSERT INTO sources ({', '.join(names)}) VALUES ({marks})",  # noqa: S608
                astuple(source)[1:],
            )
            return replace(source, id=added.lastrowid or 0)

        return self.run(add)

    def drop(self, sources: Iterable[Source]) -> bool:
        """Let nothing of some files be found any more; say whether that was done."""

        def remove(file: sqlite3.Connection) -> bool:
            with _transaction(file):
                for source in sources:
                    _take_back(file, "source = ?", source.id)
                    file.execute("DELETE FROM sources WHERE id = ?", (source.id,))
            return True

        return self.run(remove) or False

    def add(
        self,
        before: Source,
        after: Source,
        pieces: Sequence[Piece],
        *,
        withdrawn: Sequence[tuple[int, int]] = (),
        gone: Sequence[Row] = (),
        still: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Take in what follows of a file, in one transaction.

        ``before`` is the source as it was read; where it is another by now, nothing is done. ``withdrawn``
        are ranges of ``seq``, ``gone`` rows that are found no more. ``still`` is asked within the transaction
        whether the file still stands there.

        Returns whether it was done.
        """

        def write(file: sqlite3.Connection) -> bool:
            with _transaction(file):
                if not still() or not _advance(file, before, after):
                    return False
                speakers = {piece.speaker: 0 for piece in pieces}
                for name in speakers:
                    speakers[name] = _speaker(file, name)
                rows = list(enumerate(pieces, _take_rows(file, before.id, len(pieces))))
                file.executemany(
                    "INSERT INTO texts (rowid, text) VALUES (?, ?)",
                    [(row, indexed(piece.text)) for row, piece in rows],
                )
                file.executemany(
                    "INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [
                        (row, before.id, p.seq, p.at, p.size, speakers[p.speaker], p.question, p.digest)
                        for row, p in rows
                    ],
                )
                for day, group in groupby(rows, key=lambda each: each[1].day):
                    of_day = [row for row, _ in group]
                    file.execute("INSERT INTO days VALUES (?, ?, ?)", (of_day[0], of_day[-1], day))
                for since, until in withdrawn:
                    _take_back(file, "source = ? AND seq BETWEEN ? AND ?", before.id, since, until)
                for row in gone:
                    _take_back(file, "id = ?", row)
            return True

        return self.run(write) or False

    def move(self, places: Sequence[Place]) -> None:
        """Note where rows stand now."""
        self.run(
            lambda file: file.executemany(
                "UPDATE places SET seq = ?, at = ?, size = ? WHERE id = ?",
                [(place.seq, place.at, place.size, place.row) for place in places],
            )
        )

    def merge(self, *, first: bool) -> bool:
        """Put a part of its words together, which makes it smaller and quicker; say whether there is more.

        ``first`` begins anew with all of them.
        """

        def step(file: sqlite3.Connection) -> bool:
            before = file.total_changes
            pages = -MERGE_PAGES if first else MERGE_PAGES
            file.execute("INSERT INTO texts (texts, rank) VALUES ('merge', ?)", (pages,))
            more = file.total_changes - before >= 2
            if not more:
                # ``execute`` would give back a single page.
                file.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
            return more

        return self.run(step) or False

    # -- what is found in it -----------------------------------------------------------------------

    def match(self, expressions: Sequence[str]) -> list[dict[Row, float]] | None:
        """Return for each expression the rows that hold it, with how well; None where it cannot be read."""
        return self.run(lambda file: matching(file, expressions))

    def said_on(self, days: Sequence[str], held: Collection[Row]) -> dict[Row, float]:
        """Return the rows said on some days, with what that is worth; see ``matching.said_on``."""
        return self.run(lambda file: said_on(file, days, held)) or {}

    def places(self, rows: Iterable[Row]) -> dict[Row, Place]:
        """Return where rows stand, those that may be found."""
        return {row[0]: _place(row) for row in self._of_rows(_PLACE, rows)}

    def traits(self, rows: Iterable[Row]) -> list[tuple[Row, int, int, int]]:
        """Return of rows which may be found the source, the speaker, and whether it is a question."""
        return self._of_rows("SELECT id, source, speaker, question FROM places WHERE", rows)

    def _of_rows(self, select: str, rows: Iterable[Row]) -> list[Any]:
        wanted = sorted(rows)

        def look(file: sqlite3.Connection) -> list[Any]:
            found: list[Any] = []
            for at in range(0, len(wanted), 500):
                some = wanted[at : at + 500]
                found += file.execute(f"{select} id IN ({', '.join('?' * len(some))})", some).fetchall()
            return found

        return self.run(look) or []

    def speakers(self) -> dict[int, str]:
        """Name everybody who speaks; the assistant is ``ASSISTANT``."""
        return self.run(lambda file: dict(file.execute("SELECT id, name FROM speakers"))) or {}


def _prepare(file: sqlite3.Connection) -> None:
    (version,) = file.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise OtherVersion(f"the index is of version {version}")
    if version == 0:
        # Most chats are small: with pages of the usual size their index would be several times their text.
        file.execute("PRAGMA page_size=1024")
        file.execute("PRAGMA auto_vacuum=INCREMENTAL")
    set_up(file)
    if version == 0:
        with _transaction(file):
            for statement in _TABLES:
                file.execute(statement)


@contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[None]:
    with file:
        file.execute("BEGIN IMMEDIATE")
        yield


def _advance(file: sqlite3.Connection, before: Source, after: Source) -> bool:
    names = [field.name for field in fields(Source)][1:]
    changes = ", ".join(f"{name} = ?" for name in names)
    done = file.execute(
        f"UPDATE sources SET {changes} WHERE id = ? AND lines = ? AND rows = ? AND chain = ?",  # noqa: S608
        (*astuple(after)[1:], before.id, before.lines, before.rows, before.chain),
    )
    return done.rowcount == 1


def _take_rows(file: sqlite3.Connection, source: int, count: int) -> Row:
    """Give out rows that nobody ever had; return the first. Those of another source are no neighbours."""
    first, last = file.execute("SELECT next, source FROM state").fetchone()
    first += 0 if last == source else GAP
    if count:
        file.execute("UPDATE state SET next = ?, source = ?", (first + count, source))
    return int(first)


def _take_back(file: sqlite3.Connection, which: str, *values: int) -> None:
    """Delete places; a contentless index keeps their words, which then lead nowhere."""
    done = file.execute(f"DELETE FROM places WHERE {which}", values)  # noqa: S608
    file.execute("UPDATE state SET ghosts = ghosts + ?", (done.rowcount,))


def _speaker(file: sqlite3.Connection, name: str) -> int:
    file.execute("INSERT OR IGNORE INTO speakers (name) VALUES (?)", (name,))
    return int(file.execute("SELECT id FROM speakers WHERE name = ?", (name,)).fetchone()[0])


_place: Final[Callable[[Sequence[int]], Place]] = Place._make


def stands(path: str, inode: int) -> bool:
    """Say whether a path still names the file of this inode."""
    try:
        return os.stat(path).st_ino == inode  # noqa: PTH116 - as text from the index
    except OSError:
        return False
