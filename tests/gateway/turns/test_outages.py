"""While the model is away lanes wait in order, each chat is told once, and no attempt is counted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.errors import MailboxDown
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Post
from session.errors import ModelAway, ModelFailed, StoreError
from session.transcript.journal import Journal, Told
from tests.gateway.delivery_place import Place
from tests.gateway.embedded_place import BreaksAt
from tests.gateway.waits import until
from tests.gateway.worker_rig import ADA, AWAY, letter, rig
from tests.support.guarantee import guarantee


@guarantee("failures", "During a model outage each chat waits in order and gets one notice.")
async def test_an_outage_holds_its_lane_in_order_and_tells_its_chat_once(tmp_path: Path) -> None:
    async with rig(tmp_path, AWAY, AWAY, AWAY, "one", "two") as r:
        await r.put("1", "m1")
        await r.put("2", "m2")

        notice, first, second = await r.replies(3)

        assert notice.id == "m1#notice.model_away"
        assert (first.text, second.text) == ("one", "two")
        assert not await r.mailbox.parked()
        assert [line["content"] for line in await r.lines()] == ["1", "one", "2", "two"]


async def test_an_outage_of_one_chat_holds_up_no_other(tmp_path: Path) -> None:
    def answer(prompt: Any) -> str:
        text = prompt.messages[-1]["content"]
        if text == "stuck":
            raise ModelAway("429", cause="rate_limit", after_s=60)
        return "fine"

    async with rig(tmp_path, *[answer] * 4, concurrent_turns=1) as r:
        await r.put("stuck", "m1")
        await until(lambda: len(r.model.prompts) == 1)
        await r.put("hello", "x1", key="foreign:bob")

        assert await r.texts(1) == ["fine"]


@pytest.mark.slow
async def test_after_outage_hours_the_letter_is_parked_and_its_chat_told(tmp_path: Path) -> None:
    async with rig(tmp_path, AWAY, outage_hours=24) as r:
        r.model.steps += [AWAY] * 1000
        await r.put("1", "m1")
        await r.replies(1)
        r.clock.now += timedelta(hours=24, minutes=1)

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.outage"
        (parked,) = await r.parked()
        assert parked.reason == "outage: 503"


async def test_a_letter_put_back_after_an_outage_may_wait_as_long_again(tmp_path: Path) -> None:
    """The model is back, but falters once more: that letter has not waited for a day."""
    async with rig(tmp_path, outage_hours=0) as r:
        r.model.steps = [AWAY]
        await r.put("1", "m1")
        await r.replies(1)
        await r.parked()
        async with r.store.open(ADA) as session:
            await session.journal.note("m1", reason="model_away", text=AWAY.said)
            await session.journal.unpark("m1")
    async with rig(tmp_path, AWAY, AWAY, "one", outage_hours=24) as r:
        r.clock.now += timedelta(hours=25)
        await r.mailbox.replay("m1")

        assert [reply.id for reply in await r.replies(2)] == ["m1#notice.model_away", "m1#reply"]


async def test_tries_that_met_an_outage_are_no_attempts(tmp_path: Path) -> None:
    """A letter that was delivered before may meet any number of outages without being parked for it."""
    async with rig(tmp_path) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "m1", letter("1", "m1").to_bytes()))
        await r.replies(1)
        async with r.store.open(ADA) as session:
            for _ in range(5):
                await session.journal.begin("m2", transcript_held_lines=False)
                await session.journal.strike("m2")
        r.model.steps = [AWAY] * 5 + ["two"]

        await r.put("2", "m2")

        replies = await r.replies(2)
        assert [reply.text for reply in replies if reply.kind == "reply"] == ["two"]


@pytest.mark.slow
async def test_a_chat_whose_turn_hangs_in_a_known_outage_is_told(tmp_path: Path) -> None:
    """Where another chat has met the outage, one whose own request still hangs need not wait for its end."""

    async def work() -> None:
        await r.put("1", "m1", key="foreign:bob")
        await r.replies(1)

    async with rig(tmp_path) as r:
        await r.begin("hangs", "m0")
        r.model.steps = [AWAY, *[ModelAway("503", cause="unreachable", after_s=60)] * 9]
        await work()

        (notice,) = await r.replies(1)

        assert notice.id == "m0#notice.model_away"
        r.model.release.set()
        assert await r.texts(1) == ["script: hangs"]


@pytest.mark.slow
async def test_a_chat_that_cannot_be_told_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    """A folder stands where its transcript should be; the chat that came after it hears of the outage."""
    (tmp_path / "sessions" / "foreign_eve.jsonl").mkdir(parents=True)
    async with rig(tmp_path) as r:
        await r.put("cannot be read", "e1", key="foreign:eve")
        assert [reply.id for reply in await r.replies(1)] == ["e1#notice.storage"]
        await r.begin("hangs", "m0")
        r.model.steps = [AWAY, *[ModelAway("503", cause="unreachable", after_s=60)] * 9]
        await r.put("1", "m1", key="foreign:bob")

        assert [reply.id for reply in await r.replies(2)] == ["m1#notice.model_away", "m0#notice.model_away"]
        r.model.release.set()
        await r.replies(1)


async def test_a_notice_of_the_disk_that_breaks_ends_no_other_chat(tmp_path: Path) -> None:
    """A folder stands where the transcript should be; once it is gone, that message is answered as well."""
    (folder := tmp_path / "sessions" / "foreign_eve.jsonl").mkdir(parents=True)
    mailbox = BreaksAt(tmp_path / "state", notices=True)
    async with rig(tmp_path, mailbox=mailbox) as r:
        await r.put("cannot be read", "e1", key="foreign:eve")
        await until(lambda: mailbox.told > 0)
        await r.put("hello", "m1")
        assert await r.texts(1) == ["script: hello"]
        folder.rmdir()

        assert await r.texts(1) == ["script: cannot be read"]


class Refuses(EmbeddedMailbox):
    """Refuses the first put of one notice; counts the puts of it that were confirmed."""

    def __init__(self, state: Path, *, refused: str = "", counted: str = "") -> None:
        super().__init__(state)
        self.confirmed = 0
        self._refused, self._counted = refused, counted

    async def put(self, post: Post) -> None:
        if post.id == self._refused:
            self._refused = ""
            raise MailboxDown("the queue is away, too")
        await super().put(post)
        self.confirmed += post.id == self._counted


async def test_a_chat_whose_notice_was_not_stored_is_told_at_the_next_try(tmp_path: Path) -> None:
    """The queue is away at the same moment as the model."""
    mailbox = Refuses(tmp_path / "state", refused="m1#notice.model_away")
    async with rig(tmp_path, *[AWAY] * 1000, mailbox=mailbox) as r:
        await r.put("1", "m1")

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.model_away"
        r.model.steps = []
        assert await r.texts(1) == ["script: 1"]


async def test_a_chat_whose_notice_was_not_noted_is_told_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses at the same moment."""
    refusals = [StoreError("the disk refused")]
    note = Journal.note

    async def refusing(journal: Journal, id: str, *, reason: str, text: str) -> Told:
        if refusals:
            raise refusals.pop()
        return await note(journal, id, reason=reason, text=text)

    monkeypatch.setattr(Journal, "note", refusing)
    async with rig(tmp_path, *[AWAY] * 1000) as r:
        await r.put("1", "m1")

        notices = await r.replies(2)

        assert [notice.id for notice in notices] == ["m1#notice.storage", "m1#notice.model_away"]
        r.model.steps = []
        assert await r.texts(1) == ["script: 1"]


async def test_a_notice_that_breaks_costs_its_letter_one_try(tmp_path: Path) -> None:
    """Tried again with each try of the letter, it would have that parked."""
    mailbox = BreaksAt(tmp_path / "state", notices=True)
    with capture_logs() as logged:
        async with rig(tmp_path, *[AWAY] * 4, mailbox=mailbox) as r:
            await r.put("1", "m1")

            assert await r.texts(1) == ["script: 1"]
    assert mailbox.told == 1
    assert [line["event"] for line in logged].count("turn.crashed") == 1


@pytest.mark.slow
async def test_a_daemon_that_is_started_again_in_an_outage_tells_nobody_twice(tmp_path: Path) -> None:
    """It cannot know whether its notice was stored, and puts the same one again."""
    away = ModelAway("503", cause="unreachable", after_s=60)
    place = Place(tmp_path, max_chars=4000)
    for _ in range(2):
        mailbox = Refuses(tmp_path / "state", counted="m1#notice.model_away")
        async with rig(tmp_path, AWAY, away, away, mailbox=mailbox) as r, place.delivering(mailbox):
            await r.put("1", "m1", key="fake:ada")
            await until(lambda mailbox=mailbox: mailbox.confirmed == 1)
            await until(lambda: len(place.platform.texts()) == 1)

    async with rig(tmp_path) as r, place.delivering(r.mailbox):
        await place.platform.until(lambda platform: "script: 1" in platform.texts())

    assert place.platform.texts() == [away.said, "script: 1"]


class Late(EmbeddedMailbox):
    """Stores what is put under one id only when ``gate`` is set."""

    def __init__(self, state: Path, *, late: str) -> None:
        super().__init__(state)
        self.waits, self.gate = asyncio.Event(), asyncio.Event()
        self._late = late

    async def put(self, post: Post) -> None:
        if post.id == self._late:
            self.waits.set()
            await self.gate.wait()
        await super().put(post)


async def test_an_outage_that_ends_while_its_chat_is_told_is_waited_for_no_longer(tmp_path: Path) -> None:
    """The model answers another chat before the notice is stored: the lane goes on as soon as it is."""
    mailbox = Late(tmp_path / "state", late="m1#notice.model_away")
    away = ModelAway("503", cause="unreachable")
    async with rig(tmp_path, AWAY, away, "fine", "late", mailbox=mailbox) as r:
        await r.put("1", "m1")
        await mailbox.waits.wait()
        await r.put("hello", "x1", key="foreign:bob")
        assert await r.texts(1) == ["fine"]
        mailbox.gate.set()

        assert [reply.id for reply in await r.replies(2)] == ["m1#notice.model_away", "m1#reply"]


async def test_what_the_model_fails_on_is_tried_five_times_and_then_parked(tmp_path: Path) -> None:
    """Its chat hears of it, the lane goes on, and nobody takes the model for away."""
    async with rig(tmp_path, *[ModelFailed("500")] * 5) as r:
        await r.put("poison", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert (notice.id, reply.text) == ("m1#notice.failed", "script: hello")
        (parked,) = await r.parked()
        assert (parked.reason, parked.attempts) == ("failed: 500", 5)
        assert r.worker.outage.since is None


async def test_an_outage_that_meets_one_message_alone_is_counted(tmp_path: Path) -> None:
    """Others are answered between its tries: it is the message, whatever the status says."""

    def answer(prompt: Any) -> str:
        text = str(prompt.messages[-1]["content"])
        if text == "flagged":
            raise ModelAway("403", cause="credentials", after_s=0.01)
        return text

    async with rig(tmp_path, *[answer] * 99, model_tries=2) as r:
        await r.put("flagged", "m1")
        await r.until_held()
        for number in range(99):
            await r.put("fine", f"b{number}", key="foreign:bob")
            (reply,) = await r.replies(1)
            if reply.id == "m1#notice.failed":
                break

        assert len([each for each in r.model.prompts if each.messages[-1]["content"] == "flagged"]) < 20
        assert [parked.id for parked in await r.parked()] == ["m1"]


async def test_the_first_failed_try_is_told_to_nobody(tmp_path: Path) -> None:
    """A moment later the message is answered."""
    async with rig(tmp_path, AWAY, "one") as r:
        await r.put("1", "m1")

        assert await r.texts(1) == ["one"]
        await r.settled()
        assert r.unread == 0


async def test_an_answer_releases_no_lane_before_its_retry_after(tmp_path: Path) -> None:
    """One lane is released for each answer, and none whose provider asked for more time."""
    limited = [ModelAway("429", cause="rate_limit", after_s=after_s) for after_s in (0.05, 60)]
    async with rig(tmp_path, *limited, "fine", "late") as r:
        for number, key in enumerate((ADA, "foreign:bob")):
            await r.put("1", f"m{number}", key=key)
            await r.until_held(key)

        assert (await r.replies(1))[0].id == "m0#reply"
        await r.put("hello", "x1", key="foreign:cy")
        assert (await r.replies(1))[0].id == "x1#reply"
        assert len(r.model.prompts) == 4
