"""What the checker of chaos says of a chat platform: sound records pass, each broken once is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.pieces import told
from tests.chaos.records import Call, Harm, Message, Parked, Records, Sent, Update
from tests.chaos.stub_model import words_for

EVE = [
    Message("eve-00001", "eve", "long", "eve-00001 tell [[long:2]]"),
    Message("eve-00002", "eve", "new", "/new"),
    Message("eve-00003", "eve", "plain", "eve-00003 hello"),
]
FINN = [Message("finn-00004", "finn", "plain", "finn-00004 hello")]
LONG = words_for(EVE[0].text, 1).split("\n\n", 2)


def sound() -> Records:
    """Nothing is broken: the second piece came again, since its sender was killed behind it."""
    written = {message.id: message.text for message in (*EVE, *FINN)}
    turns = {
        "eve-00001": ("\n\n".join(LONG), 1),
        "eve-00003": ("stub: eve-00003 hello (#2)", 2),
        "finn-00004": ("stub: finn-00004 hello (#3)", 3),
    }
    lines: dict[str, list[dict[str, Any]]] = {
        one: [
            {"role": "user", "content": written[one], "message_id": one},
            {"role": "assistant", "content": text, "message_id": one, "final": True},
        ]
        for one, (text, _) in turns.items()
    }
    records = Records(
        sent={"eve": list(EVE), "finn": list(FINN)},
        harms=[Harm("kill", "a0.1", 3.5, 3.6, "sent.before")],
        calls=[
            Call(number, "d0.1", one, 0, float(number), frozenset({one}), "answered")
            for one, (_, number) in turns.items()
        ],
        lines={"eve": [lines["eve-00001"], lines["eve-00003"]], "finn": [lines["finn-00004"]]},
        ordered=frozenset({"eve", "finn"}),
        daemons=3,
        updates=[
            Update(message.id, 0.5, [("a0.1", 1.0)], 2.0) for messages in (EVE, FINN) for message in messages
        ],
        sent_pieces=[
            Sent("eve", "eve-00001", "a0.1", LONG[0], 2.0),
            Sent("eve", "", "a0.1", LONG[1], 3.0),
            Sent("eve", "", "a0.2", LONG[1], 4.0),
            Sent("finn", "finn-00004", "a0.2", "stub: finn-00004 hello (#3)", 4.5),
            Sent("eve", "", "a0.2", LONG[2], 5.0),
            Sent("eve", "eve-00002", "a0.2", "A new session begins.", 6.0),
            Sent("eve", "eve-00003", "a0.2", "stub: eve-00003 hello (#2)", 7.0),
        ],
    )
    return put_together(records)


def put_together(records: Records) -> Records:
    records.replies = told(records.sent_pieces, {message.id: message for message in records.messages})
    return records


def test_pieces_are_one_reply_and_a_repeat_has_its_cause() -> None:
    records = sound()
    account = check(records)

    assert [reply.text for reply in records.replies if reply.message == "eve-00001"] == ["\n\n".join(LONG)]
    assert account.broken == []
    assert [(each.what, each.message, each.life, each.cause) for each in account.repeats] == [
        ("piece", "eve-00001", "a0.1", "kill")
    ]
    assert account.pieces == 7


def unanswered(records: Records) -> None:
    records.sent_pieces = [each for each in records.sent_pieces if each.answers != "eve-00003"]


def set_aside(reason: str) -> Callable[[Records], None]:
    def spoil(records: Records) -> None:
        unanswered(records)
        records.unsent.append(Parked("eve-00003", reason, inbound=False))

    return spoil


def piece(at: int, **fields: Any) -> Callable[[Records], object]:
    return lambda records: records.sent_pieces.__setitem__(at, replace(records.sent_pieces[at], **fields))


def more(text: str, answers: str = "") -> Callable[[Records], object]:
    return lambda records: records.sent_pieces.append(Sent("eve", answers, "a0.2", text, 8.0))


def swapped(records: Records) -> None:
    sent = records.sent_pieces
    sent[2], sent[4] = sent[4], sent[2]


BROKEN: dict[str, dict[str, Callable[[Records], object]]] = {
    "G1": {
        "never handed out": lambda records: records.updates[0].handed.clear(),
        "not confirmed": lambda records: setattr(records.updates[0], "confirmed", 0.0),
        "confirmed and lost": unanswered,
    },
    "G2": {
        "pieces": swapped,
        "replies": lambda records: records.sent_pieces.insert(0, records.sent_pieces.pop()),
    },
    "G3": {
        "piece lost": lambda records: records.sent_pieces.pop(4),
        "again without a fault": lambda records: records.harms.clear(),
        "again by the kill of another": lambda records: setattr(records.harms[0], "life", "d0.1"),
        "again for a cut from the broker": lambda records: setattr(records.harms[0], "kind", "cut"),
        "in two wordings": more("stub: eve-00003 hello (#9)", "eve-00003"),
    },
    "G6": {
        "to another chat": piece(-1, chat="finn"),
        "to nobody": more("hello"),
        "mixed": piece(3, text="stub: finn-00004 hello (#3) eve-00001"),
    },
    "G7": {
        "set aside without a cause": set_aside("unknown"),
        "set aside as refused": lambda records: (
            set_aside("refused: no")(records),
            records.harms.extend(records.harms * 2),
        ),
    },
}


@pytest.mark.parametrize(
    ("name", "spoil"),
    [pytest.param(name, spoil, id=what) for name, each in BROKEN.items() for what, spoil in each.items()],
)
def test_a_promise_that_is_broken_once_is_found(name: str, spoil: Callable[[Records], object]) -> None:
    records = sound()

    spoil(records)
    put_together(records)

    assert any(found.startswith(f"{name} ") for found in check(records).broken)


def test_a_stop_that_overtook_its_letter_is_answered_without_its_number() -> None:
    """It is the first of its chat that has no other answer; a further such answer is its repeat."""
    records = sound()
    for number, answers in ((5, ""), (6, "eve-00006")):
        message = Message(f"eve-{number:05d}", "eve", "stop", "/stop")
        records.sent["eve"].append(message)
        records.updates.append(Update(message.id, 7.0, [("a0.2", 7.5)], 7.6))
        records.sent_pieces.append(Sent("eve", answers, "a0.2", "Stopped.", 8.0))

    assert check(put_together(records)).broken == []
    assert [reply.message for reply in records.replies][-2:] == ["eve-00005", "eve-00006"]
    records.sent_pieces.append(Sent("eve", "", "a0.2", "Stopped.", 9.0))
    assert any("a piece for eve-00005 came again" in found for found in check(records).broken)


@pytest.mark.parametrize(
    ("word", "fine"),
    [
        ("50 messages of this chat are waiting. All will be answered, one after the other.", True),
        ("Your message is saved, but the gateway cannot write to its disk. It will be answered later.", True),
        ("Another session begins.", False),
    ],
)
def test_a_command_is_told_that_it_waits_and_then_its_one_answer(word: str, fine: bool) -> None:
    records = sound()
    records.sent_pieces.insert(5, Sent("eve", "eve-00002", "a0.2", word, 5.5))

    assert (check(put_together(records)).broken == []) == fine


def test_of_an_answer_whose_rest_was_set_aside_the_beginning_was_told() -> None:
    records = sound()
    del records.sent_pieces[4]
    records.harms.append(Harm("platform cut", "a0.2", 8.0, 8.1))
    records.unsent.append(Parked("eve-00001", "unknown", inbound=False))

    assert check(put_together(records)).broken == []
    records.sent_pieces[1] = replace(records.sent_pieces[1], text=LONG[2])
    assert any(found.startswith("G3 eve-00001: stored") for found in check(put_together(records)).broken)


def test_what_may_have_been_sent_is_set_aside_after_tries_without_an_outcome() -> None:
    """… each of which a fault explains; its chat has no answer then, and its operator the letter."""
    records = sound()
    unanswered(records)
    records.harms += [Harm("kill", "a0.3", 7.0, 7.1), Harm("platform cut", "a0.4", 8.0, 8.1)]
    records.unsent.append(Parked("eve-00003", "unknown", inbound=False))

    assert check(put_together(records)).broken == []
