"""While the model is away lanes wait in order, each chat is told once, and no attempt is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.dispatch import failures
from gateway.dispatch.routing import AgentSet
from gateway.dispatch.worker import DispatchRules
from session.context.scopes import Agents, Binding
from session.errors import ModelAway, TurnTimeout
from tests.contracts.models import Script
from tests.gateway.delivery_place import Place
from tests.gateway.dispatch.test_approvals import Asking
from tests.gateway.embedded_place import BreaksAt, OnePut
from tests.gateway.worker_rig import ADA, AWAY, Rig, rig
from tests.session.turn_place import call
from tests.support.guarantee import guarantee
from tests.support.until import until


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


@pytest.mark.slow
async def test_after_outage_hours_the_letter_is_parked_and_its_chat_told(tmp_path: Path) -> None:
    async with rig(tmp_path, AWAY, outage_hours=24) as r:
        r.model.steps += [AWAY] * 1000
        await r.say("1", "m1")
        r.clock.now += timedelta(hours=24, minutes=1)

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.outage"
        (parked,) = await r.parked()
        assert parked.reason == "outage: 503"


async def test_a_letter_put_back_after_an_outage_may_wait_as_long_again(tmp_path: Path) -> None:
    """The model is back, but falters once more: that letter has not waited for a day."""
    async with rig(tmp_path, outage_hours=0) as r:
        r.model.steps = [AWAY]
        await r.say("1", "m1")
        await r.parked()
        async with r.store.open(ADA) as session:
            await session.journal.note("m1", reason="model_away", text=AWAY.said)
    async with rig(tmp_path, AWAY, AWAY, "one", outage_hours=24) as r:
        r.clock.now += timedelta(hours=25)
        await r.put_back("m1")

        assert await r.ids(2) == ["m1#notice.model_away", "m1#reply"]


@pytest.mark.slow
async def test_a_chat_that_cannot_be_told_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    """A folder stands where its transcript should be; the chat that came after it hears of the outage."""
    (tmp_path / "sessions" / "foreign_eve.jsonl").mkdir(parents=True)
    async with rig(tmp_path) as r:
        await r.put("cannot be read", "e1", key="foreign:eve")
        assert await r.ids(1) == ["e1#notice.storage"]
        await r.begin("hangs", "m0")
        r.model.steps = [AWAY, *[ModelAway("503", cause="unreachable", after_s=60)] * 9]
        await r.put("1", "m1", key="foreign:bob")

        assert await r.ids(2) == ["m1#notice.model_away", "m0#notice.model_away"]
        r.model.release.set()
        await r.replies(1)


async def test_a_notice_of_the_disk_that_breaks_ends_no_other_chat(tmp_path: Path) -> None:
    """A folder stands where the transcript should be; once it is gone, that message is answered as well."""
    (folder := tmp_path / "sessions" / "foreign_eve.jsonl").mkdir(parents=True)
    mailbox = BreaksAt(tmp_path / "state", notices=True)
    async with rig(tmp_path, mailbox=mailbox) as r:
        await r.put("cannot be read", "e1", key="foreign:eve")
        await until(lambda: mailbox.told > 0)
        assert await r.say("hello", "m1") == "script: hello"
        folder.rmdir()

        assert await r.texts(1) == ["script: cannot be read"]


async def test_a_chat_whose_notice_was_not_stored_is_told_at_the_next_try(tmp_path: Path) -> None:
    """The queue is away at the same moment as the model."""
    mailbox = OnePut(tmp_path / "state", "m1#notice.model_away", refuses=True)
    async with rig(tmp_path, *[AWAY] * 1000, mailbox=mailbox) as r:
        await r.put("1", "m1")

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.model_away"
        r.model.steps = []
        assert await r.texts(1) == ["script: 1"]


async def test_a_notice_that_breaks_costs_its_letter_one_try(tmp_path: Path) -> None:
    """Tried again with each try of the letter, it would have that parked."""
    mailbox = BreaksAt(tmp_path / "state", notices=True)
    with capture_logs() as logged:
        async with rig(tmp_path, *[AWAY] * 4, mailbox=mailbox) as r:
            assert await r.say("1", "m1") == "script: 1"
    assert mailbox.told == 1
    assert [line["event"] for line in logged].count("turn.crashed") == 1


@pytest.mark.slow
async def test_a_daemon_that_is_started_again_in_an_outage_tells_nobody_twice(tmp_path: Path) -> None:
    """It cannot know whether its notice was stored, and puts the same one again."""
    away = ModelAway("503", cause="unreachable", after_s=60)
    place = Place(tmp_path, max_chars=4000)
    for _ in range(2):
        mailbox = OnePut(tmp_path / "state", "m1#notice.model_away")
        async with rig(tmp_path, AWAY, away, away, mailbox=mailbox) as r, place.delivering(mailbox):
            await r.put("1", "m1", key="fake:ada")
            await until(lambda mailbox=mailbox: mailbox.confirmed == 1)
            await until(lambda: len(place.platform.texts()) == 1)

    async with rig(tmp_path) as r, place.delivering(r.mailbox):
        await place.platform.until(lambda platform: "script: 1" in platform.texts())

    assert place.platform.texts() == [away.said, "script: 1"]


async def test_an_outage_that_ends_while_its_chat_is_told_is_waited_for_no_longer(tmp_path: Path) -> None:
    """The model answers another chat before the notice is stored: the lane goes on as soon as it is."""
    mailbox = OnePut(tmp_path / "state", "m1#notice.model_away", held=True)
    away = ModelAway("503", cause="unreachable")
    async with rig(tmp_path, AWAY, away, "fine", "late", mailbox=mailbox) as r:
        await r.put("1", "m1")
        await mailbox.waits.wait()
        assert await r.say("hello", "x1", key="foreign:bob") == "fine"
        mailbox.gate.set()

        assert await r.ids(2) == ["m1#notice.model_away", "m1#reply"]


async def test_the_first_failed_try_is_told_to_nobody(tmp_path: Path) -> None:
    """A moment later the message is answered."""
    async with rig(tmp_path, AWAY, "one") as r:
        assert await r.say("1", "m1") == "one"
        await r.settled()
        assert r.unread == 0


FAR = ModelAway("503", cause="unreachable", after_s=60)
BOB = "foreign:bob"


class TwoModels(Rig):
    """A worker whose second agent, which has Bob's chat, has a model of its own."""

    def agents(self) -> AgentSet:
        every = super().agents().every
        mine, self.model = self.model, Script()
        coder = super().agents().every[""]
        self.second, self.model = self.model, mine
        return AgentSet({**every, "coder": coder}, Agents({"coder": "chat"}, [Binding("chat", BOB, "coder")]))


@asynccontextmanager
async def two_models(folder: Path) -> AsyncIterator[TwoModels]:
    built = TwoModels(folder, Script([FAR] * 9), DispatchRules())
    async with built.open():
        yield built
        await end(built)


async def end(r: Rig) -> None:
    """Let the model answer, so that nothing waits for it any more."""
    r.model.steps.clear()
    await r.put("/stop", "end1")
    await r.put("/stop", "end2", key=BOB)
    await r.settled()


@guarantee("failures", "Only an answer of the same model ends its outage.")
async def test_the_answers_of_another_model_end_no_outage(tmp_path: Path) -> None:
    """The chat that waits is told once, and its model is not asked whenever another one answers."""
    async with two_models(tmp_path) as r:
        await r.put("asked", "m1")
        await r.until_paused()
        for number in range(3):
            await r.put("hello", f"b{number}", key=BOB)
            assert await r.ids(1) == [f"b{number}#reply"]

        assert len(r.model.prompts) == 1
        assert r.worker.outage.since is not None


async def test_a_chat_that_asks_another_model_is_told_of_no_outage(tmp_path: Path) -> None:
    async with two_models(tmp_path) as r:
        r.model.steps.insert(0, AWAY)
        r.second.release.clear()
        await r.put("takes its time", "b1", key=BOB)
        await r.second.held.wait()
        lane = r.worker.lanes.get(BOB)
        assert lane is not None
        lane.entries[0].since -= failures.TELL_WITHIN_S
        await r.put("asked", "m1")
        assert await r.ids(1) == ["m1#notice.model_away"]
        await r.until_paused()
        r.second.release.set()

        assert await r.ids(1) == ["b1#reply"]


async def test_a_stop_ends_no_outage(tmp_path: Path) -> None:
    """It ends one turn; that of another chat goes on waiting, which need not be told again."""
    async with rig(tmp_path, *[FAR] * 9) as r:
        for number, key in enumerate([ADA, BOB], 1):
            await r.put("asked", f"m{number}", key=key)
            await r.until_paused(key)
        assert await r.say("/stop", "s1") == "Stopped."
        await r.until_in_lane(0)

        assert r.worker.outage.since is not None
        assert len(r.model.prompts) == 2
        await end(r)


async def test_a_turn_that_ran_out_of_time_ends_no_outage(tmp_path: Path) -> None:
    """Its model has not answered it."""

    def too_late(_: object) -> str:
        raise TurnTimeout("over 600 s")

    async with rig(tmp_path, FAR, too_late) as r:
        await r.put("asked", "m1")
        await r.until_paused()
        await r.put("asked", "b1", key=BOB)
        assert await r.ids(1) == ["b1#notice.timeout"]
        await r.until_in_lane(0, BOB)

        assert r.worker.outage.since is not None
        await end(r)


@guarantee("failures", "Only an answer of the same model ends its outage.")
async def test_an_answer_of_the_model_itself_ends_it(tmp_path: Path) -> None:
    async with rig(tmp_path, ModelAway("503", cause="unreachable")) as r:
        await r.put("asked", "m1")
        await r.until_paused()
        await r.put("hello", "b1", key=BOB)

        assert sorted(await r.texts(2)) == ["script: asked", "script: hello"]
        assert r.worker.outage.since is None


async def test_a_chat_that_waits_for_a_person_is_told_of_no_outage(tmp_path: Path) -> None:
    """It was asked whether a tool may run: nothing of it waits for the model."""
    built = Asking(tmp_path, Script([call("1"), AWAY, AWAY, "fine"]), DispatchRules())
    async with built.open() as r:
        await r.say("count", "m1")
        lane = await r.until_paused()
        lane.entries[0].since -= failures.TELL_WITHIN_S
        await r.put("hello", "b1", key=BOB)

        told = await r.ids(2)
        assert told == ["b1#notice.model_away", "b1#reply"]
        await r.put("/stop", "s1")
