"""The fence of one key by itself: who owns it, what an owner may write, and how a frozen one is overtaken."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from session.disk.layout import Layout, OpenFiles
from session.errors import Fenced, NewerFormat, StoreError
from session.store.fence import Busy, Fence, Wait, temp_mark
from session.store.lock_record import LockRecord, write_record

STEM, KEY = "telegram_1", "telegram:1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.transcript(STEM).parent.mkdir(parents=True)
    return layout


def fence(layout: Layout, owner: str = "one", *, freeze_s: float = 30.0, kept: bool = False) -> Fence:
    return Fence(layout, STEM, owner=owner, freeze_s=freeze_s, kept=OpenFiles() if kept else None)


def claim(each: Fence, key: str = KEY, *, anew: bool = False) -> int:
    with each.hold(None) as held:
        return held.claim(key, anew=anew)


def leave(layout: Layout, record: LockRecord) -> None:
    """Leave a lock file as a process that is gone."""
    layout.lock(STEM).parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(layout.lock(STEM), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    write_record(fd, record)
    os.close(fd)


def is_free(layout: Layout) -> bool:
    with layout.lock(STEM).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Looks(threading.Event):
    """A wait of which the test says what happens at each look."""

    def __init__(self, at: Callable[[int], None]) -> None:
        super().__init__()
        self._at = at
        self.count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        self._at(self.count)
        return super().wait(timeout)


# -- claims ----------------------------------------------------------------------------------------------


def test_an_epoch_is_raised_where_the_key_was_anothers(layout: Layout) -> None:
    """Or where it is asked for; who owns it goes on with its own."""
    one, two = fence(layout), fence(layout, "two")

    assert (claim(one), claim(one), claim(one, anew=True)) == (1, 1, 2)
    assert (claim(two), claim(two), claim(one)) == (3, 3, 4)
    # Another key under this name is another owner.
    assert claim(one, "telegram:other") == 5
    assert one.peek() == LockRecord("telegram:other", "one", 5)


def test_who_was_overtaken_proves_nothing(layout: Layout) -> None:
    one, two = fence(layout), fence(layout, "two")
    epoch = claim(one)
    with one.hold(None) as held:
        held.prove(epoch)
        for other in (epoch - 1, epoch + 1):
            with pytest.raises(Fenced):
                held.prove(other)
    assert one.proves(epoch)
    assert not one.proves(epoch + 1)
    assert not two.proves(epoch)

    claim(two)
    assert not one.proves(epoch)
    with one.hold(None) as held, pytest.raises(Fenced):
        held.prove(epoch)
    with two.hold(None) as held, pytest.raises(Fenced):
        held.prove(epoch)


def test_whose_files_are_still_to_be_renewed_owns_nothing(layout: Layout) -> None:
    leave(layout, LockRecord(KEY, "one", 3, (2,)))
    one = fence(layout)

    assert not one.proves(3)
    assert one.epoch_of(LockRecord(KEY, "one", 3, (2,)), KEY) is None
    assert one.epoch_of(LockRecord(KEY, "one", 3), KEY) == 3
    with one.hold(None) as held, pytest.raises(Fenced):
        held.prove(3)


def test_who_cannot_read_the_lock_proves_nothing(layout: Layout) -> None:
    one = fence(layout)
    assert not one.proves(0)
    epoch = claim(one)
    layout.lock(STEM).unlink()
    assert not one.proves(epoch)


def test_a_look_sees_who_owns_it_now(layout: Layout) -> None:
    one, two = fence(layout), fence(layout, "two")
    assert one.peek() is None

    claim(two)
    assert one.peek() == one.peek() == LockRecord(KEY, "two", 1)
    claim(two, anew=True)
    claim(two, "telegram:longer")
    assert one.peek() == LockRecord("telegram:longer", "two", 3)
    layout.lock(STEM).unlink()
    assert one.peek() is None


def test_a_claim_takes_away_what_the_one_before_left_half_done(layout: Layout) -> None:
    """Its temporary files alone, in each folder of the key."""
    one, two = fence(layout), fence(layout, "two")
    epoch = claim(one)
    folders = (layout.sessions, layout.keys, layout.archive(STEM))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        one.temp(folder, epoch).write_bytes(b"half")
        one.temp(folder, epoch + 7).write_bytes(b"another's")

    claim(two)

    assert [one.temp(folder, epoch).exists() for folder in folders] == [False] * 3
    assert [one.temp(folder, epoch + 7).exists() for folder in folders] == [True] * 3


def test_what_an_overtaken_one_may_still_write_to_is_renewed_by_the_next_claim(layout: Layout) -> None:
    """Who overtook it died before that: the files get new inodes, the same bytes, and that is noted."""
    leave(layout, LockRecord(KEY, "two", 5, (3, 4)))
    paths = [layout.transcript(STEM), layout.journal(STEM)]
    for path in paths:
        path.write_bytes(b"x" * 70_000)
    frozen = [path.open("rb+") for path in paths]
    half = fence(layout).temp(layout.sessions, 3)
    half.write_bytes(b"half")

    assert claim(fence(layout)) == 6

    assert fence(layout).peek() == LockRecord(KEY, "one", 6)
    assert not half.exists()
    for file, path in zip(frozen, paths, strict=True):
        file.write(b"late")
        file.close()
        assert path.read_bytes() == b"x" * 70_000


# -- writing ---------------------------------------------------------------------------------------------


def test_a_file_stands_there_when_its_block_ends(layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with fence(layout).hold(None) as held:
        held.claim(KEY)
        with held.replacing(path, new=True) as fd:
            os.write(fd, b"one")
            assert not path.exists()
        with pytest.raises(FileExistsError), held.replacing(path, new=True) as fd:
            os.write(fd, b"two")
        assert path.read_bytes() == b"one"
        with held.replacing(path) as fd:
            os.write(fd, b"two")
        assert path.read_bytes() == b"two"

        folder = held.temp(tmp_path)
        folder.mkdir()
        (folder / "left by a killed writer").touch()
        held.remove(path)
        assert not path.exists()
        assert not folder.exists()
        held.remove(path)


def test_whose_lock_was_replaced_gets_no_name_and_takes_none_away(layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"theirs")
    with fence(layout).hold(None) as held:
        held.claim(KEY)
        held.check()
        layout.lock(STEM).unlink()
        leave(layout, LockRecord(KEY, "two", 2))

        with pytest.raises(Fenced):
            held.check()
        with pytest.raises(Fenced):
            held.remove(path)
        with pytest.raises(Fenced), held.replacing(path) as fd:
            os.write(fd, b"ours")
        with pytest.raises(Fenced):
            held.claim(KEY, anew=True)
    assert path.read_bytes() == b"theirs"


# -- holding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
def test_one_holds_it_at_a_time(layout: Layout, kept: bool) -> None:
    one, two = fence(layout, kept=kept), fence(layout, "two")
    for _ in range(2):
        with one.hold(None), pytest.raises(Busy):
            two.hold(None)
        assert is_free(layout)
        with two.hold(None), pytest.raises(Busy):
            one.hold(None)
    assert not list(layout.keys.glob(".*.tmp"))


def opened_locks() -> int:
    """Count the lock files that this process has open."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found += str(fd.readlink()).endswith(f"{STEM}.lock")
        except FileNotFoundError:
            continue
    return found


def test_the_file_is_kept_open_where_that_is_wanted(layout: Layout) -> None:
    files = OpenFiles()
    one, two = Fence(layout, STEM, owner="one", kept=files), fence(layout, "two")
    for each, open_after in ((two, 0), (one, 1), (one, 1), (two, 1)):
        claim(each)
        assert opened_locks() == open_after
    with one.hold(None), pytest.raises(Busy):
        two.hold(None)
    files.close()
    assert opened_locks() == 0


def test_a_lock_that_was_replaced_is_not_the_one_that_is_kept(layout: Layout) -> None:
    files = OpenFiles()
    one = Fence(layout, STEM, owner="one", kept=files)
    claim(one)
    layout.lock(STEM).unlink()
    leave(layout, LockRecord(KEY, "two", 9))

    assert claim(one) == 10
    assert json.loads(layout.lock(STEM).read_bytes())["epoch"] == 10
    files.close()


def test_a_lock_that_cannot_be_read_is_let_go_of(layout: Layout) -> None:
    leave(layout, LockRecord(KEY, "two", 9))
    layout.lock(STEM).write_text('{"v": 2, "epoch": 1}')

    with pytest.raises(NewerFormat):
        fence(layout).hold(None)

    assert is_free(layout)
    assert opened_locks() == 0


def test_a_folder_that_is_none_is_one_clear_error(layout: Layout) -> None:
    layout.keys.parent.mkdir(exist_ok=True)
    layout.keys.write_text("no folder")

    with pytest.raises(StoreError, match="cannot be opened") as caught:
        fence(layout).hold(None)
    assert str(layout.lock(STEM)) in caught.value.hint


# -- waiting, and holders that do not move ---------------------------------------------------------------


def test_who_waits_gets_it_when_it_is_free(layout: Layout) -> None:
    one, two = fence(layout), fence(layout, "two")
    held = one.hold(None)
    epoch = held.claim(KEY)

    def free(count: int) -> None:
        if count == 3:
            one.let_go(held.file)

    looks = Looks(free)
    with two.hold(Wait(looks)) as ours:
        assert (ours.record.owner, ours.record.epoch) == ("one", epoch)
    assert looks.count == 3
    assert opened_locks() == 0


def test_who_waits_may_give_up(layout: Layout) -> None:
    with fence(layout).hold(None) as held:
        held.claim(KEY)
        wait = Wait()
        wait.abort.set()
        with pytest.raises(StoreError, match="gave up"):
            fence(layout, "two").hold(wait)
        assert opened_locks() == 1


@pytest.mark.parametrize("what", ["transcript", "journal", "lock", "temp"])
def test_who_writes_anything_is_not_frozen(layout: Layout, what: str) -> None:
    """However long it holds the lock; each change is seen, in temporary files too."""
    one, two = fence(layout), fence(layout, "two", freeze_s=0.03)
    held = one.hold(None)
    epoch = held.claim(KEY)
    path = {
        "transcript": layout.transcript(STEM),
        "journal": layout.journal(STEM),
        "lock": layout.lock(STEM),
        "temp": held.temp(layout.sessions),
    }[what]

    def move(count: int) -> None:
        if count <= 30:
            with path.open("ab") as file:
                file.write(b" ")
        elif count == 31:
            one.let_go(held.file)

    looks = Looks(move)
    with two.hold(Wait(looks)) as ours:
        assert ours.record.epoch == epoch
    assert looks.count == 31


def test_who_does_not_move_is_overtaken(layout: Layout) -> None:
    """Its lock and files are no longer those that anybody reads, and its temporary ones are gone."""
    one, two = fence(layout), fence(layout, "two", freeze_s=0.03)
    held = one.hold(None)
    epoch = held.claim(KEY)
    paths = [layout.transcript(STEM), layout.journal(STEM)]
    for path in paths:
        path.write_bytes(b"before\n")
    late = [path.open("ab") for path in paths]
    held.temp(layout.sessions).write_bytes(b"half")
    looks = Looks(lambda _: None)

    with two.hold(Wait(looks)) as ours:
        assert ours.record == LockRecord(KEY, "two", epoch + 1)
        with pytest.raises(Busy):
            fence(layout, "three").hold(None)
    assert looks.count >= 4
    assert two.proves(epoch + 1)

    with pytest.raises(Fenced):
        held.check()
    for file in late:
        file.write(b"late\n")
        file.close()
    assert [path.read_bytes() for path in paths] == [b"before\n"] * 2
    assert not list(layout.sessions.glob(".*.tmp"))
    assert not list(layout.keys.glob(".*.tmp"))
    one.let_go(held.file)
    assert claim(fence(layout, "three")) == epoch + 2
    assert opened_locks() == 0


def test_whom_another_overtakes_at_the_same_time_is_waited_for(layout: Layout) -> None:
    """One process at a time replaces locks of a workspace."""
    one, two = fence(layout), fence(layout, "two", freeze_s=0.02)
    held = one.hold(None)
    epoch = held.claim(KEY)
    guard = os.open(layout.keys, os.O_RDONLY)
    fcntl.flock(guard, fcntl.LOCK_EX)

    def free(count: int) -> None:
        if count == 30:
            one.let_go(held.file)

    with two.hold(Wait(Looks(free))) as ours:
        assert ours.record.epoch == epoch
    os.close(guard)


def test_the_names_of_temporary_files_are_those_of_the_stem() -> None:
    marks = {temp_mark(stem) for stem in (STEM, "telegram_2", "\ud800")}

    assert {len(mark) for mark in marks} == {16}
    assert len(marks) == 3
