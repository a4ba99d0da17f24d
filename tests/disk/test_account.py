"""The checker itself: what it wants of a chat that ends conversations and goes back to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.records import Message
from tests.chaos.transcripts import read_chat
from tests.disk.account import check, crashed, sessions_of


def said(*words: str) -> list[Message]:
    return [Message(f"ann-{number:05d}", "ann", word, word) for number, word in enumerate(words, 1)]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["plain", "new", "plain"], [[1], [3]]),
        (["plain", "new", "new", "plain"], [[1], [4]]),
        (["resume", "plain"], [[2]]),
        (["plain", "new", "plain", "resume", "plain"], [[1, 5], [3]]),
        # The one that was left is the newest ended one now.
        (["plain", "new", "plain", "resume", "plain", "resume", "plain"], [[1, 5], [3, 7]]),
        # One in which nothing was said leaves nothing to go back to.
        (["plain", "new", "resume", "plain", "resume", "plain"], [[1, 4, 6]]),
    ],
)
def test_the_sessions_that_commands_make(words: list[str], wanted: list[list[int]]) -> None:
    assert sessions_of(said(*words)) == [[f"ann-{number:05d}" for number in ids] for ids in wanted]


@pytest.mark.parametrize(
    ("unsent", "deaths", "broken"),
    [
        ({}, 2, ["lost: finn-00001 (stop) has no reply"]),
        ({"finn-00001": "unknown"}, 2, []),
        ({"finn-00001": "unknown"}, 1, ["illegal: the answer to finn-00001 was set aside: unknown"]),
        ({"finn-00001": "refused"}, 2, ["illegal: the answer to finn-00001 was set aside: refused"]),
    ],
)
def test_an_answer_may_be_set_aside_after_deaths_in_its_send(
    tmp_path: Path, unsent: dict[str, str], deaths: int, broken: list[str]
) -> None:
    account = check(
        tmp_path,
        sent={"finn": [Message("finn-00001", "finn", "stop", "/compact")]},
        stem=str,
        named=str,
        replies=(),
        asked=(),
        kills=[1.0] * deaths,
        unsent=unsent,
    )
    assert account.broken == broken


def test_what_is_no_line_of_a_transcript_is_found(tmp_path: Path) -> None:
    """The first line is a head, every other has a role that is known, and the last one ends."""
    lines = ['{"_type": "metadata"}', '{"role": "nobody"}', '{"role": "user", "message_id": "web:x"}', '{"ro']
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "ann.jsonl").write_text("\n".join(lines))
    illegal: list[str] = []

    assert read_chat(tmp_path, "ann", lambda one: one.removeprefix("web:"), illegal) == [
        [{"role": "user", "message_id": "x"}]
    ]
    assert illegal == ["ann.jsonl has a torn tail", 'ann.jsonl line 2: b\'{"role": "nobody"}\'']


def test_a_turn_that_crashed_is_found_in_the_log() -> None:
    log = '-- dead\n{"event":"turn.replied"}\n{"event":"turn.crashed","exception":"OSError: full"}\n'
    assert crashed(log) == ["a turn crashed: OSError: full"]
