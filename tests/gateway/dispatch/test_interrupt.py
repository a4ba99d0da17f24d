"""Mode ``interrupt``: a new message stops the turn that runs, and one answer serves both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from gateway.dispatch.batching import TOGETHER_MAX, QueueRules
from gateway.dispatch.completion import LEFT_SAID
from gateway.dispatch.worker import DispatchRules
from gateway.service.outcome import Outcome
from gateway.service.records import Record
from session.errors import ContextTooLong, ModelAway, ModelRefused
from session.models.model import Prompt
from tests.contracts.models import Script
from tests.gateway.dispatch.test_quota import BOB, EVE, limited
from tests.gateway.worker_rig import ADA, Rig, rig
from tests.support.guarantee import guarantee
from tests.support.until import until

INTERRUPT = QueueRules("interrupt")


async def until_asked(r: Rig, times: int) -> None:
    await until(lambda: len(r.model.prompts) >= times)


async def test_one_that_waits_for_a_model_that_is_away_is_answered_with_the_next(tmp_path: Path) -> None:
    away = ModelAway("429", cause="rate_limit", after_s=60)
    async with rig(tmp_path, away, "both", queue=INTERRUPT) as r:
        await r.put("one", "m1")
        await r.until_paused()
        assert await r.say("two", "m2") == "both"
        assert (await r.lines())[-1]["answers"] == ["m1", "m2"]


@guarantee("order", "A message interrupts only the turn whose answer will serve both.")
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("/new", {}),
        ("hello", {"sender": Sender(id="2")}),
        ("hello", {"kind": "action"}),
        ("edited", {"kind": "edit"}),
    ],
)
async def test_what_stands_between_keeps_a_message_from_interrupting(
    tmp_path: Path, text: str, fields: dict[str, Any]
) -> None:
    """The turn that runs would be answered by what stands there, or by nobody."""
    async with rig(tmp_path, "a long answer", queue=INTERRUPT) as r:
        await r.line_up(("one", "m1"), (text, "x", fields), ("two", "m2"))
        await r.settled()

        told = {reply.id: reply.text for reply in await r.replies(r.unread)}
        assert (told["m1#reply"], told["m2#reply"]) == ("a long answer", "script: two")
        assert all("answers" not in line for line in await r.lines())


async def test_a_command_behind_all_that_a_turn_takes_in_stands_between_as_well(tmp_path: Path) -> None:
    def held(_: Prompt) -> str:
        r.model.release.clear()
        return "an answer"

    rules = {"queue": INTERRUPT, "concurrent_turns": 1, "pending_per_chat": 100}
    async with rig(tmp_path, "busy", held, "at last", **rules) as r:
        await r.begin("busy", "b1", key=BOB)
        for number in range(TOGETHER_MAX):
            await r.put(f"line {number}", f"m{number}")
        await r.put("/new", "x")
        await r.until_in_lane(TOGETHER_MAX + 1)
        r.model.release.set()
        await until_asked(r, 2)
        await r.put("last", "m")
        await r.until_in_lane(TOGETHER_MAX + 2)
        r.model.release.set()

        ids = await r.ids(4)
        assert ids == ["b1#reply", "m0#reply", "x#reply", "m#reply"]
        await r.settled()


async def interrupted_and_deleted(r: Rig, *more: str) -> None:
    """Interrupt m1 by m2, which is deleted while another chat has the one place; ``more`` comes before."""
    await r.begin("one", "m1", platform_id="1")
    await r.put("busy", "b1", key=BOB)
    await until(lambda: r.worker.lanes.get(BOB) is not None)
    await r.put("two", "m2", platform_id="2")
    await until_asked(r, 2)
    for number, text in enumerate(more, 3):
        await r.put(text, f"m{number}", platform_id=str(number))
    await r.put("", "d", platform_id="2", kind="edit", meta={"deleted": True})
    await r.until_in_lane(2 + len(more))


async def test_what_was_stopped_for_a_message_that_is_deleted_is_asked_again(tmp_path: Path) -> None:
    """The letter of the deleted message has its turn; nothing of what was in it is kept."""
    async with rig(tmp_path, "a long answer", "busy", "at last", queue=INTERRUPT, concurrent_turns=1) as r:
        await interrupted_and_deleted(r)
        await r.put("hello", "x", sender=Sender(id="2"))
        r.model.release.set()

        ids = {reply.id: (reply.text, reply.reply_to) for reply in await r.replies(3)}
        await r.settled()
        assert ids == {
            "b1#reply": ("busy", None),
            "m2#reply": ("at last", None),
            "x#reply": ("script: hello", None),
        }
        assert r.asked(2) == ["one"]
        assert "two" not in str(await r.lines())
        assert all("answers" not in line for line in await r.lines())
        assert r.unread == 0


async def test_what_was_stopped_is_asked_with_the_next_message_where_one_waits(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer", "busy", "both", queue=INTERRUPT, concurrent_turns=1) as r:
        await interrupted_and_deleted(r, "three")
        r.model.release.set()

        assert {reply.id for reply in await r.replies(2)} == {"b1#reply", "m3#reply"}
        await r.settled()
        assert (await r.lines())[-1]["answers"] == ["m1", "m3"]
        assert r.unread == 0


async def test_a_try_that_failed_asks_again_what_was_stopped(tmp_path: Path) -> None:
    """The stopped turn is withdrawn by then, and known by that."""
    away = ModelAway("503", cause="unreachable", after_s=0.01)
    steps = ("a long answer", "busy", away, "at last")
    async with rig(tmp_path, *steps, queue=INTERRUPT, concurrent_turns=1) as r:
        await interrupted_and_deleted(r)
        r.model.release.set()

        ids = await r.ids(2)
        assert sorted(ids) == ["b1#reply", "m2#reply"]
        await r.settled()
        assert r.asked(3) == ["one"]


async def test_over_the_messages_of_an_hour_the_one_that_stopped_a_turn_is_asked(tmp_path: Path) -> None:
    """Its answer serves the message that was within the limit; it is the last one, so that none stops it."""
    place = Rig(tmp_path, Script(["a long answer", "both"]), DispatchRules(queue=INTERRUPT))
    async with limited(tmp_path, turns=1, rig=place) as r:
        await r.begin("one", "m1", sender=EVE)
        await r.put("two", "m2", sender=EVE)
        await until_asked(r, 2)
        await r.put("three", "m3", sender=EVE)
        await r.until_in_lane(2)
        r.model.release.set()

        replies = await r.replies(2)
        await r.settled()
        assert [(reply.id, reply.text[:4]) for reply in replies] == [
            ("m2#reply", "both"),
            ("m3#notice.limit", "You "),
        ]
        assert (await r.lines())[-1]["answers"] == ["m1", "m2"]
        assert r.unread == 0


async def test_within_the_messages_of_an_hour_each_may_stop_the_one_before(tmp_path: Path) -> None:
    place = Rig(tmp_path, Script(["a long answer", "another one", "all"]), DispatchRules(queue=INTERRUPT))
    async with limited(tmp_path, turns=3, rig=place) as r:
        await r.begin("one", "m1", sender=EVE)
        for number, text in ((2, "two"), (3, "three")):
            await r.put(text, f"m{number}", sender=EVE)
            await until_asked(r, number)
        r.model.release.set()

        assert await r.texts(1) == ["all"]
        await r.settled()
        assert (r.unread, (await r.lines())[-1]["answers"]) == (0, ["m1", "m2", "m3"])


async def test_what_was_stopped_for_another_person_lets_nobody_over_the_limit(tmp_path: Path) -> None:
    """A turn of Eve's was stopped for a message that ended without one."""
    place = Rig(tmp_path, Script(["an answer", "a long answer"]), DispatchRules(queue=INTERRUPT))
    async with limited(tmp_path, turns=1, rig=place) as r:
        bob = Sender(id="9")
        await r.say("mine", "b1", sender=bob)
        await r.begin("one", "m1", sender=EVE)
        r.worker.lanes.stop(ADA, "m2", interrupted=True)
        await r.put("again", "b2", sender=bob)

        assert await r.ids(1) == ["b2#notice.limit"]


@guarantee("failures", "A message that was interrupted by a parked one gets a notice.")
@pytest.mark.parametrize("fault", [ModelRefused("policy"), ContextTooLong("9000 > 8000")])
async def test_where_the_newest_is_set_aside_those_it_interrupted_are_told(
    tmp_path: Path, fault: Exception
) -> None:
    """Their letters are gone: nothing else would ever answer them, nor those who wait for them."""
    async with rig(tmp_path, "a long answer", "another one", fault, "next", queue=INTERRUPT) as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await until_asked(r, 2)
        await r.put("three", "m3")
        await until_asked(r, 3)
        r.model.release.set()
        told = {reply.id: reply.text for reply in await r.replies(3)}

        reason = "refused" if isinstance(fault, ModelRefused) else "too_long"
        assert [told[f"m{number}#notice.{reason}"] for number in (1, 2)] == [LEFT_SAID, LEFT_SAID]
        assert "operator can see why" in told[f"m3#notice.{reason}"]
        assert [parked.id for parked in await r.parked()] == ["m3"]
        for number in (1, 2):
            standing = await Record(r.store).standing(ADA, f"m{number}")
            assert standing.outcome == Outcome("notice", LEFT_SAID)
        assert await r.say("four", "m4") == "next"
        asked = r.asked()
        assert ("one" in asked) == (reason == "too_long")
        assert (await r.lines())[-1].get("answers") is None


@pytest.mark.parametrize(("command", "asked"), [("/undo", ["q3"]), ("/retry", ["q1\n\nq2"])])
async def test_what_one_answer_served_is_withdrawn_together(
    tmp_path: Path, command: str, asked: list[str]
) -> None:
    async with rig(tmp_path, queue=QueueRules("interrupt")) as r:
        await r.begin("q1", "m1")
        await r.put("q2", "m2")
        r.model.release.set()
        assert await r.texts(1) == ["script: q2"]
        await r.settled()
        await r.say(command, "c1")
        if command == "/undo":
            await r.say("q3", "m3")

        assert r.asked() == asked
