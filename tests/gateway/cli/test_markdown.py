"""Markdown is drawn block by block, whatever pieces it comes in, and steers no terminal."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.screen import MarkdownInk, whole_blocks
from tests.support.guarantee import guarantee

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ANSWER = (
    "# Title\n\nSome **bold** text\non two lines.\n\n1. one\n\n   more of it\n2. two\n\n"
    "```python\nx = 1\n\ny = 2\n```\n\nend"
)


def drawn(*pieces: str) -> str:
    ink = MarkdownInk()
    return "".join([*map(ink.feed, pieces), ink.end()])


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8))
def test_pieces_make_no_difference(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(ANSWER)]

    pieces = [ANSWER[a:b] for a, b in pairwise(places)]

    assert "".join(COLOUR.sub("", drawn(*pieces)).split()) == "".join(COLOUR.sub("", drawn(ANSWER)).split())


def test_a_block_is_shown_before_the_next_is_whole() -> None:
    ink = MarkdownInk()

    first = ink.feed("**one**\n\ntw")
    rest = ink.feed("o") + ink.end()

    assert COLOUR.sub("", first) == "one\n"
    assert COLOUR.sub("", rest) == "\ntwo\n"


def test_code_is_not_cut_at_its_empty_lines() -> None:
    text = "```\na\n\nb\n"

    assert whole_blocks(text) == ("", text)
    assert whole_blocks(f"{text}```\n\nc") == (f"{text}```\n\n", "c")


@pytest.mark.parametrize(
    "text",
    [
        "use List<String> and Vec<T> here",
        "git clone <url>",
        "- cp <from> <to>\n- **<b>**",
        "<details>\nthe *answer*\n</details>",
        "a <!-- comment --> b",
        "| type |\n|---|\n| Map<K, V> |",
        "# <T> in a title",
        "> <quoted>",
        "![a picture](https://example.org/a.png)",
        "[1]: https://example.org/unused",
    ],
)
def test_nothing_written_is_lost(text: str) -> None:
    """What looks like HTML, a picture or a definition keeps its words: people copy them."""
    shown = COLOUR.sub("", drawn(text))

    for word in re.findall(r"[^\s*|>#\[\]()!-][^\s*|()\[\]]*", text):
        assert word in shown, shown


def test_lines_and_words_stay() -> None:
    """Lines stay apart, list numbers stay over their blocks, addresses are shown."""
    shown = COLOUR.sub("", drawn(ANSWER + "\n\n[here](https://example.org/a)"))

    assert "Some bold text\non two lines." in shown
    assert " 2 two" in shown
    assert "https://example.org/a" in shown


@guarantee("security", "An answer cannot send control sequences to the terminal that displays it.")
@pytest.mark.parametrize(
    "evil",
    [
        "\x1b]0;owned\x07",
        "\x9b31m",
        "&#27;]0;owned&#7;",
        "&#x9b;31m",
        "a&#13;b",
        "a&#8;b",
        "&#x202e;abc",
        "`\x1b[2J`",
        "```\n\x1b[2J\n```",
        "```\x1b[2J\ncode\n```",
        "[x](http://a/\x1b]8;;)",
        "[x](http://a/&#27;&#13;)",
        "![\x1b[2J](http://a/\x9b)",
        "<b\x1b[2J>",
        "| \x1b[2J | \r |\n|---|---|\n| \x07 | \x08 |",
        "# \x1b[2J",
    ],
)
def test_no_answer_steers_the_terminal(evil: str) -> None:
    left = COLOUR.sub("", drawn(f"before {evil} after", f"\n\n{evil}\n\nmore"))

    assert [c for c in left if not c.isprintable() and c != "\n"] == []
    assert "[2J" not in left or "\x1b" not in left
