"""The fence of one key by itself: who owns it, what an owner may write, and how a frozen one is overtaken."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from session.disk.layout import Layout, OpenFiles
from session.errors import Fenced, NewerFormat, StoreError
from session.store import fence as fence_module
from session.store.fence import Busy, Fence, Wait
from session.store.lock_record import LockRecord, temp_mark
from tests.gateway.embedded_place import files_at_most
from tests.session.store.fence_place import (
    KEY,
    STEM,
    Looks,
    claim,
    fence,
    is_free,
    layout,
    leave,
    opened_below,
)
from tests.support.world import set_world

__all__ = ["layout"]


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
    assert opened_below(layout) == 0


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


def test_the_file_is_kept_open_where_that_is_wanted(layout: Layout) -> None:
    files = OpenFiles()
    one, two = Fence(layout, STEM, owner="one", kept=files), fence(layout, "two")
    for each, open_after in ((two, 0), (one, 1), (one, 1), (two, 1)):
        claim(each)
        assert opened_below(layout) == open_after
    with one.hold(None), pytest.raises(Busy):
        two.hold(None)
    files.close()
    assert opened_below(layout) == 0


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

    assert '"v": 2' in layout.lock(STEM).read_text()
    assert is_free(layout)
    assert opened_below(layout) == 0


def test_a_folder_that_is_none_is_one_clear_error(layout: Layout) -> None:
    layout.keys.parent.mkdir(exist_ok=True)
    layout.keys.write_text("no folder")

    with pytest.raises(StoreError, match="cannot be opened") as caught:
        fence(layout).hold(None)
    assert str(layout.lock(STEM)) in caught.value.hint


def test_temporary_files_are_named_by_stem_and_epoch(layout: Layout, tmp_path: Path) -> None:
    """What another chat's writer left in the same folder is not taken for one of its own."""
    marks = {temp_mark(stem) for stem in (STEM, "telegram_2", "\ud800")}

    assert {len(mark) for mark in marks} == {16}
    assert len(marks) == 3
    assert fence(layout).temp(tmp_path, 7) == tmp_path / f".{temp_mark(STEM)}.7.tmp"


def test_whether_locks_hold_is_asked_of_the_folder_that_they_lie_in(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_module, "locks_are_leases", lambda folder: folder == str(layout.keys))
    assert fence(layout).leases


def test_a_lock_that_cannot_be_let_go_of_is_closed(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which lets go of it in any case; the error is told."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    one = fence(layout, kept=True)
    held = one.hold(None)
    refusing = SimpleNamespace(**{**vars(fcntl), "flock": refuse})
    monkeypatch.setattr(fence_module, "fcntl", refusing)
    with pytest.raises(OSError, match="the disk is broken"):
        one.let_go(held.file)

    assert opened_below(layout) == 0
    assert is_free(layout)


# -- waiting ---------------------------------------------------------------------------------------------


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
    assert opened_below(layout) == 0


def test_who_waits_may_give_up(layout: Layout) -> None:
    with fence(layout).hold(None) as held:
        held.claim(KEY)
        wait = Wait()
        wait.abort.set()
        with pytest.raises(StoreError, match="gave up"):
            fence(layout, "two").hold(wait)
        assert opened_below(layout) == 1


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
    assert opened_below(layout) == 0


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


@pytest.mark.parametrize("moves", [{1}, set(range(1, 25, 2))], ids=["once", "now and then"])
def test_who_moves_is_given_the_whole_time_again(layout: Layout, moves: set[int]) -> None:
    """From its last move on; and is overtaken after that."""
    one, two = fence(layout), fence(layout, "two", freeze_s=0.1)
    held = one.hold(None)
    epoch = held.claim(KEY)

    def move(count: int) -> None:
        if count in moves:
            with layout.transcript(STEM).open("ab") as file:
                file.write(b"x")

    looks = Looks(move)
    with two.hold(Wait(looks)) as ours:
        assert ours.record == LockRecord(KEY, "two", epoch + 1)
    assert looks.count >= max(moves) + 4
    one.let_go(held.file)


def test_what_the_disk_refuses_to_renew_is_renewed_by_the_next(layout: Layout) -> None:
    """The lock is free again, and says what is still to be done."""
    one = fence(layout)
    held = one.hold(None)
    epoch = held.claim(KEY)
    layout.journal(STEM).write_bytes(b"x" * 50_000)
    late = layout.journal(STEM).open("ab")

    with files_at_most(10_000), pytest.raises(StoreError, match="could not be renewed"):
        fence(layout, "two", freeze_s=0.02).hold(Wait())
    one.let_go(held.file)
    assert is_free(layout)
    record = LockRecord(KEY, "two", epoch + 1, (epoch,))
    assert fence(layout).peek() == record
    with files_at_most(10_000), pytest.raises(StoreError, match="could not be renewed"):
        claim(fence(layout, "three"))
    assert (found := fence(layout).peek()) is not None
    assert found.renew == (epoch,)

    claim(fence(layout, "three"))
    late.write(b"late")
    late.close()
    assert layout.journal(STEM).read_bytes() == b"x" * 50_000
    assert opened_below(layout) == 0


@pytest.mark.parametrize(("step_s", "looks_wanted"), [(3600.0, 4), (1.0, 30)])
def test_time_in_which_this_process_stood_still_counts_little(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, step_s: float, looks_wanted: int
) -> None:
    """A machine that slept for an hour wakes the holder as well, who is given a few looks."""
    one, two = fence(layout), fence(layout, "two", freeze_s=30.0)
    held = one.hold(None)
    held.claim(KEY)
    times = (1000.0 + step_s * number for number in range(100))
    set_world(monkeypatch, monotonic=lambda: next(times))
    looks = Looks(lambda _: None)

    with two.hold(Wait(looks)) as ours:
        assert ours.record.owner == "two"
    one.let_go(held.file)
    assert looks.count == looks_wanted
