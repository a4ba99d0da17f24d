"""Over its limits a message is not asked: the chat is told once, the rest end silently and are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from gateway.turns import outages
from gateway.turns.letter_rules import LetterRules
from gateway.turns.quota import Quota
from session.errors import ModelAway, ModelRefused
from session.models.caps import Caps
from session.models.model import Answer, Usage
from session.models.spending import COST_SAID, Spending
from session.transcript.key import SessionKey
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig
from tests.support.guarantee import guarantee

BOB = SessionKey("foreign:bob")
EVE = Sender(id="7", name="Eve")


@asynccontextmanager
async def limited(
    folder: Path, *steps: Any, turns: int = 0, cost: float = 0.0, rig: Rig | None = None
) -> AsyncIterator[Rig]:
    r = rig or Rig(folder, Script(steps), LetterRules())
    spending = Spending(
        folder / "state" / "usage",
        disk=r.store,
        clock=r.clock,
        durable=True,
        caps=Caps(cost_per_day_usd=cost),
        turns_per_hour=turns,
    )
    r.more["quota"] = Quota(spending, turns_per_hour=turns, clock=r.clock)
    async with r.open():
        yield r
        await spending.aclose()


def spent(cost: float, text: str = "yes") -> Answer:
    return Answer(text, usage=Usage(100, 10, cost))


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
        assert "2 messages per hour" in replies[2].text
        assert "60 minutes" in replies[2].text
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

        assert [reply.id for reply in await r.replies(2)] == ["m3#reply", "m4#notice.limit"]
        await r.settled()


async def test_a_person_is_counted_over_all_chats_and_told_in_each(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.put("a", "m1", sender=EVE)
        await r.replies(1)
        await r.put("b", "m2", key=BOB, sender=EVE)
        await r.put("c", "m3", sender=EVE)
        assert {reply.id for reply in await r.replies(2)} == {"m2#notice.limit", "m3#notice.limit"}

        await r.put("d", "m4", key=BOB, sender=Sender(id="8"))
        assert [reply.id for reply in await r.replies(1)] == ["m4#reply"]
        await r.put("e", "m5", key=BOB, sender=Sender(id="8"))
        assert [reply.id for reply in await r.replies(1)] == ["m5#notice.limit"]


async def test_a_chat_whose_senders_have_no_id_counts_as_a_person(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.put("a", "m1")
        await r.put("b", "m2", key=BOB)
        await r.replies(2)
        await r.put("c", "m3")

        assert [reply.id for reply in await r.replies(1)] == ["m3#notice.limit"]


async def test_turns_that_run_count_already(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.begin("a", "m1", sender=EVE)
        await r.put("b", "m2", key=BOB, sender=EVE)

        assert [reply.id for reply in await r.replies(1)] == ["m2#notice.limit"]
        r.model.release.set()
        assert [reply.id for reply in await r.replies(1)] == ["m1#reply"]


async def test_turns_that_are_about_to_run_count_already(tmp_path: Path) -> None:
    """Of two messages in two chats at once one is over the limit, though a session ends before each."""
    place = Rig(tmp_path, Script(), LetterRules(idle_hours=4))
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
        assert sorted([reply.id for reply in await r.replies(3)]) == ["m1#reply", "m2#reply", "m3#reply"]


async def test_over_the_cost_of_a_day_it_is_told_once_a_day(tmp_path: Path) -> None:
    async with limited(tmp_path, spent(0.4), spent(0.7), spent(0.1), cost=1.0) as r:
        for n in range(4):
            await r.put("more", f"m{n}", sender=EVE)
        replies = await r.replies(3)
        await r.settled()
        assert [reply.id for reply in replies] == ["m0#reply", "m1#reply", "m2#notice.limit"]
        assert replies[2].text == COST_SAID

        r.clock.now += timedelta(hours=23)
        await r.put("more", "m5", sender=EVE)
        await r.settled()
        r.clock.now += timedelta(hours=1)
        await r.put("more", "m6", sender=EVE)

        assert [reply.id for reply in await r.replies(1)] == ["m6#reply"]


async def test_a_turn_that_failed_has_cost_what_it_cost(tmp_path: Path) -> None:
    async with limited(tmp_path, Answer("", usage=Usage(1, 1, 5.0)), "never asked", cost=1.0) as r:
        await r.put("a", "m1")
        await r.put("b", "m2")

        ids = [reply.id for reply in await r.replies(2)]
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


async def test_the_count_survives_a_restart(tmp_path: Path) -> None:
    async with limited(tmp_path, turns=1) as r:
        await r.put("a", "m1", sender=EVE)
        await r.put("b", "m2", sender=EVE)
        await r.replies(2)
    async with limited(tmp_path, turns=1) as again:
        await again.put("c", "m3", sender=EVE)
        await again.settled()

        assert again.model.prompts == []
        known = (await again.store.look(ADA)).journal.known("m3")
        assert known is not None
        assert (known.kind, known.reason, known.seq) == ("silent", "limit", None)


async def test_a_message_that_waits_for_its_model_is_not_refused_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of its person was answered meanwhile, which used up the hour."""
    away = ModelAway("503", cause="unreachable")
    monkeypatch.setattr(outages, "back_off_s", lambda *_, **__: 60.0)
    async with limited(tmp_path, away, "meanwhile", "at last", turns=1) as r:
        await r.put("a", "m1", sender=EVE)
        await r.until_held()
        await r.put("b", "m2", key=BOB, sender=EVE)

        ids = {reply.id: reply.text for reply in await r.replies(2)}
        assert ids == {"m2#reply": "meanwhile", "m1#reply": "at last"}


async def test_without_limits_nobody_is_refused(tmp_path: Path) -> None:
    async with limited(tmp_path, *[ModelRefused("no")] * 2, "yes") as r:
        for n in range(3):
            await r.put("a", f"m{n}", sender=EVE)

        assert [reply.id for reply in await r.replies(3)] == [
            "m0#notice.refused",
            "m1#notice.refused",
            "m2#reply",
        ]
