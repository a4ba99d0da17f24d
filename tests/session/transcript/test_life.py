"""What lines and entries tell of one message: its own, those of a turn that served it, what changed it."""

from __future__ import annotations

import json
from typing import Any

from session.store.trace import Step, in_order, of_journal, of_lines
from session.transcript.line import make_line

ME, OTHER = "telegram:1:7", "telegram:1:8"


def at(second: int) -> str:
    return f"2026-03-01T10:00:{second:02d}.000000+00:00"


def line(role: str, second: int, **fields: Any) -> bytes:
    # The standard library writes numbers of any length.
    return json.dumps(make_line(role, "words", at(second), **fields), separators=(",", ":")).encode()


def told(steps: list[Step]) -> list[str]:
    return [step.step for step in in_order(steps)]


def of(*lines: bytes, message_id: str = ME) -> list[Step]:
    return of_lines(lines, message_id, session_id="S", source="transcript")


def test_what_comes_after_a_turn_is_part_of_its_life() -> None:
    """An edit, a deletion and an /undo of the message are told; another message's steps are not."""
    steps = of(
        line("user", 1, message_id=ME, received_at=at(0)),
        line(
            "assistant", 2, message_id=ME, final=True, usage={"prompt": 3, "completion": 1, "cost_usd": 0.5}
        ),
        line("user", 3, message_id=OTHER),
        line("assistant", 4, message_id=OTHER, final=True),
        line("system", 5, kind="note", edits=ME, message_id="e1"),
        line("system", 6, kind="note", edits=ME, message_id="e2", deleted=True),
        line("system", 7, kind="undo", message_id="u1", **{"from": 0}),
    )

    assert told(steps) == ["accepted", "begun", "model", "stored", "edited", "deleted", "withdrawn"]
    (model,) = [step for step in steps if step.step == "model"]
    assert model.as_dict() | {"at": ""} == {
        "at": "",
        "step": "model",
        "words": "the model answered",
        "source": "transcript",
        "prompt": 3,
        "completion": 1,
        "cost_usd": 0.5,
        "took_s": 1.0,
    }


def test_a_price_that_no_number_holds_is_told_as_none() -> None:
    usage = {"prompt": 10**400, "completion": True, "cost_usd": 10**400}
    (model,) = of(line("assistant", 2, message_id=ME, final=True, usage=usage))[:1]

    assert json.loads(json.dumps(model.as_dict())) == model.as_dict()
    assert (model.fields["prompt"], model.fields["cost_usd"]) == (0, 0.0)


def test_a_message_that_was_steered_into_a_turn_has_the_steps_from_there() -> None:
    steps = of(
        line("user", 1, message_id=OTHER),
        line("assistant", 2, message_id=OTHER, tool_calls=[{"id": "c", "function": {"name": "ls"}}]),
        line("tool", 3, message_id=OTHER, tool_call_id="c", name="ls", is_error=True),
        line("user", 4, message_id=ME, part_of=OTHER),
        line("assistant", 5, message_id=OTHER, final=True, answers=[OTHER, ME]),
    )

    assert told(steps) == ["begun", "model", "stored"]
    assert steps[0].fields["turn"] == OTHER
    assert [step.step for step in of(line("user", 1, message_id=OTHER))] == []


def test_an_interrupted_turn_says_who_answers() -> None:
    steps = of(
        line("user", 1, message_id=ME),
        line("assistant", 2, message_id=ME, stopped=True, interrupted=True, final=True),
        line("user", 3, message_id=OTHER),
        line("assistant", 4, message_id=OTHER, final=True, answers=[ME, OTHER]),
    )

    assert told(steps) == ["begun", "stopped", "model", "stored"]
    assert steps[-1].fields["turn"] == OTHER


def test_a_message_asked_anew_after_a_split_is_told_twice() -> None:
    """The messages of a failed turn are parted: the first one's undo has no sender."""
    steps = of(
        line("user", 1, message_id=ME),
        line("user", 1, message_id=OTHER, part_of=ME),
        line("system", 2, kind="undo", **{"from": 0}),
        line("user", 3, message_id=ME),
        line("assistant", 4, message_id=ME, final=True),
    )

    assert told(steps)[-3:] == ["begun", "model", "stored"]


def test_a_journal_tells_attempts_and_ends() -> None:
    steps = of_journal(
        [
            {"at": at(1), "do": "begin", "id": ME, "held": True, "alone": False},
            {"at": at(2), "do": "strike", "id": ME},
            {"at": at(3), "do": "begin", "id": ME, "alone": True},
            {"at": at(3), "do": "begin", "id": OTHER},
            {
                "at": at(4),
                "do": "end",
                "id": ME,
                "kind": "parked",
                "reason": "attempts",
                "received_at": at(0),
            },
            {"at": at(5), "do": "unpark", "id": ME},
            {"at": at(6), "do": "ended", "session": "S", "archive": "a.jsonl", "ids": {ME: {"final": True}}},
            {"at": "never", "do": "future", "id": ME},
        ],
        ME,
    )

    assert told(steps) == ["accepted", "attempt", "put off", "attempt", "parked", "retried", "archived"]
    assert [step.fields for step in steps if step.step == "attempt"] == [{"recorded": 1}, {"recorded": 2}]
