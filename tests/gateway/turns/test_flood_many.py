"""Very many refusals end together, and one that raises whatever is done to it holds up nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.turns.letter_rules import LetterRules
from tests.gateway.embedded_place import BreaksAt
from tests.gateway.turns.test_flood import LIMIT, Held
from tests.gateway.waits import until
from tests.gateway.worker_rig import Rig
from tests.support.guarantee import guarantee

# It waits for seconds.
pytestmark = [
    pytest.mark.slow,
    guarantee("failures", "A chat that floods gets one notice and takes no capacity from other chats."),
]

COUNT = 1_500
POISON = "m7"


@asynccontextmanager
async def crowded(folder: Path, count: int, *, poison: str = "", parks: bool = True) -> AsyncIterator[Rig]:
    """A worker whose one chat has ``count`` letters, all put at once while the first one's turn runs."""
    model = Held()
    mailbox = BreaksAt(folder / "state", settling=poison, parking=not parks)
    async with Rig(folder, model, LetterRules(flood_per_chat=LIMIT), mailbox=mailbox).open() as r:
        await r.put("m0", "m0")
        await model.entered.wait()
        await asyncio.gather(*(r.put(f"m{number}", f"m{number}") for number in range(1, count)))
        try:
            yield r
        finally:
            model.opened.set()


async def test_a_crowd_is_refused_in_few_writes_of_its_journal(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with crowded(tmp_path, COUNT) as r:
            await r.until_waiting(1 + LIMIT, within_s=60)
            assert [notice.id for notice in await r.replies(1)] == ["m4#notice.flood"]

    together = [log["count"] for log in logs if log["event"] == "letters.refused"]
    alone = sum(log["event"] == "letter.refused" for log in logs)
    assert sum(together) + alone == COUNT - 1 - LIMIT
    assert len(together) + alone <= COUNT / 10


async def test_one_whose_refusal_breaks_is_parked_and_the_others_end(tmp_path: Path) -> None:
    async with crowded(tmp_path, 20, poison=POISON) as r:
        await r.until_waiting(1 + LIMIT, within_s=60)

        assert [letter.id for letter in await r.mailbox.parked()] == [POISON]


async def test_one_that_cannot_even_be_parked_is_left_to_come_again(tmp_path: Path) -> None:
    """It is tried a few times, then it stays in its queue, logged; what follows it ends."""
    with capture_logs() as logs:
        async with crowded(tmp_path, 20, poison=POISON, parks=False) as r:
            await until(lambda: any(log["event"] == "letter.left" for log in logs), within_s=100)
            await r.until_waiting(2 + LIMIT, within_s=60)

            assert isinstance(r.mailbox, BreaksAt)
            assert 1 < r.mailbox.tried < 10
            assert not await r.mailbox.parked()
