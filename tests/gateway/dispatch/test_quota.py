"""Over its limits a message is not asked: the chat is told once, the rest end silently and are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from gateway.dispatch import failures
from gateway.dispatch.batching import QueueRules
from gateway.dispatch.limits import Quota
from gateway.dispatch.worker import DispatchRules
from session.errors import ModelAway
from session.models.caps import Caps
from session.models.model import Answer, Need, Prompt, ToolCall, Usage
from session.models.spending import Spending
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.contracts.models import Script, Step
from tests.gateway.worker_rig import ADA, Rig
from tests.support.guarantee import guarantee

BOB = SessionKey("foreign:bob")
CALL = [ToolCall("call_1", "look", "{}")]
EVE = Sender(id="7", name="Eve")


class Priced(Script):
    """Says before each request what it may cost: a tenth of a dollar, where the text names no price."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        super().__init__(steps)
        self.most_usd = 0.1

    def most(self, prompt: Prompt, tokens: int) -> Need:
        return Need(10, self.most_usd)


@asynccontextmanager
async def limited(
    folder: Path, *steps: Any, turns: int = 0, rig: Rig | None = None, **caps: Any
) -> AsyncIterator[Rig]:
    r = rig or Rig(folder, Priced(steps) if caps else Script(steps), DispatchRules())
    spending = Spending(r.store.state, clock=r.clock, caps=Caps(**caps))
    r.more["quota"] = Quota(spending, turns_per_hour=turns, clock=r.clock)
    async with r.open():
        yield r
        await spending.aclose()


def spent(cost: float, text: str = "yes", calls: Any = ()) -> Answer:
    return Answer(text, calls, usage=Usage(60, 10, cost), finish="tool_calls" if calls else "stop")


@guarantee("failures", "A chat over its quota gets one notice, and the model is not asked.")
async def test_over_the_turns_of_an_hour_the_chat_is_told_once_and_the_model_not_asked(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path, "one", "two", turns=2) as r:
        for n in range(5):
            await r.put(f"message {n}", f"m{n}", sender=EVE)

        replies = await r.replies(3)
        await r.settled()

        assert [reply.id for reply in replies] == ["m0#reply", "m1#reply", "m2#notice.limit"]
        assert "hourly message limit (2)" in replies[2].text
        assert "about 60 min." in replies[2].text
        assert len(r.model.prompts) == 2
        assert [line["content"] for line in await r.lines() if line["role"] == "user"] == [
            "message 0",
            "message 1",
        ]


async def test_an_hour_later_it_is_asked_again_and_told_again(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.put("a", "m1", sender=EVE)
        await r.put("b", "m2", sender=EVE)
        assert [reply.kind for reply in await r.replies(2)] == ["reply", "notice"]

        r.clock.now += timedelta(minutes=61)
        await r.put("c", "m3", sender=EVE)
        await r.put("d", "m4", sender=EVE)
        await r.put("e", "m5", sender=EVE)

        assert await r.ids(2) == ["m3#reply", "m4#notice.limit"]
        await r.settled()


async def test_a_person_is_counted_over_all_chats_and_told_in_each(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.say("a", "m1", sender=EVE)
        await r.put("b", "m2", key=BOB, sender=EVE)
        await r.put("c", "m3", sender=EVE)
        assert {reply.id for reply in await r.replies(2)} == {"m2#notice.limit", "m3#notice.limit"}

        await r.put("d", "m4", key=BOB, sender=Sender(id="8"))
        assert await r.ids(1) == ["m4#reply"]
        await r.put("e", "m5", key=BOB, sender=Sender(id="8"))
        assert await r.ids(1) == ["m5#notice.limit"]


async def test_turns_that_are_about_to_run_count_already(tmp_path: Path) -> None:
    """Of two messages in two chats at once one is over the limit, though a session ends before each."""
    place = Rig(tmp_path, Script(), DispatchRules(idle_hours=4))
    async with limited(tmp_path, turns=1, rig=place) as r:
        for key in (ADA, BOB):
            await r.put("long ago", f"{key} 1", key=key)
        await r.replies(2)
        r.clock.now += timedelta(hours=5)
        r.model.release.clear()
        at = r.clock.now.isoformat()
        puts = [r.put("now", f"{key} 2", key=key, sender=EVE, received_at=at) for key in (ADA, BOB)]
        await asyncio.gather(*puts)

        assert sorted(reply.id.partition("#")[2] for reply in await r.replies(2)) == [
            "notice.idle",
            "notice.limit",
        ]
        r.model.release.set()
        assert [reply.kind for reply in await r.replies(1)] == ["reply"]


async def test_commands_are_free_and_edits_too(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.put("a", "m1", sender=EVE, platform_id="77")
        await r.put("/status", "m2", sender=EVE)
        await r.put("b", "e1", sender=EVE, platform_id="77", kind="edit")
        await r.put("/help", "m3", sender=EVE)

        # The status may overtake the turn before it.
        assert sorted(await r.ids(3)) == ["m1#reply", "m2#reply", "m3#reply"]


async def test_a_turn_that_failed_has_cost_what_it_cost(tmp_path: Path) -> None:
    empty = Answer("", usage=Usage(1, 1, 5.0))
    async with limited(tmp_path, empty, "never asked", cost_per_day_usd=1.0) as r:
        await r.put("a", "m1")
        await r.put("b", "m2")

        ids = await r.ids(2)
        assert ids == ["m1#notice.bad_answer", "m2#notice.limit"]


async def test_what_ended_over_the_limit_is_known_when_it_comes_again(tmp_path: Path) -> None:
    """The notice is sent again under its own id, a silent end stays silent, though the hour is over."""
    async with limited(tmp_path, turns=1) as r:
        for n in range(3):
            await r.put("text", f"m{n}", sender=EVE)
        told = (await r.replies(2))[1]
        await r.settled()

        r.clock.now += timedelta(hours=2)
        for n in range(3):
            await r.put("text", f"m{n}", sender=EVE)
        again = await r.replies(2)
        await r.settled()

        assert [reply.id for reply in again] == ["m0#reply", "m1#notice.limit"]
        assert again[1].text == told.text
        assert len(r.model.prompts) == 1


async def test_a_message_that_waits_for_its_model_is_not_refused_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of its person was answered meanwhile, which used up the hour."""
    away = ModelAway("503", cause="unreachable")
    monkeypatch.setattr(failures, "back_off_s", lambda *_, **__: 60.0)
    async with limited(tmp_path, away, "meanwhile", "at last", turns=1) as r:
        await r.put("a", "m1", sender=EVE)
        await r.until_paused()
        await r.put("b", "m2", key=BOB, sender=EVE)

        ids = {reply.id: reply.text for reply in await r.replies(2)}
        assert ids == {"m2#reply": "meanwhile", "m1#reply": "at last"}


# -- what may be spent in a day, asked before each request --------------------------------------------------


@guarantee("failures", "A turn that reaches a budget ends once, with one notice.")
async def test_messages_that_entered_a_turn_which_is_broken_off_end_with_it(tmp_path: Path) -> None:
    """The chat is told once, and none of them is asked for itself."""
    rules, steps = DispatchRules(queue=QueueRules("steer")), [spent(0.5, "", CALL)]
    steered = Rig(tmp_path, Priced(steps), rules)
    async with limited(tmp_path, rig=steered, cost_per_chat_per_day_usd=0.55) as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await r.until_in_lane(2)
        r.model.release.set()

        assert await r.ids(1) == ["m1#notice.limit"]
        await r.settled()
        assert (r.unread, len(r.model.prompts)) == (0, 1)
        assert (await r.lines())[-1]["answers"] == ["m1", "m2"]


async def test_a_message_that_could_cost_too_much_is_not_asked_and_leaves_no_line(tmp_path: Path) -> None:
    """One that fits is answered after it; the next that does not is told anew."""
    async with limited(tmp_path, *[spent(0.1)] * 3, cost_per_day_usd=1.0) as r:
        assert isinstance(r.model, Priced)
        for n, most in enumerate([2.0, 2.0, 0.5, 2.0, 2.0]):
            r.model.most_usd = most
            r.clock.now += timedelta(minutes=1)
            await r.put("hello", f"m{n}")
            await r.settled()

        replies = await r.replies(3)
        assert [reply.id for reply in replies] == ["m0#notice.limit", "m2#reply", "m3#notice.limit"]
        assert "Too little of today's budget is left for this message" in replies[0].text
        assert [line["role"] for line in await r.lines()] == ["user", "assistant"]
        assert r.unread == 0


@guarantee("failures", "A turn that reaches a budget ends once, with one notice.")
async def test_a_turn_that_comes_to_a_cap_ends_with_what_it_had_and_says_why(tmp_path: Path) -> None:
    """Its rounds have cost what they cost; the messages behind it end in silence, and midnight ends it."""
    async with limited(tmp_path, spent(0.95, "I look", CALL), cost_per_day_usd=1.0) as r:
        await r.begin("look around", "m1")
        await r.put("and then?", "m2")
        r.model.release.set()
        [told] = await r.replies(1)
        await r.settled()
        lines = await r.lines()

        assert told.id == "m1#notice.limit"
        assert told.text.startswith("This answer was stopped, because too little of today's budget")
        assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]
        assert (lines[-1]["content"], lines[-1]["stopped"], lines[-1]["final"]) == ("", True, True)
        assert (len(r.model.prompts), r.unread) == (1, 0)

        r.clock.now += timedelta(days=1)
        await r.put("again", "m3")
        assert await r.ids(1) == ["m3#reply"]


@guarantee("failures", "A turn that reaches a budget ends once, with one notice.")
async def test_what_was_broken_off_is_told_again_when_its_session_has_ended(tmp_path: Path) -> None:
    """Its message comes once more, behind ``/new``: the notice is known, and its chat is told by it."""
    async with limited(tmp_path, spent(0.95, "I look", CALL), cost_per_day_usd=1.0) as r:
        await r.put("look around", "m1")
        [told] = await r.replies(1)
        await r.put("/new", "m2")
        assert await r.ids(1) == ["m2#reply"]
        r.clock.now += timedelta(days=1)
        await r.put("look around", "m1")
        [again] = await r.replies(1)

        assert (again.id, again.text) == (told.id, told.text)
        kinds = [one.kind for one in (await r.store.look(ADA)).told()]
        assert (kinds, len(r.model.prompts)) == (["notice", "reply"], 1)


async def test_over_an_outage_only_what_was_spent_stays_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another chat, whose request needs as much, is answered meanwhile, and then the one that waited."""
    away = ModelAway("503", cause="unreachable")
    monkeypatch.setattr(failures, "back_off_s", lambda *_, **__: 60.0)
    async with limited(tmp_path, away, spent(0.1, "meanwhile"), "at last", cost_per_day_usd=1.0) as r:
        assert isinstance(r.model, Priced)
        r.model.most_usd = 0.9
        await r.put("hello", "m1")
        await r.until_paused()
        await r.put("hello", "b1", key=BOB)

        assert sorted(await r.ids(2)) == ["b1#reply", "m1#reply"]


async def test_status_says_what_is_left(tmp_path: Path) -> None:
    caps = {"cost_per_day_usd": 1.0, "cost_per_chat_per_day_usd": 0.5, "tokens_per_day": 1000}
    async with limited(tmp_path, spent(0.1), **caps) as r:
        await r.say("hello", "m1", sender=EVE)
        await r.settled()
        status = await r.say("/status", "m2", sender=EVE)

    assert "left until midnight UTC for all chats: 0.9000 of 1.0000 USD" in status
    assert "left until midnight UTC for this chat: 0.4000 of 0.5000 USD" in status
    assert "left until midnight UTC: 930 of 1,000 tokens" in status


async def test_a_turn_that_dies_while_it_is_broken_off_is_told_and_never_asked_again(tmp_path: Path) -> None:
    """Its end is known and its closing line is not there yet: that is how the daemon died."""
    async with limited(tmp_path, cost_per_day_usd=1.0) as r:
        async with r.store.open(ADA) as session:
            call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            lines = [
                make_line("user", "look around", "2027-01-01T00:00:00+00:00", message_id="m1"),
                make_line("assistant", None, "2027-01-01T00:00:00+00:00", message_id="m1", tool_calls=[call]),
            ]
            await session.append(lines)
            await session.journal.conclude("m1", "notice", text="broken off", reason="limit", about="cost")
        await r.put("look around", "m1")
        [told] = await r.replies(1)
        await r.settled()
        await r.put("go on", "m2")

        assert (told.id, told.text) == ("m1#notice.limit", "broken off")
        assert await r.ids(1) == ["m2#reply"]
        assert [prompt.messages[-1]["content"] for prompt in r.model.prompts] == ["go on"]
