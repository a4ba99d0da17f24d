"""The lines of a big transcript behave as a list of them would, wherever they lie."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.errors import StoreError
from session.transcript.lines import HeldFile, Lines, walk

HEAD = b'{"_type": "metadata"}'
_LINE = st.binary(min_size=1, max_size=40).map(lambda raw: raw.replace(b"\n", b" "))


def write(path: Path, head: bytes, lines: Sequence[bytes]) -> tuple[HeldFile, int]:
    path.write_bytes(b"".join(raw + b"\n" for raw in [head, *lines]))
    return HeldFile(os.open(path, os.O_RDONLY)), len(head) + 1


def hold(path: Path, lines: Sequence[bytes], *, hot_bytes: int = 50, block_bytes: int = 60) -> Lines:
    file, body_at = write(path, HEAD, lines)
    starts, end = array("Q"), 0
    for raw in lines:
        starts.append(end)
        end += len(raw) + 1
    return Lines(file, body_at, starts, end, hot_bytes=hot_bytes, block_bytes=block_bytes)


Step = tuple[str, object]
_PLACE = st.integers(-45, 45)
_STEP: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("append"), _LINE),
    st.tuples(st.just("line"), _PLACE),
    st.tuples(
        st.just("slice"), st.tuples(st.none() | _PLACE, st.none() | _PLACE, st.sampled_from([None, 1, 2, -1]))
    ),
    st.tuples(st.just("walk"), st.integers(0, 45)),
    st.tuples(st.sampled_from(["list", "reversed", "backwards", "renew"]), st.none()),
)


@given(st.lists(_LINE, min_size=1, max_size=40), st.lists(_STEP, max_size=25))
def test_whatever_is_asked_the_answer_is_that_of_a_list(first: list[bytes], steps: list[Step]) -> None:
    """Lines in the file and lines in memory are read alike, while they grow and their file is renewed."""
    plain = list(first)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        lines = hold(path, plain)
        for number, (name, value) in enumerate(steps):
            if name == "append" and isinstance(value, bytes):
                with path.open("ab") as file:
                    file.write(value + b"\n")
                lines.append(value)
                plain.append(value)
            elif name == "renew":
                path.unlink()
                lines.rebase(*write(path, HEAD + b" " * number, plain))
            else:
                assert _ask(lines, name, value) == _ask(plain, name, value), (name, value)
            assert len(lines) == len(plain)


def _ask(lines: Sequence[bytes], name: str, value: object) -> object:
    answers: dict[str, Callable[[], object]] = {
        "line": lambda: lines[value] if -len(lines) <= value < len(lines) else None,  # type: ignore[operator, index]
        "slice": lambda: lines[slice(*value)],  # type: ignore[misc]
        "walk": lambda: list(walk(lines, value)),  # type: ignore[arg-type]
        "list": lambda: list(lines),
        "reversed": lambda: list(reversed(lines)),
        "backwards": lambda: [lines[at] for at in range(len(lines) - 1, -1, -1)],
    }
    return answers[name]()


def test_what_stays_in_memory_is_bounded_while_it_grows(tmp_path: Path) -> None:
    """A thousand lines leave the newest of them in memory, and a number for each."""
    path = tmp_path / "x"
    lines = hold(path, [b"0" * 100], hot_bytes=1000, block_bytes=500)

    with path.open("ab", buffering=0) as file:
        for number in range(1000):
            raw = b"%100d" % number
            file.write(raw + b"\n")
            lines.append(raw)

    assert lines.weight < 2000 + 500 + 8 * 1001 + 200
    assert [int(raw) for raw in lines[1:]] == list(range(1000))


@pytest.mark.parametrize(
    "other",
    [b"", b"x" * 60, b"\n" * 60, HEAD + b"\none\nt\nwo\n" + b"three" * 20 + b"\n"],
    ids=["empty", "one line", "newlines", "a newline more"],
)
def test_a_file_that_was_written_over_is_noticed_when_it_is_read(tmp_path: Path, other: bytes) -> None:
    """Never is half a line handed out, or two as one."""
    path = tmp_path / "x"
    lines = hold(path, [b"one", b"two", b"three" * 20], block_bytes=1000)
    path.write_bytes(other)

    with pytest.raises(StoreError):
        lines[:2]

    assert lines.broken


def test_the_descriptor_goes_with_its_last_user(tmp_path: Path) -> None:
    """Nobody has to close anything."""
    lines = hold(tmp_path / "x", [b"one", b"two"])
    fd = lines.snapshot()[0].fd
    os.fstat(fd)

    del lines

    with pytest.raises(OSError):
        os.fstat(fd)
