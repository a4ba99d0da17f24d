"""The state of a workspace: one contract on both engines, and what a server adds that comes and goes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

import durable
from durable import Append, Change, Conflict, Put, Remove, StateUnavailable, StateWriter, Unflushed, look
from durable.postgres import PostgresDatabase
from gateway.errors import Unreachable
from gateway.queue.mailbox import Health
from gateway.state import watch_state
from session.store.state import replay
from tests.support.guarantee import guarantee
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.until import until

ADD = "INSERT INTO journal VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
ALL = "SELECT key, n, entry FROM journal ORDER BY key, n"
HEADER = b'{"_type": "metadata", "metadata": {"session_id": "01JZZZZZZZZZZZZZZZZZZZZZZZ"}}\n'
SESSION = "01JZZZZZZZZZZZZZZZZZZZZZZZ"


def add(key: bytes, n: int, entry: bytes = b"{}", *, required: bool = True) -> Change:
    return Change(ADD, (key, n, entry), required)


def line(text: str) -> bytes:
    return f'{{"role": "user", "content": "{text}", "timestamp": "2026-01-01T00:00:00"}}\n'.encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as postgres:
        yield postgres


@pytest.fixture
def postgres(server: Postgres) -> Postgres:
    server.execute("DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public")
    return server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres").url) if request.param == "postgres" else ""


class Workspace:
    """A folder whose state is opened again and again."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url, self.state = url, folder / "state"
        self.file = folder / "sessions" / "cli_direct.jsonl"
        self.replayed: list[Unflushed] = []

    @asynccontextmanager
    async def opened(self, at: Callable[[str], None] = lambda _: None) -> AsyncIterator[StateWriter]:
        writer = self.writer()
        writer.at = at
        async with writer.opened():
            yield writer

    def writer(self) -> StateWriter:
        return StateWriter(self.state, replay=self._replay, url=self.url)

    def append(self, text: str, *, session: str = SESSION) -> Append:
        seen = look(str(self.file))
        data = line(text) if seen else HEADER + line(text)
        return Append(str(self.file), seen, data, session)

    @property
    def lines(self) -> list[bytes]:
        return self.file.read_bytes().splitlines(keepends=True)[1:]

    def _replay(self, rows: Sequence[Unflushed]) -> None:
        self.replayed += rows
        replay(rows)


@pytest.fixture
def workspace(tmp_path: Path, url: str) -> Workspace:
    return Workspace(tmp_path, url)


@pytest.fixture
def on_server(tmp_path: Path, postgres: Postgres) -> Workspace:
    return Workspace(tmp_path, postgres.url)


class TestContract:
    """What whoever writes may rely on, on SQLite and on PostgreSQL."""

    async def test_what_is_written_is_read_and_is_there_again(self, workspace: Workspace) -> None:
        odd = "cli:\ud800".encode("utf-8", "surrogatepass")
        async with workspace.opened() as state:
            await state.write([add(b"cli:a", 1, b'{"a": 1}'), add(odd, 1, b"\0\xff"), add(b"cli:a", 2)])
            assert await state.read("SELECT n FROM journal WHERE key = ?", (odd,)) == [(1,)]

        async with workspace.opened() as state:
            assert await state.read(ALL) == [
                (b"cli:a", 1, b'{"a": 1}'),
                (b"cli:a", 2, b"{}"),
                (odd, 1, b"\0\xff"),
            ]
            assert await state.read("SELECT key FROM journal WHERE instr(entry, ?)", (b'"a"',)) == [
                (b"cli:a",)
            ]
            assert repr(await state.read("SELECT sum(n), count(*) FROM journal")) == "[(4, 3)]"
            await state.write([Change("UPDATE journal SET entry = ? WHERE n = ?", (b"%s", 2))])
            await state.write([Change("DELETE FROM journal WHERE n = ?", (1,)), add(b"cli:a", 3)])
            assert [(n, entry) for _, n, entry in await state.read(ALL)] == [(2, b"%s"), (3, b"{}")]

    async def test_a_transcript_that_is_a_link_is_appended_to_where_it_lies(
        self, workspace: Workspace
    ) -> None:
        async with workspace.opened() as state:
            await state.write([], [workspace.append("one")])
        elsewhere = workspace.file.rename(workspace.state.parent / "elsewhere.jsonl")
        workspace.file.symlink_to(elsewhere)

        async with workspace.opened() as state:
            await state.write([], [workspace.append("two")])

        assert workspace.file.is_symlink()
        assert elsewhere.read_bytes().endswith(line("one") + line("two"))

    async def test_a_job_whose_required_change_fits_no_row_is_refused_alone(
        self, workspace: Workspace
    ) -> None:
        """Those that share its transaction are committed; of the job itself nothing is left."""
        async with workspace.opened() as state:
            await state.write([add(b"cli:a", 1)])
            jobs = [
                state.write([add(b"cli:b", 1)]),
                state.write([add(b"cli:c", 1), add(b"cli:a", 1)], [workspace.append("never")]),
                state.write([add(b"cli:d", 1), add(b"cli:d", 1, required=False)]),
                state.write([add(b"cli:d", 1)]),
                state.write([], [workspace.append("one")]),
            ]
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)

            refused = [number for number, each in enumerate(outcomes) if isinstance(each, Conflict)]
            assert refused == [1, 3], outcomes
            assert [key for key, *_ in await state.read(ALL)] == [b"cli:a", b"cli:b", b"cli:d"]
            assert workspace.lines == [line("one")]

    async def test_a_job_whose_file_was_changed_is_refused_alone(self, workspace: Workspace) -> None:
        """So is the second of two that append to one file at once: it does not know what the first left."""
        async with workspace.opened() as state:
            first = workspace.append("one")
            jobs = [state.write([add(b"cli:a", n)], [first]) for n in (1, 2)]
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            assert outcomes[0] == [look(str(workspace.file))]
            assert isinstance(outcomes[1], Conflict)

            stale = workspace.append("two")
            with workspace.file.open("ab") as file:
                file.write(line("by hand"))
            with pytest.raises(Conflict):
                await state.write([add(b"cli:a", 2)], [stale])

            assert [n for _, n, _ in await state.read(ALL)] == [1]
            assert workspace.lines == [line("one"), line("by hand")]

    async def test_a_file_follows_its_commit(self, workspace: Workspace) -> None:
        """Appended, put anew, removed; what is said of it is what it looks like."""
        async with workspace.opened() as state:
            for text in ("one", "two"):
                (seen,) = await state.write([], [workspace.append(text)])
                assert seen == look(str(workspace.file))
            assert workspace.lines == [line("one"), line("two")]

            temp = workspace.file.with_suffix(".new")
            temp.write_bytes(HEADER)
            (seen,) = await state.write([], [Put(str(workspace.file), seen, str(temp))])
            assert (seen, workspace.lines) == (look(str(workspace.file)), [])
            assert await state.write([], [Remove(str(workspace.file), seen)]) == [None]
            assert not workspace.file.exists()
            assert await state.read("SELECT * FROM file_ops") == []

    async def test_a_file_replaced_right_behind_its_rename_is_not_taken_for_ours(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        temp, foreign = workspace.file.with_suffix(".new"), workspace.file.with_suffix(".foreign")

        def replaced_meanwhile(folder: Path) -> None:
            if not temp.exists():
                foreign.write_bytes(HEADER + line("by hand"))
                foreign.rename(workspace.file)

        async with workspace.opened() as state:
            (seen,) = await state.write([], [workspace.append("one")])
            temp.write_bytes(HEADER)
            monkeypatch.setattr("durable.state_database.sync_folder", replaced_meanwhile)
            (seen,) = await state.write([], [Put(str(workspace.file), seen, str(temp))])
            assert seen != look(str(workspace.file))

    async def test_a_flush_deletes_the_rows_and_the_end_is_one(self, workspace: Workspace) -> None:
        async with workspace.opened() as state:
            await state.write([], [workspace.append("one")])
            assert len(await state.read("SELECT * FROM file_ops")) == 1
            await state.flush()
            assert await state.read("SELECT * FROM file_ops") == []
            await state.write([], [workspace.append("two")])

        async with workspace.opened() as state:
            assert workspace.replayed == []
            assert workspace.lines == [line("one"), line("two")]

    async def test_an_append_that_fails_is_settled(self, workspace: Workspace) -> None:
        """Until then its file takes no other job."""
        async with workspace.opened() as state:
            await state.write([], [workspace.append("one")])
            second = workspace.append("two")
            hidden = workspace.file.with_name("hidden")

            def hide(name: str) -> None:
                if name == "committed" and not hidden.exists():
                    workspace.file.rename(hidden)

            # The next append opens it anew.
            state.database._close_file(str(workspace.file))
            state.at = hide
            with pytest.raises(OSError, match=workspace.file.name):
                await state.write([], [second])
            state.at = lambda _: None
            hidden.rename(workspace.file)
            with pytest.raises(Conflict):
                await state.write([], [workspace.append("three")])

            await state.settle(str(workspace.file))
            await state.write([], [workspace.append("three")])
            assert workspace.lines == [line("one"), line("two"), line("three")]

    async def test_what_a_crash_left_is_replayed_once(self, workspace: Workspace) -> None:
        """The rows of lines that never came into their file, or by half, are in it after the next start."""
        async with workspace.opened() as state:
            await state.write([], [workspace.append("one")])
            await state.flush()
            await state.write([], [workspace.append("two")])
            # As in a crash, the end flushes nothing.
            state.database._appended.clear()
        os.truncate(workspace.file, workspace.file.stat().st_size - 5)

        for replayed in (1, 1):
            async with workspace.opened() as state:
                assert len(workspace.replayed) == replayed
                await state.flush()
                assert await state.read("SELECT * FROM file_ops") == []
                assert workspace.lines == [line("one"), line("two")]

    async def test_a_second_process_is_refused_and_reads_all_the_same(self, workspace: Workspace) -> None:
        async with workspace.opened() as state:
            await state.write([add(b"cli:a", 1)])
            second = StateWriter(workspace.state, replay=replay, url=workspace.url)
            with pytest.raises(durable.LockHeld, match="another chat-gateway"):
                async with second.opened():
                    pass
            assert second.database.read_beside("SELECT key FROM journal", ()) == [(b"cli:a",)]
            await state.write([add(b"cli:a", 2)])

    async def test_compacting_leaves_the_rows(self, workspace: Workspace) -> None:
        async with workspace.opened() as state:
            await state.write([add(b"cli:a", 1), add(b"cli:b", 1)])
            await state.write([Change("DELETE FROM journal WHERE key = ?", (b"cli:a",))])
            await state.compact()
            assert [key for key, *_ in await state.read(ALL)] == [b"cli:b"]

    async def test_what_is_asked_after_the_end_is_refused(self, workspace: Workspace) -> None:
        async with workspace.opened() as state:
            pass
        with pytest.raises(StateUnavailable):
            await state.write([add(b"cli:a", 1)])


class TestServer:
    """What a server adds that is killed, frozen or cut off."""

    @guarantee(
        "once", "A commit whose answer is lost happens once; until its outcome is known nothing is said."
    )
    @pytest.mark.parametrize("committed", [True, False])
    async def test_a_commit_without_an_answer_happens_once(
        self, on_server: Workspace, postgres: Postgres, committed: bool
    ) -> None:
        """Its job is done once, whether or not the server had committed it; until then nothing is said."""
        async with Proxy(postgres.port) as proxy:
            workspace = Workspace(
                on_server.file.parents[1], postgres.url.replace(str(postgres.port), str(proxy.port))
            )
            cut = []

            def at(name: str) -> None:
                if name == "written" and not cut:
                    cut.append(name)
                    (proxy.back if committed else proxy.there).swallows = True

            async with workspace.opened() as state:
                await state.write([add(b"cli:a", 1)])
                state.at = at
                job = asyncio.ensure_future(state.write([add(b"cli:a", 2)], [workspace.append("one")]))
                if committed:
                    await until(lambda: postgres.execute("SELECT 1 FROM journal WHERE n = 2"))
                else:
                    await until(lambda: cut)
                assert not job.done()
                assert not workspace.file.exists()
                await proxy.resume()

                assert await job == [look(str(workspace.file))]
                assert workspace.lines == [line("one")]
                assert [n for _, n, _ in await state.read(ALL)] == [1, 2]
                assert len(await state.read("SELECT * FROM file_ops")) == 1

    async def test_a_transaction_that_hangs_cannot_commit_once_it_was_looked_for(
        self, on_server: Workspace
    ) -> None:
        """Its connection is lost, and its server process still has all of it but the commit."""
        async with on_server.opened() as state:
            database = state.database
            assert isinstance(database, PostgresDatabase)
            with psycopg.connect(on_server.url) as hangs:
                guard = durable.new_id()
                looked = state.ask(durable.Job(lambda: database._is_committed(guard), writes=False))
                assert not await looked
                with pytest.raises(psycopg.errors.UniqueViolation):
                    hangs.execute("INSERT INTO guards VALUES (%s, 0)", (guard,))

    async def test_a_killed_server_process_costs_nothing(
        self, on_server: Workspace, postgres: Postgres
    ) -> None:
        """Each of its commits is done once, though its process is killed again and again."""
        kills = [1, 1, 1]

        def at(name: str) -> None:
            if name == "written" and kills:
                kills.pop()
                postgres.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'chat-gateway' AND pid <> pg_backend_pid()"
                )

        async with on_server.opened(at) as state:
            for number in range(1, 6):
                await state.write([add(b"cli:a", number)], [on_server.append(str(number))])

            assert not kills
            assert [n for _, n, _ in await state.read(ALL)] == [1, 2, 3, 4, 5]
            assert on_server.lines == [line(str(number)) for number in range(1, 6)]

    async def test_while_the_server_is_away_jobs_wait(self, on_server: Workspace, postgres: Postgres) -> None:
        """A crash of the server is one such; whoever asks hears that it is away, without the password."""
        async with on_server.opened() as state:
            await state.write([add(b"cli:a", 1)])
            postgres.kill()
            jobs = [asyncio.ensure_future(state.write([add(b"cli:a", n)])) for n in (2, 3)]
            await until(lambda: state.database.down)
            assert not any(job.done() for job in jobs)
            assert "s3cret-words" not in state.database.down

            postgres.start()
            await asyncio.gather(*jobs)
            assert not state.database.down
            assert [n for _, n, _ in await state.read(ALL)] == [1, 2, 3]

    @pytest.mark.parametrize("how", ["stopped", "frozen"])
    async def test_the_end_does_not_wait_for_a_server_that_is_away(
        self, on_server: Workspace, postgres: Postgres, how: str
    ) -> None:
        """What was not written is said to be unavailable; what was is replayed at the next start."""
        try:
            async with on_server.opened() as state:
                await state.write([], [on_server.append("one")])
                if how == "stopped":
                    postgres.stop()
                else:
                    postgres.freeze()
                job = asyncio.ensure_future(state.write([add(b"cli:a", 1)]))
                await asyncio.sleep(0)
        finally:
            if how == "stopped":
                postgres.start()
            else:
                postgres.freeze(frozen=False)

        with pytest.raises(StateUnavailable):
            await job
        async with on_server.opened() as state:
            assert on_server.lines == [line("one")]
            await state.flush()
            assert await state.read("SELECT * FROM file_ops") == []

    async def test_who_was_taken_over_writes_nothing_any_more(
        self, on_server: Workspace, postgres: Postgres
    ) -> None:
        async with Proxy(postgres.port) as proxy:
            cut_off = Workspace(
                on_server.file.parents[1], postgres.url.replace(str(postgres.port), str(proxy.port))
            )
            async with cut_off.opened() as state:
                await state.write([add(b"cli:a", 1)])
                await proxy.refuse()
                proxy.cut()
                job = asyncio.ensure_future(state.write([add(b"cli:a", 2)]))
                await until(lambda: state.database.down)

                async with on_server.opened() as other:
                    await other.write([add(b"cli:a", 2, b"theirs")])
                    await proxy.resume()
                    with pytest.raises(StateUnavailable):
                        await job
                    with pytest.raises(durable.LockHeld):
                        await state.progress()
                with pytest.raises(StateUnavailable):
                    await state.write([add(b"cli:a", 3)])

        assert [(n, entry) for n, entry in postgres.execute("SELECT n, entry FROM journal")] == [
            (1, b"{}"),
            (2, b"theirs"),
        ]

    @guarantee("writer", "A frozen gateway that was taken over writes nothing when it goes on.")
    async def test_a_frozen_gateway_is_taken_over_and_adds_nothing_when_it_goes_on(
        self, on_server: Workspace, postgres: Postgres
    ) -> None:
        """It stood still between its commit and its append: the other one has the line, once."""
        frozen, goes_on = threading.Event(), threading.Event()

        def at(name: str) -> None:
            if name == "committed" and armed:
                frozen.set()
                goes_on.wait()

        armed = False
        async with on_server.opened(at) as state:
            await state.write([], [on_server.append("one")])
            armed = True
            job = asyncio.ensure_future(state.write([add(b"cli:a", 1)], [on_server.append("two")]))
            await asyncio.to_thread(frozen.wait)
            with pytest.raises(durable.LockHeld):
                async with on_server.opened():
                    pass
            postgres.execute("UPDATE state SET lives_until_ms = 1")

            async with on_server.opened() as other:
                assert on_server.lines == [line("one"), line("two")]
                await other.write([add(b"cli:a", 2)], [on_server.append("three")])
                armed = False
                goes_on.set()
                with pytest.raises(OSError, match=on_server.file.name):
                    await job
                with pytest.raises(StateUnavailable):
                    await state.write([add(b"cli:a", 3)])

                assert on_server.lines == [line("one"), line("two"), line("three")]
                assert [n for _, n, _ in await other.read(ALL)] == [1, 2]

    async def test_files_of_a_gateway_that_did_not_end_are_renewed(
        self, on_server: Workspace, postgres: Postgres
    ) -> None:
        """What it has opened, or was about to rename, is no longer part of the workspace."""
        temp = on_server.file.with_name(f".{on_server.file.name}.0.tmp")
        async with on_server.opened() as state:
            await state.write([], [on_server.append("one")])
        with on_server.file.open("ab") as opened_before:
            temp.write_bytes(HEADER)
            async with on_server.opened() as state:
                await state.write([], [on_server.append("two")])
                assert temp.exists()
            postgres.execute("UPDATE state SET lives_until_ms = 1")

            async with on_server.opened() as state:
                with pytest.raises(Conflict):
                    await state.write([], [on_server.append("three")])
                for text in ("three", "four"):
                    await state.write([], [on_server.append(text)])
                opened_before.write(line("late"))

        assert not temp.exists()
        assert on_server.lines == [line(text) for text in ("one", "two", "three", "four")]

    async def test_a_gateway_that_cannot_reach_the_server_ends_where_another_waits(
        self, on_server: Workspace, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the broker hands its messages to the other one; where none waits it goes on waiting itself."""
        monkeypatch.setattr("durable.state_writer._ASKS_S", 0.05)
        async with on_server.opened() as state:
            watching = asyncio.create_task(watch_state(state, lambda: Health(up=True, since=durable.now())))
            await until(lambda: not state.database.is_overdue())
            postgres.stop()
            try:
                state.database._alive_until = 0.0
                await until(lambda: state.database.down)
                assert not (await asyncio.wait([watching], timeout=1.5))[0]
            finally:
                postgres.start()
            await until(lambda: not state.database.is_overdue())

            await asyncio.to_thread(on_server.writer().database.stand_by)
            await until(lambda: state.database.standbys)
            postgres.stop()
            try:
                await until(lambda: state.database.down)
                state.database._alive_until = 0.0
                with pytest.raises(Unreachable, match="another gateway waits"):
                    await watching
            finally:
                postgres.start()

    async def test_a_newer_version_of_the_tables_is_refused(
        self, on_server: Workspace, postgres: Postgres
    ) -> None:
        async with on_server.opened():
            postgres.execute("UPDATE state SET version = 99")
        with pytest.raises(durable.NewerVersion, match="version 99"):
            async with on_server.opened():
                pass

    async def test_an_error_names_no_password(self, on_server: Workspace) -> None:
        nowhere = Workspace(on_server.file.parents[1], on_server.url.removesuffix("gateway") + "nowhere")
        with pytest.raises(StateUnavailable, match="nowhere") as refused:
            async with nowhere.opened():
                pass
        assert "s3cret-words" not in str(refused.value)
        assert "state.url" in refused.value.hint
