"""Made-up records of a run of chaos in which nothing is broken, and what they are made of."""

from __future__ import annotations

from typing import Any

from tests.chaos.records import Call, Harm, Message, Parked, Records, Reply
from tests.chaos.stub_model import words_for

ANN = [
    Message("ann-00001", "ann", "plain", "ann-00001 hello"),
    Message("ann-00002", "ann", "read", 'ann-00002 look [[tool:ls {"path": "."}]]'),
    Message("ann-00003", "ann", "new", "/new"),
    Message("ann-00004", "ann", "slow", "ann-00004 slowly [[delay:1]]"),
    Message("ann-00005", "ann", "stop", "/stop"),
    Message("ann-00006", "ann", "poison", "ann-00006 refused [[refuse]]"),
    Message("ann-00007", "ann", "plain", "ann-00007 hello"),
]
BOB = [Message("bob-00008", "bob", "plain", "bob-00008 hello")]
TEXTS = {message.id: message.text for message in (*ANN, *BOB)}
TOOL = {"id": "call_2_0", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


def user(id: str) -> dict[str, Any]:
    return {"role": "user", "content": TEXTS[id], "message_id": id}


def answer(id: str, number: int, **more: Any) -> dict[str, Any]:
    text = words_for(TEXTS[id], number)
    return {"role": "assistant", "content": text, "message_id": id, "final": True, **more}


def told(id: str, number: int, at: float, kind: str = "reply") -> Reply:
    return Reply(id, id.partition("-")[0], kind, words_for(TEXTS[id], number) if number else kind, at)


def sound() -> Records:
    """Nothing is broken: the first request of ann-00001 was lost with d0.1, which was killed."""
    first = [
        user("ann-00001"),
        answer("ann-00001", 9),
        user("ann-00002"),
        {"role": "assistant", "content": None, "message_id": "ann-00002", "tool_calls": [TOOL]},
        {"role": "tool", "content": "[]", "message_id": "ann-00002", "tool_call_id": "call_2_0"},
        answer("ann-00002", 3),
    ]
    second = [
        user("ann-00004"),
        answer("ann-00004", 4, stopped=True),
        user("ann-00007"),
        answer("ann-00007", 6),
    ]
    calls = [
        Call(1, "d0.1", "ann-00001", 0, 10.0),
        Call(9, "d0.2", "ann-00001", 0, 12.0),
        Call(2, "d0.2", "ann-00002", 0, 13.0),
        Call(3, "d0.2", "ann-00002", 1, 14.0),
        Call(4, "d0.2", "ann-00004", 0, 15.0),
        Call(5, "d0.2", "ann-00006", 0, 16.0),
        Call(6, "d0.2", "ann-00007", 0, 17.0),
        Call(7, "d0.2", "bob-00008", 0, 18.0),
    ]
    for call in calls:
        call.named = frozenset({call.message})
    return Records(
        sent={"ann": list(ANN), "bob": list(BOB)},
        harms=[Harm("kill", "d0.1", 10.5, 11.0, "ask.after")],
        calls=calls,
        replies=[
            told("ann-00001", 9, 12.5),
            told("ann-00002", 3, 14.5),
            told("ann-00003", 0, 14.6),
            told("ann-00005", 0, 15.5),
            told("ann-00006", 0, 16.5, "notice"),
            told("ann-00007", 6, 17.5),
            told("bob-00008", 7, 18.5),
        ],
        parked=[Parked("ann-00006", "refused")],
        lines={"ann": [first, second], "bob": [[user("bob-00008"), answer("bob-00008", 7)]]},
        ordered=frozenset({"ann", "bob"}),
    )


def asked_again_by_the_same(records: Records) -> None:
    records.harms = [Harm("cut", "d0.1", 10.5, 10.6)]
    records.calls[1].life = "d0.1"


def poison_parked_twice(records: Records) -> None:
    records.parked *= 2
