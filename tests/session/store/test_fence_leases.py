"""The fence of one key where locks are leases: both of two machines may believe that they hold one."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from session.disk import file_system
from session.disk.layout import Layout
from session.errors import Fenced, StoreError
from session.store import fence as fence_module
from session.store import shared_lock
from session.store.fence import Fence, Held
from session.store.lock_record import LockRecord, write_record
from tests.session.store.fence_place import (
    HERE,
    KEY,
    STEM,
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


def replace_late(held: Held, path: Path, other: Fence) -> None:
    """Write what is to stand there while another machine claims the key."""
    with held.replacing(path) as fd:
        os.write(fd, b"too late")
        claim(other)


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
    assert not [*layout.keys.glob("*.tmp"), *layout.sessions.glob(".*.tmp")]
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


@pytest.mark.parametrize(("owner", "foreign"), [(THERE, True), ("here.1:9:Z", False)])
def test_what_another_machine_had_is_told_from_what_a_dead_process_had(
    layout: Layout, owner: str, foreign: bool
) -> None:
    """From the very first epoch on."""
    paths = fill(layout)
    leave(layout, LockRecord(KEY, owner, 1))
    first = [inode(path) for path in paths]

    with capture_logs() as logged:
        claim(fence(layout, HERE))

    assert [line["event"] for line in logged] == ["lock.taken_from_afar"] * foreign
    assert ([inode(path) for path in paths] != first) == foreign


def test_what_the_lock_says_counts_and_not_which_file_it_is(layout: Layout) -> None:
    one = fence(layout, HERE)
    epoch = claim(one)
    with one.hold(None) as held:
        leave(layout, LockRecord(KEY, THERE, epoch + 1))
        with pytest.raises(Fenced):
            held.check()


def test_who_is_overtaken_while_it_renews_is_told_so(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever error the renewal met by that."""
    one, two = fence(layout, HERE), fence(layout, "third.1:1:D")
    leave(layout, LockRecord(KEY, THERE, 7))

    def overtaken(*_: object) -> None:
        monkeypatch.undo()
        leave(layout, LockRecord(KEY, two.owner, 2**30))
        raise StoreError("the file could not be renewed")

    monkeypatch.setattr(fence_module, "renew_files", overtaken)
    with pytest.raises(Fenced):
        claim(one)


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


def test_an_owner_that_believes_in_its_lock_names_its_files_unlike_who_has_it(layout: Layout) -> None:
    """Before a claim the epoch is still that of the other one."""
    leave(layout, LockRecord(KEY, THERE, 7))
    one, other = fence(layout, HERE), fence(layout, THERE)
    with one.hold(None) as held:
        assert held.temp(layout.keys) != other.temp(layout.keys, 7)
        assert held.temp(layout.keys).name.startswith(f".{one.mark}.7.")
        held.claim(KEY)
        assert held.temp(layout.keys) == one.temp(layout.keys, held.record.epoch)


def test_the_names_of_a_folder_are_asked_anew_where_another_machine_may_have_made_some(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time before what an overtaken writer left is taken away; a disk of one's own knows its names."""
    asked: list[Path] = []
    claim(fence(layout, HERE))
    monkeypatch.setattr(fence_module, "look_anew", lambda folder, mark: asked.append(folder))
    fence(layout, HERE).remove_temps(7)
    assert asked == [layout.sessions, layout.keys, layout.archive(STEM)]

    monkeypatch.delitem(file_system.MAGICS, file_system.magic_of(layout.sessions))
    file_system._leases.cache_clear()
    fence(layout, HERE).remove_temps(7)
    assert len(asked) == 3


def test_what_is_removed_may_lie_where_another_machine_just_made_a_folder(layout: Layout) -> None:
    one = fence(layout, HERE)
    claim(one)
    layout.sessions.rmdir()
    with one.hold(None) as held:
        held.remove(layout.archive(STEM), by=layout.sessions)

    assert list(layout.sessions.iterdir()) == []


@pytest.mark.parametrize("step", ["make_private", "sync_folder"])
def test_who_is_overtaken_while_it_removes_is_told_so(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before its own folder is there, what stands stays; behind, it learns that the name may be another's."""
    one, two = fence(layout, HERE), fence(layout, THERE)
    path, done = layout.transcript(STEM), getattr(fence_module, step)
    path.write_bytes(b"before")
    claim(one)

    def overtaken(folder: Path) -> None:
        monkeypatch.undo()
        leave(layout, LockRecord(KEY, two.owner, 2**30))
        done(folder)

    with one.hold(None) as held:
        monkeypatch.setattr(fence_module, step, overtaken)
        with pytest.raises(Fenced):
            held.remove(path)

    assert path.exists() == (step == "make_private")


# -- taking over -----------------------------------------------------------------------------------------


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
