"""``/compact`` as a chat uses it, and a conversation that has become too long as a chat sees it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.dispatch.worker import DispatchRules
from session.compaction.compactions import Compactions
from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.errors import ContextTooLong, ModelAway
from session.models.caps import Caps
from session.models.model import Answer, OnDelta, Payer, Prompt, Usage
from session.models.spending import COST_SAID, Spending
from session.models.tokens import estimate_messages
from session.transcript.history import visible
from session.turn import commands
from session.turn.turn import TurnLimits
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig
from tests.session.compaction_talk import RULES, STRUCTURED

AWAY = ModelAway("503", cause="unreachable", after_s=0.01)


class Summing(Script):
    """Sums up what is a summary's request, and plays its script for all else."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.summary: Any = Answer(STRUCTURED)
        self.summing = asyncio.Event()
        self.hold: asyncio.Event | None = None
        # What the provider takes.
        self.takes_tokens = 10**9

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        text = str(prompt.messages[-1]["content"])
        if not text.startswith("<conversation>"):
            if estimate_messages(prompt.messages) > self.takes_tokens:
                raise ContextTooLong("too long")
            return await super().ask(prompt, on_delta)
        self.asked.append(text)
        self.summing.set()
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.summary, Exception):
            raise self.summary
        assert isinstance(self.summary, Answer)
        return self.summary


class Place(Rig):
    """A worker whose conversations have bounds."""

    def __init__(self, folder: Path, preset: str, **numbers: Any) -> None:
        self.summing = Summing()
        super().__init__(folder, self.summing, DispatchRules())
        self.bounds_rules: CompactionRules = replace(RULES[preset], window=100_000, **numbers)
        self.left: list[str] = []
        self.cost_meter = Spending(self.store.state, clock=self.clock, caps=Caps(cost_per_day_usd=1.0))
        self.limits = TurnLimits()
        self.compactions = Compactions(
            Compactor(self.model, cost_meter=self.cost_meter),
            rules=self._rules,
            left=self.session_left,
            now=self._now,
            clock=self.clock,
        )

    async def _rules(self) -> CompactionRules:
        return self.bounds_rules

    async def session_left(self, key: str, session_id: str) -> bool:
        self.left.append(session_id)
        return True

    def _now(self) -> str:
        return self.clock().isoformat(timespec="microseconds")

    async def talk(self, count: int, *, chars: int = 400, prefix: str = "q") -> None:
        """Say so much that a compaction has something to take away."""
        for number in range(count):
            await self.put(f"question {number} {'x' * chars}", f"{prefix}{number}")
        await self.replies(count)


@asynccontextmanager
async def place(folder: Path, preset: str = "overlay", **numbers: Any) -> AsyncIterator[Place]:
    built = Place(folder, preset, **numbers)
    async with built.open():
        yield built


@pytest.mark.parametrize("preset", ["overlay", "budget", "off", "archive", "annabelle"])
async def test_it_compacts_at_once_and_says_what_it_did(tmp_path: Path, preset: str) -> None:
    """Whatever the trigger says; the words for the focus reach the summary."""
    async with place(tmp_path, preset) as here:
        await here.talk(6)
        said = await here.say("/compact the train to Lyon", "c")
        await here.say("and now?", "n")

        assert "summarised" in said
        assert "tokens" in said
        assert "the train to Lyon" in here.summing.asked[0]
        kind = "compact" if preset in ("archive", "annabelle") else "overlay"
        [record] = [line for line in await here.lines() if line.get("kind")]
        assert (record["kind"], record["message_id"]) == (kind, "c")
        assert f"{record['compacted_turns']} turns" in said
        sent = str(here.model.prompts[-1].messages)
        assert "leaves at 9" in sent
        assert "question 0" not in sent
        assert len(here.left) == (kind == "compact")


async def test_delivered_twice_it_does_it_once(tmp_path: Path) -> None:
    """By the journal, and by its record where it died before the journal knew."""
    async with place(tmp_path) as here:
        await here.talk(6)
        async with here.store.open(ADA) as session:
            done = await here.compactions.asked(session, "", "c")
        assert done is not None
        await here.put("/compact", "c")
        await here.put("/compact", "c")
        first = await here.texts(1)
        await here.put("/compact", "c")
        second = await here.texts(1)

        assert first == second
        assert f"{done.turns} turns" in first[0]
        assert f"{done.tokens_before:,} tokens" in first[0]
        assert len(here.summing.asked) == 1
        assert [line.get("kind") for line in await here.lines()].count("overlay") == 1


@pytest.mark.parametrize("preset", ["archive", "overlay"])
async def test_what_is_as_short_as_its_summary_is_left_as_it_is(tmp_path: Path, preset: str) -> None:
    """No model is asked for so little, at first and behind a summary."""
    async with place(tmp_path, preset, keep_recent_tokens=1) as here:
        await here.put("hi", "m0")
        await here.put("/compact", "c0")
        texts = await here.texts(2)
        assert texts[1] == commands.NOTHING_WORTH
        assert here.summing.asked == []
        await here.talk(6)
        await here.put("hi", "m1")
        await here.put("/compact", "c1")
        await here.put("fine", "m2")
        assert "summarised" in (await here.texts(3))[1]
        before, asked = await here.lines(), len(here.summing.asked)
        assert await here.say("/compact", "c2") == commands.NOTHING_WORTH
        assert (await here.lines(), len(here.summing.asked)) == (before, asked)


@pytest.mark.parametrize("preset", ["archive", "overlay"])
async def test_what_it_says_counts_the_summary_before(tmp_path: Path, preset: str) -> None:
    """What became of the history is less than it was, also where a long summary took in little."""
    async with place(tmp_path, preset, keep_recent_tokens=150) as here:
        here.summing.summary = Answer(STRUCTURED.ljust(1_500, "."))
        await here.talk(6)
        await here.say("/compact", "c0")
        here.summing.summary = Answer(STRUCTURED.ljust(1_550, "."))
        await here.talk(1, prefix="later")
        said = await here.say("/compact", "c1")

        before, after = (
            int(number.replace(",", "")) for number in re.findall(r"([\d,]+)(?: tokens|\.$)", said)
        )
        assert after < before < 900


async def test_a_failure_is_said_and_changes_nothing(tmp_path: Path) -> None:
    """It is no outage that holds the lane, and the next one does not wait for a cooldown."""
    async with place(tmp_path) as here:
        await here.talk(6)
        before = await here.lines()
        here.summing.summary = AWAY
        assert await here.say("/compact", "c0") == commands.NOT_COMPACTED
        assert await here.lines() == before

        here.summing.summary = Answer(STRUCTURED)
        assert "summarised" in await here.say("/compact", "c1")


async def test_on_a_day_whose_money_is_spent_it_is_refused_as_a_message_is(tmp_path: Path) -> None:
    """Asked again under its id it says the same; where nothing would leave it says that, as always."""
    async with place(tmp_path) as here:
        here.cost_meter.record(Payer(ADA), Usage(1, 1, 2.0), turn=False)
        assert await here.say("/compact", "c0") == commands.NOTHING_TO_COMPACT
        await here.talk(6)
        before = await here.lines()
        assert await here.say("/compact", "c1") == COST_SAID
        assert (await here.lines(), here.summing.asked) == (before, [])

        here.clock.now += timedelta(days=1)
        await here.put("/compact", "c1")
        await here.put("/compact", "c2")
        again, done = await here.texts(2)
        assert again == COST_SAID
        assert "summarised" in done


async def test_stop_ends_it(tmp_path: Path) -> None:
    """Both commands are answered, and nothing has changed; other chats go on meanwhile."""
    async with place(tmp_path) as here:
        await here.talk(6)
        before = await here.lines()
        here.summing.hold = asyncio.Event()
        await here.put("/compact", "c")
        await here.summing.summing.wait()
        await here.put("hello", "m", "foreign:bob")
        assert (await here.texts(1))[0].startswith("script: hello")
        await here.put("/stop", "s")

        assert sorted(await here.texts(2)) == sorted([commands.STOPPED, commands.COMPACTING_STOPPED])
        assert await here.lines() == before


async def test_of_a_message_that_is_too_long_by_itself_it_is_said(tmp_path: Path) -> None:
    """No summary and no new conversation would help; the next message is answered."""
    async with place(tmp_path) as here:
        here.summing.takes_tokens = 2_000
        await here.put("word " * 200_000, "m0")
        await here.put("again", "m1")
        notice, reply = await here.replies(2)

    assert notice.kind == "notice"
    assert "Send it in parts" in notice.text
    assert "/compact" not in notice.text
    assert reply.kind == "reply"


@pytest.mark.parametrize("preset", ["overlay", "budget", "off", "annabelle"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_after_too_long_it_makes_room(tmp_path: Path, preset: str, restarted: bool) -> None:
    """However much the preset keeps of the window that was believed, until a message is answered."""
    numbers = {"keep_recent_tokens": 20_000, "keep_recent_turns": 5, "history_messages": 50}
    async with place(tmp_path, preset, **numbers) as here:
        await here.talk(10, chars=3_000)
        here.summing.takes_tokens = 2_000
        said = await here.say("next?", "n")
        tries = 0 if restarted else await until_answered(here)
    if restarted:
        async with place(tmp_path, preset, **numbers) as here:
            here.summing.takes_tokens = 2_000
            tries = await until_answered(here)

    assert "/compact summarises it to make room" in said
    assert tries <= 3
    assert "next" in here.model.prompts[-1].messages[-1]["content"]


async def test_where_it_can_make_no_room_it_says_what_else_may_help(tmp_path: Path) -> None:
    """What is too long then is no conversation."""
    async with place(tmp_path) as here:
        here.summing.takes_tokens = 1
        await here.put("hello", "m")
        await here.put("/compact", "c")
        texts = await here.texts(2)

        assert texts[1] == f"{commands.NOTHING_WORTH} {commands.STILL_TOO_LONG}"
        assert here.summing.asked == []


async def test_after_an_answer_the_presets_keep_counts_again(tmp_path: Path) -> None:
    async with place(tmp_path, keep_recent_tokens=20_000) as here:
        await here.talk(10, chars=3_000)
        here.summing.takes_tokens = 2_000
        await here.say("next?", "n")
        here.summing.takes_tokens = 10**9
        await here.put("and now?", "m")
        await here.put("/compact", "c")
        texts = await here.texts(2)

        assert texts == ["script: and now?", commands.NOTHING_TO_COMPACT]


async def until_answered(here: Place) -> int:
    """Do what the chat was told until a message is answered; return how often that had to be done."""
    for number in range(1, 9):
        assert "summarised now" in await here.say("/compact", f"c{number}")
        await here.put(f"next {number}?", f"n{number}")
        if (await here.replies(1))[0].kind == "reply":
            return number
    raise AssertionError("the advice leads nowhere")


@pytest.mark.parametrize("preset", ["archive", "annabelle"])
async def test_resume_goes_back_over_a_compaction(tmp_path: Path, preset: str) -> None:
    """A session that goes on in another one is none to go back to; an ended conversation is."""
    async with place(tmp_path, preset) as here:
        await here.talk(4)
        await here.put("/compact", "c")
        await here.put("/resume", "r0")
        texts = await here.texts(2)
        assert texts[1] == commands.NOTHING_OLDER

        await here.put("/new", "n")
        await here.put("fresh", "m")
        await here.put("/resume", "r1")
        texts = await here.texts(3)
        assert texts[2].startswith("The conversation continues")
        lines = await here.lines()
        assert lines[0]["kind"] == "compact"
        shown = visible(lines, last_consolidated=0, running_id=None)
        assert "fresh" not in str(shown)
