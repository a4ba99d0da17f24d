"""A message after a long silence begins a session: once, told once, and taken back by ``/resume``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.message import Outbound
from gateway.dispatch.rollover import SAID
from gateway.dispatch.worker import DispatchRules
from session.errors import EmptyAnswer, ModelAway
from session.store.store import Session
from session.transcript.transcript import make_line
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig

AWAY = ModelAway("503", cause="unreachable", after_s=0.01)
SOURCE_CRON = {"source": "cron", "cron_job_id": "j"}


class Ending(Rig):
    """A worker that ends sessions, and what was to be done for those that ended."""

    def __init__(self, folder: Path, model: Script, rules: DispatchRules) -> None:
        super().__init__(folder, model, rules)
        self.made: list[str] = []
        self.left: list[str] = []

    async def session_ended(self, session: Session) -> bool:
        self.made += [str(session.metadata["previous_session"])]
        return True

    async def session_left(self, key: str, session_id: str) -> bool:
        self.left.append(session_id)
        return True


@asynccontextmanager
async def ending(folder: Path, *steps: Any, **rules: Any) -> AsyncIterator[Ending]:
    built = Ending(folder, Script(steps), DispatchRules(**{"idle_hours": 4, **rules}))
    async with built.open():
        yield built


async def say(place: Rig, text: str, *, after_h: float = 0, **fields: Any) -> list[tuple[str, str]]:
    """Put a message that is received so many hours from now, when it is also answered."""
    place.clock.now += timedelta(hours=after_h)
    fields.setdefault("received_at", place.clock.now.isoformat())
    await place.put(text, fields.pop("id", text), **fields)
    found: list[Outbound] = []
    while not any(one.kind == "reply" for one in found):
        found += await place.replies(1)
    return [(one.id, one.text) for one in found]


def archived(place: Rig) -> list[dict[str, Any]]:
    """Line 1's metadata of every ended session, oldest first."""
    paths = sorted(place.folder.glob("sessions/archive/*/*.jsonl"))
    return [json.loads(path.read_text().split("\n")[0])["metadata"] for path in paths]


async def test_a_message_after_a_long_silence_begins_a_session_and_says_so(tmp_path: Path) -> None:
    """The model is asked without what was said before; the notice comes first, the answer as ever."""
    async with ending(tmp_path, "one", "two", "three") as place:
        await say(place, "a")
        assert await say(place, "b", after_h=4) == [("b#reply", "two")]
        told = await say(place, "c", after_h=4.01)

        assert told == [("c#notice.idle", SAID), ("c#reply", "three")]
        assert place.asked() == ["c"]
        (old,) = archived(place)
        assert old["last_words"] == "It ended with the question: b — and the answer: two"
        async with place.store.open(ADA) as session:
            assert session.metadata["previous_session"] == old["session_id"]
            assert place.made == [old["session_id"]]


async def test_a_session_that_was_opened_again_is_fresh(tmp_path: Path) -> None:
    """The message after ``/resume`` of an old session draws no boundary, one long after it does."""
    async with ending(tmp_path, "one", "two", "three", "four") as place:
        await say(place, "a")
        await say(place, "/new", after_h=1)
        await say(place, "b")
        await say(place, "/resume", after_h=100)
        assert await say(place, "c", after_h=3.9) == [("c#reply", "three")]
        assert place.asked() == ["a", "one", "c"]

        await say(place, "/new")
        await say(place, "/resume", id="r2")
        assert (await say(place, "d", after_h=4.1))[0] == ("d#notice.idle", SAID)


async def test_clocks_that_are_wrong_draw_no_boundary(tmp_path: Path) -> None:
    """Neither a reception in a year to come, nor a last line from the future, nor no time at all."""
    async with ending(tmp_path, "one", "two", "three", "four") as place:
        await say(place, "a")
        for text, received in (("b", "2099-01-01T00:00:00+00:00"), ("c", None), ("d", "never")):
            await say(place, text, after_h=1, received_at=received)
        place.clock.now -= timedelta(days=300)
        await say(place, "e")

        assert len(place.asked()) == 9


@pytest.mark.parametrize("hours", [0, 0.0])
async def test_without_a_limit_no_session_ends(tmp_path: Path, hours: float) -> None:
    async with ending(tmp_path, idle_hours=hours) as place:
        await say(place, "a")
        assert await say(place, "b", after_h=24 * 365) == [("b#reply", "script: b")]


async def test_commands_and_cron_draw_none(tmp_path: Path) -> None:
    """``/retry`` and a cron job go on in the session that is there; the next person's message ends it."""
    async with ending(tmp_path, "one", "again", "beep", "two") as place:
        await say(place, "a")
        assert await say(place, "/retry", after_h=9) == [("/retry#reply", "again")]
        await say(place, "tick", after_h=9, id="cron:j@1", **SOURCE_CRON)

        assert place.asked() == ["a", "again", "tick"]
        assert (await say(place, "b", after_h=0.1))[0] == ("b#notice.idle", SAID)


async def test_what_cron_and_the_gateway_write_keeps_no_session_fresh(tmp_path: Path) -> None:
    async with ending(tmp_path, "one", "beep", "two") as place:
        await say(place, "a")
        await say(place, "tick", after_h=3, id="cron:j@1", **SOURCE_CRON)
        async with place.store.open(ADA) as session:
            at = (place.clock.now + timedelta(hours=1)).isoformat()
            await session.append([make_line("system", "x", at, kind="note")])

        assert (await say(place, "b", after_h=1.1))[0] == ("b#notice.idle", SAID)


async def test_a_boundary_stands_over_outage_and_parking(tmp_path: Path) -> None:
    """Each try of the message finds the session that was begun for it; the chat hears of it once."""
    async with ending(tmp_path, "one", AWAY, AWAY, "two", EmptyAnswer("no"), "four") as place:
        await say(place, "a")
        told = await say(place, "b", after_h=5)
        assert [id_ for id_, _ in told] == ["b#notice.idle", "b#notice.model_away", "b#reply"]

        place.clock.now += timedelta(hours=5)
        await place.put("c", "c", received_at=place.clock.now.isoformat())
        assert await place.ids(2) == ["c#notice.idle", "c#notice.bad_answer"]
        assert await say(place, "d") == [("d#reply", "four")]
        assert len(archived(place)) == 2


async def test_a_turn_that_goes_on_is_not_cut(tmp_path: Path) -> None:
    """A message whose first line is stored is answered where it stands, whatever the clock says by then."""
    async with ending(tmp_path, "one", "two") as place:
        await say(place, "a")
        async with place.store.open(ADA) as session:
            at = place.clock.now.isoformat()
            await session.append([make_line("user", "b", at, message_id="b")])
        received = place.clock.now + timedelta(hours=8)

        assert await say(place, "b", after_h=9, received_at=received.isoformat()) == [("b#reply", "two")]
        assert place.asked() == ["a", "one", "b"]
