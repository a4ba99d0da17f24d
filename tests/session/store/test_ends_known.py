"""How a message ended, where the journal alone says it: the end of its session changes nothing of that."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from session.store.store import Session
from session.transcript.journal import REWRITE_BYTES, Kind, Told
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.boundary_place import reopen
from tests.session.store_place import Make
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

ADA = SessionKey("telegram:1")
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
KINDS: tuple[Kind, ...] = ("command", "notice", "parked", "silent", "withdrawn")


@pytest.fixture
def clock() -> Clock:
    return Clock(AT)


@pytest.fixture
def make(make: Make, clock: Clock) -> Make:
    return partial(make, clock=clock)


def question(id_: str) -> dict[str, Any]:
    return make_line("user", "q", AT.isoformat(), message_id=id_)


def final(id_: str, text: str, **fields: Any) -> dict[str, Any]:
    return make_line("assistant", text, AT.isoformat(), message_id=id_, final=True, **fields)


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
    await reopen(store, session_id, ADA)
    async with store.open(ADA) as session:
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
    make: Make, clock: Clock, tmp_path: Path, rewritten: bool
) -> None:
    """As long as the answers of that session are, also where the older entries of the journal went."""
    journal = tmp_path / "state/keys/telegram_1.log"
    async with make().open(ADA) as session:
        await session.journal.conclude("old", "silent", text="x" * REWRITE_BYTES)
        await broken_off(session)
        clock.forward(47 * 3600)
        await session.end()
    clock.forward(48 * 3600)
    async with make().open(ADA) as session:
        if rewritten:
            await session.journal.conclude("new", "silent")
        assert (journal.stat().st_size < REWRITE_BYTES) == rewritten
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
