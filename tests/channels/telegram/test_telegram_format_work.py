"""No text makes the rendering for Telegram slow: its work grows with the text's length, and is bounded."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from channels.telegram.format import render
from channels.telegram.parts import MAX_BLOCK_BYTES, PART_BYTES, parts

pytestmark = pytest.mark.slow

UNITS = {
    "empty fences": "~~~\n",
    "blank fences": "```\n\n```\n",
    "fences in a list": "- ~~~\n  ~~~\n",
    "fences in a quote": "> ~~~\n> ~~~\n\n",
    "bold between code": "a `b` **c** ",
    "quotes": "> a\n\n",
    "headings": "# a\n",
    "rules": "---\n\n",
    "items": "- a\n",
    "breaks": "a  \n",
    "bars in tables": "|a||b|\n|-|-|-|\n\n",
    "spoilers": "||a|| ",
    "strikes": "~a~ ",
    "prices": "$1 $2 ",
    "links": "[a](https://a.example) ",
    "references": "[a]: https://a.example\n\n[a]\n\n",
    "brackets": "[",
}


def work_of(task: Callable[[], object]) -> int:
    """Count the lines of Python that a task runs, which do not depend on how busy the machine is."""
    count = 0

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        task()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_twice_the_text_is_about_twice_the_work(unit: str) -> None:
    small, large = (unit * (size // len(unit)) for size in (3_000, 12_000))
    render(unit)

    ratio = work_of(lambda: render(large)) / work_of(lambda: render(small))

    # Four times the text: 4 where the work is linear, 16 where it is quadratic.
    assert ratio < 8


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_more_than_a_block_of_anything_is_rendered_soon(unit: str) -> None:
    """What is longer goes by parts and blocks, each no longer than these."""
    text = unit * (MAX_BLOCK_BYTES * 3 // 2 // len(unit))
    began = time.process_time()

    pieces = render(text)

    assert pieces
    assert time.process_time() - began < 10


def test_bars_far_apart_in_tables_are_no_spoiler() -> None:
    """Between them, a search for a spoiler would try two ways a line: 40 lines would take it days."""
    text = "> |a||\n> |-|-|\n" + "> \n" * 40 + "> x\n>\n> |b||\n> |-|-|\n"
    program = f"from channels.telegram.format import render; print([one.plain for one in render({text!r})])"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "a" in done.stdout
    assert "b" in done.stdout
    assert "spoiler" not in done.stdout


def test_a_fence_around_nothing_is_shown_as_written() -> None:
    (piece,) = render("before\n\n```python\n```\n\nafter")

    assert piece.plain.split("\n") == ["before", "", "```python", "```", "", "after"]


def test_a_long_text_keeps_its_form_and_its_words() -> None:
    block = "# Head\n\nSome **bold** words and `code`.\n\n```python\nx = 1\n```\n\n- one\n- two\n\n"
    number = 2 * PART_BYTES // len(block) + 2
    (short,) = render(block)

    long = render(block * number)

    kinds = [entity["type"] for piece in long for entity in piece.markup or ()]
    assert kinds.count("pre") == kinds.count("code") == number
    assert sum(piece.plain.count("Some bold words and code.") for piece in long) == number
    shown = "\n\n".join([short.plain] * number)
    assert "".join("".join(piece.plain.split()) for piece in long) == "".join(shown.split())
    assert [piece.plain for piece in render(block * 2)] == [f"{short.plain}\n\n{short.plain}"]


def test_a_long_piece_of_code_stays_code() -> None:
    pieces = render("# Listing\n\n```python\n" + "x = 1\n" * (MAX_BLOCK_BYTES // 3) + "```\n\nThat is *all*.")

    kinds = [[entity["type"] for entity in piece.markup or ()] for piece in pieces]
    assert all("pre" in inner for inner in kinds[1:-1])
    assert (kinds[0][0], kinds[-1][-1]) == ("bold", "italic")


def test_blocks_are_never_torn_and_what_cannot_be_parted_is_sent_as_it_is() -> None:
    paragraph = "word " * 200 + "\n\n"
    found = parts(paragraph * 100)
    one = "> " + "**a** " * (MAX_BLOCK_BYTES // 5)

    assert found is not None
    assert "".join(text for text, _ in found) == paragraph * 100
    assert all(len(text) <= PART_BYTES for text, _ in found)
    assert parts(one) is None
    pieces = render(one)
    assert all(not piece.markup for piece in pieces)
    assert pieces[0].plain.startswith("> **a** **a**")
