"""``/stop`` ends the turn that runs or waits, at once, and nothing that came after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.queue.embedded.buffer import EmbeddedLetter
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Letter, Post
from session.errors import ModelAway
from tests.gateway.embedded_place import OnePut
from tests.gateway.worker_rig import ADA, Rig, letter, rig
from tests.support.until import until


async def test_stop_ends_the_running_turn_out_of_line_and_waiting_letters_run_on(tmp_path: Path) -> None:
    """A stopped turn counts as answered: put again, its message is not asked again."""
    async with rig(tmp_path, "a long answer", "two") as r:
        r.read_along()
        await r.begin("1", "m1")
        await r.put("2", "m2")
        await r.put("/stop", "s1")
        r.model.release.set()

        replies = await r.replies(2)

        assert sorted((reply.id, reply.text) for reply in replies) == [
            ("m2#reply", "two"),
            ("s1#reply", "Stopped."),
        ]
        await r.put("1", "m1")
        await r.settled()
        assert (r.unread, len(r.model.prompts)) == (0, 2)
        closing = (await r.lines())[1]
        assert (closing["stopped"], closing["final"], closing["content"]) == (True, True, "a long")


async def test_a_stop_that_comes_again_after_a_crash_ends_no_later_turn(tmp_path: Path) -> None:
    """Its platform hands it out again, to a process that has not seen it; it was for the turn of then."""
    async with rig(tmp_path, "a long answer") as r:
        await r.begin("1", "m1")
        await r.put("/stop", "s1")
        r.model.release.set()
        assert await r.texts(1) == ["Stopped."]
        await r.settled()

    async with rig(tmp_path, "another answer") as r:
        await r.begin("2", "m2")
        await r.intake.accept(letter("/stop", "s1"))
        await r.intake.stop(ADA, "s1", letter=letter("/stop", "s1"))
        await asyncio.sleep(0.1)
        r.model.release.set()
        replies = await r.replies(2)

        assert ("m2#reply", "another answer") in [(reply.id, reply.text) for reply in replies]
        await r.settled()


async def test_a_stop_that_comes_again_ends_the_turn_that_it_was_answered_for(tmp_path: Path) -> None:
    """The process died between its answer and what is stored of the turn, which then begins anew."""
    async with rig(tmp_path, "a long answer") as r:
        async with r.store.open(ADA) as session:
            await session.journal.conclude("s1", "command", text="Stopped.", stops="m1")
        await r.begin("1", "m1")
        await r.intake.accept(letter("/stop", "s1"))
        await r.settled()

        assert (await r.lines())[1]["stopped"] is True


async def test_a_message_that_was_promised_an_answer_is_told_of_its_end(tmp_path: Path) -> None:
    """Its chat shows that the answer comes, until something takes the place; others end in silence."""
    async with rig(tmp_path, "a long answer") as r:
        await r.begin("1", "m1", meta={"promised": True, "place": "p1"})
        await r.put("/stop", "s1", meta={"promised": True, "place": "p2"})
        r.model.release.set()

        replies = {reply.id: reply for reply in await r.replies(2)}
        await r.settled()

    assert {name: reply.text for name, reply in replies.items()} == {
        "m1#notice.stopped": "Stopped.",
        "s1#reply": "Stopped.",
    }
    assert {reply.meta["place"] for reply in replies.values()} == {"p1", "p2"}
    assert r.unread == 0


async def test_an_order_that_overtakes_its_letter_answers_as_the_letter_would(tmp_path: Path) -> None:
    """The answer quotes the message and has what its platform needs, though the letter waits elsewhere."""
    async with rig(tmp_path, "a long answer") as r:
        await r.begin("1", "m1")
        asked = letter("/stop", "s1", platform_id="77", meta={"place": "p2"})
        await r.intake.stop(ADA, "s1", letter=asked)

        (reply,) = await r.replies(1)
        r.model.release.set()

    assert (reply.id, reply.text, reply.reply_to) == ("s1#reply", "Stopped.", "77")
    assert reply.meta["place"] == "p2"


async def test_a_stop_letter_stays_until_its_reply_is_durable(tmp_path: Path) -> None:
    """The answer out of line fails late: the letter has waited for it, and answers itself."""
    mailbox = OnePut(tmp_path / "state", "s1#reply", refuses=True, held=True)
    async with rig(tmp_path, "a long answer", mailbox=mailbox) as r:
        await r.begin("1", "m1")
        await r.put("/stop", "s1")
        await until(lambda: (lane := r.worker.lanes.get(ADA)) is None or lane.entries[0].inbound.id == "s1")
        mailbox.gate.set()

        assert await r.texts(1) == ["Stopped."]
        r.model.release.set()


async def test_a_stop_that_comes_late_does_not_end_what_came_after_it(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer") as r:
        await come_again(r)
        assert await r.texts(1) == ["Nothing is running."]
        await r.begin("1", "m1")

        assert not r.worker.orders.stop(ADA, asked_id="s1")

        r.model.release.set()
        assert await r.texts(1) == ["a long answer"]


async def test_a_stop_that_means_one_message_ends_no_other(tmp_path: Path) -> None:
    """It comes late, or to a daemon that runs another turn of the chat by then."""
    async with rig(tmp_path, "a long answer", "two") as r:
        await r.begin("1", "m1")

        assert not r.worker.orders.stop(ADA, "stop:1", only="m2")
        assert not r.worker.orders.stop("foreign:bob", "stop:1", only="m1")
        assert r.worker.orders.stop(ADA, "stop:1", only="m1")

        await r.settled()
        assert (await r.lines())[1]["stopped"]


class ComesAgain(EmbeddedMailbox):
    """Has each ``/stop`` for one that may have come before."""

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        async with super().take(box) as letters:
            yield self._suspected(letters)

    async def _suspected(self, letters: AsyncIterator[Letter]) -> AsyncIterator[Letter]:
        async for each in letters:
            if isinstance(each, EmbeddedLetter) and each.id.startswith("s"):
                each.suspect = True
            yield each


async def come_again(r: Rig) -> None:
    """Put a ``/stop`` without the order that goes beside a new one: that one was heard, or reached nobody."""
    await r.mailbox.put(Post(INBOUND, ADA, "s1", letter("/stop", "s1").to_bytes()))


async def test_a_stop_that_comes_again_after_its_answer_ends_nothing_more(tmp_path: Path) -> None:
    """A process died while the message behind the stopped one was answered: that one is not stopped, too."""
    async with rig(tmp_path, "about two", mailbox=ComesAgain(tmp_path / "state")) as r:
        await r.begin("two", "m2")
        async with r.store.open(ADA) as session:
            await session.journal.conclude("s1", "command", text="Stopped.")
        await come_again(r)
        await r.until_in_lane(2)
        r.model.release.set()

        assert sorted(await r.texts(2)) == ["Stopped.", "about two"]
        await r.settled()
        assert not any(line.get("stopped") for line in await r.lines())


async def test_a_stop_that_comes_again_and_was_never_acted_on_ends_what_runs(tmp_path: Path) -> None:
    async with rig(tmp_path, "about two", mailbox=ComesAgain(tmp_path / "state")) as r:
        await r.begin("two", "m2")
        await come_again(r)

        assert await r.texts(1) == ["Stopped."]
        r.model.release.set()
        await r.settled()
        assert r.unread == 0
        assert (await r.lines())[-1]["stopped"]


async def test_a_stop_whose_process_died_before_its_answer_ends_nothing_more(tmp_path: Path) -> None:
    """… but behind the stored end of the turn: that says which message stopped it."""
    async with rig(tmp_path, "a long answer") as r:
        await r.begin("1", "m1")
        r.worker.orders.aside.answer = lambda *_, **__: None  # type: ignore[method-assign]
        r.worker.orders.stop(ADA, "s1", asked=letter("/stop", "s1"))
        await until(lambda: not r.worker.lanes.begun(ADA))
        assert (await r.lines())[-1]["stopped_by"] == "s1"

    async with rig(tmp_path, "another answer", mailbox=ComesAgain(tmp_path / "state")) as r:
        await r.begin("2", "m2")
        await come_again(r)
        await r.until_in_lane(2)
        r.model.release.set()

        assert sorted(await r.texts(2)) == ["Stopped.", "another answer"]
        await r.settled()
        assert not (await r.lines())[-1].get("stopped")


async def test_stop_ends_a_message_whose_next_try_waits_for_a_place(tmp_path: Path) -> None:
    """After an outage more chats go on than have a place; nobody is told that nothing runs, and answered."""
    away = ModelAway("503", cause="unreachable", after_s=60)
    async with rig(tmp_path, away, concurrent_turns=1) as r:
        await r.put("asked", "m1")
        lane = await r.until_paused()
        await r.begin("takes the place", "x1", key="foreign:bob")
        await r.go_on()
        await until(lambda: lane.nudge is None)

        assert await r.say("/stop", "m2") == "Stopped."
        r.model.release.set()

        assert await r.ids(1) == ["x1#reply"]
        await r.settled()
        assert r.unread == 0
