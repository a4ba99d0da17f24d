"""Which conversations a full cache gives up, and that it looks at few of them to know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from session.disk.layout import Layout
from session.store import cache
from session.store.cache import Handle, Handles
from session.store.fence import Fence
from session.store.store import utc_now
from session.store.writer import TranscriptWriter
from session.transcript.key import SessionKey
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "operation",
    "A full session cache evicts the least recently used session in a few steps, never one in use.",
)

EMPTY = cache._HELD_COST
BIG = 100_000


def used(handles: Handles, *names: str, prepared: int = 0, folder: Path | None = None) -> None:
    """Use handles one after the other; with a folder they have writers, and as much prepared."""
    for name in names:
        handle = handles.enter(SessionKey(f"cli:{name}"))
        if folder is not None and handle.writer is None:
            handle.writer = writer(folder, name)
        if prepared and handle.writer is not None:
            made: Any = SimpleNamespace(weight=prepared)
            handle.writer.transcript.prepared = made
        handles.leave(handle)


def writer(folder: Path, name: str) -> TranscriptWriter:
    layout = Layout(folder)
    fence = Fence(layout, f"cli_{name}", owner="me", freeze_s=30)
    return TranscriptWriter(layout, f"cli_{name}", SessionKey(f"cli:{name}"), fence=fence, clock=utc_now)


def kept(handles: Handles, names: Sequence[str]) -> str:
    return "".join(name for name in names if handles.get(SessionKey(f"cli:{name}")) is not None)


def ready(handles: Handles, names: Sequence[str]) -> str:
    found = ((name, handles.get(SessionKey(f"cli:{name}"))) for name in names)
    return "".join(name for name, handle in found if handle is not None and handle.is_prepared)


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


def test_before_a_conversation_goes_what_was_prepared_of_those_that_rest(tmp_path: Path) -> None:
    """Of the one used longest ago first, and only as much as has to."""
    handles = Handles(2 * BIG + 10 * EMPTY)
    used(handles, *"abc", prepared=BIG, folder=tmp_path)
    assert (kept(handles, "abc"), ready(handles, "abc")) == ("abc", "bc")

    used(handles, "b")
    used(handles, "d", prepared=BIG, folder=tmp_path)
    assert (kept(handles, "abcd"), ready(handles, "abcd")) == ("abcd", "bd")

    held = handles.enter(SessionKey("cli:b"))
    used(handles, *"ef", prepared=BIG, folder=tmp_path)
    assert (kept(handles, "abcdef"), ready(handles, "abcdef")) == ("abcdef", "bf")
    handles.leave(held)
    handles.close()


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


def test_of_too_many_open_files_those_of_others_pay_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who reads from a file is given up for it."""
    monkeypatch.setattr(Handle, "reads_from_file", property(lambda self: self.key.startswith("cli:r")))
    handles = Handles(100 * EMPTY, max_files=2)
    used(handles, "a", "r1", "b", "r2", "c", "r3")

    names = ["a", "r1", "b", "r2", "c", "r3"]
    assert [name for name in names if kept(handles, [name])] == ["a", "b", "r2", "c", "r3"]
