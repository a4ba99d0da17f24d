"""What the entries of a journal say, each to its second, number and byte."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from session.transcript.journal import KEPT, REWRITE_BYTES, JournalState, Known, Reopening, SessionPlace

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def entry(do: str, id_: str = "a", *, at: datetime = AT, **fields: Any) -> dict[str, Any]:
    return {"at": at.isoformat(), "do": do, "id": id_, **fields}


def ended(session: str, then: str, ids: object, *, seq: int = 0, archive: str = "old") -> dict[str, Any]:
    fields = {"session": session, "next": then, "seq": seq, "archive": archive, "ids": ids}
    return {"at": AT.isoformat(), "do": "ended", **fields}


def state_of(*entries: dict[str, Any]) -> JournalState:
    state = JournalState()
    for each in entries:
        state.take(each, 100)
    return state


def told(state: JournalState, after: int = 0) -> list[tuple[int, str, str]]:
    return [(each.seq, each.kind, each.id) for each in state.told(after)]


@pytest.mark.parametrize("late", [timedelta(0), SECOND])
def test_all_is_kept_for_48_hours_and_no_second_more(late: timedelta) -> None:
    state = state_of(
        entry("begin", "begun"),
        entry("end", "ended", kind="parked"),
        entry("notice", "noted", reason="outage", seq=1),
    )
    now, is_kept = AT + KEPT + late, not late

    assert state.attempts("begun", now) == is_kept
    assert (state.known("ended", now) is not None) == is_kept
    assert (state.noted("noted", "outage", now) is not None) == is_kept


def test_a_journal_is_overgrown_once_most_of_a_large_one_is_old() -> None:
    """Large is more than the bound, most is more than half, and old more than 48 hours, each to the byte."""

    def overgrown(old: int, young: int, now: datetime = AT + KEPT + SECOND) -> bool:
        state = JournalState()
        state.take(entry("end"), old)
        state.take(entry("end", at=AT + SECOND), young)
        assert state.size == old + young
        return state.overgrown(now)

    half = REWRITE_BYTES // 2
    assert not overgrown(half + 1, half - 1)
    assert not overgrown(half + 1, half + 1)
    assert overgrown(half + 1, half)
    assert not overgrown(half, half + 1)
    assert not overgrown(1, 0)
    assert not overgrown(half + 1, half, AT + KEPT)


def test_a_journal_whose_entries_are_all_old_is_overgrown_and_each_counts_once() -> None:
    later, large = AT + KEPT + SECOND, JournalState()
    large.take(entry("end"), REWRITE_BYTES + 1)
    assert large.overgrown(later)

    half_old = JournalState()
    half_old.take(entry("end"), REWRITE_BYTES // 2)
    half_old.take(entry("end", at=AT + SECOND), REWRITE_BYTES // 2 + 1)
    assert [half_old.overgrown(later) for _ in range(3)] == [False] * 3
    assert half_old.overgrown(later + SECOND)


def test_a_notice_that_ended_an_id_is_remembered_by_what_it_was_about() -> None:
    state = state_of(
        entry("end", "a", kind="notice", reason="quota", about="turns"),
        entry("end", "b", kind="parked", reason="quota", about="money"),
        entry("end", "c", kind="notice", reason="quota", about="turns", at=AT + SECOND),
    )

    assert state.said("quota", "turns") == AT + SECOND
    assert state.said("quota", "money") is None


def test_the_reply_of_a_command_is_told_as_a_reply_and_all_else_as_a_notice() -> None:
    state = state_of(
        entry("end", "a", kind="command", seq=1),
        entry("end", "b", kind="notice", seq=2),
        entry("notice", "c", seq=3),
        entry("end", "d", kind="parked"),
    )

    assert told(state) == [(1, "reply", "a"), (2, "notice", "b"), (3, "notice", "c")]
    assert told(state, 2) == [(3, "notice", "c")]


def test_which_session_a_command_opens_again_is_known() -> None:
    state = state_of(entry("reopen", "a", session="new", left="old"))

    assert state.reopening("a") == Reopening("new", "old")
    assert state.reopening("b") is None


def test_what_an_ended_session_said_is_known_with_its_archive() -> None:
    """What is damaged among its ids costs itself alone."""
    ids = {
        "damaged": 3,
        "a": {"text": "answer", "seq": 1, "final": True},
        "b": {"text": "", "final": False, "by": "a"},
        "c": {"final": "yes", "by": 3},
    }
    state = state_of(ended("one", "two", ids, seq=1))

    of_a, of_b, of_c = (
        {"archive": "old", "session": "one", "final": final} for final in (True, False, False)
    )
    assert state.known("a", AT) == Known("archived", "answer", "", AT, 1, of_a)
    assert state.known("b", AT) == Known("archived", "", "", AT, None, of_b | {"by": "a"})
    assert state.known("c", AT) == Known("archived", "", "", AT, None, of_c)
    assert state.known("damaged", AT) is None
    assert told(state) == [(1, "reply", "a")]


def test_what_the_journal_said_of_an_end_is_known_behind_the_session_and_told_once() -> None:
    """Its own entry may be left out before that of the session is."""
    ids = {
        "a": {"final": True, "kind": "notice", "text": "too dear", "reason": "limit", "seq": 1},
        "b": {"final": False, "kind": "parked", "text": "", "reason": "refused"},
    }
    first = entry("end", "a", kind="notice", text="too dear", reason="limit", seq=1)
    state, cut = (state_of(*before, ended("one", "two", ids, seq=1)) for before in ([first], []))

    of_a, of_b = ({"archive": "old", "session": "one", "final": final} for final in (True, False))
    for each in (state, cut):
        assert each.known("a", AT) == Known("notice", "too dear", "limit", AT, 1, of_a)
        assert each.known("b", AT) == Known("parked", "", "refused", AT, None, of_b)
    assert (told(state), told(cut)) == ([(1, "notice", "a")], [])


def test_a_session_goes_on_counting_where_the_one_before_it_ended() -> None:
    """Each by its own entries: what was told in another session is no part of its count."""
    state = state_of(
        entry("notice", "n", seq=2, finals=1, session="one"),
        ended("one", "two", {}, seq=3),
        entry("notice", "m", seq=5, finals=1, session="two"),
    )

    assert state.seq(SessionPlace("two", 1)) == 5
    assert [state.seq_of_final(SessionPlace("two", 2), number) for number in (0, 1, 2)] == [None, 4, 6]
    assert state.seq(SessionPlace("one", 2)) == 3
    assert state.seq_of_final(SessionPlace("one", 2), 2) == 3
    # Of a session that no entry names it is where all others ended.
    assert state.seq(SessionPlace("three", 0)) == 5


def test_a_session_begins_where_the_one_before_it_ended_whatever_was_told_elsewhere() -> None:
    state = state_of(ended("one", "two", {}, seq=3), entry("notice", "n", seq=9, session="three"))

    assert state.seq(SessionPlace("two", 1)) == 4


def test_what_a_crash_in_an_ending_left_goes_on_by_the_count_that_was_noted_first() -> None:
    """Its lines still stand in the transcript, so they are counted from where they were."""
    state = state_of(ended("one", "two", {}, seq=2), ended("one", "two", {}, seq=2))

    assert state.seq(SessionPlace("one", 2)) == 2
    assert state.seq_of_final(SessionPlace("one", 2), 1) == 1


def test_a_journal_that_was_cut_counts_from_its_base() -> None:
    """Of the final lines before it no number is known, and a notice before it is not counted again."""
    state = state_of(
        entry("base", session="one", seq=10, finals=4),
        entry("notice", "old", seq=10, finals=4, session="one"),
        entry("notice", "new", seq=12, finals=5, session="one"),
    )

    assert [state.seq_of_final(SessionPlace("one", 6), number) for number in (4, 5, 6)] == [None, 11, 13]
    assert state.seq(SessionPlace("one", 6)) == 13


def test_a_cut_leaves_out_what_is_old_alone() -> None:
    """The count goes on from what was told last before it; of young notices each keeps its place."""
    entries = [
        entry("notice", "old", seq=2, finals=1, session="one"),
        entry("notice", "young", seq=4, finals=2, session="one", at=AT + SECOND),
    ]
    place = SessionPlace("one", 3)

    def cut_at(now: datetime) -> tuple[list[str], list[int | None]]:
        kept = state_of(*entries).pruned(entries, now, place)
        again = state_of(*kept)
        assert again.seq(place) == 5
        names = [each["id"] for each in kept if each["do"] == "notice"]
        return names, [again.seq_of_final(place, number) for number in (1, 2, 3)]

    assert cut_at(AT + KEPT) == (["old", "young"], [1, 3, 5])
    assert cut_at(AT + KEPT + SECOND) == (["young"], [None, 3, 5])


def test_a_cut_keeps_what_was_chosen_once() -> None:
    entries = [entry("agent", agent="coder")]
    place = SessionPlace("one", 0)

    def agents(now: datetime) -> list[dict[str, Any]]:
        return [each for each in state_of(*entries).pruned(entries, now, place) if each.get("do") == "agent"]

    assert agents(AT) == agents(AT + 2 * KEPT) == entries
    assert all(each for each in state_of().pruned([], AT, place))


def test_an_entry_without_a_time_is_long_ago_and_one_without_a_zone_is_utc() -> None:
    west = datetime.fromisoformat("2026-03-01T12:00:00-11:00")
    state = state_of(
        entry("end", "naive", kind="parked") | {"at": "2026-03-01T12:00:00"},
        entry("end", "west", kind="parked", at=west),
        entry("end", "none", kind="parked") | {"at": "noon"},
        entry("end", "number", kind="parked") | {"at": 12},
    )

    assert (found := state.known("naive", AT)) is not None
    assert found.at == AT
    assert (found := state.known("west", AT)) is not None
    assert found.at == west
    assert state.known("none", AT) is None
    assert state.known("number", AT) is None


def test_a_number_that_is_none_counts_nothing() -> None:
    state = state_of(entry("base", session="one", seq=True, finals="2"), entry("base", session="two", seq=-7))

    assert state.seq(SessionPlace("one", 1)) == 1
    assert state.seq(SessionPlace("two", 0)) == 0
