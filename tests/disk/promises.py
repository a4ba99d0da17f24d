"""What says that it is durable outlasts a cut of all that was not synced: ``python -m tests.disk.promises``.

Each promise is a generator in a folder of its own: it prepares what is on disk already, yields, does what it
promises, and yields again with what must hold of the folder when the power is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC
from pathlib import Path

import durable
from channels.media import MediaFolder
from channels.message import Attachment
from gateway.outbound.send_log import sent_for
from session.background.job_files import BackgroundJob, JobFiles
from session.disk.layout import Layout
from session.kept.damage import findings
from session.kept.erasing import Owed
from session.kept.subject import Subject
from session.store import places
from session.store.state import replay, workspace_state
from session.store.store import Store
from tests.channels.test_media import Source
from tests.disk.model import Fate
from tests.disk.mount import Mount, saved, spread
from tests.session.background.test_moving import NEW, NEW_STEM, OLD, OLD_STEM, move
from tests.session.store_place import ADA, turn

Holds = Callable[[Path], bool]
Promise = Callable[[Path], Iterator[Holds | None]]
AsyncPromise = Callable[[Path], AsyncIterator[Holds | None]]


# -- durable ---------------------------------------------------------------------------------------


def is_(name: str, data: bytes) -> Holds:
    return lambda folder: (folder / name).exists() and (folder / name).read_bytes() == data


def is_gone(name: str) -> Holds:
    return lambda folder: not (folder / name).exists()


def replaced(folder: Path) -> Iterator[Holds | None]:
    (folder / "a").write_bytes(b"old")
    yield None
    durable.replace(folder / "a", b"new")
    yield is_("a", b"new")


def replaced_piece_by_piece(folder: Path) -> Iterator[Holds | None]:
    yield None
    with durable.replacing(folder / "a", temp=folder / ".t", new=True) as fd:
        os.write(fd, b"new")
    yield is_("a", b"new")


def replaced_in_an_open_folder(folder: Path) -> Iterator[Holds | None]:
    yield None
    fd = os.open(folder, os.O_RDONLY)
    durable.make_below(fd, "f")
    durable.replace_below(fd, "a", b"new", temp=".t")
    os.close(fd)
    yield is_("a", b"new")


def a_folder_below(folder: Path) -> Iterator[Holds | None]:
    yield None
    fd = os.open(folder, os.O_RDONLY)
    durable.make_below(fd, "f")
    os.close(fd)
    yield lambda after: (after / "f").is_dir()


def settled(folder: Path) -> Iterator[Holds | None]:
    yield None
    (folder / ".t").write_bytes(b"new")
    durable.settle(folder / ".t", folder / "a")
    yield is_("a", b"new")


def folders_of_others(folder: Path) -> Iterator[Holds | None]:
    yield None
    # Whoever made it was killed before the sync.
    (folder / "f").mkdir()
    durable.make_folder(folder / "f")
    durable.make_folder(folder / "g" / "h")
    yield lambda after: (after / "f").is_dir() and (after / "g" / "h").is_dir()


def committed(folder: Path) -> Iterator[Holds | None]:
    yield None
    schema = durable.Schema(["CREATE TABLE numbers (n INTEGER UNIQUE)"], 1, 2**20)

    def opened(where: Path) -> durable.Database:
        database = durable.Database(where / "n.db", schema, down=lambda error: error, alone=True)
        database.open()
        return database

    database = opened(folder)
    database.commit([durable.Job(lambda: database.file.execute("INSERT INTO numbers VALUES (7)"))])

    def holds(after: Path) -> bool:
        again = opened(after)
        rows = again.file.execute("SELECT n FROM numbers").fetchall()
        again.close()
        database.close()
        return rows == [(7,)]

    yield holds


# -- conversations ---------------------------------------------------------------------------------


TRANSCRIPT = "sessions/telegram_1.jsonl"
ULID = "01M8547JVHRDWXFVFVP93VWNFJ"
HEADER = {"_type": "metadata", "key": "telegram:1", "metadata": {"session_id": ULID}}
LINES = [json.dumps(HEADER).encode() + b"\n", b'{"role":"user","content":"q b","timestamp":"2026-01-01"}\n']


def opened(folder: Path) -> durable.StateDatabase:
    database = durable.StateDatabase(folder / "state", replay=replay)
    database.open()
    return database


def names_and_bytes(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in folder.glob("*/*.jsonl"))


def a_transcript_that_is_removed(folder: Path) -> Iterator[Holds | None]:
    path = folder / "sessions/a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"x")
    yield None
    database = opened(folder)
    database.commit([database.job([], [durable.Remove(str(path), durable.look(str(path)))])])
    yield is_gone("sessions/a.jsonl")


def a_transcript_that_is_renewed(folder: Path) -> Iterator[Holds | None]:
    path, temp = folder / "sessions/a.jsonl", folder / "sessions/.a.tmp"
    path.parent.mkdir()
    path.write_bytes(b"x")
    temp.write_bytes(b"new")
    yield None
    database = opened(folder)
    database.commit([database.job([], [durable.Put(str(path), durable.look(str(path)), str(temp))])])
    yield is_("sessions/a.jsonl", b"new")


def replayed_lines(folder: Path) -> Iterator[Holds | None]:
    """Their rows may go: of a new file, of one without its line, of one that a killed process wrote."""
    names = ("behind", "new", "unsynced")
    # Each in a folder of its own, or one would sync the names of the others.
    paths = {name: folder / f"{name}/{name}.jsonl" for name in names}
    for path in paths.values():
        path.parent.mkdir()
    paths["behind"].write_bytes(LINES[0])
    yield None
    paths["unsynced"].write_bytes(b"".join(LINES))
    rows = [durable.Unflushed(str(paths[name]), 0, ULID, b"".join(LINES)) for name in ("new", "unsynced")]
    replay([*rows, durable.Unflushed(str(paths["behind"]), len(LINES[0]), ULID, LINES[1])])
    yield lambda after: names_and_bytes(after) == [(f"{name}.jsonl", b"".join(LINES)) for name in names]


def an_unlinked_job(folder: Path) -> Iterator[Holds | None]:
    job = BackgroundJob("telegram:1", "01M8547JVHRDWXFVFVP93VWNFJ", "summary")
    JobFiles(folder).keep(job)
    yield None
    JobFiles(folder).strike(job)
    yield lambda after: not JobFiles(after).left()


def kept_job(folder: Path) -> Iterator[Holds | None]:
    yield None
    JobFiles(folder).keep(BackgroundJob("telegram:1", "01M8547JVHRDWXFVFVP93VWNFJ", "summary"))
    yield lambda after: len(JobFiles(after).left()) == 1


# -- what is taken away ----------------------------------------------------------------------------

SUBJECT = Subject("telegram:1", False, (), (), (), {}, (), typed=False, stays=())


def an_erasure_that_is_done(folder: Path) -> Iterator[Holds | None]:
    Owed(folder).keep(SUBJECT)
    yield None
    Owed(folder).done(SUBJECT)
    yield lambda after: not Owed(after).left()


def removed_trees(folder: Path) -> Iterator[Holds | None]:
    layout = Layout(folder)
    layout.archive("x").mkdir(parents=True)
    (layout.archive("x") / "a.jsonl").write_bytes(b"x")
    yield None
    places.remove_trees(layout, stem="x")
    yield is_gone("sessions/archive/x/a.jsonl")


def removed_files(folder: Path) -> Iterator[Holds | None]:
    layout = Layout(folder)
    for path in (layout.transcript("telegram_1"), layout.index("telegram_1")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
    yield None
    places.remove(places.of_key(layout, "telegram:1", "telegram_1"))
    yield is_gone("sessions/telegram_1.jsonl")


def damaged_job(folder: Path) -> Iterator[Holds | None]:
    path = folder / "state" / "jobs" / "01M8547JVHRDWXFVFVP93VWNFJ-02e54b4a.summary.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    yield None
    for _, _, mend in findings(Layout(folder)):
        if mend is not None:
            mend()
    yield is_gone(str(path.relative_to(folder)))


def recorded_in_the_send_log(folder: Path) -> Iterator[Holds | None]:
    yield None
    database = durable.ChannelsDatabase(folder, down=lambda error: error)
    database.open()
    row = "INSERT INTO chunks VALUES ('telegram:1', 'a', 0, 1, NULL, 0)"
    database.change(lambda file: file.execute(row).rowcount)

    def holds(after: Path) -> bool:
        # The disk of its lock is gone.
        with contextlib.suppress(OSError):
            database.close()
        return len(sent_for(after, "a")) == 1

    yield holds


PROMISES: list[Promise] = [
    replaced,
    replaced_piece_by_piece,
    replaced_in_an_open_folder,
    a_folder_below,
    settled,
    folders_of_others,
    committed,
    a_transcript_that_is_removed,
    a_transcript_that_is_renewed,
    replayed_lines,
    an_unlinked_job,
    kept_job,
    an_erasure_that_is_done,
    removed_trees,
    removed_files,
    damaged_job,
    recorded_in_the_send_log,
]


# -- what is asked on a loop -----------------------------------------------------------------------


async def appended(folder: Path) -> AsyncIterator[Holds | None]:
    yield None
    store = Store(folder, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.append(turn("b"))
        await session.journal.conclude("command", "silent")

    def holds(after: Path) -> bool:
        database = opened(after)
        entries = database.query("SELECT entry FROM journal").fetchall()
        database.close()
        return b'"command"' in entries[0][0] and b'"q b"' in (after / TRANSCRIPT).read_bytes()

    yield holds


async def flushed(folder: Path) -> AsyncIterator[Holds | None]:
    yield None
    store = Store(folder, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.append(turn("b"))
    await workspace_state(folder / "state").flush()
    yield lambda after: (after / TRANSCRIPT).exists() and b'"q b"' in (after / TRANSCRIPT).read_bytes()


async def moved(folder: Path) -> AsyncIterator[Holds | None]:
    store = Store(folder, zone=UTC)
    async with store.open(OLD) as session:
        await session.append(turn("a"))
    for name in ("memory", "files"):
        for stem in (OLD_STEM, NEW_STEM):
            (folder / name / "chats" / stem).mkdir(parents=True, exist_ok=True)
    (folder / "memory" / "chats" / OLD_STEM / "MEMORY.md").write_text("old")
    (folder / "files" / "chats" / NEW_STEM).rmdir()
    (folder / "files" / "chats" / OLD_STEM / "a.txt").write_text("a")
    await store.aclose()
    yield None
    store = Store(folder, zone=UTC)
    await move(store, OLD, NEW)
    await store.aclose()

    def holds(after: Path) -> bool:
        left = [path for path in after.rglob("*") if path.name in (OLD_STEM, f"{OLD_STEM}.jsonl")]
        memory, files = (after / name / "chats" / NEW_STEM for name in ("memory", "files"))
        return not left and (memory / "MEMORY.md").exists() and (files / "a.txt").exists()

    yield holds


async def a_file_that_came_twice(folder: Path) -> AsyncIterator[Holds | None]:
    yield None
    media = MediaFolder(folder, 1, 5.0)
    source = Source([b"picture"])
    file = await media.save(source.file())
    assert isinstance(file, Attachment)
    # As by a process that was killed before it synced the name.
    path = folder / file.ref
    path.unlink()
    durable.sync_folder(path.parent)
    path.write_bytes(b"picture")
    await media.save(source.file())
    yield lambda after: (after / file.ref).exists()


ASYNC_PROMISES: list[AsyncPromise] = [appended, flushed, moved, a_file_that_came_twice]


def on_a_loop(promise: Promise) -> AsyncPromise:
    @functools.wraps(promise)
    async def later(folder: Path) -> AsyncIterator[Holds | None]:
        for each in promise(folder):
            yield each

    return later


async def broken_promises(tmp_path: Path) -> list[str]:
    disk = Mount(tmp_path / "disk", tmp_path / "saved")
    await disk.mount()
    broken: list[str] = []
    try:
        running: dict[str, AsyncIterator[Holds | None]] = {}
        for promise in (*map(on_a_loop, PROMISES), *ASYNC_PROMISES):
            folder = disk.folder / promise.__name__
            folder.mkdir()
            running[folder.name] = promise(folder)
            await anext(running[folder.name])
        # All that was prepared is on disk.
        await disk.lose_power(Fate(random.Random(0), names=1, data=1))
        holds = {name: await anext(each) for name, each in running.items()}
        await disk.unmount()
        after = tmp_path / "after"
        spread(saved(disk.saved).cut(Fate(random.Random(0), names=0, data=0)), after)
        for name, holds_after in holds.items():
            assert holds_after is not None
            try:
                kept = holds_after(after / name)
            except OSError:
                kept = False
            broken += [] if kept else [name]
    finally:
        await disk.remove()
    return broken


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="chat-gateway-promises-") as name:
        found = asyncio.run(broken_promises(Path(name)))
    print(*found)
    sys.exit(bool(found))
