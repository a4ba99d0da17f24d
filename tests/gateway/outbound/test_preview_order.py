"""A preview keeps to its chat's line: nothing that is begun before it is torn apart by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.message import Attachment
from tests.gateway.delivery_place import DEADLINE_S, FreeLimiter, Place, reply, until_empty
from tests.gateway.outbound.test_preview import stage
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "order", "The live preview of an answer never appears in the middle of an earlier answer."
)

NEXT = "fake:2"
BEGUN = "The beginning of answer two"


class FirstWaits(FreeLimiter):
    """Has the first call wait until ``lets`` is set; ``asked`` is set once it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.lets = asyncio.Event(), asyncio.Event()

    async def wait(self, chat_id: str, *, group: bool) -> None:
        first = not self.waits
        await super().wait(chat_id, group=group)
        if first:
            self.asked.set()
            await self.lets.wait()


@pytest.mark.parametrize("rest", ["chunk", "file"])
async def test_no_preview_stands_in_the_middle_of_an_earlier_answer(tmp_path: Path, rest: str) -> None:
    """While a chunk or a file of it is on its way the next turn shows nothing; then its preview comes."""
    place = Place(tmp_path)
    passes, held = asyncio.Event(), asyncio.Event()
    passes.set()
    (tmp_path / "report.pdf").write_bytes(b"x")
    file = Attachment(kind="document", name="report.pdf", ref="report.pdf")
    first = reply(1, "a" * 50) if rest == "chunk" else reply(1, "a" * 40, files=[file])
    async with stage(place, deliver=True) as on:
        on.platform.fail(passes, held)
        await place.put(on.mailbox, first)
        await on.platform.until(lambda platform: platform.hanging == 1 and len(platform.messages) == 1)

        await on.writes(BEGUN, for_s=3, asked=NEXT)
        assert on.platform.texts() == ["a" * 40]
        assert on.platform.typings == ["ada"]

        held.set()
        await until_empty(on.mailbox)
        await on.time.pass_by(1)
        last = "a" * 10 if rest == "chunk" else "report.pdf"
        assert on.platform.texts() == ["a" * 40, last, BEGUN]

        await place.put(on.mailbox, reply(2, "Answer two."))
        await until_empty(on.mailbox)

    assert place.platform.texts() == ["a" * 40, last, "Answer two."]


async def test_what_comes_while_a_preview_waits_for_the_limiter_goes_first(tmp_path: Path) -> None:
    """A letter that arrives before the preview is let through is not cut in two."""
    place = Place(tmp_path)
    place.limiter = limiter = FirstWaits()
    held = asyncio.Event()
    async with stage(place, deliver=True) as on:
        await on.writes(BEGUN, asked=NEXT)
        await on.time.pass_by(1, wait=False)
        async with asyncio.timeout(DEADLINE_S):
            await limiter.asked.wait()
        on.platform.fail(held)
        await place.put(on.mailbox, reply("job", "x" * 50))
        await on.platform.until(lambda platform: platform.hanging == 1)
        limiter.lets.set()
        await on.time.asleep(at_least=3)
        assert on.platform.texts() == []

        held.set()
        await until_empty(on.mailbox)
        await on.time.pass_by(1)

    assert place.platform.texts() == ["x" * 40, "x" * 10, BEGUN]
