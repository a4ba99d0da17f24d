"""Why a letter is parked: a class for whoever compares, a cause for the operator, a sentence for the chat."""

from __future__ import annotations

import pytest

from gateway.dispatch.policy import (
    FENCED_TRIES,
    MAX_CAUSE_CHARS,
    UNANSWERED,
    Outage,
    broken,
    cause_of,
    park_verdict,
    wait_words,
)
from gateway.queue.retry import back_off_s
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelAway,
    ModelError,
    ModelRefused,
    RoundsExhausted,
    SessionError,
    StoreError,
    TurnTimeout,
)


def briefed(error: ModelError, brief: str) -> ModelError:
    error.brief = brief
    return error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            briefed(
                ModelRefused("x: no model 'y' for 'my message'", hint="check model.name"), "x: status 404"
            ),
            "refused: x: status 404; check model.name",
        ),
        (briefed(ModelRefused("x: my message is rude"), "x: status 422"), "refused: x: status 422"),
        (BadAnswer("the model answered nothing"), "bad_answer: the model answered nothing"),
        (TurnTimeout("the turn ran over 5 s"), "timeout: the turn ran over 5 s"),
        (ContextTooLong("9 > 8"), f"{ContextTooLong.reason}: 9 > 8"),
        (StoreError("http://me:secret@host\nis away"), "failed: http://host is away"),
    ],
)
def test_the_cause_stands_behind_the_class(error: SessionError, shown: str) -> None:
    """On one line, with the cure, and never in the provider's words, which may quote the message."""
    assert park_verdict(error).shown == shown


def test_a_long_cause_is_cut_and_keeps_its_cure() -> None:
    """A header of the queue stays short, whatever came back."""
    shown = park_verdict(BadAnswer("x" * 10_000, hint="a cure")).shown

    assert len(shown) < MAX_CAUSE_CHARS + 30
    assert shown.endswith("…; a cure")


def test_too_many_tool_rounds_have_a_sentence_of_their_own() -> None:
    """The chat is not told that the answer was of no use: there was none."""
    tools, useless = park_verdict(RoundsExhausted("tools")), park_verdict(BadAnswer("nothing"))

    assert tools.reason == useless.reason == "bad_answer"
    assert "limit of tool calls" in tools.said
    assert "no usable answer" in useless.said


def test_who_is_fenced_waits_twice_as_long_each_time_up_to_a_minute() -> None:
    """Over a minute and a half in all: a daemon that lost its letters hears of it before."""
    assert [back_off_s(tries, first_s=0.05) for tries in (0, 1, 2, 3, 11)] == [0.05, 0.05, 0.1, 0.2, 51.2]
    assert [back_off_s(tries, first_s=0.05) for tries in (12, 13, 10_000)] == [60.0] * 3
    assert 90 < sum(back_off_s(tries, first_s=0.05) for tries in range(1, FENCED_TRIES)) < 110


@pytest.mark.parametrize(("length", "cut"), [(200, "x" * 200), (201, "x" * 199 + "…")])
def test_a_cause_has_200_characters_at_most(length: int, cut: str) -> None:
    assert cause_of(BadAnswer("x" * length)) == cut


def test_the_chat_is_told_the_error_s_own_sentence_where_it_has_one() -> None:
    """Of all that is no fault of the model it hears that there is no answer."""
    assert park_verdict(StoreError("the disk")).said.startswith(UNANSWERED)
    for error in (TurnTimeout("5 s"), BadAnswer("nothing")):
        assert park_verdict(error).said.startswith(error.said)
        assert error.said != UNANSWERED


def test_why_a_letter_cannot_be_read_names_no_word_of_it() -> None:
    assert str(broken(KeyError("my message"))) == "reading it failed: KeyError"


def test_who_waits_is_told_for_what() -> None:
    """The cause is for those alone who may hear it."""
    away = ModelAway("no route to host", cause="quota")

    assert wait_words(away) == ("model_away", away.said)
    assert wait_words(away, named=True) == ("model_away", away.said_with_cause)
    assert away.said != away.said_with_cause
    name, said = wait_words(StoreError("full"))
    assert (name, "its disk" in said) == ("storage", True)


async def test_an_outage_begins_with_its_first_failure_and_wakes_all_when_it_ends() -> None:
    """What failed last is shown; a call that succeeds without an outage wakes nobody."""
    outage = Outage()
    first = ModelAway("one", cause="unreachable", hint="a cure")
    second = ModelAway("two", cause="quota", hint="another")
    waiting = outage.over
    outage.ended()
    assert outage.over is waiting

    outage.met(first, 5.0)
    outage.met(second, 7.0)
    assert (outage.since, outage.error, outage.hint, outage.cause) == (5.0, "two", "another", "quota")
    assert not waiting.is_set()
    outage.ended()
    assert waiting.is_set()
    assert not outage.over.is_set()
    assert (outage.since, outage.error, outage.hint, outage.cause) == (None, "", "", "")
    outage.met(first, 9.0)
    assert outage.since == 9.0


def test_a_provider_that_asks_for_no_wait_is_asked_ever_more_rarely() -> None:
    """Some send ``Retry-After: 0``, or a date that is over, and refuse the next try as well."""
    waits = [back_off_s(tries, after_s=0.0) for tries in (1, 8, 10, 14, 99)]

    assert waits == [0.05, 1.0, 4.0, 60.0, 60.0]
    assert back_off_s(3, after_s=7.0) == 7.0


def test_a_wait_that_the_provider_asked_for_is_never_shortened() -> None:
    """Ours is spread below and ends at a minute, the provider's above, however long it is."""
    assert [back_off_s(tries, spread=1) for tries in (1, 4, 99)] == [0.8, 6.4, 48.0]
    assert [back_off_s(9, after_s=after_s, spread=1) for after_s in (2.0, 600.0)] == [2.2, 605.0]
    assert back_off_s(9, after_s=600.0) == 600.0
