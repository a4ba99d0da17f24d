"""Taking a lock over where locks are leases: one of several claimers gets there, whoever else is about to."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.errors import Fenced, StoreError
from session.store import shared_lock
from session.store.fence import Fence
from session.store.lock_record import LockRecord, write_record
from tests.session.store.fence_place import (
    HERE,
    KEY,
    THERE,
    claim,
    fence,
    fill,
    inode,
    layout,
    leases,
    leave,
    lost,
    opened_below,
    stored,
)

__all__ = ["layout", "leases"]
pytestmark = pytest.mark.usefixtures("leases")


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


def test_who_is_overtaken_on_the_way_is_told_so(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its temporary file is taken away before it could be renamed: no fault of the disk."""
    leave(layout, LockRecord(KEY, THERE, 7))
    looked = shared_lock._next_of

    def overtaken(taking: shared_lock.Taking, temp: Path, gone: list[int]) -> int | None:
        found = looked(taking, temp, gone)
        monkeypatch.setattr(shared_lock, "_next_of", looked)
        assert claim(fence(layout, "third.1:1:D")) > 7
        return found

    monkeypatch.setattr(shared_lock, "_next_of", overtaken)
    with pytest.raises(Fenced):
        shared_lock.take_over(fence(layout, HERE).taking, stored(layout), key=KEY, owner=HERE, foreign=True)
    assert stored(layout).owner == "third.1:1:D"
    assert list(layout.keys.glob(".*.tmp")) == []


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


@pytest.mark.parametrize(("others", "ends"), [(15, True), (16, False)])
def test_a_chain_of_others_about_to_take_over_is_followed_for_a_while(
    layout: Layout, others: int, ends: bool
) -> None:
    leave(layout, LockRecord(KEY, THERE, 7))
    other = fence(layout, "third.1:1:D")
    for epoch in range(7, 7 + others):
        announced(layout, other, after=epoch, epoch=epoch + 1)

    if ends:
        assert claim(fence(layout, HERE)) > 7 + others
    else:
        with pytest.raises(StoreError, match="keep taking"):
            claim(fence(layout, HERE))
        assert stored(layout) == LockRecord(KEY, THERE, 7)
    assert opened_below(layout) == 0


def test_what_another_would_rename_is_taken_away_before_its_place_is_taken(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a name is given only to what a cut of the power leaves as it is."""
    leave(layout, LockRecord(KEY, THERE, 7))
    announced(layout, fence(layout, "third.1:1:D"), after=7, epoch=50)
    steps: list[object] = []
    sync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "link", lambda *names: (steps.append("link"), link(*names)))
    one = fence(layout, HERE)
    taking = replace(one.taking, remove_temps=steps.append)

    ours, record = shared_lock.take_over(taking, stored(layout), key=KEY, owner=HERE, foreign=True)

    os.close(ours.fd)
    assert stored(layout) == record
    assert steps == ["sync", "link", 50, "sync", "link", "sync"]


def test_a_name_that_cannot_be_read_is_told(layout: Layout) -> None:
    leave(layout, LockRecord(KEY, THERE, 7))
    ticket = fence(layout, HERE).taking.ticket(7)
    ticket.mkdir()

    with pytest.raises(StoreError, match="the lock cannot be read: Is a directory") as caught:
        claim(fence(layout, HERE))

    assert str(ticket) in caught.value.hint
    assert stored(layout) == LockRecord(KEY, THERE, 7)


def test_whose_new_lock_is_taken_away_before_it_stands_gives_up(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one found its name for the next epoch, and takes over from it."""
    leave(layout, LockRecord(KEY, THERE, 7))
    one, read = fence(layout, HERE), shared_lock.read_anew

    def overtaken(path: Path) -> LockRecord | None:
        for temp in layout.keys.glob(f".{one.mark}.*.tmp"):
            if temp != one.taking.ticket(7):
                temp.unlink()
        return read(path)

    monkeypatch.setattr(shared_lock, "read_anew", overtaken)
    with pytest.raises(Fenced):
        claim(one)

    assert stored(layout) == LockRecord(KEY, THERE, 7)


def test_a_lock_that_may_not_be_there_after_a_cut_is_let_go_of(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    leave(layout, LockRecord(KEY, THERE, 7))
    monkeypatch.setattr(shared_lock, "sync_folder", refuse)
    with pytest.raises(StoreError, match="could not be replaced: the disk is broken"):
        claim(fence(layout, HERE))

    assert opened_below(layout) == 0
