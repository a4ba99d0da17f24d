"""The checker of chaos, on made-up records: sound ones pass, each guarantee that is broken once is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.checker import check, sessions_of
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


def test_nothing_is_found_where_nothing_is_broken() -> None:
    """… and the request that a kill repeated is told with its cause."""
    account = check(sound())

    assert account.broken == []
    assert [(each.what, each.message, each.life, each.cause) for each in account.repeats] == [
        ("request 1", "ann-00001", "d0.1", "kill")
    ]
    assert (account.messages, account.calls, account.least_calls, account.stopped) == (8, 8, 7, 1)
    assert all(each.checked for each in account.guarantees if each.name != "G4")


Spoil = Callable[[Records], object]


def unanswered(message: str) -> Spoil:
    def spoil(records: Records) -> None:
        records.replies = [reply for reply in records.replies if reply.message != message]

    return spoil


def line(chat: str, session: int, at: int, **fields: Any) -> Spoil:
    return lambda records: records.lines[chat][session][at].update(fields)


def more(chat: str, session: int, at: int, *lines: dict[str, Any]) -> Spoil:
    return lambda records: records.lines[chat][session].__setitem__(slice(at, at), lines)


def told_again(reply: Reply) -> Spoil:
    return lambda records: records.replies.append(reply)


def reply(at: int, **fields: Any) -> Spoil:
    return lambda records: records.replies.__setitem__(at, replace(records.replies[at], **fields))


def answered(text: str) -> Spoil:
    """Let the one answer of bob be this, as it is stored and as it is told."""
    return both(line("bob", 0, -1, content=text), reply(-1, text=text))


def both(*spoils: Spoil) -> Spoil:
    return lambda records: [spoil(records) for spoil in spoils]


def reordered(session: int, *places: int) -> Spoil:
    def spoil(records: Records) -> None:
        lines = records.lines["ann"][session]
        records.lines["ann"][session] = [lines[at] for at in places]

    return spoil


def again_by_the_same(records: Records) -> None:
    records.harms = [Harm("cut", "d0.1", 10.5, 10.6)]
    records.calls[1].life = "d0.1"


def without_a_fault(records: Records) -> None:
    records.replies.append(told("bob-00008", 7, 60.0))
    records.calls = [call for call in records.calls if call.n != 1]
    records.harms = [Harm("clock", "d0.2", 59.0, 59.5)]


without_its_stop = both(lambda records: records.sent["ann"].pop(4), unanswered("ann-00005"))
STOPPED = {"content": words_for(TEXTS["ann-00007"], 6), "stopped": True}
BROKEN: dict[str, dict[str, Spoil]] = {
    "G1": {
        "lost": reordered(1, 0, 1),
        "reply lost": unanswered("ann-00007"),
        "command lost": unanswered("ann-00003"),
        "told in another chat alone": reply(-1, chat="ann"),
        "stopped without a stop": without_its_stop,
        "stopped by an earlier stop": both(line("ann", 1, -1, **STOPPED), unanswered("ann-00007")),
        "two stopped by one stop": both(line("ann", 0, -1, stopped=True), unanswered("ann-00002")),
        "stopped by the stop of another chat": both(
            without_its_stop,
            lambda records: records.sent["bob"].append(Message("bob-00009", "bob", "stop", "/stop")),
            told_again(told("bob-00009", 0, 19.0)),
        ),
        "question cut": line("ann", 1, 0, content="ann-00004"),
        "question of nobody": more("bob", 0, 2, {"role": "user", "content": "hi", "message_id": "bob-00010"}),
        "letter left": lambda records: records.ended.append("2 messages stay in chaos-1.inbound.4.00"),
    },
    "G2": {
        "turns reordered": reordered(0, 2, 3, 4, 5, 0, 1),
        "sessions mixed up": lambda records: records.lines["ann"][0].extend(records.lines["ann"].pop()),
        "turns at once": reordered(0, 0, 2, 1, 3, 4, 5),
        "stray line of a turn": more(
            "ann",
            0,
            1,
            {"role": "system", "content": "", "kind": "note"},
            dict(answer("ann-00002", 0), final=0),
        ),
        "replies reordered": lambda records: records.replies.insert(0, records.replies.pop(1)),
    },
    "G3": {
        "told otherwise": told_again(Reply("ann-00001", "ann", "reply", "stub: ann-00001 hello (#1)", 12.6)),
        "stored otherwise": line("ann", 1, -1, content="something else"),
        "stopped and told": told_again(told("ann-00004", 4, 16.0)),
        "answer cut": answered("stub: bob-00008 he"),
        "answer cut within": answered("stub: bob-00008 (#7)"),
        "answer empty": answered(""),
        "answer to another call": answered("stub: bob-00008 hello (#6)"),
        "answer to an earlier request": both(
            line("ann", 0, -1, content=words_for(TEXTS["ann-00002"], 2)),
            reply(1, text=words_for(TEXTS["ann-00002"], 2)),
        ),
        "answer that was refused": lambda records: setattr(records.calls[-1], "outcome", "refused"),
        "answer to nobody": more("bob", 0, 2, dict(answer("bob-00008", 7), message_id="subagent:1")),
        "command told nothing": reply(2, text=""),
        "call without a fault": lambda records: records.harms.clear(),
        "call after its answer was stored": both(
            line("ann", 0, 1, content=words_for(TEXTS["ann-00001"], 1)),
            reply(0, text=words_for(TEXTS["ann-00001"], 1)),
        ),
        "kill of another": lambda records: setattr(records.harms[0], "life", "d1.1"),
        "kill before it asked": lambda records: records.harms.__setitem__(0, Harm("kill", "d0.1", 9.0, 9.0)),
        "reply again without a fault": without_a_fault,
        "note twice": lambda records: records.notes.append("memory/HISTORY.md: 01X goes on at 0, not 3"),
    },
    "G4": {"asked again by the same": again_by_the_same},
    "G5": {
        "answered twice": more("bob", 0, 2, answer("bob-00008", 7)),
        "asked line twice": more("bob", 0, 0, user("bob-00008")),
        "illegal line": lambda records: records.illegal.append("web_ann.jsonl has a torn tail"),
        "result missing": reordered(0, 0, 1, 2, 3, 5),
        "result twice": reordered(0, 0, 1, 2, 3, 4, 4, 5),
        "turn within a turn": both(more("ann", 0, 4, user("ann-00007")), reordered(1, 0, 1, 3)),
    },
    "G6": {
        "mixed reply": answered("stub: ann-00001 hello (#7)"),
        "reply to another chat": both(
            told_again(replace(told("bob-00008", 7, 18.6), chat="ann")),
            lambda records: records.published.update({"bob-00008": 2}),
        ),
        "notice to another chat": told_again(Reply("ann-00006", "bob", "notice", "notice", 16.5)),
        "reply to nothing": told_again(Reply("", "bob", "reply", "hello", 19.0)),
        "mixed transcript": more("bob", 0, 0, {"role": "system", "content": "ann-00001 said so"}),
        "mixed request": lambda records: setattr(records.calls[-1], "named", {"bob-00008", "ann-00001"}),
        "mixed request of the background": lambda records: records.asides.append(
            frozenset({"bob-00008", "ann-00001"})
        ),
    },
    "G7": {
        "poison not parked": lambda records: records.parked.clear(),
        "poison parked twice": lambda records: records.parked.extend(records.parked),
        "innocent parked": lambda records: records.parked.append(Parked("ann-00001", "attempts")),
        "poison answered": told_again(told("ann-00006", 5, 17.0)),
    },
}


@pytest.mark.parametrize(
    ("name", "spoil"),
    [pytest.param(name, spoil, id=what) for name, each in BROKEN.items() for what, spoil in each.items()],
)
def test_a_guarantee_that_is_broken_once_is_found(name: str, spoil: Spoil) -> None:
    records = sound()

    spoil(records)

    assert any(found.startswith(f"{name} ") for found in check(records).broken)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("plain new new plain", [[1], [4]]),
        ("resume plain", [[2]]),
        # The one that was left is the newest ended one now.
        ("plain new plain resume plain resume plain", [[1, 5], [3, 7]]),
        # One in which nothing was said leaves nothing to go back to.
        ("plain new resume plain resume plain", [[1, 4, 6]]),
    ],
)
def test_the_sessions_that_commands_make(words: str, wanted: list[list[int]]) -> None:
    said = [Message(str(number), "ann", word, word) for number, word in enumerate(words.split(), 1)]

    assert sessions_of(said) == [[str(number) for number in ids] for ids in wanted]


def harm(*about: Any) -> Spoil:
    return lambda records: records.harms.append(Harm(*about))


def only(*about: Any) -> Spoil:
    return lambda records: setattr(records, "harms", [Harm(*about)])


def call(n: int, life: str, message: str, at: float) -> Spoil:
    return lambda records: records.calls.append(Call(n, life, message, 0, at, frozenset({message})))


def three(records: Records) -> None:
    records.daemons = 3


NOTE = {"role": "system", "content": "", "kind": "note"}
TAKEN_BACK = {"role": "system", "content": "", "kind": "undo", "set_aside": "web:ann-00006"}
ASKED_ANEW = (user("ann-00006"), TAKEN_BACK | {"from": 2}, user("ann-00006"), TAKEN_BACK | {"from": 4})
AGAIN = [told_again(told("bob-00008", 7, at)) for at in (19.0, 19.5, 20.0, 60.0, 90.0)]
# What is done to sound records step by step, and what is found then: nothing, or this among it.
EXPLAINED: dict[str, list[tuple[Spoil, str]]] = {
    "poison that was set aside has no answer, and the next turn may begin": [
        (more("ann", 1, 2, user("ann-00006"), {**NOTE, "kind": "undo", "from": 2}), ""),
        (more("ann", 1, -1, NOTE), ""),
    ],
    "poison that was taken back may be asked anew": [
        (more("ann", 1, 2, *ASKED_ANEW), ""),
        (reordered(1, 0, 1, 2, 4, 5, 6, 7), "ann-00006 has 2 user lines"),
    ],
    "a frozen daemon that wakes may ask what another has answered": [
        (both(call(10, "d1.1", "bob-00008", 50.0), harm("kill", "d0.2", 18.2, 18.9), three), "#7 is stored"),
        (harm("freeze", "d1.1", 17.0, 49.9), ""),
    ],
    "a turn whose key another daemon took began again, of that message alone": [
        (both(again_by_the_same, three, harm("fenced", "d0.1", 11.0, 11.0, "ann-00002")), "G4 "),
        (harm("fenced", "d0.1", 11.0, 11.0, "ann-00001"), ""),
    ],
    "a turn that could not be ended began again, where its line had been cut": [
        (only("delayed", "d0.1", 10.1, 10.1, "ann-00001"), "G3 "),
        (harm("cut", "d0.1", -20.0, -20.0), ""),
    ],
    "a message that was put twice is answered twice": [
        (both(AGAIN[3], lambda records: records.published.update({"bob-00008": 2})), ""),
        (AGAIN[4], "came again"),
    ],
    "poison may be parked once for each time it was asked about": [
        (
            both(lambda records: records.parked.extend(records.parked), call(11, "d0.3", "ann-00006", 16.9)),
            "no fault",
        ),
        (harm("kill", "d0.2", 16.1, 16.6), ""),
    ],
    "a cut explains a request of another daemon alone": [
        (only("cut", "d0.1", 10.5, 10.5), "no fault"),
        (three, ""),
    ],
    "one harm explains two repeats of a reply": [
        (both(harm("kill", "d0.2", 18.6, 18.9), AGAIN[0], AGAIN[1]), ""),
        (AGAIN[2], "bob-00008 came again"),
    ],
}


@pytest.mark.parametrize("steps", EXPLAINED.values(), ids=EXPLAINED)
def test_what_is_explained_is_not_broken_and_the_like_of_it_is(steps: list[tuple[Spoil, str]]) -> None:
    records = sound()

    for spoil, finding in steps:
        spoil(records)
        found = check(records).broken
        assert any(finding in one for one in found) if finding else found == []
