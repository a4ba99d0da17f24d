"""What the splitting of Markdown promises, for any text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import regex
from hypothesis import assume, example, given
from hypothesis import strategies as st

from channels.text import is_boundary, split_markdown, utf16_len
from durable import is_blank
from tests.support.examples import drawn

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"
FENCES = ("```\n", "```python\n", "\n```\n", "~~~\n", "> ```js\n", "   ```\n", "````\n")
MARKS = ("> ", "- ", "1. ", "`", "*", "word ", "A sentence. ", "\n", "\n\n", "  ", "\t", " " * 7, "x" * 30)
ODD = (
    "e\u0301",
    FAMILY,
    FLAG,
    "각",
    "\u0600a",
    "क्षि",
    "\U0001f44d\U0001f3fd",
    " \u0308",
    "\r\n",
    "\x00",
    "\u200b",
)
CLUSTERS = (*ODD[:8], "e\u0301\u0323", "ᄀ", "ᅡ", "ᆨ", "น้ำ", "a")
SCRAPS = st.sampled_from((*FENCES, *MARKS, *ODD, "\ud83d", "\ude00"))
TEXTS = st.lists(SCRAPS | st.text(max_size=20), max_size=60).map("".join)
MEASURES = st.sampled_from([len, utf16_len])


def visible(text: str) -> str:
    """What is left of a text without white space and characters that have no shape."""
    return "".join(char for char in text if not is_blank(char))


def without_fences(text: str) -> str:
    """What is left without the lines that open or close a fence."""
    return "\n".join(
        line
        for line in text.split("\n")
        if not re.match(r"[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)*(?:```|~~~)", line)
    )


@drawn(400)
@given(TEXTS, st.integers(2, 120), MEASURES)
def test_every_piece_is_within_the_limit_and_none_is_blank(
    text: str, limit: int, measure: Callable[[str], int]
) -> None:
    pieces = split_markdown(text, max(limit, 8), measure=measure)

    assert all(measure(piece) <= max(limit, 8) for piece in pieces)
    assert not any(is_blank(piece) for piece in pieces)


@drawn(300)
@given(TEXTS, st.integers(8, 120), MEASURES)
def test_all_that_can_be_seen_is_in_the_pieces_in_order(
    text: str, limit: int, measure: Callable[[str], int]
) -> None:
    plain = text.replace("```", "").replace("~~~", "")

    pieces = split_markdown(plain, limit, measure=measure)

    assert visible("".join(pieces)) == visible(plain)


@drawn(300)
@given(TEXTS, st.integers(8, 120), MEASURES)
def test_only_the_lines_of_fences_are_added_or_left_out(
    text: str, limit: int, measure: Callable[[str], int]
) -> None:
    pieces = split_markdown(text, limit, measure=measure)

    seen = iter(visible("".join(pieces)))
    assert all(char in seen for char in visible(without_fences(text)))


@drawn(400)
@given(
    st.lists(st.sampled_from(CLUSTERS), max_size=60).map("".join),
    st.integers(12, 40),
    MEASURES,
)
def test_no_character_is_torn_where_a_piece_can_hold_it(
    text: str, limit: int, measure: Callable[[str], int]
) -> None:
    whole = regex.findall(r"\X", text)

    pieces = split_markdown(text, limit, measure=measure)

    if all(measure(cluster) <= limit for cluster in whole):
        rest = [cluster.strip() for cluster in whole if cluster.strip()]
        seen = [
            cluster.strip() for piece in pieces for cluster in regex.findall(r"\X", piece) if cluster.strip()
        ]
        assert seen == rest


@given(
    st.text(
        alphabet=st.sampled_from("ab \u0301\u200d\U0001f468\U0001f1e9\U0001f1ea\u1100\u1161\n\r"), max_size=30
    )
)
def test_a_boundary_is_never_within_a_grapheme_cluster(text: str) -> None:
    starts = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}

    assert {at for at in range(len(text) + 1) if is_boundary(text, at)} <= starts


@drawn(300)
@given(TEXTS, st.integers(80, 200))
@example("```python\n" + "x = 1\n" * 40 + "```\nafter", 60)
@example("- item\n  ```js\n" + "  call();\n" * 20 + "  ```\n", 50)
@example("> ```\n" + "> quoted\n" * 20 + "> ```\n", 50)
@example("text\n\n~~~\n" + "never closed\n" * 20, 50)
def test_a_piece_that_ends_within_a_fence_closes_it(text: str, limit: int) -> None:
    assume(not re.search(r"\r|\x00|`{4}|[^\n> \t\d.-].*(```|~~~)", text))
    pieces = split_markdown(text, limit)

    for piece in pieces if len(pieces) > 1 else []:
        opened = ""
        for line in piece.split("\n"):
            found = re.match(r"[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)*(```(?=[^`]*$)|~~~)(.*)", line)
            if found and not opened and len(line) <= limit // 4:
                opened = found[1]
            elif found and opened == found[1] and not found[2].strip():
                opened = ""
        assert not opened or ">" in piece, piece


def test_a_fence_is_opened_again_with_its_info_string() -> None:
    code = "\n".join(f"line({n})" for n in range(40))

    pieces = split_markdown(f"Before.\n\n```python title=a\n{code}\n```\n\nAfter.", 120)

    assert all(piece.count("```") == 2 for piece in pieces if "line(" in piece)
    assert all(piece.startswith("```python title=a\n") for piece in pieces[1:] if "line(" in piece)
    assert pieces[-1].endswith("After.")
    assert re.findall(r"line\(\d+\)", "".join(pieces)) == code.split("\n")


@pytest.mark.parametrize(("before", "limit"), [("Some words before it.\n", 60), ("Hi:", 48)])
def test_a_fence_that_fits_in_a_piece_is_not_cut(before: str, limit: int) -> None:
    code = "```\n" + "code\n" * 8 + "```"

    assert split_markdown(f"{before}\n{code}", limit) == [before.strip(), code]


def test_a_quoted_fence_stays_a_quote() -> None:
    pieces = split_markdown("> ```js\n" + "> call();\n" * 12 + "> ```", 60)

    assert all(piece.startswith("> ```js\n> call") and piece.endswith("> ```") for piece in pieces)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("one two\n\nthree four five", ["one two", "three four five"]),
        ("one two three\nfour five", ["one two three", "four five"]),
        ("One two. Three four", ["One two.", "Three four"]),
        ("one two three four", ["one two three", "four"]),
        ("a " + "b" * 18, ["a", "b" * 16, "b" * 2]),
        ("- one two three\n  - four", ["- one two three", "  - four"]),
    ],
)
def test_it_cuts_at_paragraphs_then_lines_then_sentences_then_words(text: str, pieces: list[str]) -> None:
    assert split_markdown(text, 16) == pieces


@pytest.mark.parametrize("text", ["", " ", "\n\n\t \u3000", " " * 5000, "\x00\n\x01"])
def test_blank_text_gives_no_piece(text: str) -> None:
    assert split_markdown(text, 100) == []


def test_what_fits_is_left_as_it_is() -> None:
    assert split_markdown("  *a*\n\n```\nb", 2000) == ["  *a*\n\n```\nb"]


def test_a_cluster_longer_than_a_piece_is_cut_all_the_same() -> None:
    pieces = split_markdown("e" + "\u0301" * 100, 30)

    assert [len(piece) for piece in pieces] == [30, 30, 30, 11]


def test_a_limit_that_holds_no_character_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        split_markdown("text", 1)


LONG = {
    "one word": "x" * 100_000,
    "families": FAMILY * 20_000,
    "flags": FLAG * 50_000,
    "marks": "e" + "\u0301" * 100_000,
    "blanks": " " * 100_000 + "x",
    "fences": "```\n" * 25_000,
    "one fence": "```\n" + "y" * 100_000,
    "quotes": "> " * 50_000,
    "sentences": "word. " * 16_000,
    "items": "1. " * 33_000,
    "blank code": "```py\n" + " " * 100_000 + "z",
    "many pieces": "line of text\n\n```\ncode\n```\n" * 4_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_texts_are_quick(text: str) -> None:
    began = time.process_time()

    split_markdown(text, 2000, measure=utf16_len)

    assert time.process_time() - began < 2.0
