"""An outage is one of its model, and over when that answers: no other answer, and no stop, ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.turns import outages
from gateway.turns.agents import AgentSet
from gateway.turns.letter_rules import LetterRules
from session.context.agents import Agents, Binding
from session.errors import ModelAway, TurnTimeout
from tests.contracts.models import Script
from tests.gateway.turns.test_approvals import Asking
from tests.gateway.waits import until
from tests.gateway.worker_rig import ADA, AWAY, Rig, rig
from tests.session.turn_place import call
from tests.support.guarantee import guarantee

pytestmark = guarantee("failures", "Only an answer of the same model ends its outage.")

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
    built = TwoModels(folder, Script([FAR] * 9), LetterRules())
    async with built.open():
        yield built
        await end(built)


async def end(r: Rig) -> None:
    """Let the model answer, so that nothing waits for it any more."""
    r.model.steps.clear()
    await r.put("/stop", "end1")
    await r.put("/stop", "end2", key=BOB)
    await r.settled()


async def until_paused(r: Rig, key: str = ADA) -> None:
    def paused() -> bool:
        lane = r.worker.lanes.get(key)
        return lane is not None and lane.nudge is not None

    await until(paused)


async def test_the_answers_of_another_model_end_no_outage(tmp_path: Path) -> None:
    """The chat that waits is told once, and its model is not asked whenever another one answers."""
    async with two_models(tmp_path) as r:
        await r.put("asked", "m1")
        await until_paused(r)
        for number in range(3):
            await r.put("hello", f"b{number}", key=BOB)
            assert [each.id for each in await r.replies(1)] == [f"b{number}#reply"]

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
        lane.entries[0].since -= outages.TELL_WITHIN_S
        await r.put("asked", "m1")
        assert [each.id for each in await r.replies(1)] == ["m1#notice.model_away"]
        await until_paused(r)
        r.second.release.set()

        assert [each.id for each in await r.replies(1)] == ["b1#reply"]


async def test_a_stop_ends_no_outage(tmp_path: Path) -> None:
    """It ends one turn; that of another chat goes on waiting, which need not be told again."""
    async with rig(tmp_path, *[FAR] * 9) as r:
        for number, key in enumerate([ADA, BOB], 1):
            await r.put("asked", f"m{number}", key=key)
            await until_paused(r, key)
        await r.put("/stop", "s1")
        assert await r.texts(1) == ["Stopped."]
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
        await until_paused(r)
        await r.put("asked", "b1", key=BOB)
        assert [each.id for each in await r.replies(1)] == ["b1#notice.timeout"]
        await r.until_in_lane(0, BOB)

        assert r.worker.outage.since is not None
        await end(r)


async def test_an_answer_of_the_model_itself_ends_it(tmp_path: Path) -> None:
    async with rig(tmp_path, ModelAway("503", cause="unreachable")) as r:
        await r.put("asked", "m1")
        await until_paused(r)
        await r.put("hello", "b1", key=BOB)

        assert sorted(await r.texts(2)) == ["script: asked", "script: hello"]
        assert r.worker.outage.since is None


async def test_a_chat_that_waits_for_a_person_is_told_of_no_outage(tmp_path: Path) -> None:
    """It was asked whether a tool may run: nothing of it waits for the model."""
    built = Asking(tmp_path, Script([call("1"), AWAY, AWAY, "fine"]), LetterRules())
    async with built.open() as r:
        await r.put("count", "m1")
        await r.replies(1)
        await until_paused(r)
        lane = r.worker.lanes.get(ADA)
        assert lane is not None
        lane.entries[0].since -= outages.TELL_WITHIN_S
        await r.put("hello", "b1", key=BOB)

        told = [each.id for each in await r.replies(2)]
        assert told == ["b1#notice.model_away", "b1#reply"]
        await r.put("/stop", "s1")
