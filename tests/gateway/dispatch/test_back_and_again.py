"""``/undo``, ``/retry`` and ``/resume`` as a chat uses them, and as they come again after a crash."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from session.errors import ModelAway
from session.turn import commands
from tests.gateway.worker_rig import Rig, rig
from tests.support.guarantee import guarantee

AWAY = ModelAway("503", cause="unreachable", after_s=0.01)


async def talk(place: Rig, *texts: str) -> list[str]:
    for text in texts:
        await place.put(text, text)
    return await place.texts(len(texts))


async def test_a_withdrawn_exchange_is_no_longer_sent(tmp_path: Path) -> None:
    """Nothing is removed, its id stays known, and the one before it is next."""
    async with rig(tmp_path, "one", "two", "three") as place:
        await talk(place, "a", "b")
        assert await talk(place, "/undo", "c") == [commands.WITHDRAWN, "three"]

        assert place.asked() == ["a", "one", "c"]
        lines = await place.lines()
        assert [line["content"] for line in lines] == ["a", "one", "b", "two", "", "c", "three"]
        assert (lines[4]["kind"], lines[4]["from"], lines[4]["message_id"]) == ("undo", 2, "/undo")
        assert await talk(place, "b") == ["two"]
        for number in range(3):
            await place.put("/undo", f"u{number}")
        said = await place.texts(3)
        assert said == [commands.WITHDRAWN, commands.WITHDRAWN, commands.NOTHING_TO_WITHDRAW]
        assert len(place.model.prompts) == 3


async def test_retry_asks_again_as_a_new_exchange(tmp_path: Path) -> None:
    """The model sees the question once and no first answer; the reply is the new one, known by its id."""
    async with rig(tmp_path, "one", "bad", "good", "better") as place:
        assert await talk(place, "a", "b", "/retry") == ["one", "bad", "good"]

        assert place.asked() == ["a", "one", "b"]
        line = (await place.lines())[-2]
        assert (line["content"], line["typed"], line["message_id"]) == ("b", "/retry", "/retry")
        assert await talk(place, "/retry") == ["good"]
        assert await place.say("/retry", "again") == "better"
        assert place.asked() == ["a", "one", "b"]


@guarantee("once", "`/retry` withdraws one answer and asks one question, even during an outage.")
async def test_retry_over_an_outage_withdraws_once(tmp_path: Path) -> None:
    """Each try of the command asks the same question."""
    async with rig(tmp_path, "one", "bad", AWAY, AWAY, "good") as place:
        await talk(place, "a", "b")
        await place.put("/retry", "r")
        replies = [one.text for one in await place.replies(2) if one.kind == "reply"]

        assert replies == ["good"]
        assert [place.asked(number) for number in (2, 3, 4)] == [["a", "one", "b"]] * 3
        assert [line.get("kind") for line in await place.lines()].count("undo") == 1


async def test_nothing_to_ask_again_or_to_go_back_to(tmp_path: Path) -> None:
    async with rig(tmp_path) as place:
        assert await talk(place, "/retry", "/resume") == [commands.NOTHING_TO_RETRY, commands.NOTHING_OLDER]
        assert place.model.prompts == []


async def test_resume_undoes_the_last_boundary(tmp_path: Path) -> None:
    """And once more brings the other back; a number chooses an older one."""
    async with rig(tmp_path, "one", "two", "three", "four", "five") as place:
        await talk(place, "a", "/new", "b")
        assert await talk(place, "/resume", "c") == [commands.REOPENED.format("", 2), "three"]
        assert place.asked() == ["a", "one", "c"]

        await place.put("/resume", "r2")
        await place.put("d", "d")
        await place.texts(2)
        assert place.asked() == ["b", "two", "d"]
        for text in ("/resume 2", "/resume 0", "/resume x", "/resume 01KJMMA2G01YBHZZBBY3RWPAPM"):
            await place.put(text, text)
        assert await place.texts(4) == [
            *[commands.NO_SUCH_NUMBER.format(1)] * 3,
            commands.NO_SUCH_ONE,
        ]


@guarantee(
    "sessions", "`/resume` opens the session that ended last, even after quick changes or a clock set back."
)
@pytest.mark.parametrize("set_s", [0, 0.4, -60])
async def test_what_ended_last_is_opened_again(tmp_path: Path, set_s: float) -> None:
    """Commands that waited run within a second, by which archives are named, or the clock goes back."""
    async with rig(tmp_path, "one", "two", "three") as place:
        await talk(place, "a")
        place.clock.now += timedelta(milliseconds=100)
        assert await talk(place, "/new", "b", "/resume") == [
            commands.BEGUN,
            "two",
            commands.REOPENED.format("", 2),
        ]
        place.clock.now += timedelta(seconds=set_s)
        await place.put("/new", "n2")
        await place.put("/resume", "r2")
        await place.put("c", "c")
        await place.texts(3)

        assert place.asked() == ["a", "one", "c"]
        await place.say("/resume", "r3")
        assert [line["content"] for line in await place.lines()] == ["b", "two"]
