"""Very many refusals end together, and one that raises whatever is done to it holds up nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.inbound.intake import Intake
from gateway.turns.worker import LetterRules
from tests.gateway.breaking_mailbox import BreakingMailbox
from tests.gateway.turns.test_flood import LIMIT, Held, waiting
from tests.gateway.turns.test_worker import Rig

# It waits for seconds.
pytestmark = pytest.mark.slow

COUNT = 1_500
POISON = "m7"


@asynccontextmanager
async def crowded(folder: Path, count: int, *, poison: str = "", parks: bool = True) -> AsyncIterator[Rig]:
    """A worker whose one chat has ``count`` letters, all put at once while the first one's turn runs."""
    model = Held()
    built = Rig(folder, model, LetterRules(flood_per_chat=LIMIT))
    mailbox = BreakingMailbox(folder / "state", poison=poison, parks=parks)
    built.mailbox, built.intake = mailbox, Intake(mailbox)
    async with built.open() as r:
        await r.put("m0", "m0")
        await model.entered.wait()
        await asyncio.gather(*(r.put(f"m{number}", f"m{number}") for number in range(1, count)))
        try:
            yield r
        finally:
            model.opened.set()


async def until_left(r: Rig, count: int) -> None:
    async with asyncio.timeout(60):
        while await waiting(r) != count:
            await asyncio.sleep(0.02)


async def test_a_crowd_is_refused_in_few_writes_of_its_journal(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with crowded(tmp_path, COUNT) as r:
            await until_left(r, 1 + LIMIT)
            assert [notice.id for notice in await r.replies(1)] == ["m4#notice.flood"]

    together = [log["count"] for log in logs if log["event"] == "letters.refused"]
    alone = sum(log["event"] == "letter.refused" for log in logs)
    assert sum(together) + alone == COUNT - 1 - LIMIT
    assert len(together) + alone <= COUNT / 10


async def test_one_whose_refusal_breaks_is_parked_and_the_others_end(tmp_path: Path) -> None:
    async with crowded(tmp_path, 20, poison=POISON) as r:
        await until_left(r, 1 + LIMIT)

        assert [letter.id for letter in await r.mailbox.parked()] == [POISON]


async def test_one_that_cannot_even_be_parked_is_left_to_come_again(tmp_path: Path) -> None:
    """It is tried a few times, then it stays in its queue, logged; what follows it ends."""
    with capture_logs() as logs:
        async with crowded(tmp_path, 20, poison=POISON, parks=False) as r:
            async with asyncio.timeout(100):
                while not any(log["event"] == "letter.left" for log in logs):
                    await asyncio.sleep(0.05)
            await until_left(r, 2 + LIMIT)

            assert isinstance(r.mailbox, BreakingMailbox)
            assert 1 < r.mailbox.tried < 10
            assert not await r.mailbox.parked()
