"""Vectors of message texts in ``state/vectors.db``; derived: losing them costs a request and no more."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from durable import check_version
from session.disk.derived import DerivedFile, set_up
from session.disk.layout import Layout
from session.disk.local_files import local_state
from session.errors import NewerFormat, StoreError
from session.models.model import Vector, from_bytes, to_bytes

T = TypeVar("T")
# Conversation, text, vector.
_Row = tuple[bytes, bytes, bytes]

FILE = "vectors.db"
VERSION = 1
MAX_BYTES = 64 * 2**20
# How long another process is waited for; then the turn goes on without.
BUSY_S = 0.2
FORGET_S = 2.0
_TABLE = """
CREATE TABLE IF NOT EXISTS vectors (
    id INTEGER PRIMARY KEY, chat BLOB NOT NULL, text BLOB NOT NULL UNIQUE, vector BLOB NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Keeping:
    """A vector that is to be kept of a text of a conversation, where ``still`` says yes at that moment."""

    stem: str
    text: str
    vector: Vector
    still: Callable[[], bool] | None = None


class Vectors:
    """Keeps vectors by model, conversation and text, of which it holds digests only; for threads.

    Where the file is damaged it is begun anew; where the disk refuses or another process is in the way,
    nothing is found and nothing kept. Only ``open`` raises.

    Args:
        state: the folder.
        max_bytes: how large the file may become; then the vectors that were kept first go.
        busy_s: how long another process is waited for.
        patient: one that opens the file at this moment is waited for, too.
    """

    def __init__(
        self, state: Path, *, max_bytes: int = MAX_BYTES, busy_s: float = BUSY_S, patient: bool = False
    ) -> None:
        self._max_bytes = max_bytes
        self._file = DerivedFile(state / FILE, _prepare, busy_s=busy_s, patient=patient)

    def open(self) -> None:
        """Open the file, or begin it.

        Raises:
            NewerFormat: a newer version wrote it.
        """
        self._file.open()

    def read(self, model: str, stem: str, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are known of ``texts``."""

        def find(file: sqlite3.Connection) -> dict[str, Vector]:
            found = {}
            for text in texts:
                row = file.execute(
                    "SELECT vector FROM vectors WHERE text = ?", (_text(model, stem, text),)
                ).fetchone()
                vector = from_bytes(row[0]) if row and isinstance(row[0], bytes) else None
                if vector is not None:
                    found[text] = vector
            return found

        return self.run(find) or {}

    def write(
        self, model: str, stem: str, vectors: Mapping[str, Vector], *, still: Callable[[], bool] | None = None
    ) -> None:
        """Keep vectors, in place of those that were known of the same texts.

        ``still`` says whether they are wanted yet, and is asked where no ``forget`` can come in between.
        """
        self._put(
            [(_chat(stem), _text(model, stem, text), to_bytes(vector)) for text, vector in vectors.items()],
            lambda rows: rows if still is None or still() else [],
        )

    def keep(self, model: str, wanted: Sequence[Keeping]) -> None:
        """Keep vectors of several conversations as ``write`` does, each by what is said of itself."""
        rows = [
            (_chat(each.stem), _text(model, each.stem, each.text), to_bytes(each.vector)) for each in wanted
        ]
        stills = [each.still for each in wanted]
        self._put(
            rows,
            lambda rows: [row for row, still in zip(rows, stills, strict=True) if still is None or still()],
        )

    def _put(self, rows: list[_Row], chosen: Callable[[list[_Row]], list[_Row]]) -> None:
        def keep(file: sqlite3.Connection) -> None:
            with file:
                file.execute("BEGIN IMMEDIATE")
                wanted = chosen(rows)
                if not wanted:
                    return
                file.executemany("REPLACE INTO vectors (chat, text, vector) VALUES (?, ?, ?)", wanted)
                while self._is_full(file) and _drop_oldest(file):
                    pass

        self.run(keep)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run a job; None where it could not be done. A damaged file is replaced, once."""
        return self._file.run(job)

    def discard(self) -> None:
        """Delete the file; other processes that have it open begin another.

        Raises:
            OSError, StoreError: the disk refused.
        """
        self._file.discard()

    def _is_full(self, file: sqlite3.Connection) -> bool:
        pages, free, size = (
            file.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return bool((pages - free) * size > self._max_bytes)


def forget(layout: Layout, stem: str) -> None:
    """Remove the vectors of a conversation, whatever the model; where that is refused, those of all.

    Raises:
        StoreError: neither could be done.
    """
    path = local_state(layout.workspace / "state") / FILE
    if not path.exists():
        return
    vectors = Vectors(path.parent, busy_s=FORGET_S, patient=True)

    def remove(file: sqlite3.Connection) -> bool:
        file.execute("DELETE FROM vectors WHERE chat = ?", (_chat(stem),))
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return True

    try:
        if not vectors.run(remove):
            vectors.discard()
    except OSError as error:
        raise StoreError(f"{FILE} could not be removed: {error.strerror}", hint=f"check {path}") from error
    finally:
        vectors.close()


def forget_all(layout: Layout) -> None:
    """Remove the vectors of all conversations.

    Raises:
        StoreError: the disk refused.
    """
    path = local_state(layout.workspace / "state") / FILE
    if path.exists():
        try:
            Vectors(path.parent, patient=True).discard()
        except OSError as error:
            cause = f"{FILE} could not be removed: {error.strerror}"
            raise StoreError(cause, hint=f"check {path}") from error


def _prepare(file: sqlite3.Connection) -> None:
    (version,) = file.execute("PRAGMA user_version").fetchone()
    check_version(version, VERSION, FILE, error=NewerFormat)
    set_up(file)
    if version < VERSION:
        with file:
            file.execute("BEGIN IMMEDIATE")
            file.execute(_TABLE)
            file.execute("CREATE INDEX IF NOT EXISTS chats ON vectors (chat)")
            file.execute(f"PRAGMA user_version={VERSION}")


def _drop_oldest(file: sqlite3.Connection) -> bool:
    """Remove the quarter that was kept first; say whether there was anything."""
    (rows,) = file.execute("SELECT count(*) FROM vectors").fetchone()
    file.execute(
        "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors ORDER BY id LIMIT ?)", (rows // 4 + 1,)
    )
    return bool(rows)


def _chat(stem: str) -> bytes:
    return _digest("chat", stem)[:16]


def _text(model: str, stem: str, text: str) -> bytes:
    return _digest("text", model, stem, text)


def _digest(*parts: str) -> bytes:
    written = (part.encode("utf-8", "surrogatepass") for part in parts)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in written)).digest()
