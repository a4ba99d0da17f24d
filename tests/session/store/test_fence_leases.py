"""The fence of one key where locks are leases: both of two machines may believe that they hold one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from session.disk import file_system
from session.disk.layout import Layout
from session.errors import Fenced
from session.store.fence import Fence, Held
from session.store.lock_record import LockRecord, read_record, write_record
from tests.session.store.fence_place import KEY, STEM, claim, fence, layout, leave, opened_below

__all__ = ["layout"]
HERE, THERE = "here.1:10:A", "there.1:10:B"


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the disk of this test taken for a network's."""
    monkeypatch.setitem(file_system.MAGICS, file_system.magic_of(tmp_path), "nfs")
    file_system._leases.cache_clear()
    yield
    file_system._leases.cache_clear()


def lost(held: Held) -> None:
    """Lose the lock that ``held`` believes to hold, as a server that heard nothing of its client does."""
    fcntl.flock(held.file.fd, fcntl.LOCK_UN)


def replace_late(held: Held, path: Path, other: Fence) -> None:
    """Write what is to stand there while another machine claims the key."""
    with held.replacing(path) as fd:
        os.write(fd, b"too late")
        claim(other)


def stored(layout: Layout) -> LockRecord:
    return read_record(layout.lock(STEM).read_bytes(), STEM)


def inode(path: Path) -> int:
    return path.stat().st_ino


def fill(layout: Layout) -> list[Path]:
    layout.keys.mkdir(parents=True, exist_ok=True)
    paths = [layout.transcript(STEM), layout.journal(STEM)]
    for path in paths:
        path.write_bytes(b"x" * 10)
    return paths


def test_a_disk_of_ones_own_has_locks_that_hold(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(file_system.MAGICS, file_system.magic_of(layout.sessions))
    file_system._leases.cache_clear()
    one = fence(layout, HERE)
    claim(one)
    lock = inode(layout.lock(STEM))

    assert not one.leases
    assert claim(fence(layout, THERE)) == 2
    assert inode(layout.lock(STEM)) == lock


def test_a_claim_replaces_the_lock_and_who_had_it_may_write_no_more(layout: Layout) -> None:
    """It learns so by opening the lock anew: its own still says that it is the owner."""
    one, two = fence(layout, HERE), fence(layout, THERE)
    epoch = claim(one)
    with one.hold(None) as held:
        held.prove(epoch)
        lost(held)
        before = inode(layout.lock(STEM))

        later = claim(two)

        assert inode(layout.lock(STEM)) != before
        assert held.record == LockRecord(KEY, HERE, epoch)
        for use in (held.check, lambda: held.prove(epoch), lambda: held.remove(layout.transcript(STEM))):
            with pytest.raises(Fenced):
                use()
    assert later > epoch
    assert stored(layout) == LockRecord(KEY, THERE, later)
    assert one.path.parent.is_dir()
    assert not list(layout.keys.glob("*.tmp"))
    assert opened_below(layout) == 0


def test_what_stands_in_the_place_of_a_lock_that_was_lost_is_not_replaced(layout: Layout) -> None:
    """Neither by the file that was made meanwhile."""
    one, two = fence(layout, HERE), fence(layout, THERE)
    epoch = claim(one)
    path = layout.transcript(STEM)
    path.write_bytes(b"before")
    with one.hold(None) as held:
        lost(held)
        with pytest.raises(Fenced):
            replace_late(held, path, two)

    assert path.read_bytes() == b"before"
    assert two.proves(stored(layout).epoch)
    assert not one.proves(epoch)


def test_files_are_renewed_after_another_machine(layout: Layout) -> None:
    """It may write on into those that it has open; a dead process of this one may not."""
    paths = fill(layout)
    claim(fence(layout, THERE))
    first = [inode(path) for path in paths]
    late = [path.open("ab") for path in paths]

    claim(fence(layout, HERE))
    second = [inode(path) for path in paths]
    for file in late:
        file.write(b"too late")
        file.close()
    claim(fence(layout, "here.1:11:C"))

    assert all(one != two for one, two in zip(first, second, strict=True))
    assert [inode(path) for path in paths] == second
    assert [path.read_bytes() for path in paths] == [b"x" * 10] * 2


def test_a_conversation_that_nobody_had_has_nothing_to_be_renewed(layout: Layout) -> None:
    paths = fill(layout)
    first = [inode(path) for path in paths]

    claim(fence(layout, HERE))

    assert [inode(path) for path in paths] == first


def test_files_that_are_not_there_are_none(layout: Layout) -> None:
    """A folder that another machine may have made is made."""
    layout.sessions.rmdir()
    claim(fence(layout, THERE))

    epoch = claim(fence(layout, HERE))

    assert layout.sessions.is_dir()
    assert not layout.transcript(STEM).exists()
    assert stored(layout) == LockRecord(KEY, HERE, epoch)


def test_two_machines_that_claim_at_once_draw_other_epochs(layout: Layout, tmp_path: Path) -> None:
    """Their temporary files must not have one name."""
    epochs = set()
    for _ in range(4):
        leave(layout, LockRecord(KEY, THERE, 7))
        epochs.add(claim(fence(layout, HERE)))

    assert min(epochs) > 7
    assert len(epochs) == 4


def announced(layout: Layout, other: Fence, *, after: int, epoch: int) -> Path:
    """Leave what a machine leaves that was about to take over from the epoch ``after``, and stopped."""
    temp = other.temp(layout.keys, epoch)
    fd = os.open(temp, os.O_RDWR | os.O_CREAT, 0o600)
    write_record(fd, LockRecord(KEY, other.owner, epoch, (after,)))
    os.close(fd)
    os.link(temp, other.taking.ticket(after))
    return temp


def test_who_finds_another_about_to_take_over_takes_over_from_that_one(layout: Layout) -> None:
    """What the other would rename is gone, and what it may have open is renewed."""
    paths = fill(layout)
    leave(layout, LockRecord(KEY, THERE, 7))
    other = fence(layout, "third.1:1:D")
    temp = announced(layout, other, after=7, epoch=50)
    half = other.temp(layout.sessions, 50)
    half.write_bytes(b"half")
    first = [inode(path) for path in paths]

    epoch = claim(fence(layout, HERE))

    assert epoch > 50
    assert not temp.exists()
    assert not half.exists()
    assert [inode(path) for path in paths] != first
    assert stored(layout) == LockRecord(KEY, HERE, epoch)
    assert not list(layout.keys.glob("*.tmp"))


def test_a_machine_of_ones_own_that_was_about_to_take_over_is_renewed_behind_as_well(layout: Layout) -> None:
    """The one before is dead, but of this one nobody knows."""
    paths = fill(layout)
    leave(layout, LockRecord(KEY, "here.1:9:Z", 7))
    announced(layout, fence(layout, THERE), after=7, epoch=50)
    first = [inode(path) for path in paths]

    assert claim(fence(layout, HERE)) > 50

    assert all(inode(path) != was for path, was in zip(paths, first, strict=True))


def test_who_finds_the_lock_taken_over_meanwhile_gives_up(layout: Layout) -> None:
    """Its name for the next epoch is let go of again."""
    one, two = fence(layout, HERE), fence(layout, THERE)
    leave(layout, LockRecord(KEY, "here.1:9:Z", 7))
    with one.hold(None) as held:
        lost(held)
        epoch = claim(two)
        with pytest.raises(Fenced):
            held.claim(KEY)

    assert stored(layout) == LockRecord(KEY, THERE, epoch)
    assert not list(layout.keys.glob("*.tmp"))


def test_an_owner_that_believes_in_its_lock_names_its_files_unlike_who_has_it(layout: Layout) -> None:
    """Before a claim the epoch is still that of the other one."""
    leave(layout, LockRecord(KEY, THERE, 7))
    one, other = fence(layout, HERE), fence(layout, THERE)
    with one.hold(None) as held:
        assert held.temp(layout.keys) != other.temp(layout.keys, 7)
        assert held.temp(layout.keys).name.startswith(f".{one.mark}.7.")
        held.claim(KEY)
        assert held.temp(layout.keys) == one.temp(layout.keys, held.record.epoch)


def test_what_is_removed_may_lie_where_another_machine_just_made_a_folder(layout: Layout) -> None:
    one = fence(layout, HERE)
    claim(one)
    layout.sessions.rmdir()
    with one.hold(None) as held:
        held.remove(layout.archive(STEM), by=layout.sessions)

    assert list(layout.sessions.iterdir()) == []
