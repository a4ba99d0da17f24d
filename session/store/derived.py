"""SQLite files of what is derived, vectors and words: shared by processes, begun anew where damaged."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from durable import check_version, make_folder, touch
from session.disk.layout import Layout
from session.disk.local_files import local_state
from session.disk.state import let_go, locked, try_lock
from session.errors import NewerFormat, StoreError
from session.models.model import Vector, from_bytes, to_bytes

T = TypeVar("T")
log = structlog.get_logger("derived")

MAX_WAL_BYTES = 2**20
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class DerivedFile:
    """One SQLite file that may be lost at any time; for threads.

    Several processes may use it. Where it is damaged it is begun anew; where the disk refuses or another
    process is in the way, nothing is done. Only ``open`` raises.

    Args:
        path: the file; a lock file of its name lies beside it.
        prepare: makes the tables in a file that was just opened, or finds that they are there.
        busy_s: how long another process is waited for.
        patient: one that opens the file at this moment is waited for, too.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], None],
        *,
        busy_s: float,
        patient: bool = False,
    ) -> None:
        self.path = path
        self._prepare = prepare
        self._busy_s = busy_s
        self._patient = patient
        self._file: sqlite3.Connection | None = None
        self._inode = 0
        self._lock = threading.Lock()
        self._told = ""

    def open(self) -> None:
        """Open the file, or begin it.

        Raises:
            NewerFormat: a newer version wrote it.
        """
        with self._lock:
            try:
                self._opened()
            except NewerFormat:
                raise
            except (sqlite3.Error, OSError, StoreError) as error:
                # The first use tries again, and tells of it.
                log.debug("derived.unopened", file=self.path.name, error=str(error))

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run a job; None where it could not be done. A damaged file is replaced, once."""
        with self._lock:
            for last in (False, True):
                try:
                    outcome = job(self._opened())
                except sqlite3.Error as error:
                    damaged = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED
                    self._tell(f"{type(error).__name__}: {error}")
                    if last or not damaged:
                        return None
                    with suppress(OSError, StoreError):
                        self._discard()
                except (OSError, StoreError) as error:
                    self._tell(str(error))
                    return None
                else:
                    self._told = ""
                    return outcome
        return None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def discard(self) -> None:
        """Delete the file; other processes that have it open begin another.

        Raises:
            OSError, StoreError: the disk refused.
        """
        with self._lock:
            self._discard()

    def _opened(self) -> sqlite3.Connection:
        if self._file is not None:
            with suppress(FileNotFoundError):
                if self.path.stat().st_ino == self._inode:
                    return self._file
            self._close()
        make_folder(self.path.parent)
        with self._alone():
            touch(self.path)
            file = sqlite3.connect(
                self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(file)
                self._inode = self.path.stat().st_ino
            except BaseException:
                file.close()
                raise
            self._file = file
        return file

    def _discard(self) -> None:
        self._close()
        with self._alone():
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Open or replace the file while no other process does.

        Raises:
            StoreError: another one is at it.
        """
        path = self.path.with_suffix(".lock")
        if self._patient:
            with locked(path):
                yield
            return
        lock = try_lock(path)
        if lock is None:
            raise StoreError(f"{self.path.name} is being opened by another process")
        try:
            yield
        finally:
            let_go(lock)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _tell(self, error: str) -> None:
        if error != self._told:
            self._told = error
            log.warning("derived.unused", file=self.path.name, error=error)


def is_damaged(path: Path) -> bool:
    """Say whether a SQLite file is none, or torn; one that another process holds alone is not looked at."""
    try:
        file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)
        try:
            return bool(file.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok")
        finally:
            file.close()
    except sqlite3.Error as error:
        return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED - {sqlite3.SQLITE_ERROR}


def searches_texts() -> bool:
    """Say whether the SQLite of this machine was built with what searches texts."""
    file = sqlite3.connect(":memory:")
    try:
        file.execute("CREATE VIRTUAL TABLE texts USING fts5 (text)")
    except sqlite3.OperationalError:
        return False
    finally:
        file.close()
    return True


def set_up(file: sqlite3.Connection) -> None:
    """Let several processes read and write, and let no deleted byte stay."""
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA synchronous=NORMAL")
    file.execute("PRAGMA secure_delete=ON")
    file.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")


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
class Passage:
    """A text that somebody said: its vector is kept under its conversation, by its file.

    ``still`` says, asked from a thread, whether the text may still be known when the vector is kept.
    """

    stem: str
    text: str
    still: Callable[[], bool] | None = None


class Vectors(DerivedFile):
    """Keeps vectors by model, conversation and text, of which it holds digests only; for threads.

    Args:
        state: the folder.
        max_bytes: how large the file may become; then the vectors that were kept first go.
        busy_s, patient: see ``DerivedFile``.
    """

    def __init__(
        self, state: Path, *, max_bytes: int = MAX_BYTES, busy_s: float = BUSY_S, patient: bool = False
    ) -> None:
        super().__init__(state / FILE, _prepare, busy_s=busy_s, patient=patient)
        self._max_bytes = max_bytes

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

    def keep(self, model: str, passages: Iterable[Passage], vectors: Mapping[str, Vector]) -> None:
        """Keep the vectors of passages by their texts, in place of those that were known.

        ``still`` of each is asked where no ``forget`` can come in between.
        """
        rows = [
            (each, (_chat(each.stem), _text(model, each.stem, each.text), to_bytes(vectors[each.text])))
            for each in passages
            if each.text in vectors
        ]

        def job(file: sqlite3.Connection) -> None:
            with file:
                file.execute("BEGIN IMMEDIATE")
                wanted = [row for each, row in rows if each.still is None or each.still()]
                if not wanted:
                    return
                file.executemany("REPLACE INTO vectors (chat, text, vector) VALUES (?, ?, ?)", wanted)
                while self._is_full(file) and _drop_oldest(file):
                    pass

        self.run(job)

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

    def remove(file: sqlite3.Connection) -> bool:
        file.execute("DELETE FROM vectors WHERE chat = ?", (_chat(stem),))
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return True

    path = local_state(layout.workspace / "state") / FILE
    if path.exists():
        discard(path, unless=remove, prepare=_prepare)


def forget_all(layout: Layout) -> None:
    """Remove the vectors of all conversations.

    Raises:
        StoreError: the disk refused.
    """
    path = local_state(layout.workspace / "state") / FILE
    if path.exists():
        discard(path)


def discard(
    path: Path,
    *,
    unless: Callable[[sqlite3.Connection], bool] | None = None,
    prepare: Callable[[sqlite3.Connection], None] = lambda _: None,
) -> None:
    """Delete a derived file, however long others have it open; not where ``unless`` says yes of it.

    Raises:
        StoreError: it could not be done.
    """
    file = DerivedFile(path, prepare, busy_s=FORGET_S, patient=True)
    try:
        if unless is None or not file.run(unless):
            file.discard()
    except OSError as error:
        raise StoreError(
            f"{file.path.name} could not be removed: {error.strerror}", hint=f"check {file.path}"
        ) from error
    finally:
        file.close()


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


FOLDER = "recall"


def index_path(workspace: Path, scope: str) -> Path:
    """Return the index of the scope that has this name."""
    # Those of an agent lie in a folder of its own.
    within = "/".join(scope.split("/")[:2]) if scope.startswith("agents/") else ""
    head, _, tail = scope[len(within) :].lstrip("/").partition("/")
    # A stem may fill a file name to its last byte, and SQLite puts its own suffixes behind it.
    name = Path(within, head) / hashlib.sha256(tail.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return local_state(workspace / "state") / FOLDER / (f"{name}.db" if tail else Path(within, f"{head}.db"))


def forget_index(layout: Layout, stem: str) -> None:
    """Delete every index that holds words of a conversation; what others said is read again.

    Raises:
        StoreError: it could not be done.
    """

    def lacks(file: sqlite3.Connection) -> bool:
        return file.execute("SELECT 1 FROM sources WHERE stem = ? LIMIT 1", (stem,)).fetchone() is None

    for path in _of(layout, stem):
        discard(path, unless=lacks)


def discard_index(layout: Layout, scope: str) -> None:
    """Delete the index of the scope that has this name.

    Raises:
        StoreError: it could not be done.
    """
    path = index_path(layout.workspace, scope)
    if path.exists():
        discard(path)


def _of(layout: Layout, stem: str) -> Iterator[Path]:
    own = index_path(layout.workspace, f"chats/{stem}")
    top = local_state(layout.workspace / "state") / FOLDER
    for folder in (top, *top.glob("agents/*")):
        shared = (*folder.glob("*.db"), *(folder / "people").glob("*.db"))
        yield from (path for path in (folder / "chats" / own.name, *shared) if path.exists())
