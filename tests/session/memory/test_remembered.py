"""``/memory`` numbers the facts of a chat, and ``/forget`` takes out what was shown under a number."""

from __future__ import annotations

from pathlib import Path

from session.context.request import Request
from session.memory.circles import Circles
from session.memory.facts import Drawn, Fact, active
from session.memory.remembered import GONE, NO_FACTS, NO_NUMBER, Remembered
from session.transcript.key import SessionKey
from tests.session.memory_place import ADA, Workspace, open_workspace, talk
from tests.support.guarantee import guarantee


def remembered(house: Workspace) -> Remembered:
    circles = Circles(house.memory.scopes, store=house.store)
    return Remembered(house.known, house.folder / "state", notes=house.memory.text, scope_of=circles.of)


async def learn(house: Workspace, *texts: str, key: SessionKey = ADA) -> None:
    facts = [
        Fact(f"{key}-{text}", text, "background", 0.9, key, "m", "2026-01-31T09:15:00+00:00")
        for text in texts
    ]
    house.known.file(await house.scope(key)).add([Drawn(one) for one in facts])


async def shown(house: Workspace, key: SessionKey = ADA, id_: str = "s") -> str:
    async with house.store.open(key) as session:
        return await remembered(house).show(session, Request(id_, key, "/memory", chat="direct"))


async def forgotten(house: Workspace, number: str, *, id_: str, key: SessionKey = ADA) -> str:
    async with house.store.open(key) as session:
        request = Request(id_, key, f"/forget {number}", chat="direct")
        return await remembered(house).forget(session, request, number)


async def texts(house: Workspace, key: SessionKey = ADA) -> list[str]:
    return [one.text for one in active(await house.known.facts(await house.scope(key)))]


async def test_notes_and_facts_are_shown_the_newest_first(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as house:
        assert await shown(house) == ""
        await house.said(ADA, talk(2))
        await learn(house, "Ada has a dog.", "Ada lives in Rome.")
        (await house.scope(ADA)).memory.joinpath("MEMORY.md").write_text("- notes\n")

        text = await shown(house)

        head = "Facts (/forget 1 deletes the first one):"
        assert text == f"- notes\n\n{head}\n1. Ada lives in Rome.\n2. Ada has a dog."


async def test_a_number_means_what_was_shown(tmp_path: Path) -> None:
    """A fact that was learnt meanwhile moves no other to another number."""
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        await learn(house, "Ada has a dog.", "Ada lives in Rome.", "Ada plays chess.")
        await shown(house)
        await learn(house, "Ada drinks tea.")

        assert await forgotten(house, "2", id_="f1") == "Forgotten: Ada lives in Rome."
        assert await forgotten(house, "3.", id_="f2") == "Forgotten: Ada has a dog."
        assert await forgotten(house, "2", id_="f3") == GONE

        assert await texts(house) == ["Ada plays chess.", "Ada drinks tea."]


@guarantee("once", "A repeated `/forget` removes only the fact that was shown under its number.")
async def test_the_same_command_again_takes_out_no_other_fact(tmp_path: Path) -> None:
    """A crash before its answer was stored brings it again, after the facts were shown anew."""
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        await learn(house, "Ada has a dog.", "Ada lives in Rome.")
        assert await forgotten(house, "1", id_="f1") == "Forgotten: Ada lives in Rome."
        await shown(house)

        assert await forgotten(house, "1", id_="f1") == GONE

        assert await texts(house) == ["Ada has a dog."]


async def test_what_is_no_number_of_a_fact_is_answered(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        assert await forgotten(house, "1", id_="f") == NO_FACTS
        await learn(house, "Ada has a dog.")

        for wild in ("", "x", "-1", "1 2", "²", "9" * 40):
            assert await forgotten(house, wild, id_="f") == NO_NUMBER
        for beyond in ("0", "2"):
            assert await forgotten(house, beyond, id_="f") == (
                "/memory shows 1 facts: use a number from 1 to 1."
            )
        assert await texts(house) == ["Ada has a dog."]


async def test_a_chat_takes_out_its_own_facts_alone(tmp_path: Path) -> None:
    other = SessionKey("telegram:9")
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        await house.said(other, talk(2))
        await learn(house, "Ada has a dog.")
        await learn(house, "Bob has a cat.", key=other)
        await shown(house)
        await shown(house, other)

        await forgotten(house, "1", id_="f", key=other)

        assert await texts(house) == ["Ada has a dog."]
        assert await texts(house, other) == []


async def test_many_facts_are_shown_in_part(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        await learn(house, *(f"Ada has dog number {at}." for at in range(33)))

        rows = (await shown(house)).split("\n")

        assert rows[1] == "1. Ada has dog number 32."
        assert rows[-2:] == ["30. Ada has dog number 3.", "… (3 older ones)"]
