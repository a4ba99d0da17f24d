"""What the checker of chaos takes for explained, on made-up records, and what of it is not."""

from __future__ import annotations

from tests.chaos.checker import check
from tests.chaos.made_up import (
    asked_again_by_the_same,
    poison_parked_twice,
    sound,
    told,
    user,
)
from tests.chaos.records import Call, Harm


def test_poison_that_is_set_aside_leaves_a_question_without_an_answer() -> None:
    """… behind which the next turn may begin, and a line of our own within any turn."""
    records = sound()
    taken_back = {"role": "system", "content": "", "kind": "undo", "from": 2}
    records.lines["ann"][1][2:2] = [user("ann-00006"), taken_back]
    records.lines["ann"][1].insert(-1, {"role": "system", "content": "", "kind": "note"})

    assert check(records).broken == []


def test_poison_that_was_taken_back_may_be_asked_anew() -> None:
    """… by who comes after a process that died before it was set aside; not where nothing took it back."""
    records = sound()
    taken_back = {"role": "system", "content": "", "kind": "undo", "set_aside": "web:ann-00006"}
    again = [user("ann-00006"), taken_back | {"from": 2}, user("ann-00006"), taken_back | {"from": 4}]
    records.lines["ann"][1][2:2] = again

    assert check(records).broken == []
    del records.lines["ann"][1][3]
    assert any("ann-00006 has 2 user lines" in found for found in check(records).broken)


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


def test_one_harm_explains_two_repeats_of_a_reply_and_no_more() -> None:
    """Who put it may not know of it, and who took it may not have said so."""
    records = sound()
    records.harms.append(Harm("kill", "d0.2", 18.6, 18.9))
    records.replies += [told("bob-00008", 7, 19.0), told("bob-00008", 7, 19.5)]

    assert check(records).broken == []
    records.replies.append(told("bob-00008", 7, 20.0))
    assert any("bob-00008 came again" in found for found in check(records).broken)
