"""Which conversations a full cache gives up, and that it looks at few of them to know."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from session.store import cache
from session.store.cache import Handle, Handles
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.store_place import AT, Make
from tests.support.guarantee import guarantee

EMPTY = cache._HELD_COST


def used(handles: Handles, *names: str) -> None:
    """Use handles one after the other."""
    for name in names:
        handles.leave(handles.enter(SessionKey(f"cli:{name}")))


def kept(handles: Handles, names: Sequence[str]) -> str:
    return "".join(name for name in names if handles.get(SessionKey(f"cli:{name}")) is not None)


@guarantee(
    "operation",
    "A full session cache evicts the least recently used session in a few steps, never one in use.",
)
def test_the_one_used_longest_ago_goes_first_and_never_one_in_use() -> None:
    handles = Handles(3 * EMPTY)
    held = handles.enter(SessionKey("cli:a"))
    used(handles, "b", "c", "b", "d")
    assert (kept(handles, "abcd"), handles.weight) == ("abcd", 3 * EMPTY)

    handles.leave(held)
    assert (kept(handles, "abcd"), handles.weight) == ("abd", 3 * EMPTY)

    used(handles, "b", "e")
    assert kept(handles, "abcde") == "abe"


def test_what_many_use_at_once_stays_until_the_last_has_left() -> None:
    handles = Handles(EMPTY)
    first, second = (handles.enter(SessionKey("cli:a")) for _ in range(2))
    handles.leave(first)
    used(handles, "b")
    assert kept(handles, "ab") == "a"

    handles.leave(second)
    used(handles, "b")
    assert kept(handles, "ab") == "b"


@guarantee(
    "operation",
    "A full session cache evicts the least recently used session in a few steps, never one in use.",
)
def test_a_full_cache_looks_at_few_of_all_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2,000 chats in it that are used in turn, each use weighs what comes and what goes."""
    handles = Handles(2_000 * EMPTY)
    used(handles, *(str(number) for number in range(2_000)))
    weighed: list[Handle] = []
    weight = Handle.weight.fget
    assert weight is not None
    monkeypatch.setattr(Handle, "weight", property(lambda self: weighed.append(self) or weight(self)))

    held = [handles.enter(SessionKey(f"cli:{number}")) for number in range(100)]
    used(handles, *(f"new{number}" for number in range(100)))
    for handle in held:
        handles.leave(handle)

    assert handles.weight == 2_000 * EMPTY
    assert len(weighed) <= 2 * 200


# -- what is counted -------------------------------------------------------------------------------------


CHATS = 100
TEXT = "x" * 90
# A table of the whole process, as of interned names, may grow in the middle.
TABLE_BYTES = 200_000


@dataclass
class Taken:
    """How many bytes a block left in memory."""

    bytes: int = 0


@contextmanager
def memory() -> Iterator[Taken]:
    gc.collect()
    tracemalloc.start()
    taken = Taken()
    try:
        yield taken
        gc.collect()
        found = tracemalloc.take_snapshot().traces
        taken.bytes = sum(trace.size for trace in found if trace.size < TABLE_BYTES)
    finally:
        tracemalloc.stop()


async def _talk(store: Store, turns: int, *, commands: int = 0, first: int = 0) -> None:
    for chat in range(CHATS):
        key = SessionKey(f"telegram:{chat}")
        async with store.open(key) as session:
            lines = []
            for number in range(first, first + turns):
                id_ = f"{key}:{number}"
                lines.append(make_line("user", TEXT, AT, message_id=id_))
                lines.append(make_line("assistant", TEXT, AT, message_id=id_, final=True))
            await session.append(lines)
            for number in range(commands):
                await session.journal.begin(f"{key}:c{number}", transcript_held_lines=False)
                await session.journal.conclude(f"{key}:c{number}", "command", text=TEXT)
    # Its threads still hold what they wrote last.
    await store.aclose()


@guarantee("operation", "The session cache stays within the memory that it was given.")
@pytest.mark.parametrize(("turns", "commands"), [(1, 0), (10, 0), (10, 10), (100, 0)])
async def test_a_conversation_is_counted_with_what_it_takes(make: Make, turns: int, commands: int) -> None:
    """Short or long, grown here or read from its files: else a full cache takes more than it was given."""
    # What the first one imports and opens is no conversation's.
    async with make().open(SessionKey("telegram:first")) as session:
        await session.append([make_line("user", TEXT, AT)])
        await session.journal.begin("first", transcript_held_lines=False)
    written, read = make(), make()

    with memory() as grown:
        await _talk(written, turns, commands=commands)
    with memory() as loaded:
        await _talk(read, 0, commands=0)

    assert 0.95 < written.cached_bytes() / grown.bytes < 1.3
    assert 0.95 < read.cached_bytes() / loaded.bytes < 1.3


async def test_what_is_counted_leaps_where_a_table_does(make: Make) -> None:
    """Many chats may be about as long: uncounted, a full cache would take more each time that they leap."""
    reading, reading_more = make(), make()
    # A dict of 21 is full, and one of 22 takes twice as much.
    await _talk(make(), 21)
    # What the first reading makes once for all is no conversation's.
    await _talk(make(), 0)
    with memory() as before:
        await _talk(reading, 0)
    await _talk(make(), 1, first=21)
    with memory() as after:
        await _talk(reading_more, 0)

    counted = reading_more.cached_bytes() - reading.cached_bytes()
    assert 0.95 < counted / (after.bytes - before.bytes) < 1.3
