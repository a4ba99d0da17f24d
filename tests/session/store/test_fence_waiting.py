"""Who waits for the lock of a key, and whom it takes for frozen."""

from __future__ import annotations

import fcntl
import os
from types import SimpleNamespace

import pytest

from session.disk.layout import Layout
from session.errors import Fenced, StoreError
from session.store import fence as fence_module
from session.store.fence import Busy, Wait
from session.store.lock_record import LockRecord
from tests.gateway.embedded_place import files_at_most
from tests.session.store.fence_place import KEY, STEM, Looks, claim, fence, is_free, layout, opened_below

__all__ = ["layout"]


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
    monkeypatch.setattr(fence_module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    looks = Looks(lambda _: None)

    with two.hold(Wait(looks)) as ours:
        assert ours.record.owner == "two"
    one.let_go(held.file)
    assert looks.count == looks_wanted
