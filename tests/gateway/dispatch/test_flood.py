"""A chat with more waiting letters than it may have: each further one ends at once, durably, told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.dispatch.worker import DispatchRules
from gateway.queue.embedded.buffer import EmbeddedLetter
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.embedded.table import QueueRow
from gateway.queue.mailbox import INBOUND, Letter, Post
from session.models.model import Answer, OnDelta, Prompt
from session.transcript.key import SessionKey
from tests.contracts.models import Script
from tests.gateway.embedded_place import BreaksAt
from tests.gateway.worker_rig import Rig, rig
from tests.support.guarantee import guarantee
from tests.support.until import until

pytestmark = guarantee(
    "failures", "A chat that floods gets one notice and takes no capacity from other chats."
)

BOB = SessionKey("foreign:bob")
LIMIT = 3


class Held(Script):
    """A model that answers the letters of the crowd only when it is opened, and all others at once."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        if str(prompt.messages[-1]["content"]).startswith("m"):
            self.entered.set()
            await self.opened.wait()
        return await super().ask(prompt, on_delta)

    @property
    def asked(self) -> list[str]:
        return [str(prompt.messages[-1]["content"]) for prompt in self.prompts]


class Slow(EmbeddedMailbox):
    """Settles one inbound letter only when it is let, and delivers again what was not settled."""

    def __init__(self, state: Path, slow: str) -> None:
        super().__init__(state)
        self._slow = slow
        self.let = asyncio.Event()
        # The last delivery of each letter.
        self.out: dict[str, EmbeddedLetter] = {}
        self._again: asyncio.Queue[EmbeddedLetter] = asyncio.Queue()

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        async with super().take(box) as letters, asyncio.TaskGroup() as group:
            feeding = group.create_task(self._feed(letters)) if box == INBOUND else None
            try:
                yield self._merged() if box == INBOUND else letters
            finally:
                if feeding is not None:
                    feeding.cancel()

    async def _feed(self, letters: AsyncIterator[Letter]) -> None:
        async for letter in letters:
            assert isinstance(letter, EmbeddedLetter)
            self._again.put_nowait(letter)

    async def _merged(self) -> AsyncIterator[Letter]:
        while True:
            letter = await self._again.get()
            self.out[letter.id] = letter
            yield letter

    def cut(self) -> list[EmbeddedLetter]:
        """Lose all that is not settled; return the next deliveries, in order."""
        lost = [letter for letter in self.out.values() if not letter.gone]
        again = []
        for each in lost:
            each.given_back = True
            row = QueueRow(each.row, each.key, each.id, each.body, each.headers)
            again.append(EmbeddedLetter(each.box, row, suspect=True))
        return again

    def deliver(self, letters: Sequence[EmbeddedLetter]) -> None:
        """Hand out letters."""
        for letter in letters:
            self._again.put_nowait(letter)

    async def settle(self, letter: Letter, puts: Sequence[Post] = (), **how: Any) -> None:
        if letter.box == INBOUND and letter.id == self._slow:
            await self.let.wait()
        await super().settle(letter, puts, **how)


@asynccontextmanager
async def flooded(
    folder: Path, count: int, *, window: int = 10_000, mailbox: EmbeddedMailbox | None = None
) -> AsyncIterator[tuple[Rig, Held]]:
    """A worker with ``count`` letters of one chat, put while the first one's turn runs."""
    model = Held()
    mailbox = mailbox or EmbeddedMailbox(folder / "state", window=window)
    async with Rig(folder, model, DispatchRules(flood_per_chat=LIMIT), mailbox=mailbox).open() as r:
        await r.put("m0", "m0")
        await model.entered.wait()
        for number in range(1, count):
            await r.put(f"m{number}", f"m{number}")
        try:
            yield r, model
        finally:
            model.opened.set()


async def to_the_end(r: Rig, model: Held) -> None:
    """Let the crowd be refused, then all before it be answered."""
    await r.replies(1)
    await r.until_waiting(1 + LIMIT)
    model.opened.set()
    await r.replies(1 + LIMIT)


async def test_letters_beyond_the_limit_end_at_once_and_the_chat_is_told_once(tmp_path: Path) -> None:
    """They free their places while the turn before them still runs; the older ones are all answered."""
    async with flooded(tmp_path, 9) as (r, model):
        (notice,) = await r.replies(1)
        await r.until_waiting(1 + LIMIT)

        assert (notice.id, notice.kind) == ("m4#notice.flood", "notice")
        assert str(LIMIT) in notice.text
        model.opened.set()
        assert await r.texts(1 + LIMIT) == [f"script: m{number}" for number in range(1 + LIMIT)]
        await r.until_in_lane(0)
        assert model.asked == [f"m{number}" for number in range(1 + LIMIT)]
        assert not await r.mailbox.parked()


async def test_a_refused_letter_that_comes_again_is_not_run_after_all(tmp_path: Path) -> None:
    """Whoever publishes it again, and whichever daemon gets it: it has ended, without another word."""
    async with flooded(tmp_path, 7) as (r, model):
        await to_the_end(r, model)
    again = Rig(tmp_path, Script([]), DispatchRules(flood_per_chat=LIMIT))
    async with again.open():
        for number in (4, 5, 6):
            await again.put(f"m{number}", f"m{number}")
        await again.put("new", "new")

        first, last = await again.replies(2)
        assert (first.id, last.text) == ("m4#notice.flood", "script: new")
        assert len(again.model.prompts) == 1


async def test_a_stop_beyond_the_limit_still_stops(tmp_path: Path) -> None:
    async with flooded(tmp_path, 6) as (r, model):
        await r.replies(1)
        await r.put("/stop", "s1")

        (stopped,) = await r.replies(1)

        assert (stopped.id, stopped.kind) == ("s1#reply", "reply")
        model.opened.set()
        assert await r.texts(LIMIT) == [f"script: m{number}" for number in range(1, 1 + LIMIT)]


async def test_what_is_answered_beside_its_lane_beyond_the_limit_is_answered_once(tmp_path: Path) -> None:
    """The letter is refused later than it is answered, and adds no second answer."""
    asked = [f"s{number}" for number in range(20)]
    async with flooded(tmp_path, 5) as (r, model):
        await r.replies(1)
        for message_id in asked:
            await r.put("/status", message_id)
        answered = await r.replies(len(asked))
        await r.until_waiting(1 + LIMIT)
        model.opened.set()

        assert sorted(reply.id for reply in answered) == sorted(f"{each}#reply" for each in asked)
        assert await r.texts(1 + LIMIT) == [f"script: m{number}" for number in range(1 + LIMIT)]


async def test_a_crowd_of_one_chat_takes_no_place_from_another(tmp_path: Path) -> None:
    """However many come, they do not fill what the daemon holds of its queue."""
    async with flooded(tmp_path, 40, window=10) as (r, _):
        await r.put("hello", "b1", key=BOB)

        assert "script: hello" in await r.texts(2)


async def test_while_the_crowd_is_refused_no_later_letter_is_run(tmp_path: Path) -> None:
    """Its lane has ended, but after a crash those before it might run, and behind it."""
    mailbox = Slow(tmp_path / "state", "m4")
    async with flooded(tmp_path, 7, mailbox=mailbox) as (r, model):
        model.opened.set()
        assert await r.texts(1 + LIMIT) == [f"script: m{number}" for number in range(1 + LIMIT)]
        await r.until_in_lane(0)
        await r.put("later", "later")
        await until(lambda: "later" in mailbox.out)
        await asyncio.sleep(0.2)
        assert "later" not in model.asked
        mailbox.let.set()

        assert await r.ids(1) == ["m4#notice.flood"]
        await r.settled()
        assert await r.say("again", "again") == "script: again"


async def test_one_refused_behind_a_crowd_that_was_told_is_told_itself(tmp_path: Path) -> None:
    """All before it were answered: nobody would know why this one is not. Those that follow it are silent."""
    mailbox = Slow(tmp_path / "state", "m5")
    async with flooded(tmp_path, 7, mailbox=mailbox) as (r, model):
        assert await r.ids(1) == ["m4#notice.flood"]
        model.opened.set()
        await r.replies(1 + LIMIT)
        await r.until_in_lane(0)
        for name in ("later", "latest"):
            await r.put(name, name)
        await until(lambda: "latest" in mailbox.out)
        mailbox.let.set()

        assert await r.ids(1) == ["later#notice.flood"]
        await r.settled()
        assert r.unread == 0
        assert len(model.asked) == 1 + LIMIT


async def test_letters_before_a_crowd_that_is_lost_with_them_are_answered(tmp_path: Path) -> None:
    """They come again before it does: what is still to be refused then stands behind them."""
    mailbox = Slow(tmp_path / "state", "m4")
    async with flooded(tmp_path, 7, mailbox=mailbox) as (r, model):
        await until(lambda: len(mailbox.out) == 7)
        again = mailbox.cut()
        model.opened.set()
        await r.until_in_lane(0)
        mailbox.deliver(again)

        assert await r.texts(1 + LIMIT) == [f"script: m{number}" for number in range(1 + LIMIT)]
        mailbox.let.set()
        assert await r.ids(1) == ["m4#notice.flood"]
        await r.settled()
        assert model.asked == [f"m{number}" for number in range(1 + LIMIT)]


async def test_messages_that_are_taken_back_are_not_asked_however_many_wait(tmp_path: Path) -> None:
    """As where a moderator clears up behind a crowd: nobody is told that a deletion is not answered."""
    async with rig(tmp_path, flood_per_chat=LIMIT) as r:
        await r.begin("m0", "m0")
        for number in range(1, LIMIT + 1):
            await r.put(f"m{number}", f"m{number}", platform_id=str(number))
        for number in range(1, LIMIT):
            deletion = {"platform_id": str(number), "kind": "edit", "meta": {"deleted": True}}
            await r.put("", f"d{number}", **deletion)
        await r.until_in_lane(2 * LIMIT)
        await r.put("changed", "e", platform_id=str(LIMIT), kind="edit")
        await r.until_waiting(2 * LIMIT)
        r.model.release.set()

        assert await r.texts(2) == ["script: m0", "script: changed"]
        await r.settled()
        assert r.unread == 0


COUNT = 1_500
POISON = "m7"


@asynccontextmanager
async def crowded(folder: Path, count: int, *, poison: str = "", parks: bool = True) -> AsyncIterator[Rig]:
    """A worker whose one chat has ``count`` letters, all put at once while the first one's turn runs."""
    model = Held()
    mailbox = BreaksAt(folder / "state", settling=poison, parking=not parks)
    async with Rig(folder, model, DispatchRules(flood_per_chat=LIMIT), mailbox=mailbox).open() as r:
        await r.put("m0", "m0")
        await model.entered.wait()
        await asyncio.gather(*(r.put(f"m{number}", f"m{number}") for number in range(1, count)))
        try:
            yield r
        finally:
            model.opened.set()


@pytest.mark.slow
async def test_a_crowd_is_refused_in_few_writes_of_its_journal(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with crowded(tmp_path, COUNT) as r:
            await r.until_waiting(1 + LIMIT, within_s=60)
            assert await r.ids(1) == ["m4#notice.flood"]

    together = [log["count"] for log in logs if log["event"] == "letters.refused"]
    alone = sum(log["event"] == "letter.refused" for log in logs)
    assert sum(together) + alone == COUNT - 1 - LIMIT
    assert len(together) + alone <= COUNT / 10


@pytest.mark.slow
async def test_one_whose_refusal_breaks_is_parked_and_the_others_end(tmp_path: Path) -> None:
    async with crowded(tmp_path, 20, poison=POISON) as r:
        await r.until_waiting(1 + LIMIT, within_s=60)

        assert [letter.id for letter in await r.mailbox.parked()] == [POISON]


@pytest.mark.slow
async def test_one_that_cannot_even_be_parked_is_left_to_come_again(tmp_path: Path) -> None:
    """It is tried a few times, then it stays in its queue, logged; what follows it ends."""
    with capture_logs() as logs:
        async with crowded(tmp_path, 20, poison=POISON, parks=False) as r:
            await until(lambda: any(log["event"] == "letter.left" for log in logs), within_s=100)
            await r.until_waiting(2 + LIMIT, within_s=60)

            assert isinstance(r.mailbox, BreaksAt)
            assert 1 < r.mailbox.tried < 10
            assert not await r.mailbox.parked()
