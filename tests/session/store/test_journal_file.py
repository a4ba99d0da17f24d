"""The journal of a key as a file: read when it is not as we left it, added to under the lock alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.errors import Fenced, StoreError
from session.store.fence import Fence, Wait
from session.store.journal_file import JournalFile
from session.store.store import Store
from session.transcript.journal import REWRITE_BYTES, SessionPlace
from session.transcript.journal_lines import Entry
from tests.gateway.embedded_place import files_at_most
from tests.session.store.fence_place import KEY, STEM, Looks, claim, layout, opened_below
from tests.session.store_place import ADA, Make

__all__ = ["layout"]
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Writer:
    """One process that writes the journal."""

    def __init__(self, layout: Layout, owner: str = "one") -> None:
        self.now = AT
        self.fence = Fence(layout, STEM, owner=owner)
        self.file = JournalFile(layout, STEM, KEY, fence=self.fence, clock=lambda: self.now)
        self.epoch = 0

    def claim(self) -> None:
        self.epoch = claim(self.fence)

    def end(self, *ids: str, text: str = "") -> None:
        entries: list[Entry] = [
            {"at": self.now.isoformat(), "do": "end", "id": id_, "kind": "parked", "text": text}
            for id_ in ids
        ]
        self.file.record(self.epoch, lambda *_: entries, lambda: SessionPlace("s", 0), None)

    def knows(self, id_: str) -> bool:
        self.file.refresh()
        return self.file.state.known(id_, self.now) is not None


@pytest.fixture
def one(layout: Layout) -> Writer:
    writer = Writer(layout)
    writer.claim()
    return writer


def ids(path: Path) -> list[str]:
    entries = [json.loads(line) for line in path.read_bytes().splitlines() if line]
    return [entry["id"] for entry in entries if "id" in entry]


def test_it_is_current_while_nobody_else_wrote_it(one: Writer) -> None:
    """An entry of our own leaves it so; before it was read it is not."""
    assert not one.file.is_read
    assert not one.file.current()
    assert one.file.state.known("a", AT) is None
    one.file.refresh()
    assert one.file.is_read
    assert one.file.current()

    one.end("a")
    assert one.file.current()
    one.end("b")
    assert one.file.current()
    with one.file.path.open("a") as file:
        file.write("\n")
    assert not one.file.current()
    assert one.file.is_read
    assert ids(one.file.path) == ["a", "b"]


def test_what_another_wrote_is_read_before_anything_is_added(one: Writer, layout: Layout) -> None:
    """Whether it made the file, added to it or wrote it anew; what is added is decided on what is there."""
    two = Writer(layout, "two")
    seen: list[bool] = []

    def build(state: object, _place: object) -> Entry | None:
        seen.append(one.file.state is state and one.file.state.known("theirs", AT) is not None)
        return None

    for again in (False, True):
        two.claim()
        two.end("theirs" if not again else "more")
        one.claim()
        one.file.record(one.epoch, build, lambda: SessionPlace("s", 0), None)
        assert one.knows("theirs")
    assert one.knows("more")
    copy = one.file.path.with_suffix(".copy")
    copy.write_bytes(one.file.path.read_bytes())
    copy.rename(one.file.path)
    one.end("ours")

    assert seen == [True, True]
    assert ids(one.file.path) == ["theirs", "more", "ours"]


def test_a_file_that_is_gone_holds_nothing(one: Writer) -> None:
    one.end("a")
    one.file.path.unlink()

    assert not one.file.current()
    one.end("b")

    assert not one.knows("a")
    assert ids(one.file.path) == ["b"]


def test_who_was_overtaken_adds_nothing(one: Writer, layout: Layout) -> None:
    one.end("a")
    Writer(layout, "two").claim()

    with pytest.raises(Fenced):
        one.end("late")

    assert ids(one.file.path) == ["a"]


def test_half_an_entry_goes_before_the_next_one(one: Writer) -> None:
    one.end("a")
    with one.file.path.open("a") as file:
        file.write('{"do":"end","id":"half')

    one.end("b")
    one.end("c")

    assert ids(one.file.path) == ["a", "b", "c"]
    assert one.file.current()
    assert one.file.path.read_bytes().count(b"\n") == 4


@pytest.mark.parametrize("kept", [[], ["k"]])
def test_it_is_begun_anew_without_all_that_it_said(one: Writer, kept: list[str]) -> None:
    one.end("a")
    entries: list[Entry] = [{"at": AT.isoformat(), "do": "end", "id": id_, "kind": "cleared"} for id_ in kept]

    with one.fence.hold(Wait()) as held:
        one.file.begin_anew(held, *entries)

    assert one.file.path.exists() == bool(kept)
    assert one.file.current()
    assert one.file.state.known("a", AT) is None
    one.end("b")
    assert ids(one.file.path) == [*kept, "b"]


def test_whose_lock_is_replaced_begins_none_anew(one: Writer, layout: Layout) -> None:
    """The other one's journal still stands."""
    one.end("a")

    with one.fence.hold(Wait()) as held:
        layout.lock(STEM).unlink()
        claim(Fence(layout, STEM, owner="two"))
        with pytest.raises(Fenced):
            one.file.begin_anew(held)
        with pytest.raises(Fenced):
            one.file.begin_anew(held, {"at": AT.isoformat(), "do": "end", "id": "k", "kind": "cleared"})

    assert ids(one.file.path) == ["a"]


def disturbed(act: Callable[[], None], at: datetime = AT) -> Callable[..., Entry]:
    def build(*_: object) -> Entry:
        act()
        return {"at": at.isoformat(), "do": "end", "id": "late", "kind": "parked"}

    return build


@pytest.mark.parametrize("exists", [True, False])
def test_whose_lock_is_replaced_while_it_writes_is_told(one: Writer, layout: Layout, exists: bool) -> None:
    """What it wrote may lie in a file that nobody reads; it believes nothing of it."""
    if exists:
        one.end("a")

    def replace() -> None:
        layout.lock(STEM).unlink()
        claim(Fence(layout, STEM, owner="two"))

    with pytest.raises(Fenced):
        one.file.record(one.epoch, disturbed(replace), lambda: SessionPlace("s", 0), None)
    if not exists:
        assert not one.file.path.exists()


def test_who_was_overtaken_is_told_that_and_not_what_the_disk_says(one: Writer, layout: Layout) -> None:
    """Whatever error it meets first in a file that is no longer its own."""
    one.end("a")
    with contextlib.ExitStack() as stack:

        def replace() -> None:
            layout.lock(STEM).unlink()
            claim(Fence(layout, STEM, owner="two"))
            stack.enter_context(files_at_most(50))

        with pytest.raises(Fenced):
            one.file.record(one.epoch, disturbed(replace), lambda: SessionPlace("s", 0), None)


@pytest.mark.parametrize("exists", [True, False])
def test_what_is_made_or_replaced_while_one_waits_for_the_lock_is_added_to(
    one: Writer, layout: Layout, exists: bool
) -> None:
    """The file that it had opened by then is not the journal any more."""
    other = Writer(layout)
    if exists:
        one.end("first")
    held = other.fence.hold(None)

    def write(count: int) -> None:
        if count != 1:
            return
        if exists:
            copy = one.file.path.with_suffix(".copy")
            copy.write_bytes(one.file.path.read_bytes())
            copy.rename(one.file.path)
        else:
            other.file.write(held, None, {"at": AT.isoformat(), "do": "end", "id": "first", "kind": "parked"})
        other.fence.let_go(held.file)

    entry: Entry = {"at": AT.isoformat(), "do": "end", "id": "second", "kind": "parked"}
    one.file.record(one.epoch, lambda *_: entry, lambda: SessionPlace("s", 0), Wait(Looks(write)))

    assert ids(one.file.path) == ["first", "second"]
    assert one.file.state.known("first", AT) is not None


def test_what_the_disk_refuses_is_known_to_nobody(one: Writer, layout: Layout) -> None:
    """Neither for an entry that is added nor for a file that is made; afterwards it is read again."""
    two = Writer(layout)
    two.epoch = one.epoch
    with files_at_most(100), pytest.raises(StoreError):
        one.end("a", text="x" * 300)
    assert not one.file.is_read
    assert not one.knows("a")

    one.end("b")
    with files_at_most(300), pytest.raises(StoreError):
        one.end("c", text="x" * 1_000)
    assert not one.file.is_read
    assert ids(one.file.path) == ["b"]
    two.end("d")
    one.end("e")
    assert [one.knows(id_) for id_ in "abcde"] == [False, True, False, True, True]
    assert opened_below(layout) == 0


def test_a_path_that_is_no_file_is_one_clear_error(one: Writer) -> None:
    one.file.path.mkdir()

    with pytest.raises(StoreError, match=r"telegram_1\.log"):
        one.end("a")


def test_a_large_and_old_one_is_written_anew(one: Writer) -> None:
    """And is current after that; where the disk has no room it stays as it is, and is read again."""
    one.end("old", text="x" * 2 * REWRITE_BYTES)
    one.now += timedelta(hours=49)
    size = one.file.path.stat().st_size

    with files_at_most(150), pytest.raises(StoreError):
        one.end("a")
    one.end("young")

    assert one.file.path.stat().st_size < 1_000
    assert one.file.current()
    assert one.file.state.size < size
    assert ids(one.file.path)[-1] == "young"
    assert "old" not in ids(one.file.path)
    one.end("next")
    assert [one.knows(id_) for id_ in ("old", "young", "next")] == [False, True, True]


def test_a_rewrite_that_the_disk_refuses_costs_nothing(one: Writer) -> None:
    """The entry that it was made for stands in the old file."""
    one.end("old", text="x" * 2 * REWRITE_BYTES)
    one.now += timedelta(hours=49)
    calls: list[int] = []
    with contextlib.ExitStack() as stack:

        def place() -> SessionPlace:
            # It is asked for the entry, and once more for the file that is written anew.
            calls.append(1)
            if len(calls) == 2:
                stack.enter_context(files_at_most(100))
            return SessionPlace("s", 0)

        with pytest.raises(StoreError, match="could not be renewed"):
            one.file.record(one.epoch, disturbed(lambda: None, one.now), place, None)

    assert not one.file.is_read
    assert ids(one.file.path) == ["old", "late"]
    one.end("next")
    assert ids(one.file.path)[-2:] == ["late", "next"]
    assert one.knows("late")


async def conclude(store: Store, id_: str, text: str = "") -> None:
    async with store.open(ADA) as session:
        await session.journal.conclude(id_, "command", text=text)


async def knows(store: Store, id_: str) -> bool:
    async with store.open(ADA) as session:
        return session.journal.known(id_) is not None


async def test_what_another_owner_noted_is_known(make: Make) -> None:
    """Its claim shows in the lock, so that the journal is read again."""
    ours, theirs = make(), make()
    await conclude(ours, "a")

    await conclude(theirs, "b")

    assert await knows(ours, "b")
    assert await knows(theirs, "a")


async def test_after_an_entry_that_failed_the_journal_is_read_again(make: Make, tmp_path: Path) -> None:
    """How much of it reached the disk is only known from the disk."""
    store = make()
    await conclude(store, "a")
    path = Layout(tmp_path).journal(await store.stem(ADA))
    with files_at_most(path.stat().st_size + 100), pytest.raises(StoreError):
        await conclude(store, "failed", "x" * 1000)
    entry = {"at": "2999-01-01T00:00:00+00:00", "do": "end", "id": "there", "kind": "command"}
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")

    assert await knows(store, "there")
    assert await knows(store, "a")
    assert not await knows(store, "failed")
