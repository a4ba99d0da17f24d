"""Files that stay open between writes, halves of a batch, and the short way to the newest exchange."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.disk.layout import OpenFiles, opened
from session.disk.threads import DiskThreads, WriteThenSync
from session.errors import Fenced
from session.transcript.index import Index
from session.transcript.line import encode
from tests.session.store_place import ADA, Make, turn
from tests.support.examples import drawn


def open_files() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(fd.readlink()))
        except FileNotFoundError:
            continue
    return found


def ids(path: Path) -> list[str]:
    """Read the ids of the lines behind line 1."""
    return [json.loads(raw)["message_id"] for raw in path.read_bytes().splitlines()[1:]]


def edit(path: Path, name: str) -> None:
    """Do as an editor does: write a new file with one line more, and put it in the place of the old."""
    edited = path.with_name("edited")
    edited.write_bytes(path.read_bytes() + encode(turn(name)[0]) + b"\n")
    edited.replace(path)


async def test_a_file_put_in_the_place_of_the_one_left_open_is_the_one_written_to(make: Make) -> None:
    """A writer never trusts a descriptor: what the name means now is read again and appended to."""
    store = make()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.append(turn("b"))
        assert str(session.path) in open_files()
        edit(session.path, "1")

        assert await session.append(turn("c")) == 5

        assert ids(session.path) == ["a", "a", "b", "b", "1", "c", "c"]
        edit(session.path, "2")

    async with store.open(ADA) as session:
        assert session.line(len(session) - 1)["message_id"] == "2"
        assert await session.append(turn("d")) == 8

        assert ids(session.path) == ["a", "a", "b", "b", "1", "c", "c", "2", "d", "d"]


async def test_a_lock_put_in_the_place_of_the_one_left_open_is_the_one_held(make: Make) -> None:
    """Whoever overtook us holds another file under the same name: our turn ends unwritten."""
    ours, theirs = make(), make()
    async with ours.open(ADA) as session:
        await session.append(turn("a"))
        lock = ours.layout.lock(session.stem)
        copy = lock.with_name("copy")
        shutil.copy(lock, copy)
        copy.replace(lock)
        async with theirs.open(ADA) as other:
            await other.append(turn("theirs"))

            with pytest.raises(Fenced):
                await session.append(turn("b"))

            assert ids(other.path) == ["a", "a", "theirs", "theirs"]


async def test_nothing_stays_open_or_locked_behind_a_store(make: Make, tmp_path: Path) -> None:
    """Between writes the lock is free for others; a closed store holds no descriptor."""
    store, other = make(), make()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        assert str(store.layout.lock(session.stem)) in open_files()

        async with asyncio.timeout(20), other.open(ADA) as theirs:
            await theirs.append(turn("b"))

    await store.aclose()
    await other.aclose()
    assert not [name for name in open_files() if name.startswith(str(tmp_path))]


def test_open_files_are_the_files_used_last(tmp_path: Path) -> None:
    """One file too many closes the one used longest ago; closed, it keeps none."""
    kept = OpenFiles(2)
    files = {}
    for name in "abc":
        files[name] = opened(os.open(tmp_path / name, os.O_RDWR | os.O_CREAT))
        kept.put(name, files[name])

    assert kept.take("a") is None
    assert kept.take("b") == files["b"]
    assert kept.take("b") is None
    kept.put("b", files["b"])
    kept.close()

    assert kept.take("b") is None
    for file in files.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file.fd)


async def test_the_halves_of_a_batch_come_after_all_its_firsts() -> None:
    """First halves, then hints, then second halves; each job gets its own end."""
    hop, gate, order = DiskThreads(threads=1), threading.Event(), list[str]()

    def job(name: str) -> str | WriteThenSync[str]:
        order.append(f"first {name}")

        def finish() -> str:
            order.append(f"second {name}")
            if name == "b":
                raise ValueError(name)
            return name

        return WriteThenSync(finish, lambda: order.append(f"hint {name}"))

    blocked = hop.start(gate.wait)
    await asyncio.sleep(0)
    jobs = [hop.start(partial(job, name)) for name in "abc"]
    await asyncio.sleep(0)
    gate.set()
    ends = await asyncio.gather(blocked, *jobs, return_exceptions=True)

    assert [str(end) for end in ends] == ["True", "a", "b", "c"]
    assert isinstance(ends[2], ValueError)
    assert order == [f"{what} {name}" for what in ("first", "hint", "second") for name in "abc"]
    hop.close()


_IDS = st.sampled_from(["a", "b", None])
_LINES = st.builds(
    lambda role, id_, final, answers, kind: {
        name: value
        for name, value in {
            "role": role,
            "content": "x",
            "message_id": id_,
            "final": final or None,
            "answers": answers,
            "kind": kind if role == "system" else None,
            "from": 1 if kind == "undo" else None,
        }.items()
        if value is not None
    },
    st.sampled_from(["user", "assistant", "tool", "system"]),
    _IDS,
    st.booleans(),
    st.sampled_from([None, None, ["a"], ["a", "b"]]),
    st.sampled_from([None, "note", "undo"]),
)


@drawn(500)
@given(st.lists(_LINES, max_size=12))
def test_the_ends_of_all_ids_are_those_that_are_found_one_by_one(lines: list[Mapping[str, Any]]) -> None:
    """One pass from the end says of each id what looking it up says; those that are old are left out."""
    index = Index([encode(line) for line in lines])
    for at, line in enumerate(lines):
        index.add(at, line)
    plain = {id_: index.find(id_) for id_ in ("a", "b", "c")}
    expected = {id_: replace(found, tail=False) for id_, found in plain.items() if found is not None}
    recent = {id_: found for id_, found in expected.items() if lines[found.stop - 1]["role"] != "tool"}

    assert index.ends(lambda _: True) == expected
    assert index.ends(lambda line: line["role"] != "tool").items() >= recent.items()


@given(st.lists(_LINES, max_size=12))
def test_an_exchange_that_grows_is_found_as_if_it_were_read_anew(lines: list[Mapping[str, Any]]) -> None:
    """After each line the index says of every id what one that is read from the file then says."""
    messages: list[bytes] = []
    growing = Index(messages)
    for at, line in enumerate(lines):
        messages.append(encode(line))
        growing.add(at, line)
        anew = Index(messages)
        for number, old in enumerate(lines[: at + 1]):
            anew.add(number, old)
        plain = Index(messages, anew.snapshot()())

        assert [growing.find(id_) for id_ in ("a", "b", "c")] == [plain.find(id_) for id_ in ("a", "b", "c")]
