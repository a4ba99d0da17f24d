"""What is withdrawn: the last exchange that is still sent, each once, and found again by its command."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from session.transcript.history import last_exchange, questions, text_of, withdrawn_by
from session.transcript.index import Index


def raw(*lines: dict[str, Any]) -> tuple[list[bytes], list[int]]:
    messages = [orjson.dumps({"content": "", **line}) for line in lines]
    records = [at for at, line in enumerate(lines) if line["role"] == "system" and "kind" in line]
    return messages, records


def user(text: str, id_: str = "") -> dict[str, Any]:
    return {"role": "user", "content": text, "message_id": id_ or text}


ANSWER = {"role": "assistant", "content": "a", "final": True}
TOOLS = [{"role": "assistant", "tool_calls": [{"id": "c"}]}, {"role": "tool", "tool_call_id": "c"}]


def undo(since: int, by: str = "") -> dict[str, Any]:
    return {"role": "system", "kind": "undo", "from": since, "message_id": by}


def gone(id_: str) -> dict[str, Any]:
    return {"role": "system", "kind": "note", "edits": id_, "deleted": True}


def part(text: str, of: str) -> dict[str, Any]:
    return {**user(text), "part_of": of}


BOTH = {**ANSWER, "answers": ["b", "c"]}
OVERLAY = {"role": "system", "kind": "overlay", "first_kept": 2}
CASES: list[tuple[list[dict[str, Any]], int, int | None]] = [
    ([], 0, None),
    ([user("a"), ANSWER, user("b"), *TOOLS, ANSWER], 0, 2),
    ([user("a"), ANSWER, user("b")], 0, 2),
    ([user("a"), ANSWER, user("b"), ANSWER, undo(2)], 0, 0),
    ([user("a"), ANSWER, user("b"), ANSWER, undo(2), undo(0)], 0, None),
    ([user("a"), ANSWER, undo(0), user("b"), ANSWER, undo(3)], 0, None),
    ([user("a"), ANSWER, user("b"), *TOOLS, ANSWER], 4, 2),
    ([user("a"), ANSWER, user("b"), ANSWER], 4, None),
    ([user("a"), ANSWER, user("b"), ANSWER, OVERLAY], 0, 2),
    ([user("a"), ANSWER, user("b"), ANSWER, OVERLAY, undo(2)], 0, None),
    ([user("a"), ANSWER, *TOOLS, {**OVERLAY, "first_kept": 2}], 0, None),
    ([user("a"), ANSWER, user("b"), user("c"), {**ANSWER, "answers": ["b", "c"]}], 0, 2),
    ([user("a"), ANSWER, user("b"), user("c"), ANSWER], 0, 3),
    ([user("a"), ANSWER, user("b"), part("c", "b"), BOTH], 0, 2),
    ([user("a"), ANSWER, user("b"), *TOOLS, part("c", "b"), BOTH], 0, 2),
    ([user("a"), ANSWER, user("b"), ANSWER, gone("b")], 0, 0),
    ([user("a"), ANSWER, user("b"), part("c", "b"), BOTH, gone("b")], 0, 2),
    ([user("a"), ANSWER, {"role": "system", "content": "of another program"}], 0, 0),
    ([user("a"), ANSWER, undo(99), undo(-1)], 0, 0),
]


@pytest.mark.parametrize(("lines", "history_start", "expected"), CASES)
def test_the_last_exchange(lines: list[dict[str, Any]], history_start: int, expected: int | None) -> None:
    messages, records = raw(*lines)

    assert last_exchange(messages, records, history_start=history_start) == expected


def test_a_command_finds_what_it_withdrew() -> None:
    messages, records = raw(user("a"), ANSWER, user("b"), ANSWER, undo(2, "one"), undo(0, "two"))

    assert withdrawn_by(messages, records, "one") == 2
    assert withdrawn_by(messages, records, "two") == 0
    assert withdrawn_by(messages, records, "three") is None


def test_the_questions_of_an_exchange() -> None:
    """All that one answer serves, none beyond it, also where nothing answers."""
    answered, _ = raw(user("a"), user("b"), ANSWER, user("c"))
    open_end, _ = raw(user("a"), undo(0, "x"), user("a", "x"))

    assert text_of(questions(answered, 0)) == "a\n\nb"
    assert text_of(questions(open_end, 0)) == "a"


def test_a_withdrawn_exchange_is_found_but_goes_on_no_more() -> None:
    """Its answer is known for a repeat; a turn that was left half done begins anew at the end."""
    messages, _ = raw(user("a"), ANSWER | {"message_id": "a"}, user("b"), undo(2), undo(0))
    index = Index(messages)
    for at, line in enumerate(messages):
        index.add(at, orjson.loads(line))

    assert (whole := index.find("a")) is not None
    assert (half := index.find("b")) is not None
    assert (whole.final, half.final, half.tail) == (1, None, False)


def test_the_questions_of_a_turn_that_others_entered() -> None:
    """All of them, but for what was deleted since."""
    steered, _ = raw(user("a"), *TOOLS, part("b", "a"), ANSWER, user("c"))
    thinned, _ = raw(user("a"), part("b", "a"), ANSWER, gone("b"))

    assert text_of(questions(steered, 0)) == "a\n\nb"
    assert text_of(questions(thinned, 0)) == "a"


def test_what_was_stopped_for_the_next_message_is_of_its_exchange() -> None:
    """Its answer serves both, whatever the turn that was stopped had done; none that was not answered so."""
    first = {"message_id": "a"}
    stopped = first | {"role": "assistant", "content": "", "stopped": True, "interrupted": True}
    begun = [user("a"), *(first | line for line in TOOLS), stopped]
    messages, records = raw(user("z"), ANSWER, *begun, user("b"), ANSWER | {"answers": ["a", "b"]})
    alone, none = raw(*begun, user("b"), ANSWER | {"message_id": "b"})

    assert last_exchange(messages, records, history_start=0) == 2
    assert text_of(questions(messages, 2)) == "a\n\nb"
    assert last_exchange(alone, none, history_start=0) == len(begun)


WRONG: list[Any] = [["a"], {"a": 1}, 7, None]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_id_of_a_wrong_type_is_none(wrong: Any) -> None:
    """Of a message, of one that was deleted, of one that is answered as well: nothing else is withdrawn."""
    odd = {"role": "user", "content": "odd", "message_id": wrong}
    messages, records = raw(user("a"), ANSWER, gone("a"), {**gone("a"), "edits": wrong}, odd, ANSWER)
    both, _ = raw(user("a"), ANSWER, odd, user("c"), {**ANSWER, "answers": ["c", wrong]})

    assert last_exchange(messages, records, history_start=0) == 4
    assert last_exchange(both, [], history_start=0) == 3
    assert text_of(questions(messages, 4)) == "odd"
    assert text_of(questions(messages, 0)) == ""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_message_without_an_id_is_in_no_turn_of_another(wrong: Any) -> None:
    """Other programs give none: what was withdrawn is not asked again with the exchange before it."""
    nobodys = [{"role": "user", "content": text, "message_id": wrong, "part_of": wrong} for text in "ab"]
    messages, _ = raw(nobodys[0], ANSWER, nobodys[1], ANSWER, undo(2), undo(0))

    assert text_of(questions(messages, 0)) == "a"
