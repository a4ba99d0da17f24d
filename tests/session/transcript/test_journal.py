"""Attempts, outcomes and the count of what a chat was told, across crashes, sessions and 48 hours."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.store.store import Session, Store
from session.transcript import journal
from session.transcript.journal import REWRITE_BYTES, JournalState, Kind, Told, Tries
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.store_place import Make, reopen
from tests.support.clock import Clock
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

ADA = SessionKey("telegram:1")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def make(make: Make, clock: Clock) -> Make:
    return partial(make, clock=clock)


async def rows(store: Store) -> list[dict[str, Any]]:
    return (await store.state.journals([ADA]))[ADA]


async def answer(session: Session, id_: str, **fields: Any) -> None:
    at = "2026-03-01T11:00:00.000000+00:00"
    await session.append(
        [
            make_line("user", "q", at, message_id=id_),
            make_line("assistant", f"answer {id_}", at, message_id=id_, final=True, **fields),
        ]
    )


async def test_attempts_are_counted_over_restarts(make: Make) -> None:
    """Every record counts, and an unrecorded first start where the transcript held a line of it."""
    async with make().open(ADA) as session:
        assert session.journal.attempts("a") == 0
        assert await session.journal.begin("a", transcript_held_lines=False) == 1
        assert await session.journal.begin("b", transcript_held_lines=True) == 2

    async with make().open(ADA) as session:
        assert await session.journal.begin("a", transcript_held_lines=True) == 2
        assert await session.journal.begin("b", transcript_held_lines=True) == 3
        assert session.journal.attempts("a") == 2


async def test_a_start_is_charged_to_all_whose_turn_it_is(make: Make) -> None:
    """To those that entered it as to its own message, and struck out for all of them."""
    async with make().open(ADA) as session:
        await session.journal.begin("a", transcript_held_lines=True, alone=True, parts=["b"])
        assert [session.journal.attempts(id_) for id_ in "ab"] == [2, 2]
        assert [session.journal.last_alone(id_) for id_ in "ab"] == [True, False]

    async with make().open(ADA) as session:
        assert session.journal.last_alone("a")
        await session.journal.strike("a", parts=["b"])
        assert [session.journal.attempts(id_) for id_ in "ab"] == [1, 1]


@given(st.lists(st.sampled_from(["beside", "alone", "strike"])), st.booleans())
def test_a_strike_takes_out_the_newest_start_and_no_other(steps: list[str], held: bool) -> None:
    """As a stack: the unrecorded first start lies at its bottom, and counts once a record says so."""
    tries, stack, first = Tries(NOON), [], True
    for step in steps:
        if step != "strike":
            tries.begin(held=held, alone=step == "alone", at=NOON)
            stack.append(step)
        else:
            tries.strike(NOON)
            first = first and bool(stack)
            stack = stack[:-1]

    recorded = any(step != "strike" for step in steps)
    assert tries.count == len(stack) + (held and recorded and first)
    assert tries.last_alone == (stack[-1:] == ["alone"])


async def test_repeated_strike_of_an_unrecorded_start_writes_once(make: Make) -> None:
    """A long outage does not fill the journal."""
    store = make()
    async with store.open(ADA) as session:
        await session.journal.strike("a")

        await session.journal.strike("a")

        assert len(await rows(store)) == 1


async def test_outcomes_are_known_for_48_hours(make: Make, clock: Clock) -> None:
    """The newest outcome of an id is known after a restart, with what was said and what was added."""
    async with make().open(ADA) as session:
        await session.journal.conclude("a", "notice", text="sorry", reason="refused")
        known = await session.journal.conclude("a", "parked", reason="attempts", box="inbound")
        assert (known.kind, known.reason, known.extra) == ("parked", "attempts", {"box": "inbound"})

    clock.forward(hours=48)
    async with make().open(ADA) as session:
        assert session.journal.known("a") == known
        assert session.journal.known("b") is None
        clock.forward(seconds=1)
        assert session.journal.known("a") is None


async def test_who_only_makes_sure_of_an_end_changes_none(make: Make) -> None:
    """``once`` records an outcome where there is none, and leaves the one that there is."""
    async with make().open(ADA) as session:
        first = await session.journal.conclude("a", "notice", text="sorry", reason="refused", once=True)
        assert first.seq == 1

        assert await session.journal.conclude("a", "parked", reason="attempts", once=True) == first
        assert session.journal.known("a") == first


async def test_when_a_chat_was_told_of_what_is_known(make: Make, clock: Clock) -> None:
    """Of a limit that held several messages up, once for each subject; and whom it ended without a word."""
    async with make().open(ADA) as session:
        await session.journal.conclude("a", "notice", text="later", reason="quota", about="turns")
        await session.journal.silence(["b", "c"], text="later", reason="quota")
        assert session.seq == 1

    async with make().open(ADA) as session:
        assert session.journal.said("quota", "turns") == clock()
        assert session.journal.said("quota", "money") is None
        ends = [session.journal.known(id_) for id_ in "bc"]
        assert [(each.kind, each.reason) for each in ends if each] == [("silent", "quota")] * 2


async def test_what_was_chosen_holds_for_good(make: Make, clock: Clock) -> None:
    """Over restarts, beyond 48 hours and a journal that is written anew; the same again writes nothing."""
    store = make()
    async with store.open(ADA) as session:
        assert session.journal.agent is None
        await session.journal.choose("a", "coder")
        await session.journal.choose("b", "coder")
        assert len(await rows(store)) == 1
        await session.journal.conclude("c", "command", text="x" * REWRITE_BYTES)

    clock.forward(hours=49)
    async with make().open(ADA) as session:
        await session.journal.conclude("d", "command", text="x")
        assert len(str(await rows(store))) < REWRITE_BYTES
        assert session.journal.agent == "coder"
        await session.journal.choose("e", "")
    async with make().open(ADA) as session:
        assert session.journal.agent == ""


async def test_unparked_letter_starts_afresh(make: Make) -> None:
    """A letter that is put back by hand has neither outcome nor attempts."""
    async with make().open(ADA) as session:
        for _ in range(3):
            await session.journal.begin("a", transcript_held_lines=True)
        await session.journal.conclude("a", "parked", reason="attempts")

        await session.journal.unpark("a")

        assert session.journal.known("a") is None
        assert session.journal.attempts("a") == 0
        assert await session.journal.begin("a", transcript_held_lines=False) == 1


@drawn(80)
@given(st.lists(st.sampled_from(["reply", "command", "notice", "stopped", "end", "prune"]), max_size=25))
async def test_seq_has_neither_gap_nor_repeat(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Whatever happens in whatever order, each thing told gets the next number, after a restart too."""
    clock = Clock(NOON)
    workspace = tmp_path_factory.mktemp("seq")
    store = Store(workspace, zone=UTC, clock=clock)
    count = 0
    for number, step in enumerate(steps):
        async with store.open(ADA) as session:
            match step:
                case "reply":
                    count += 1
                    await answer(session, str(number))
                    assert session.seq_of(str(number)) == count
                case "command":
                    count += 1
                    assert (await session.journal.conclude(str(number), "command", text="x")).seq == count
                case "notice":
                    count += 1
                    assert (await session.journal.note(str(number), reason="r", text="x")).seq == count
                case "stopped":
                    await answer(session, str(number), stopped=True)
                case "end":
                    await session.end()
                case _:
                    clock.forward(hours=50)
                    await session.journal.conclude("fill", "withdrawn", text="x" * REWRITE_BYTES)
                    clock.forward(hours=50)
                    await session.journal.conclude("fill", "withdrawn")
            assert session.seq == count
    await store.aclose()
    store = Store(workspace, zone=UTC, clock=clock)
    assert (await store.look(ADA)).seq == count
    await store.aclose()


async def test_notice_is_noted_once(make: Make) -> None:
    """Who is about to tell a chat something can see that it was told."""
    async with make().open(ADA) as session:
        assert session.journal.noted("a", "outage") is None
        noted = await session.journal.note("a", reason="outage", text="wait")
        assert await session.journal.note("a", reason="other", text="x") != noted

    async with make().open(ADA) as session:
        assert session.journal.noted("a", "outage") == noted
        assert session.journal.known("a") is None


async def test_entry_keeps_its_own_names() -> None:
    """An extra may not pretend to be a field of the journal."""
    with pytest.raises(ValueError, match="seq"):
        await journal.Journal(JournalState, None, Clock(datetime.now(UTC))).conclude("a", "notice", seq=3)  # type: ignore[arg-type]


KINDS: tuple[Kind, ...] = ("command", "notice", "parked", "silent", "withdrawn")


def question(id_: str) -> dict[str, Any]:
    return make_line("user", "q", NOON.isoformat(), message_id=id_)


def final(id_: str, text: str, **fields: Any) -> dict[str, Any]:
    return make_line("assistant", text, NOON.isoformat(), message_id=id_, final=True, **fields)


async def broken_off(session: Session) -> list[Told]:
    """Answer a message, and end another's turn in a notice; return what was told."""
    await session.append([question("a"), final("a", "yes"), question("b")])
    await session.journal.conclude("b", "notice", text="too dear", reason="limit", about="day")
    await session.append([final("b", "", stopped=True)])
    told = session.told()
    assert [(one.seq, one.kind, one.id) for one in told] == [(1, "reply", "a"), (2, "notice", "b")]
    return told


@guarantee("once", "The end of a session does not change the recorded outcome of its messages.")
async def test_a_notice_stays_one_when_its_session_ends(make: Make) -> None:
    """Whoever asks for what was told has it again, in this process and the next, whatever follows."""
    async with make().open(ADA) as session:
        before = await broken_off(session)
        known = session.journal.known("b")
        await session.end()
        assert [one.text for one in session.told()] == ["yes", "too dear"]

    async with make().open(ADA) as session:
        assert session.told()[1] == before[1]
        found = session.journal.known("b")
        assert found is not None
        assert known is not None
        assert (found.kind, found.text, found.reason, found.seq) == ("notice", "too dear", "limit", 2)
        await session.append([question("c"), final("c", "no")])
        assert session.seq == session.seq_of("c") == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_the_end_of_an_exchange_that_got_no_answer_stays_known(make: Make, kind: Kind) -> None:
    """Over the ends of two sessions, as it is opened again between them."""
    store = make()
    async with store.open(ADA) as session:
        session_id = session.session_id
        await session.append([question("a"), final("a", "yes"), question("b")])
        before = await session.journal.conclude("b", kind, text="words", reason="why")
        await session.append([question("c"), final("c", "no")])
        told = session.told()
        await session.end()
    await reopen(store, session_id, ADA, by="command")
    async with store.open(ADA) as session:
        assert session.journal.reopening("command") is not None
        await session.end()

    async with make().open(ADA) as session:
        found = session.journal.known("b")
        assert found is not None
        assert (found.kind, found.text, found.reason) == (kind, "words", "why")
        assert found.seq == before.seq
        assert [(one.seq, one.kind, one.text) for one in session.told()] == [
            (one.seq, one.kind, one.text) for one in told
        ]


@pytest.mark.parametrize("rewritten", [False, True])
async def test_it_is_known_for_48_hours_from_the_end_of_the_session(
    make: Make, clock: Clock, rewritten: bool
) -> None:
    """As long as the answers of that session are, also where the older entries of the journal went."""
    async with make().open(ADA) as session:
        await session.journal.conclude("old", "silent", text="x" * REWRITE_BYTES)
        await broken_off(session)
        clock.forward(47 * 3600)
        await session.end()
    clock.forward(48 * 3600)
    store = make()
    async with store.open(ADA) as session:
        if rewritten:
            await session.journal.conclude("new", "silent")
        assert (len(str(await rows(store))) < REWRITE_BYTES) == rewritten
        ends = [session.journal.known(id_) for id_ in "ab"]
        assert [one and (one.kind, one.text) for one in ends] == [
            ("archived", "yes"),
            ("notice", "too dear"),
        ]
        clock.forward(1)
        assert [session.journal.known(id_) for id_ in "ab"] == [None, None]


async def test_an_answer_counts_more_than_a_notice_before_it(make: Make) -> None:
    """A turn that was stopped without a word to its chat has ended with its session."""
    async with make().open(ADA) as session:
        await session.append([question("a")])
        await session.journal.conclude("a", "notice", text="wait", reason="limit")
        await session.append([final("a", "yes"), question("b"), final("b", "", stopped=True)])
        await session.end()

        ends = [session.journal.known(id_) for id_ in "ab"]
        assert [one and (one.kind, one.text) for one in ends] == [("archived", "yes"), ("archived", "")]
