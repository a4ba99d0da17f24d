"""What says that it is durable outlasts a cut of all that was not synced: ``python -m tests.disk.promises``.

Each promise is a generator in a folder of its own: it prepares what is on disk already, yields, does what it
promises, and yields again with what must hold of the folder when the power is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import durable
from channels.media import MediaFolder
from channels.message import Attachment
from gateway.outbound.send_log import sent_for
from session.background.job_files import BackgroundJob, JobFiles
from session.disk.layout import Layout
from session.kept.damage import findings
from session.kept.erasing import Owed
from session.kept.rows import forget_usage
from session.kept.subject import Conversation, Subject
from session.store import places
from session.store.fence import Fence, Wait
from session.store.journal_file import JournalFile
from session.store.lock_record import read_record
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


def removed_under_its_fence(folder: Path) -> Iterator[Holds | None]:
    layout = Layout(folder)
    layout.sessions.mkdir()
    layout.transcript("telegram_1").write_bytes(b"x")
    layout.keys.mkdir(parents=True)
    yield None
    with Fence(layout, "telegram_1", owner="me").hold(Wait()) as held:
        held.claim("telegram:1")
        held.remove(layout.transcript("telegram_1"))
    yield is_gone("sessions/telegram_1.jsonl")


def overtaken(folder: Path) -> Iterator[Holds | None]:
    layout = Layout(folder)
    layout.keys.mkdir(parents=True)
    for name in (layout.sessions, layout.archive("telegram_1")):
        name.mkdir(parents=True)
    lock = layout.lock("telegram_1")
    lock.write_bytes(b'{"v": 1, "key": "telegram:1", "owner": "frozen", "epoch": 5}\n')
    yield None
    frozen = os.open(lock, os.O_RDWR)
    fcntl.flock(frozen, fcntl.LOCK_EX)
    with Fence(layout, "telegram_1", owner="me", freeze_s=0.05).hold(Wait()):
        pass
    os.close(frozen)
    # Its old lock would be the frozen one's again; and of an empty one another machine learns no epoch.
    yield lambda after: read_record(Layout(after).lock("telegram_1").read_bytes(), "").owner == "me"


def noted_in_the_journal(folder: Path) -> Iterator[Holds | None]:
    yield None
    layout = Layout(folder)
    fence = Fence(layout, "telegram_1", owner="me")
    with fence.hold(Wait()) as held:
        epoch = held.claim("telegram:1")
    journal = JournalFile(layout, "telegram_1", "telegram:1", fence=fence, clock=lambda: datetime.now(UTC))
    for id_ in ("a", "b"):
        journal.refresh()
        journal.record(epoch, lambda *_, id_=id_: {"e": "none", "id": id_}, lambda: None, Wait())  # type: ignore
    yield lambda after: b'"b"' in Layout(after).journal("telegram_1").read_bytes()


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
    for path in (layout.transcript("telegram_1"), layout.journal("telegram_1")):
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
    for _, _, mend in findings(Layout(folder), "me"):
        if mend is not None:
            mend()
    yield is_gone(str(path.relative_to(folder)))


def damaged_usage(folder: Path) -> Iterator[Holds | None]:
    path = folder / "state" / "usage" / "2026-11-23.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"v": 1}\n{oops\n')
    yield None
    for _, _, mend in findings(Layout(folder), "me"):
        if mend is not None:
            mend()
    yield lambda after: b"oops" not in (after / path.relative_to(folder)).read_bytes()


def forgotten_usage(folder: Path) -> Iterator[Holds | None]:
    path = folder / "usage" / "2026-11-23.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"v":1}\n{"at":"2026-11-23T10:00:00+00:00","key":"telegram:1","person":"ada"}\n')
    subject = Subject(
        "telegram:1",
        False,
        (Conversation("telegram:1", "telegram_1"),),
        (),
        (),
        {},
        (),
        typed=False,
        stays=(),
    )
    yield None
    assert forget_usage(folder, subject) == 1
    yield lambda after: b"telegram:1" not in (after / path.relative_to(folder)).read_bytes()


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
    removed_under_its_fence,
    overtaken,
    noted_in_the_journal,
    an_unlinked_job,
    kept_job,
    an_erasure_that_is_done,
    removed_trees,
    removed_files,
    damaged_job,
    damaged_usage,
    forgotten_usage,
    recorded_in_the_send_log,
]


# -- what is asked on a loop -----------------------------------------------------------------------


async def appended(folder: Path) -> AsyncIterator[Holds | None]:
    yield None
    store = Store(folder, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.append(turn("b"))
    await store.aclose()
    path = "sessions/telegram_1.jsonl"
    yield lambda after: (after / path).exists() and b'"q b"' in (after / path).read_bytes()


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


ASYNC_PROMISES: list[AsyncPromise] = [appended, moved, a_file_that_came_twice]


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
