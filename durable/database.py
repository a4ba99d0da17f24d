"""A SQLite file of ours: opened once its version is known, changed in batches of one transaction each."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from durable.errors import Damaged, EarlierVersion, NewerVersion
from durable.files import touch
from durable.folders import make_folder, sync_folder
from durable.state import check_version
from durable.sync_times import sync_file, timed_sync

_OWN_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
)


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file holds.

    Args:
        statements: they make its tables in an empty file.
        version: what ``user_version`` says of them.
        max_log_bytes: how long the write-ahead log stays once it was longer.
        newer: the error for a file of a newer version.
    """

    statements: Sequence[str]
    version: int
    max_log_bytes: int
    newer: type[NewerVersion] = NewerVersion


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of a batch: all of it is done, or none.

    Args:
        run: does it, in the transaction; what it returns or raises is the outcome.
        writes: False where it only looks.
        after: called once the batch is committed; what it returns or raises is then the outcome.
    """

    run: Callable[[], object]
    writes: bool = True
    after: Callable[[], object] | None = None


class _Refused(Exception):
    """The job at ``index`` of the batch failed for reasons of its own."""

    def __init__(self, index: int) -> None:
        self.index = index


class Database:
    """One SQLite file (WAL, ``synchronous=FULL``). Every method runs in the same thread.

    A batch is one transaction with one fsync: what it reported done survives a power cut, what it did not is
    not there.

    Args:
        alone: keep every other process out for as long as the file is open.
        busy_s: how long a lock of another process is waited for.
        retry_each: where the disk refuses a batch, each of its jobs is tried in a transaction of its own;
            for jobs whose order does not matter.
        down: makes the error that a job gets when the disk refused.
        at: called with the name of each instant of a commit (``begun``, ``written``, ``committed``) and of
            the end (``closing``), so that a test can end the process right there.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        down: Callable[[Exception], Exception],
        alone: bool = False,
        busy_s: float = 0.0,
        retry_each: bool = False,
        at: Callable[[str], None] | None = None,
    ) -> None:
        self._path = path
        self._schema = schema
        self._down = down
        self._alone = alone
        self._busy_s = busy_s
        self._retry_each = retry_each
        self._at = at or (lambda _: None)
        self._file: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, which is made with its folder where there is none.

        Raises:
            NewerVersion: as the schema's ``newer``; a newer version wrote the file, it was not touched.
            OSError, sqlite3.Error: it cannot be used; it is closed again.
        """
        make_folder(self._path.parent)
        touch(self._path)
        # Whoever died before its sync left a transaction that is found here, and that nothing would sync
        # before the next one: a put that comes again would be confirmed by it.
        sync_file(self._path.with_name(f"{self._path.name}-wal"))
        file = sqlite3.connect(self._path, isolation_level=None, timeout=self._busy_s)
        try:
            self._prepare(file)
            # A synced transaction in a file whose name a power cut takes away would be lost.
            sync_folder(self._path.parent)
        except BaseException:
            file.close()
            raise
        self._file = file

    def _prepare(self, file: sqlite3.Connection) -> None:
        if self._alone:
            # One writer needs no shared memory file, which a full disk would refuse.
            file.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._check_version(file)
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=FULL")
        file.execute(f"PRAGMA journal_size_limit={self._schema.max_log_bytes}")
        file.execute("BEGIN IMMEDIATE")
        # Another process may have made the tables since; now that the lock is ours, none can.
        if self._check_version(file) == 0:
            for statement in self._schema.statements:
                file.execute(statement)
            file.execute(f"PRAGMA user_version={self._schema.version}")
        file.execute("COMMIT")

    def _check_version(self, file: sqlite3.Connection) -> int:
        version = int(file.execute("PRAGMA user_version").fetchone()[0])
        check_version(version, self._schema.version, str(self._path), error=self._schema.newer)
        if 0 < version < self._schema.version:
            raise EarlierVersion(
                f"{self._path} was written by an earlier development version",
                hint="chat-gateway run --reset-state moves the state aside and starts with an empty queue; "
                "transcripts, memory and jobs stay",
            )
        return version

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        file, self._file = self._file, None
        try:
            self._at("closing")
        finally:
            if file is not None:
                file.close()

    def compact(self) -> None:
        """Write the file anew without what was removed, and empty its log: no byte of that stays.

        Raises:
            sqlite3.Error: the disk refused, or another process is in the way; the rows are as they were.
        """
        # A log that readers of another process still need would keep its old pages.
        self.file.execute("VACUUM")
        (busy, *_) = self.file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("its log is in use")

    @property
    def file(self) -> sqlite3.Connection:
        """The open file, for the statements of the jobs."""
        assert self._file is not None, "the database is not open"
        return self._file

    def commit(self, jobs: Sequence[Job]) -> list[object]:
        """Run ``jobs`` in order in one transaction; return for each its result, or the exception that met it.

        A job that fails for reasons of its own takes no other with it. When the disk refuses, every job that
        writes gets the error that ``down`` makes, and nothing of it is in the file.
        """
        outcomes: list[object] = [None] * len(jobs)
        indexes = list(range(len(jobs)))
        while indexes:
            try:
                self._run(jobs, indexes, outcomes)
            except _Refused as refused:
                # The whole batch was rolled back: the others are done again without this one.
                outcomes[refused.index] = refused.__cause__
                indexes.remove(refused.index)
            except sqlite3.Error as error:
                self._empty_log()
                for index in indexes:
                    outcomes[index] = self._after_failure(jobs[index], error, of=len(indexes))
                break
            else:
                for index in indexes:
                    outcomes[index] = after_commit(jobs[index], outcomes[index])
                break
        return outcomes

    def _run(self, jobs: Sequence[Job], indexes: Sequence[int], outcomes: list[object]) -> None:
        try:
            self._begin()
            self._at("begun")
            for index in indexes:
                outcomes[index] = _run_one(jobs[index], index)
            self._finish()
            self._at("written")
            with timed_sync():
                self.file.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._at("committed")

    def _begin(self) -> None:
        self.file.execute("BEGIN IMMEDIATE")

    def _finish(self) -> None:
        """Do what is left before the commit of a batch; a plain database has nothing such."""

    def _roll_back(self) -> None:
        """Undo the transaction, where the failure has not done so; a refusal shows at the next batch."""
        if self.file.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.file.execute("ROLLBACK")

    def _empty_log(self) -> None:
        """Empty the write-ahead log, if the disk lets us: the next batch may then fit on it."""
        with contextlib.suppress(sqlite3.Error):
            self.file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _after_failure(self, job: Job, error: sqlite3.Error, *, of: int) -> object:
        """Answer a reading job from what is committed, a writing one with the failure of its batch."""
        try:
            if not job.writes:
                return job.run()
        except sqlite3.Error as second:
            error = second
        # Here one large job fails without the small ones that still fit.
        if job.writes and self._retry_each and of > 1:
            return self.commit([job])[0]
        down = self._down(error)
        down.__cause__ = error
        return down


def _run_one(job: Job, index: int) -> object:
    """Run a job of a batch; what it fails with is its own, unless the disk or another process refused."""
    try:
        return job.run()
    except sqlite3.Error as error:
        if isinstance(error, _OWN_FAULTS):
            raise _Refused(index) from error
        raise
    except Exception as error:
        raise _Refused(index) from error


def after_commit(job: Job, outcome: object) -> object:
    """Do what follows the commit of a job; return its outcome."""
    if job.after is None:
        return outcome
    try:
        return job.after()
    except Exception as error:  # noqa: BLE001 - it belongs to whoever asked for the job
        return error


@contextlib.contextmanager
def in_memory(schema: Schema) -> Iterator[sqlite3.Connection]:
    """Open a database with these tables that is no file, and gone at the end."""
    with contextlib.closing(sqlite3.connect(":memory:")) as file:
        for statement in schema.statements:
            file.execute(statement)
        yield file


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database, with what its log holds, to look at it alone; who writes it may have died.

    Raises:
        sqlite3.Error: there is none, or another process holds it alone.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as file:
        yield file


def copy_database(path: Path, target: Path, amend: Callable[[sqlite3.Connection], object]) -> None:
    """Copy a file as of one of its commits, and ``amend`` the copy; processes may write the file meanwhile.

    SQLite itself reads it: opening and closing the file by other means drops the locks of this process.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it was damaged before.
        OSError: it cannot be read, or the copy not written.
    """
    path.stat()
    touch(target)
    with _refusals(path), reading(path) as file, contextlib.closing(sqlite3.connect(target)) as copy:
        file.backup(copy)
        with copy:
            amend(copy)
    settle_copy(target)


def settle_copy(path: Path) -> None:
    """Bring the log of a copied file, which nobody else has, into the file, and see that it is sound.

    Raises:
        Damaged: it is not.
        OSError: the disk refused.
    """
    with (
        _refusals(path),
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file,
    ):
        file.execute("PRAGMA locking_mode=EXCLUSIVE")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        found = file.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise Damaged(f"{path.name} is damaged: {found}")


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise Damaged(f"{path.name} is damaged: {error}") from error
