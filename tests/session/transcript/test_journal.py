"""Attempts, outcomes and the count of what a chat was told, across crashes, sessions and 48 hours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.errors import NewerFormat
from session.store.store import Session, Store
from session.transcript import journal, journal_lines
from session.transcript.journal import REWRITE_BYTES, JournalState, Reopening
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.support.examples import drawn

ADA = SessionKey("telegram:1")


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def later(self, **delta: float) -> None:
        self.now += timedelta(**delta)


Make = Callable[[], Store]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make(tmp_path: Path, clock: Clock) -> AsyncIterator[Make]:
    made: list[Store] = []

    def open_store() -> Store:
        made.append(Store(tmp_path, zone=UTC, clock=clock))
        return made[-1]

    yield open_store
    for store in made:
        await store.aclose()


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys" / "telegram_1.log"


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

        await session.journal.strike("a", parts=["b"])
        assert [session.journal.attempts(id_) for id_ in "ab"] == [1, 1]


async def test_outages_are_struck_out(make: Make) -> None:
    """A start that ended in an outage or a drain does not count, the unrecorded first one neither."""
    async with make().open(ADA) as session:
        await session.journal.begin("a", transcript_held_lines=False)
        await session.journal.strike("a")
        assert session.journal.attempts("a") == 0
        assert await session.journal.begin("a", transcript_held_lines=True) == 1

        await session.journal.strike("b")
        await session.journal.strike("b")
        assert await session.journal.begin("b", transcript_held_lines=True) == 1


async def test_repeated_strike_of_an_unrecorded_start_writes_once(make: Make, tmp_path: Path) -> None:
    """A long outage does not fill the journal."""
    async with make().open(ADA) as session:
        await session.journal.strike("a")
        size = path_of(tmp_path).stat().st_size

        await session.journal.strike("a")

        assert path_of(tmp_path).stat().st_size == size


async def test_outcomes_are_known_for_48_hours(make: Make, clock: Clock) -> None:
    """The newest outcome of an id is known after a restart, with what was said and what was added."""
    async with make().open(ADA) as session:
        await session.journal.conclude("a", "notice", text="sorry", reason="refused")
        known = await session.journal.conclude("a", "parked", reason="attempts", box="inbound")
        assert (known.kind, known.reason, known.extra) == ("parked", "attempts", {"box": "inbound"})

    clock.later(hours=48)
    async with make().open(ADA) as session:
        assert session.journal.known("a") == known
        assert session.journal.known("b") is None
        clock.later(seconds=1)
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


async def test_which_session_a_command_opens_again_is_known_to_the_next_try(
    make: Make, tmp_path: Path
) -> None:
    async with make().open(ADA) as session:
        await session.journal.conclude("a", "parked")
    with path_of(tmp_path).open("ab") as file:
        at = "2026-03-01T12:00:00+00:00"
        file.write(
            journal_lines.write({"at": at, "do": "reopen", "id": "b", "session": "new", "left": "old"})
        )

    async with make().open(ADA) as session:
        assert session.journal.reopening("b") == Reopening("new", "old")
        assert session.journal.reopening("a") is None


async def test_what_was_chosen_holds_for_good(make: Make, clock: Clock, tmp_path: Path) -> None:
    """Over restarts, beyond 48 hours and a journal that is written anew; the same again writes nothing."""
    async with make().open(ADA) as session:
        assert session.journal.agent is None
        await session.journal.choose("a", "coder")
        size = path_of(tmp_path).stat().st_size
        await session.journal.choose("b", "coder")
        assert path_of(tmp_path).stat().st_size == size
        await session.journal.conclude("c", "command", text="x" * REWRITE_BYTES)

    clock.later(hours=49)
    async with make().open(ADA) as session:
        await session.journal.conclude("d", "command", text="x")
        assert path_of(tmp_path).stat().st_size < REWRITE_BYTES
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


async def test_seq_counts_replies_and_notices(make: Make) -> None:
    """Replies by the transcript and what the journal holds share one count without gap or repeat."""
    async with make().open(ADA) as session:
        await answer(session, "a")
        assert (await session.journal.conclude("b", "command", text="help")).seq == 2
        await answer(session, "c")
        await answer(session, "d")
        assert (await session.journal.note("e", reason="outage", text="wait")).seq == 5
        await answer(session, "stopped", stopped=True)
        await answer(session, "e")
        await session.journal.conclude("f", "parked", reason="x")
        await session.journal.begin("g", transcript_held_lines=False)

    expected = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, "e")]
    async with make().open(ADA) as session:
        assert [(told.seq, told.id) for told in session.told()] == expected
        assert [(told.seq, told.id) for told in session.told(3)] == expected[3:]
        assert [told.text for told in session.told()][1:3] == ["help", "answer c"]
        assert session.seq == 6
        assert session.seq_of("c") == 3
        assert session.seq_of("e") == 6
        assert session.seq_of("b") == 2
        assert session.seq_of("stopped") == 0
    assert [told.seq for told in (await make().look(ADA)).told(4)] == [5, 6]


async def test_seq_goes_on_over_sessions(make: Make) -> None:
    """/new begins a session, not the count; what the ended one said can still be resumed."""
    async with make().open(ADA) as session:
        await answer(session, "a")
        await session.journal.conclude("b", "command", text="help")
        await answer(session, "c")
        await session.end()
        assert (await session.journal.conclude("new", "command", text="begun")).seq == 4
        await answer(session, "d")
        assert session.seq_of("d") == 5

    async with make().open(ADA) as session:
        assert [(told.seq, told.id) for told in session.told()] == [
            (1, "a"),
            (2, "b"),
            (3, "c"),
            (4, "new"),
            (5, "d"),
        ]
        assert (known := session.journal.known("c")) is not None
        assert (known.kind, known.text, known.seq) == ("archived", "answer c", 3)
        assert session.seq_of("c") == 3


@drawn(80)
@given(st.lists(st.sampled_from(["reply", "command", "notice", "stopped", "end", "prune"]), max_size=25))
async def test_seq_has_neither_gap_nor_repeat(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Whatever happens in whatever order, each thing told gets the next number, after a restart too."""
    clock = Clock()
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
                    clock.later(hours=50)
                    await session.journal.conclude("fill", "withdrawn", text="x" * REWRITE_BYTES)
                    clock.later(hours=50)
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


async def test_old_entries_are_left_out(make: Make, clock: Clock, tmp_path: Path) -> None:
    """A journal that is large and mostly old shrinks; young entries and the count stay."""
    async with make().open(ADA) as session:
        for number in range(200):
            await session.journal.conclude(str(number), "command", text="x" * 400)
        clock.later(hours=47)
        await session.journal.conclude("young", "command", text="y")
        clock.later(hours=2)
        assert path_of(tmp_path).stat().st_size > REWRITE_BYTES

        known = await session.journal.conclude("newest", "command", text="z")

        assert known.seq == 202
        assert path_of(tmp_path).stat().st_size < 1000
    async with make().open(ADA) as session:
        assert session.journal.known("young") is not None
        assert session.seq == 202


async def test_torn_and_bad_entries_cost_themselves(make: Make, tmp_path: Path) -> None:
    """A crash in mid-entry, garbage and entries of other kinds hide no entry."""
    async with make().open(ADA) as session:
        await session.journal.conclude("a", "command", text="x")
    with path_of(tmp_path).open("ab") as file:
        file.write(b'\0\0\n[]\nnonsense\n{"do": "future", "id": "q"}\n{"do": "end"}\n')
        file.write(
            b'{"at": 1, "do": "ended", "ids": 3}\n{"do": "ended", "ids": {"q": 1}}\n{"do": "begin", "id": "'
        )

    async with make().open(ADA) as session:
        await session.journal.conclude("b", "command", text="y")
        assert session.seq == 2

    async with make().open(ADA) as session:
        assert session.journal.known("a") is not None
        assert session.journal.known("b") is not None


async def test_newer_journal_is_refused(make: Make, tmp_path: Path) -> None:
    """A journal of a newer version is left alone."""
    path_of(tmp_path).parent.mkdir(parents=True)
    path_of(tmp_path).write_text('{"v":2,"key":"telegram:1"}\n')

    with pytest.raises(NewerFormat):
        async with make().open(ADA):
            pass


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever a journal holds, reading it ends."""
    entries, keep = journal_lines.read(data.replace(b'"v"', b'"w"'))
    state = JournalState()
    for entry, size in entries:
        state.take(entry, size)
    assert 0 <= keep <= len(data)


async def test_entry_keeps_its_own_names() -> None:
    """An extra may not pretend to be a field of the journal."""
    with pytest.raises(ValueError, match="seq"):
        await journal.Journal(JournalState, None, Clock()).conclude("a", "notice", seq=3)  # type: ignore[arg-type]
