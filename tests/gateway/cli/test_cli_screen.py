"""A terminal shows each text once and under its own question, over crashes and late answers."""

from __future__ import annotations

import pytest

from gateway.cli.screen import Screen
from gateway.dispatch.events import Event
from gateway.service.outcome import Outcome


def event(kind: str, text: str = "", message: str | None = "web:1", id: str = "") -> Event:
    return Event(
        id=id or f"{message}#{kind}",
        key="web:a",
        in_reply_to=message,
        kind=kind,
        seq=0,
        text=text,
    )


def play(screen: Screen, *steps: Event) -> None:
    for step in steps:
        screen.see(step)


@pytest.mark.parametrize(
    "again",
    [
        [event("started"), event("delta", "one "), event("delta", "two "), event("delta", "three")],
        [event("draft", "one two "), event("delta", "three")],
        [event("draft", "one"), event("delta", " two three")],
        [event("started")],
        [],
    ],
)
def test_an_answer_that_is_written_anew_is_shown_once(
    again: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill the pieces come again from the start, or from a text so far: what is shown stays."""
    screen = Screen()
    screen.begin("web:1", "count")
    play(screen, event("started"), event("delta", "one "), event("delta", "two"), *again)
    screen.end(Outcome("reply", "one two three"))

    assert capsys.readouterr().out == "one two three\n"


def test_another_answer_than_the_one_begun_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that begins differently after the kill is shown from its beginning, and only once."""
    screen = Screen()
    screen.begin("web:1", "count")
    play(screen, event("started"), event("delta", "one tw"), event("started"), event("delta", "1, "))
    play(screen, event("delta", "2"))
    screen.end(Outcome("reply", "1, 2"))

    assert capsys.readouterr().out == "one tw\n[starting over]\n1, 2\n"


def test_a_line_in_between_does_not_repeat_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer goes on below the line; what follows a tool is another text."""
    screen = Screen()
    screen.begin("web:1", "count")
    play(screen, event("started"), event("delta", "let me"), event("tool", "grep"), event("delta", "one "))
    play(screen, event("notice", "slow", "web:1", "web:1#notice.busy"), event("delta", "two"))
    screen.end(Outcome("reply", "one two"))

    assert capsys.readouterr().out == "let me\n[grep]\none \n! slow\ntwo\n"


def test_a_late_answer_names_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that comes under a later question says what it answers."""
    screen = Screen()
    screen.begin("web:1", "what is\nthe longest river of all the rivers of the world?")
    screen.give_up()
    screen.begin("web:2", "and the highest mountain?")
    play(screen, event("reply", "the Nile", "web:1"), event("reply", "four", "web:9"))
    screen.end(Outcome("reply", "Everest"))
    play(screen, event("reply", "again", "web:9"), event("reply", "proactive", None))

    assert capsys.readouterr().out.splitlines() == [
        "(to “what is the longest river of all the rivers of the…”) the Nile",
        "(to another message) four",
        "Everest",
        "again",
        "proactive",
    ]


def test_a_stopped_answer_keeps_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The notice comes below what was written."""
    screen = Screen()
    screen.begin("web:1", "count")
    play(screen, event("started"), event("delta", "one \x1b[2J"))
    screen.end(Outcome("notice", "Stopped."))

    assert capsys.readouterr().out == "one \ufffd[2J\n! Stopped.\n"
