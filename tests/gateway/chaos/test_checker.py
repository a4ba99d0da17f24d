"""The checker of chaos, on made-up records: sound ones pass, each guarantee that is broken once is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.chaos.checker import check
from gateway.chaos.records import Call, Harm, Message, Parked, Records, Reply
from gateway.chaos.stub_model import words_for

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


def lost(records: Records) -> None:
    del records.lines["ann"][1][-2:]


def reply_lost(records: Records) -> None:
    records.replies = [reply for reply in records.replies if reply.message != "ann-00007"]


def command_lost(records: Records) -> None:
    records.replies = [reply for reply in records.replies if reply.message != "ann-00003"]


def stopped_without_a_stop(records: Records) -> None:
    records.sent["ann"].pop(4)
    records.replies.pop(3)


def stopped_by_an_earlier_stop(records: Records) -> None:
    records.lines["ann"][1][-1] = answer("ann-00007", 6, stopped=True)
    records.replies.pop(5)


def stopped_by_the_stop_of_another_chat(records: Records) -> None:
    stopped_without_a_stop(records)
    records.sent["bob"].append(Message("bob-00009", "bob", "stop", "/stop"))
    records.replies.append(told("bob-00009", 0, 19.0))


def question_cut(records: Records) -> None:
    records.lines["ann"][1][0]["content"] = "ann-00004"


def question_empty(records: Records) -> None:
    records.lines["bob"][0][0]["content"] = None


def question_of_nobody(records: Records) -> None:
    records.lines["bob"][0].append({"role": "user", "content": "hello", "message_id": "bob-00010"})


def letter_left(records: Records) -> None:
    records.ended.append("2 letters stay in chaos-1.inbound.4.00")


def turns_reordered(records: Records) -> None:
    first = records.lines["ann"][0]
    records.lines["ann"][0] = first[2:] + first[:2]


def sessions_mixed_up(records: Records) -> None:
    first, second = records.lines["ann"]
    records.lines["ann"] = [first + second]


def turns_at_once(records: Records) -> None:
    first = records.lines["ann"][0]
    records.lines["ann"][0] = [first[0], first[2], first[1], *first[3:]]


def stray_line_of_a_turn(records: Records) -> None:
    first = records.lines["ann"][0]
    first.insert(1, {"role": "system", "content": "", "kind": "note"})
    first.insert(2, {"role": "assistant", "content": "hm", "message_id": "ann-00002"})


def replies_reordered(records: Records) -> None:
    records.replies[0], records.replies[1] = records.replies[1], records.replies[0]


def told_otherwise(records: Records) -> None:
    records.replies.append(replace(records.replies[0], text="stub: ann-00001 hello (#1)"))


def stored_otherwise(records: Records) -> None:
    records.lines["ann"][1][-1] = answer("ann-00007", 6, content="something else")


def stopped_and_told(records: Records) -> None:
    records.replies.append(told("ann-00004", 4, 16.0))


def answered(records: Records, text: str, number: int = 7) -> None:
    """Let the one answer of bob be this, as it is stored and as it is told."""
    records.lines["bob"][0][-1] = answer("bob-00008", number, content=text)
    records.replies[-1] = replace(records.replies[-1], text=text)


def answer_cut(records: Records) -> None:
    answered(records, "stub: bob-00008 he")


def answer_cut_within(records: Records) -> None:
    answered(records, "stub: bob-00008 (#7)")


def answer_empty(records: Records) -> None:
    answered(records, "")


def answer_invented(records: Records) -> None:
    answered(records, "stub: bob-00008 hello (#77)")


def answer_to_another_call(records: Records) -> None:
    answered(records, "stub: bob-00008 hello (#6)")


def answer_to_an_earlier_request(records: Records) -> None:
    records.lines["ann"][0][-1] = answer("ann-00002", 2)
    records.replies[1] = told("ann-00002", 2, 14.5)


def answer_that_was_refused(records: Records) -> None:
    records.calls[-1].outcome = "refused"


def answer_to_nobody(records: Records) -> None:
    records.lines["bob"][0].append(dict(answer("bob-00008", 7), message_id="subagent:1"))


def command_told_nothing(records: Records) -> None:
    records.replies[2] = replace(records.replies[2], text="")


def call_without_a_fault(records: Records) -> None:
    records.harms.clear()


def call_after_its_answer_was_stored(records: Records) -> None:
    records.lines["ann"][0][1] = answer("ann-00001", 1)
    records.replies[0] = told("ann-00001", 1, 12.5)


def kill_of_another(records: Records) -> None:
    records.harms[0].life = "d1.1"


def kill_before_it_asked(records: Records) -> None:
    records.harms[0].began = records.harms[0].ended = 9.0


def reply_again_without_a_fault(records: Records) -> None:
    records.replies.append(told("bob-00008", 7, 60.0))
    records.harms.clear()
    records.calls = [call for call in records.calls if call.n != 1]
    records.harms.append(Harm("clock", "d0.2", 59.0, 59.5))


def note_twice(records: Records) -> None:
    records.notes.append("memory/HISTORY.md: 01X goes on at 0, not 3")


def asked_again_by_the_same(records: Records) -> None:
    records.harms = [Harm("cut", "d0.1", 10.5, 10.6)]
    records.calls[1].life = "d0.1"


def answered_twice(records: Records) -> None:
    records.lines["bob"][0].append(answer("bob-00008", 7))


def asked_line_twice(records: Records) -> None:
    records.lines["bob"][0].insert(0, user("bob-00008"))


def illegal_line(records: Records) -> None:
    records.illegal.append("web_ann.jsonl has a torn tail")


def unknown_role(records: Records) -> None:
    records.lines["bob"][0].append({"role": "nobody", "content": ""})


def result_missing(records: Records) -> None:
    del records.lines["ann"][0][4]


def result_twice(records: Records) -> None:
    records.lines["ann"][0].insert(4, records.lines["ann"][0][4])


def turn_within_a_turn(records: Records) -> None:
    records.lines["ann"][0].insert(4, user("ann-00007"))
    del records.lines["ann"][1][-2]


def mixed_reply(records: Records) -> None:
    records.replies[-1] = replace(records.replies[-1], text="stub: ann-00001 hello (#7)")
    records.lines["bob"][0][-1] = answer("bob-00008", 7, content="stub: ann-00001 hello (#7)")


def reply_to_another_chat(records: Records) -> None:
    records.replies.append(replace(records.replies[-1], chat="ann", at=18.6))
    records.published["bob-00008"] = 2


def notice_to_another_chat(records: Records) -> None:
    records.replies.append(replace(records.replies[4], chat="bob"))


def reply_to_nothing(records: Records) -> None:
    records.replies.append(Reply("", "bob", "reply", "hello", 19.0))


def told_in_another_chat_alone(records: Records) -> None:
    records.replies[-1] = replace(records.replies[-1], chat="ann")


def mixed_transcript(records: Records) -> None:
    records.lines["bob"][0].insert(0, {"role": "system", "content": "ann-00001 said so"})


def mixed_request(records: Records) -> None:
    records.calls[-1].named = frozenset({"bob-00008", "ann-00001"})


def poison_not_parked(records: Records) -> None:
    records.parked.clear()


def poison_parked_twice(records: Records) -> None:
    records.parked *= 2


def innocent_parked(records: Records) -> None:
    records.parked.append(Parked("ann-00001", "attempts"))


def poison_answered(records: Records) -> None:
    records.replies.append(told("ann-00006", 5, 17.0))


BROKEN: dict[str, list[Callable[[Records], None]]] = {
    "G1": [
        lost,
        reply_lost,
        command_lost,
        told_in_another_chat_alone,
        stopped_without_a_stop,
        stopped_by_an_earlier_stop,
        stopped_by_the_stop_of_another_chat,
        question_cut,
        question_empty,
        question_of_nobody,
        letter_left,
    ],
    "G2": [turns_reordered, sessions_mixed_up, turns_at_once, stray_line_of_a_turn, replies_reordered],
    "G3": [
        told_otherwise,
        stored_otherwise,
        stopped_and_told,
        answer_cut,
        answer_cut_within,
        answer_empty,
        answer_invented,
        answer_to_another_call,
        answer_to_an_earlier_request,
        answer_that_was_refused,
        answer_to_nobody,
        command_told_nothing,
        call_without_a_fault,
        call_after_its_answer_was_stored,
        kill_of_another,
        kill_before_it_asked,
        reply_again_without_a_fault,
        note_twice,
    ],
    "G4": [asked_again_by_the_same],
    "G5": [
        answered_twice,
        asked_line_twice,
        illegal_line,
        unknown_role,
        result_missing,
        result_twice,
        turn_within_a_turn,
    ],
    "G6": [
        mixed_reply,
        reply_to_another_chat,
        notice_to_another_chat,
        reply_to_nothing,
        mixed_transcript,
        mixed_request,
    ],
    "G7": [poison_not_parked, poison_parked_twice, innocent_parked, poison_answered],
}


@pytest.mark.parametrize(
    ("name", "broken"),
    [(name, broken) for name, each in BROKEN.items() for broken in each],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_guarantee_that_is_broken_once_is_found(name: str, broken: Callable[[Records], None]) -> None:
    records = sound()

    broken(records)

    assert any(found.startswith(f"{name} ") for found in check(records).broken)


def test_poison_that_is_set_aside_leaves_a_question_without_an_answer() -> None:
    """… behind which the next turn may begin, and a line of our own within any turn."""
    records = sound()
    taken_back = {"role": "system", "content": "", "kind": "undo", "from": 2}
    records.lines["ann"][1][2:2] = [user("ann-00006"), taken_back]
    records.lines["ann"][1].insert(-1, {"role": "system", "content": "", "kind": "note"})

    assert check(records).broken == []


def test_a_stop_that_is_handed_out_again_may_stop_another_turn() -> None:
    """… of a message before it: the process to which it was handed first has died."""
    records = sound()
    del records.sent["ann"][2], records.replies[2]
    records.lines["ann"] = [[line for session in records.lines["ann"] for line in session]]
    records.lines["ann"][0][5] = answer("ann-00002", 3, stopped=True)
    records.replies.pop(1)

    assert check(records).broken == []


def test_a_frozen_daemon_that_wakes_may_ask_once_more() -> None:
    """… what another has answered meanwhile; one that was not frozen may not."""
    records = sound()
    records.calls.append(Call(10, "d1.1", "bob-00008", 0, 50.0, frozenset({"bob-00008"})))
    records.harms.append(Harm("kill", "d0.2", 18.2, 18.9))
    records.daemons = 3

    assert any("#7 is stored" in found for found in check(records).broken)
    records.harms.append(Harm("freeze", "d1.1", 17.0, 49.9))
    assert check(records).broken == []


def test_a_turn_whose_key_another_daemon_took_began_again() -> None:
    """The daemon's own word for it explains the request, of that message alone."""
    records = sound()
    asked_again_by_the_same(records)
    records.daemons = 3
    records.harms.append(Harm("fenced", "d0.1", 11.0, 11.0, "ann-00002"))

    assert any(found.startswith("G4 ") for found in check(records).broken)
    records.harms.append(Harm("fenced", "d0.1", 11.0, 11.0, "ann-00001"))
    assert check(records).broken == []
    assert [repeat.cause for repeat in check(records).repeats] == ["fenced"]


def test_a_turn_that_could_not_be_ended_for_want_of_a_connection_began_again() -> None:
    """By the daemon's own word, where its line had been cut, however long ago; with another process alone."""
    records = sound()
    records.harms = []
    records.harms.append(Harm("delayed", "d0.1", 10.1, 10.1, "ann-00001"))

    assert any(found.startswith("G3 ") for found in check(records).broken)
    records.harms.append(Harm("cut", "d0.1", -20.0, -20.0))
    assert check(records).broken == []
    assert [repeat.cause for repeat in check(records).repeats] == ["delayed"]


def test_a_message_that_was_put_twice_is_answered_twice() -> None:
    """… and no more often."""
    records = sound()
    records.replies.append(told("bob-00008", 7, 60.0))
    records.published["bob-00008"] = 2

    assert [repeat.cause for repeat in check(records).repeats] == ["kill", "put again"]
    assert check(records).broken == []
    records.replies.append(told("bob-00008", 7, 90.0))
    assert any("came again" in found for found in check(records).broken)


def test_an_answer_to_a_command_is_put_again_where_its_letter_is_handed_on() -> None:
    """… to a daemon that came up, as the other says; no other reply is, and where no chat moved none."""
    records = sound()
    records.replies.append(told("ann-00005", 0, 60.0))
    records.daemons = 3

    assert any("ann-00005 came again" in found for found in check(records).broken)
    records.harms.append(Harm("moved", "d1.1", 30.0, 30.0))
    assert check(records).broken == []
    assert [repeat.cause for repeat in check(records).repeats] == ["kill", "handed on"]
    records.replies.append(told("bob-00008", 7, 60.0))
    assert any("bob-00008 came again" in found for found in check(records).broken)


def test_poison_may_be_parked_once_for_each_time_it_was_asked_about() -> None:
    """A death between the parking and its mark: the request that was made again is explained by it."""
    records = sound()
    poison_parked_twice(records)
    records.calls.append(Call(11, "d0.3", "ann-00006", 0, 16.9, frozenset({"ann-00006"})))

    assert any("no fault" in found for found in check(records).broken)
    records.harms.append(Harm("kill", "d0.2", 16.1, 16.6))
    assert not [found for found in check(records).broken if "ann-00006" in found]


def test_a_cut_explains_a_request_of_another_daemon_alone() -> None:
    """With others at hand a letter may be handed on; the one that lost it lives, and stores nothing."""
    records = sound()
    records.harms = [Harm("cut", "d0.1", 10.5, 10.5)]

    assert any("no fault" in found for found in check(records).broken)
    records.daemons = 3
    assert check(records).broken == []
