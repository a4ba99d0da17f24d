"""Words as the index has them, and the order of what they find; pure, but for one index."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.recall.finding import Question, find
from session.recall.index import Kind, Piece, Source, WordIndex
from session.recall.ranking import Traits, rank
from session.recall.reading import of_line, of_notes
from session.recall.words import Sieve, days, names, terms


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("What is the NAME of Ada's boat?", ["name", "ada", "boat"]),
        ("who is it?", ["who", "is", "it"]),
        ("boat, boat; boat!", ["boat"]),
        ("don’t they've", ["don", "they", "ve"]),
        ("O'Brien’s", ["brien"]),
        ("vitamin d'", ["vitamin", "d"]),
        ("jusqu'à l'ÉCOLE", ["jusqu", "école"]),
        ("Gie\u00dfen GRÖ\u1e9eE", ["gießen", "größe"]),
        ("İstanbul", ["istanbul"]),
        ("ho\u0302tel", ["hôtel"]),
        ("我的狗", ["我的", "的狗"]),
        ("on 2026-03-09 at 10:30", ["2026-03-09", "10:30"]),
        ("狗 a1", ["狗", "a1"]),
        ("…", []),
    ],
)
def test_a_question_is_its_telling_words(question: str, wanted: list[str]) -> None:
    assert terms(question) == wanted


def test_a_long_question_is_cut() -> None:
    """So that no question costs more than another."""
    assert len(terms(" ".join(f"w{number}" for number in range(10_000)))) == 24
    assert len(days(" ".join(f"{number}-01" for number in range(1000, 9999)))) == 24


def test_a_name_is_written_as_one_and_does_not_begin_the_question() -> None:
    assert names("Where did Ada's sister and Bo go?") == {"ada", "bo"}


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("2026-03-09 or 2026-4", ["2026-03-09", "2026-04-__"]),
        ("on 9 March 2026, or May 1st?", ["2026-03-09", "____-05-01"]),
        ("in august, Sept 2025 and 2024", ["____-08-__", "2025-09-__", "2024-__-__"]),
        ("am 9.3.2026 und am 10.4. dort", ["2026-03-09", "____-04-10"]),
        ("2026年3月9日、１２月", ["2026-03-09", "____-12-__"]),
        ("2026년 3월 9일", ["2026-03-09"]),
        ("May April march to Python 3.11.2 at 10.0.0.1?", []),
    ],
)
def test_a_date_in_a_question_is_a_pattern_of_days(question: str, named: list[str]) -> None:
    assert days(question) == named


def test_a_word_counts_for_what_stands_beside_it_too() -> None:
    """An answer goes before a message alone; what is further away than two does not count."""
    one = Traits(group=1)
    scores = [{10: 2.0, 20: 2.0}, {11: 2.0}, {24: 2.0}]

    ranked = [row for row, _ in rank(scores, {10: one, 11: one, 20: Traits(group=2), 24: Traits(group=2)})]

    assert ranked[0] in (10, 11)
    assert ranked.index(20) > ranked.index(10)


def test_a_named_speaker_goes_first_and_a_short_question_last() -> None:
    scores = [{10: 2.0, 20: 2.0, 30: 2.0}]
    traits = {
        10: Traits(group=1, speaker=2, question=True),
        20: Traits(group=2, speaker=2),
        30: Traits(group=3, speaker=3),
    }

    assert [row for row, _ in rank(scores, traits, {3})] == [30, 20, 10]
    assert [row for row, _ in rank(scores, traits, {2, 3})] == [30, 20, 10]


def test_in_a_big_index_a_common_word_counts_beside_a_rare_one(tmp_path: Path) -> None:
    """Of thousands that hold one those with both come first; a common word alone finds the newest."""
    index = WordIndex(tmp_path / "x.db")
    file = tmp_path / "t.jsonl"
    said = [f"{('common', 'usual', 'other', 'more')[number % 4]} {number}" for number in range(4000)]
    said[4], said[900] = "common swordfish 4", "common swordfish 900"
    said[2001] = "swordfish alone 2001"
    lines = [b'{"role":"user","content":"%s"}' % text.encode() for text in said]
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    pieces, at = [], 0
    for number, raw in enumerate(lines):
        piece = of_line(raw, number, at)
        assert isinstance(piece, Piece)
        pieces.append(piece)
        at += len(raw) + 1
    source = index.begin(Source(0, "message", "k", "k", "s", str(file)))
    assert source is not None
    after = Source(source.id, "message", "k", "k", "s", str(file), lines=4000, rows=4000)
    assert index.add(source, after, pieces)
    assert not index.add(source, after, pieces), "it was taken in already"

    both = [each.hit.text for each in find(index, Question("common swordfish", "k", 3))]
    newest = [each.hit.seq for each in find(index, Question("common", "k", 5))]
    index.close()

    assert set(both[:2]) == {"common swordfish 4", "common swordfish 900"}
    assert both[2] == "swordfish alone 2001"
    assert all(seq is not None and seq > 900 for seq in newest)


PARAGRAPH = re.compile(rb"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*")
LINE = re.compile(rb"[^\n]*\S[^\n]*")
NOTES = st.lists(st.sampled_from(["a", "b c", "#", "\n", "\n\n", " ", "\t", "\r\n", "\x0b", "é"])).map(
    "".join
)


def of(notes: str, kind: Kind) -> list[tuple[int, int, int]]:
    return [(piece.seq, piece.at, piece.size) for piece in of_notes(notes.encode(), kind)]


@given(NOTES)
def test_each_line_has_its_number_and_its_place(notes: str) -> None:
    data = notes.encode()
    found = [each for each in LINE.finditer(data) if not each[0].strip().startswith(b"#")]

    assert of(notes, "memory") == [
        (data.count(b"\n", 0, each.start()) + 1, each.start(), len(each[0])) for each in found
    ]


@given(NOTES)
def test_each_paragraph_is_a_piece(notes: str) -> None:
    found = [each for each in PARAGRAPH.finditer(notes.encode()) if not each[0].strip().startswith(b"#")]

    assert of(notes, "history") == [
        (number, each.start(), len(each[0])) for number, each in enumerate(found, 1)
    ]


def test_a_line_of_spaces_is_looked_at_once() -> None:
    """From each of its characters on it would take an hour, in which no chat is answered."""
    for kind in ("memory", "history", "fact"):
        assert of_notes(b" " * 1_000_000 + b"\n", kind) == []


def line(text: str, *, raw: bool = True) -> bytes:
    return json.dumps({"role": "user", "content": text}, ensure_ascii=not raw).encode()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("delivery", "About the DELIVERIES of May"),
        ("Where did he go?", "he went home"),
        ("cafe", "im Café"),
        ("café", "the cafe"),
        ("Straße", "STRASSE"),
        ("東京", "東京へ"),
        ("привет", "Привет!"),
        ("x", "an x here"),
    ],
)
def test_what_may_be_found_passes(question: str, text: str) -> None:
    assert Sieve(question).may_hold(line(text))


def test_what_cannot_be_found_is_held_back() -> None:
    """A writer that escapes what is not ASCII hides a word from its bytes, and a question without it all."""
    assert not Sieve("delivery").may_hold(line("nothing of the kind"))
    assert not Sieve("delivery").may_hold(line("schön"))
    assert Sieve("schoen").may_hold(line("schön", raw=False))
    assert (Sieve("東京").lets_all_pass, Sieve("tokyo").lets_all_pass) == (True, False)


@pytest.mark.parametrize("question", ["on March 9th", "in March", "2026-03", "3月9日"])
def test_what_was_said_on_the_day_of_the_question_passes(question: str) -> None:
    """Though it holds no word of it; another month does not where the question has no word but these."""
    assert Sieve(question).may_hold(b'{"content":"yes","timestamp":"2026-03-09T10:00:00"}')
    assert not Sieve("in March").may_hold(b'{"content":"yes","timestamp":"2026-04-09T10:00:00"}')
