"""Caps on what may be spent in a day: asked before each request, told once, over at midnight UTC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from gateway.turns import outages
from gateway.turns.collect import QueueRules
from gateway.turns.letter_rules import LetterRules
from gateway.turns.quota import Quota
from session.errors import ModelAway
from session.models.caps import Caps
from session.models.model import Answer, Need, Prompt, ToolCall, Usage
from session.models.spending import AGAIN_SAID, Spending
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.contracts.models import Script, Step
from tests.gateway.waits import until
from tests.gateway.worker_rig import ADA, Rig
from tests.support.guarantee import guarantee

pytestmark = guarantee("failures", "A turn that reaches a budget ends once, with one notice.")

BOB = SessionKey("foreign:bob")
EVE = Sender(id="7", name="Eve")
CALL = [ToolCall("call_1", "look", "{}")]


class Priced(Script):
    """Says before each request what it may cost: a tenth of a dollar, where the text names no price."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        super().__init__(steps)
        self.most_usd = 0.1

    def most(self, prompt: Prompt, tokens: int) -> Need:
        return Need(10, self.most_usd)


@asynccontextmanager
async def capped(folder: Path, *steps: Any, rig: Rig | None = None, **caps: Any) -> AsyncIterator[Rig]:
    r = rig or Rig(folder, Priced(steps), LetterRules())
    spending = Spending(
        folder / "state" / "usage", disk=r.store, clock=r.clock, durable=True, caps=Caps(**caps)
    )
    r.more["quota"] = Quota(spending, clock=r.clock)
    async with r.open():
        yield r
        await spending.aclose()


def spent(cost: float, text: str = "yes", calls: Any = ()) -> Answer:
    return Answer(text, calls, usage=Usage(60, 10, cost), finish="tool_calls" if calls else "stop")


async def ids(r: Rig, count: int) -> list[str]:
    return [reply.id for reply in await r.replies(count)]


async def test_a_chat_over_its_cap_is_told_once_and_others_go_on(tmp_path: Path) -> None:
    async with capped(tmp_path, spent(0.5), cost_per_chat_per_day_usd=0.5) as r:
        for n in range(3):
            await r.put("more", f"m{n}", sender=EVE)
        told = (await r.replies(2))[1]
        await r.settled()
        await r.put("hello", "b1", key=BOB, sender=EVE)
        assert (told.id, await ids(r, 1)) == ("m1#notice.limit", ["b1#reply"])
        assert told.text == (f"Today's budget of this chat is used up. {AGAIN_SAID}")

        r.clock.now += timedelta(days=1)
        await r.put("more", "m4", sender=EVE)
        assert await ids(r, 1) == ["m4#reply"]
        assert len(r.model.prompts) == 3


async def test_a_person_over_the_cap_is_told_in_each_chat_and_others_go_on(tmp_path: Path) -> None:
    async with capped(tmp_path, spent(0.5), cost_per_person_per_day_usd=0.5) as r:
        await r.put("more", "m1", sender=EVE)
        assert await ids(r, 1) == ["m1#reply"]
        for n in range(2):
            await r.put("more", f"b{n}", key=BOB, sender=EVE)
            await r.settled()
        await r.put("more", "m2", sender=EVE)
        await r.put("hello", "m3", sender=Sender(id="8"))

        assert await ids(r, 3) == ["b0#notice.limit", "m2#notice.limit", "m3#reply"]


async def test_a_job_over_its_cap_is_told_once_and_others_run(tmp_path: Path) -> None:
    daily, weekly = {"cron_job_id": "daily"}, {"cron_job_id": "weekly"}
    async with capped(tmp_path, spent(0.5), cost_per_job_per_day_usd=0.5) as r:
        await r.put("report", "d1", **daily)
        await r.put("report", "d2", **daily)
        await r.put("report", "d3", **daily)
        await r.put("report", "w1", **weekly)

        assert await ids(r, 3) == ["d1#reply", "d2#notice.limit", "w1#reply"]


async def test_messages_that_entered_a_turn_which_is_broken_off_end_with_it(tmp_path: Path) -> None:
    """The chat is told once, and none of them is asked for itself."""
    rules, steps = LetterRules(queue=QueueRules("steer")), [spent(0.5, "", CALL)]
    steered = Rig(tmp_path, Priced(steps), rules)
    async with capped(tmp_path, rig=steered, cost_per_chat_per_day_usd=0.55) as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await r.until_in_lane(2)
        r.model.release.set()

        assert await ids(r, 1) == ["m1#notice.limit"]
        await r.settled()
        assert (r.unread, len(r.model.prompts)) == (0, 1)
        assert (await r.lines())[-1]["answers"] == ["m1", "m2"]


async def test_tokens_of_a_day_are_a_cap_of_their_own(tmp_path: Path) -> None:
    async with capped(tmp_path, spent(0.0), tokens_per_day=75) as r:
        await r.put("a", "m1")
        await r.put("b", "m2")
        await r.put("c", "m3")
        replies = await r.replies(2)
        await r.settled()

        assert [reply.id for reply in replies] == ["m1#reply", "m2#notice.limit"]
        assert replies[1].text.startswith("The rest of today's token limit is too small")
        assert (len(r.model.prompts), r.unread) == (1, 0)


async def test_a_message_that_could_cost_too_much_is_not_asked_and_leaves_no_line(tmp_path: Path) -> None:
    """One that fits is answered after it; the next that does not is told anew."""
    async with capped(tmp_path, *[spent(0.1)] * 3, cost_per_day_usd=1.0) as r:
        assert isinstance(r.model, Priced)
        for n, most in enumerate([2.0, 2.0, 0.5, 2.0, 2.0]):
            r.model.most_usd = most
            r.clock.now += timedelta(minutes=1)
            await r.put("hello", f"m{n}")
            await r.settled()

        replies = await r.replies(3)
        assert [reply.id for reply in replies] == ["m0#notice.limit", "m2#reply", "m3#notice.limit"]
        assert "too small for this message" in replies[0].text
        assert [line["role"] for line in await r.lines()] == ["user", "assistant"]
        assert r.unread == 0


async def test_a_turn_that_comes_to_a_cap_ends_with_what_it_had_and_says_why(tmp_path: Path) -> None:
    """Its rounds have cost what they cost; the messages behind it end in silence, and midnight ends it."""
    async with capped(tmp_path, spent(0.95, "I look", CALL), cost_per_day_usd=1.0) as r:
        await r.begin("look around", "m1")
        await r.put("and then?", "m2")
        r.model.release.set()
        [told] = await r.replies(1)
        await r.settled()
        lines = await r.lines()

        assert told.id == "m1#notice.limit"
        assert told.text.startswith("This answer was stopped: the rest of today's budget")
        assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]
        assert (lines[-1]["content"], lines[-1]["stopped"], lines[-1]["final"]) == ("", True, True)
        assert (len(r.model.prompts), r.unread) == (1, 0)

        r.clock.now += timedelta(days=1)
        await r.put("again", "m3")
        assert await ids(r, 1) == ["m3#reply"]


async def test_what_was_broken_off_is_told_again_and_never_asked_again(tmp_path: Path) -> None:
    """Its message comes once more: the same notice goes out, whatever may be spent by then."""
    async with capped(tmp_path, spent(0.95, "I look", CALL), cost_per_day_usd=1.0) as r:
        await r.put("look around", "m1")
        [told] = await r.replies(1)
        await r.settled()
        r.clock.now += timedelta(days=1)
        await r.put("look around", "m1")
        [again] = await r.replies(1)

        assert (again.id, again.text) == (told.id, told.text)
        assert len(r.model.prompts) == 1


async def test_what_was_broken_off_is_told_again_when_its_session_has_ended(tmp_path: Path) -> None:
    """Its message comes once more, behind ``/new``: the notice is known, and its chat is told by it."""
    async with capped(tmp_path, spent(0.95, "I look", CALL), cost_per_day_usd=1.0) as r:
        await r.put("look around", "m1")
        [told] = await r.replies(1)
        await r.put("/new", "m2")
        assert await ids(r, 1) == ["m2#reply"]
        r.clock.now += timedelta(days=1)
        await r.put("look around", "m1")
        [again] = await r.replies(1)

        assert (again.id, again.text) == (told.id, told.text)
        kinds = [one.kind for one in (await r.store.look(ADA)).told()]
        assert (kinds, len(r.model.prompts)) == (["notice", "reply"], 1)


async def test_messages_at_once_wait_for_what_others_only_hold(tmp_path: Path) -> None:
    """Each may cost nine tenths of the day and costs one: nobody is refused while there is enough."""
    async with capped(tmp_path, *[spent(0.1)] * 4, cost_per_day_usd=1.0) as r:
        assert isinstance(r.model, Priced)
        r.model.most_usd = 0.6
        chats = [SessionKey(f"foreign:{n}") for n in range(4)]
        await asyncio.gather(*[r.put("hello", f"{key} 1", key=key) for key in chats])

        assert sorted(await ids(r, 4)) == sorted(f"{key} 1#reply" for key in chats)


async def test_over_an_outage_only_what_was_spent_stays_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another chat, whose request needs as much, is answered meanwhile, and then the one that waited."""
    away = ModelAway("503", cause="unreachable")
    monkeypatch.setattr(outages, "back_off_s", lambda *_, **__: 60.0)
    async with capped(tmp_path, away, spent(0.1, "meanwhile"), "at last", cost_per_day_usd=1.0) as r:
        assert isinstance(r.model, Priced)
        r.model.most_usd = 0.9
        await r.put("hello", "m1")
        await r.until_held()
        await r.put("hello", "b1", key=BOB)

        assert sorted(await ids(r, 2)) == ["b1#reply", "m1#reply"]


async def test_a_round_that_is_stored_counts_once_over_a_restart(tmp_path: Path) -> None:
    """The daemon dies in the second round: the line of the turn has the first one's cost, and has it once."""
    place = Rig(tmp_path, Priced([spent(0.3, "I look", CALL)]), LetterRules())
    async with capped(tmp_path, rig=place, cost_per_day_usd=1.0) as r:
        await r.begin("look around", "m1")
        r.model.held.clear()
        r.model.release.set()
        await until(lambda: len(r.model.prompts) == 1)
        r.model.release.clear()
        await until(lambda: len(r.model.prompts) == 2)
        await r.worker.lanes.cancel()

    async with capped(tmp_path, spent(0.1, "done"), cost_per_day_usd=1.0) as r:
        assert await ids(r, 1) == ["m1#reply"]
        await r.settled()
        await r.put("/status", "m2")
        assert "for all chats: 0.6000 of 1.0000 USD" in (await r.texts(1))[0]


async def test_status_says_what_is_left(tmp_path: Path) -> None:
    caps = {"cost_per_day_usd": 1.0, "cost_per_chat_per_day_usd": 0.5, "tokens_per_day": 1000}
    async with capped(tmp_path, spent(0.1), **caps) as r:
        await r.put("hello", "m1", sender=EVE)
        await r.replies(1)
        await r.settled()
        await r.put("/status", "m2", sender=EVE)
        [status] = await r.texts(1)

    assert "left until midnight UTC for all chats: 0.9000 of 1.0000 USD" in status
    assert "left until midnight UTC for this chat: 0.4000 of 0.5000 USD" in status
    assert "left until midnight UTC: 930 of 1,000 tokens" in status


async def test_a_turn_that_dies_while_it_is_broken_off_is_told_and_never_asked_again(tmp_path: Path) -> None:
    """Its end is known and its closing line is not there yet: that is how the daemon died."""
    async with capped(tmp_path, cost_per_day_usd=1.0) as r:
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
        assert await ids(r, 1) == ["m2#reply"]
        assert [prompt.messages[-1]["content"] for prompt in r.model.prompts] == ["go on"]
