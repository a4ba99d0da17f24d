"""Which starts of a turn stand in a journal, and whether the newest one ran alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.tries import Tries

ADA = SessionKey("telegram:1")
AT = datetime(2026, 3, 1, tzinfo=UTC)


async def test_who_ran_alone_is_known_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path, zone=UTC)
    async with store.open(ADA) as session:
        assert not session.journal.last_alone("a")
        await session.journal.begin("a", transcript_held_lines=False)
        await session.journal.begin("a", transcript_held_lines=False, alone=True)
    await store.aclose()

    again = Store(tmp_path, zone=UTC)
    async with again.open(ADA) as session:
        assert (session.journal.attempts("a"), session.journal.last_alone("a")) == (2, True)
        await session.journal.strike("a")
        assert (session.journal.attempts("a"), session.journal.last_alone("a")) == (1, False)
    await again.aclose()


async def test_starts_that_an_earlier_version_recorded_count_and_ran_beside_others(tmp_path: Path) -> None:
    """It recorded them while they waited, too: none of them proves anything."""
    path = tmp_path / "state" / "keys" / "telegram_1.log"
    path.parent.mkdir(parents=True)
    entry = f'{{"at":"{datetime.now(UTC).isoformat()}","do":"begin","id":"a","held":true}}\n'
    path.write_text('{"v":1,"key":"telegram:1"}\n' + 2 * entry)
    store = Store(tmp_path, zone=UTC)

    async with store.open(ADA) as session:
        assert (session.journal.attempts("a"), session.journal.last_alone("a")) == (3, False)
    await store.aclose()


@given(st.lists(st.sampled_from(["beside", "alone", "strike"])), st.booleans())
def test_a_strike_takes_out_the_newest_start_and_no_other(steps: list[str], held: bool) -> None:
    """As a stack: the unrecorded first start lies at its bottom, and counts once a record says so."""
    tries, stack, first = Tries(AT), [], True
    for step in steps:
        if step != "strike":
            tries.begin(held=held, alone=step == "alone", at=AT)
            stack.append(step)
        else:
            tries.strike(AT)
            first = first and bool(stack)
            stack = stack[:-1]

    recorded = any(step != "strike" for step in steps)
    assert tries.count == len(stack) + (held and recorded and first)
    assert tries.last_alone == (stack[-1:] == ["alone"])
