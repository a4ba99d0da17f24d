"""Where each id begins, of which the index keeps the newest by their text and the others by a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from session.transcript import index as index_module
from session.transcript.index import Index
from session.transcript.line import encode
from session.transcript.transcript import make_line

AT = datetime(2026, 1, 2, tzinfo=UTC)
# Two words with one CRC-32.
ALIKE = ("plumless", "buckeroo")


def _indexed(lines: Sequence[dict[str, Any]]) -> Index:
    messages: list[bytes] = []
    index = Index(messages)
    for at, line in enumerate(lines):
        messages.append(encode(line))
        index.add(at, line)
    return index


def _turn(id_: str) -> list[dict[str, Any]]:
    return [
        make_line("user", "x", AT, message_id=id_),
        make_line("assistant", "y", AT, message_id=id_, final=True),
    ]


def _begins(lines: Sequence[dict[str, Any]], id_: str) -> int | None:
    """Say where the id begins by the definition: at its newest user line, else at its first."""
    own = [at for at, line in enumerate(lines) if line["message_id"] == id_]
    asked = [at for at in own if lines[at]["role"] == "user"]
    return asked[-1] if asked else own[0] if own else None


@pytest.mark.parametrize("seed", range(20))
def test_each_id_is_found_where_it_begins(seed: int) -> None:
    """Ids come again long after they were folded, as an answer or anew, and two share a checksum."""
    chance = Random(seed)
    ids = [*map(str, range(90)), *ALIKE]
    said = [(chance.choice(["user", "assistant"]), chance.choice(ids)) for _ in range(60 * (1 + seed % 5))]
    lines = [make_line(role, "x", AT, message_id=id_) for role, id_ in said]
    index = _indexed(lines)

    for id_ in (*ids, "another"):
        found = index.find(id_)
        assert (None if found is None else found.start) == _begins(lines, id_)


def test_ids_of_one_checksum_are_told_apart_long_after() -> None:
    assert zlib.crc32(ALIKE[0].encode()) == zlib.crc32(ALIKE[1].encode())
    lines = [*_turn(ALIKE[0]), *(line for number in range(100) for line in _turn(str(number)))]
    index = _indexed(lines)

    assert index.find(ALIKE[1]) is None
    assert (found := index.find(ALIKE[0])) is not None
    assert (found.start, found.stop, found.final, found.tail) == (0, 2, 1, False)


@pytest.mark.parametrize("turns", [100, 3_000])
def test_an_id_that_is_not_new_takes_few_bytes(turns: int) -> None:
    """By its text it takes some 130: a cache of chats would be index for a third."""
    index = _indexed([line for number in range(turns) for line in _turn(f"telegram:4711:{number}")])

    # 8 for where it begins and 4 for its answer, and up to a fifth of them by text.
    assert index.weight / turns < 50


def test_keeping_it_so_costs_each_id_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the transcript is: sorted anew for each few ids, 10,000 would cost 300 times as much."""
    sorted_again = 0
    merged = index_module._merged

    def counted(*args: Any) -> Any:
        nonlocal sorted_again
        whole = merged(*args)
        sorted_again += len(whole)
        return whole

    monkeypatch.setattr(index_module, "_merged", counted)
    turns = 10_000
    _indexed([line for number in range(turns) for line in _turn(str(number))])

    assert turns < sorted_again < 8 * turns
