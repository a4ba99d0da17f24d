"""The checker of chaos, on made-up records: sound ones pass, each guarantee that is broken once is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.checker import check
from tests.chaos.made_up import (
    answer,
    asked_again_by_the_same,
    poison_parked_twice,
    sound,
    told,
    user,
)
from tests.chaos.records import Harm, Message, Parked, Records, Reply


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


def two_stopped_by_one_stop(records: Records) -> None:
    records.lines["ann"][0][-1] = answer("ann-00002", 3, stopped=True)
    records.replies.pop(1)


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
    records.ended.append("2 messages stay in chaos-1.inbound.4.00")


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


def answered_twice(records: Records) -> None:
    records.lines["bob"][0].append(answer("bob-00008", 7))


def asked_line_twice(records: Records) -> None:
    records.lines["bob"][0].insert(0, user("bob-00008"))


def illegal_line(records: Records) -> None:
    records.illegal.append("web_ann.jsonl has a torn tail")


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


def mixed_request_of_the_background(records: Records) -> None:
    records.asides += [frozenset({"bob-00008"}), frozenset({"bob-00008", "ann-00001"})]


def poison_not_parked(records: Records) -> None:
    records.parked.clear()


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
        two_stopped_by_one_stop,
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
        mixed_request_of_the_background,
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
