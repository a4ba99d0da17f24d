"""The state database on PostgreSQL: the tables of ``gateway.db``, with files on a shared folder.

A batch of jobs is one pipeline: its guard row, one statement for all rows of a table, the commit. If the
answer to a commit is lost, its outcome is unknown. A new connection then inserts the same guard row: that
waits for the end of the old transaction, and keeps it from committing later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import IntLoader

from durable import clock
from durable.database import Job, after_commit
from durable.errors import Damaged, LockHeld, StateUnavailable
from durable.folders import make_folder
from durable.state import check_version
from durable.state_database import (
    STATE_VERSION,
    Appended,
    Conflict,
    Replay,
    StateFiles,
    postgres_schema,
)

_CONNECT: Final[Mapping[str, str | int]] = {
    "application_name": "chat-gateway",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# A gateway that freezes, or a machine that is gone, holds neither rows nor the lock for longer.
_SETTINGS: Final = {
    "idle_in_transaction_session_timeout": "5s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
# One gateway at a time holds it: the number is the same for all.
_LOCK: Final = 0x63686174
# How long a gateway lives that says nothing. It counts from before it asked, the server from when it answers.
LIVES_S: Final = 20.0
_LIVES_MS: Final = int(LIVES_S * 1000)
_FREE: Final = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
WHERE locktype = 'advisory' AND classid = 0 AND objid = %s AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
# How long a server that does not answer may hold up the end of the gateway.
_GIVES_UP_S: Final = 5.0
_GUARDS_LAST_MS: Final = 3_600_000
# Fewer rows divide by zero: the server then undoes what the transaction did.
_REQUIRED: Final = "WITH x AS ({} RETURNING 1) SELECT 1 / (count(*) >= {})::int FROM x"
_INSERT: Final = re.compile(r"INSERT INTO (\w+) VALUES \(\?(?:, \?)*\)(.*)", re.DOTALL)
# The server is away, has no room or shuts down: none of the jobs is to blame.
_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction)
# A refused job ends its pipeline, which psycopg would tell each time.
logging.getLogger("psycopg").setLevel(logging.ERROR)
_IN_USE_HINT: Final = "wait where it is ending, which chat-gateway status shows; else stop it"


class PostgresDatabase(StateFiles):
    """The state database on a server. Every method runs in the writing thread, but for those that say so.

    While the server is away a batch waits for it and is tried again; ``down`` says why.

    Args:
        url: ``postgresql://user:password@host:port/database``.
        folder: ``state/`` of the workspace, on a folder that all machines share.
        at: called with the name of each instant of a commit, as for ``Database``.
        replay: as for ``StateFiles``.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        replay: Replay,
        at: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(folder, replay=replay)
        named = conninfo_to_dict(url)
        ours = {name: value for name, value in _CONNECT.items() if name not in named}
        self._conninfo = make_conninfo(url, **ours)
        self._at = at or (lambda _: None)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._backend: tuple[int, str] | None = None
        self._rows: dict[tuple[str, bool], list[Sequence[Any]]] = {}
        self._columns: dict[str, list[str]] = {}
        self._epoch = 0
        self._lost = False
        self._id = clock.new_id()
        self._alive_until = 0.0
        self._giving_up = threading.Event()
        self._cutting: threading.Timer | None = None

    def open(self) -> None:
        """Connect, take the lock, make the tables where there are none, replay what a crash left.

        Raises:
            LockHeld: another gateway uses the database.
            NewerVersion: a newer version made its tables.
            StateUnavailable: it cannot be used; the message holds no password.
            OSError: the disk refuses the replay.
        """
        make_folder(self._folder)
        self._giving_up.clear()
        self._backend, self._epoch, self._lost = None, 0, False
        try:
            self._connect()
            self._make_tables()
            (lives_until_ms,) = self._execute("SELECT lives_until_ms FROM state").fetchone() or (0,)
            # Whoever had it before and lost the connection writes no row any more.
            raised = "UPDATE state SET epoch = epoch + %s RETURNING epoch"
            (self._epoch,) = self._execute(raised, (1 + clock.random_below(1000),)).fetchone() or (0,)
            self.renew()
            self._take_over_files(clean=lives_until_ms == 0)
            self._replay_all()
        except BaseException as error:
            self._disconnect()
            if isinstance(error, psycopg.Error):
                raise _unusable(error) from error
            raise

    def close(self) -> None:
        """Flush the appended lines, then disconnect. A second call does nothing."""
        try:
            self._giving_up.set()
            if self._connection is not None:
                self._flush_last()
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    self._execute(
                        "UPDATE state SET lives_until_ms = 0 WHERE NOT EXISTS (SELECT FROM file_ops)"
                    )
                    # The server may take a moment to notice the end of the connection.
                    self._execute("SELECT pg_advisory_unlock_all()")
        finally:
            self._at("closing")
            self._close_files()
            self._disconnect()
            if self._cutting is not None:
                self._cutting.cancel()

    def give_up(self) -> None:
        """Let jobs fail that wait for the server, from now on, and soon those that it does not answer.

        For any thread.
        """
        self._giving_up.set()
        self._cutting = threading.Timer(_GIVES_UP_S, self._cut)
        self._cutting.daemon = True
        self._cutting.start()

    def _cut(self) -> None:
        connection = self._connection
        if connection is not None:
            with (
                contextlib.suppress(OSError, psycopg.Error),
                socket.socket(fileno=os.dup(connection.fileno())) as end,
            ):
                end.shutdown(socket.SHUT_RDWR)

    # -- connection ------------------------------------------------------------------------------------

    def _connect(self) -> None:
        connection = self._connected()
        try:
            for name, value in _SETTINGS.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit = on")
            if self._backend is not None:
                # Nobody has told it that its connection is gone: it still has the lock.
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE pid = %s AND backend_start::text = %s",
                    self._backend,
                )
            locked = _locked(connection)
            if self._epoch and connection.execute("SELECT epoch FROM state").fetchone() != (self._epoch,):
                raise _taken_over()
            if not locked and self._epoch:
                raise psycopg.OperationalError("an earlier connection is not closed yet")
            if not locked and not _freed(connection):
                raise LockHeld("another chat-gateway uses the state database", hint=_IN_USE_HINT)
            self._backend = connection.execute(
                "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            ).fetchone()
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        if self._epoch:
            self.renew()

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = psycopg.connect(self._conninfo, autocommit=True)
        # Sums of whole numbers are whole numbers.
        connection.adapters.register_loader("numeric", IntLoader)
        return connection

    def renew(self) -> None:
        """Say that this gateway lives, and count those that wait for its end."""
        asked_at = clock.monotonic()
        self._execute("UPDATE state SET lives_until_ms = now_ms() + %s", (_LIVES_MS,))
        others = "SELECT count(*) FROM standbys WHERE lives_until_ms > now_ms() AND id <> %s"
        found = self._execute(others, (self._id,)).fetchone()
        (self.standbys,) = found or (0,)
        self._alive_until = asked_at + LIVES_S

    def is_overdue(self) -> bool:
        """Say whether another gateway may have taken the database over; for any thread."""
        return clock.monotonic() > self._alive_until

    def stand_by(self) -> None:
        """Tell the gateway that has the database that this one waits for it; for any thread.

        Raises:
            StateUnavailable: the server cannot be reached.
        """
        noted = "INSERT INTO standbys VALUES (?, now_ms() + ?) ON CONFLICT (id) DO UPDATE"
        self.read_beside(
            f"{noted} SET lives_until_ms = excluded.lives_until_ms RETURNING id", (self._id, _LIVES_MS)
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        assert self._connection is not None, "the database is not open"
        return self._connection

    def _make_tables(self) -> None:
        statements = postgres_schema()
        for statement in statements:
            if made := re.match(r"CREATE TABLE (\w+)", statement):
                self._columns[made[1]] = re.findall(r"^ +\w+ +(TEXT|BIGINT|BYTEA)", statement, re.MULTILINE)
        with self._open.transaction():
            if self._execute("SELECT to_regclass('state') IS NOT NULL").fetchone() != (True,):
                for statement in statements:
                    self._execute(statement)
                self._execute("INSERT INTO state VALUES (%s, 1, 0)", (STATE_VERSION,))
            found = self._execute("SELECT version FROM state").fetchone()
        if found is None:
            raise Damaged("the state database has no version")
        check_version(found[0], STATE_VERSION, "the state database")

    def read_beside(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Query the database while another process holds it; for any thread.

        Raises:
            StateUnavailable: it cannot be read.
        """
        try:
            with self._connected() as connection:
                return connection.execute(_prepared(statement).encode(), values).fetchall()
        except psycopg.Error as error:
            raise _unusable(error) from error

    # -- statements ------------------------------------------------------------------------------------

    def later(self, statement: str, row: Sequence[Any], *, required: bool = False) -> None:
        """Have ``row`` written as ``StateFiles.later`` says; a ``Conflict`` shows at the commit."""
        self._rows.setdefault((statement, required), []).append(row)

    def query(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement at once, behind all rows that are still to be written."""
        self.flush()
        return self._execute(_prepared(statement), values)

    def flush(self) -> None:
        """Send the rows of ``later``: those of one INSERT together."""
        rows, self._rows = self._rows, {}
        for (statement, required), values in rows.items():
            for query, parameters, count in self._batched(statement, values):
                self._execute(_REQUIRED.format(query, count) if required else query, parameters)

    def _batched(
        self, statement: str, rows: Sequence[Sequence[Any]]
    ) -> Iterator[tuple[str, Sequence[Any], int]]:
        found = _INSERT.fullmatch(statement)
        if found is None:
            yield from ((_prepared(statement), row, 1) for row in rows)
            return
        table, rest = found[1], found[2]
        arrays = ", ".join(f"%b::{kind.lower()}[]" for kind in self._columns[table])
        columns = [list(column) for column in zip(*rows, strict=True)]
        yield f"INSERT INTO {table} SELECT * FROM unnest({arrays}){rest}", columns, len(rows)  # noqa: S608

    def _execute(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._open.execute(query.encode(), values)

    def compact(self) -> None:
        """Write the tables anew without what was removed; backups and the server's log are its operator's.

        Raises:
            StateUnavailable: the server refused.
        """
        try:
            if self._connection is None:
                self._connect()
            self._execute("VACUUM (FULL) journal, file_ops, usage, totals, reservations")
        except psycopg.Error as error:
            raise _unusable(error) from error

    # -- commit ----------------------------------------------------------------------------------------

    def commit(self, jobs: Sequence[Job]) -> list[object]:
        """Run the jobs in one transaction; return for each its result, or the exception that met it.

        A job that fails for reasons of its own takes no other with it. While the server is away this waits.

        Raises:
            LockHeld: another gateway has taken the database over meanwhile; from then on always.
        """
        if self._lost and not self._giving_up.is_set():
            raise _taken_over()
        outcomes: list[object] = [None] * len(jobs)
        written = not any(job.writes for job in jobs)
        guard, pause_s = "", _FIRST_PAUSE_S
        while True:
            try:
                if self._connection is None:
                    self._connect()
                if not written and not (guard and self._is_committed(guard)):
                    guard = clock.new_id()
                    self._write_jobs(jobs, outcomes, guard)
                written = True
                for index, job in enumerate(jobs):
                    if not job.writes:
                        outcomes[index] = self._read(job)
                self._note("")
                break
            except LockHeld as error:
                self._lost = True
                self._note(str(error))
                if not self._giving_up.is_set():
                    raise
                fault: Exception = error
            except psycopg.Error as error:
                if not isinstance(error, _AWAY) and not (self._connection and self._connection.broken):
                    raise
                fault = error
            self._disconnect()
            self._note(_reason(fault))
            if self._giving_up.wait(clock.uniform(pause_s / 2, pause_s)):
                lost = _unusable(fault)
                outcomes = [
                    outcome if written and job.writes else lost
                    for job, outcome in zip(jobs, outcomes, strict=True)
                ]
                break
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return [
            outcome if isinstance(outcome, Exception) else after_commit(job, outcome)
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]

    def _note(self, fault: str) -> None:
        if bool(fault) != bool(self.down):
            self.since = clock.now()
        self.down = fault

    def _write_jobs(self, jobs: Sequence[Job], outcomes: list[object], guard: str) -> None:
        try:
            self._write_together(jobs, outcomes, guard)
        except Exception as error:  # noqa: BLE001 - of a job, or of the server
            self._raise_if_away(error)
            # A job was refused: each is tried for itself.
            self._execute("ROLLBACK")
            self._write_one_by_one(jobs, outcomes, guard)
        self._at("committed")

    def _raise_if_away(self, error: Exception) -> None:
        if isinstance(error, _AWAY):
            raise error
        if self._open.broken:
            raise psycopg.OperationalError("the connection was lost") from error

    def _write_together(self, jobs: Sequence[Job], outcomes: list[object], guard: str) -> None:
        with self._open.pipeline():
            self._begin(guard)
            for index, job in enumerate(jobs):
                if job.writes:
                    outcomes[index] = job.run()
            self.flush()
            self._at("written")
            self._execute("COMMIT")

    def _write_one_by_one(self, jobs: Sequence[Job], outcomes: list[object], guard: str) -> None:
        """Run each job within a savepoint, so that one that is refused takes no other with it."""
        self._begin(guard)
        for index, job in enumerate(jobs):
            if not job.writes:
                continue
            changing = set(self._changing)
            self._execute("SAVEPOINT job")
            try:
                outcomes[index] = job.run()
                self.flush()
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked for the job
                self._raise_if_away(error)
                self._rows.clear()
                self._changing = changing
                self._execute("ROLLBACK TO SAVEPOINT job")
                fewer = isinstance(error, errors.DivisionByZero)
                outcomes[index] = Conflict("a row was not as expected") if fewer else error
        self._at("written")
        self._execute("COMMIT")

    def _begin(self, guard: str) -> None:
        self._rows.clear()
        self._changing.clear()
        self._at("begun")
        self._execute("BEGIN")
        self._execute("INSERT INTO guards VALUES (%s, now_ms())", (guard,))

    def _read(self, job: Job) -> object:
        try:
            return job.run()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked for the job
            self._raise_if_away(error)
            return error

    def _is_committed(self, guard: str) -> bool:
        """Say whether a transaction whose answer was lost is committed; if not, it never will be."""
        query = "INSERT INTO guards VALUES (%s, now_ms()) ON CONFLICT DO NOTHING"
        return self._execute(query, (guard,)).rowcount == 0

    def flushed(self, appended: Appended, failed: Sequence[str] = ()) -> Job:
        """Make a job that deletes the rows of synced files as ``StateFiles.flushed``, and old guards."""
        job = super().flushed(appended, failed)

        def run() -> None:
            job.run()
            self.later("DELETE FROM guards WHERE at_ms < now_ms() - ?", (_GUARDS_LAST_MS,))
            self.later("DELETE FROM standbys WHERE lives_until_ms < now_ms()", ())

        return Job(run, after=job.after)


def _taken_over() -> LockHeld:
    return LockHeld("another chat-gateway took the state database over", hint="start again")


def _locked(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    return connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone() == (True,)


def _freed(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Take the lock from a gateway that has not said for too long that it lives: it may be frozen."""
    try:
        if connection.execute("SELECT FROM state WHERE lives_until_ms < now_ms()").fetchone() is None:
            return False
    except psycopg.ProgrammingError:
        # The first gateway of all is just making the tables.
        return False
    connection.execute(_FREE, (_LOCK,))
    return _locked(connection)


def _prepared(statement: str) -> str:
    """Write the placeholders of a statement as psycopg has them."""
    return statement.replace("%", "%%").replace("?", "%s")


def _reason(error: Exception) -> str:
    """Say in one line why the server refused; its messages name host, user and database, never a password."""
    return " ".join(str(error).split()) or type(error).__name__


def _unusable(error: Exception) -> StateUnavailable:
    return StateUnavailable(
        f"PostgreSQL, the state database, cannot be used: {_reason(error)}",
        hint="start it, or correct state.url",
    )
