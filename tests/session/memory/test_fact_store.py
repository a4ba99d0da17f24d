"""Which facts are told with a message, how ``/memory`` shows them, and what forgetting takes along."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from session.context.embeddings import Embeddings
from session.context.request import Request
from session.errors import ModelAway
from session.memory.fact_store import FACTS, Drawn, Fact, FactStore, active
from session.memory.memory_commands import GONE, NO_FACTS, NO_NUMBER, MemoryCommands
from session.memory.scope_resolver import ScopeResolver
from session.transcript.key import SessionKey
from tests.contracts.models import WordEmbedder
from tests.session.memory_place import ADA, Clock, Workspace, open_workspace, spending_of, talk
from tests.support.guarantee import guarantee

TEXTS = [
    "Ada likes tea.",
    "Ada has a dog.",
    "Ada lives in Rome.",
    "Ada plays chess.",
    "Ada knows Bob.",
    "Ada reads novels.",
    "Ada runs a bakery.",
]


async def learn(house: Workspace, known: FactStore, *texts: str) -> list[str]:
    facts = [
        Fact(f"F{at}", text, "background", 0.9, ADA, "m", "2026-01-31T09:15:00+00:00")
        for at, text in enumerate(texts)
    ]
    return [one.id for one in known.file(await house.scope(ADA)).add([Drawn(one) for one in facts])]


async def told(house: Workspace, known: FactStore, text: str) -> list[str]:
    async with house.store.open(ADA) as session:
        return await known.nearest(await house.scope(ADA), session, text)


@pytest.fixture
async def house(house: Workspace) -> Workspace:
    await house.said(ADA, talk(2))
    return house


async def test_five_are_told_the_nearest_by_words_first(house: Workspace) -> None:
    """Those that share no word fill it up, the newest first; a change of the file is seen."""
    assert await told(house, house.known, "hello") == []
    await learn(house, house.known, *TEXTS)

    near = await told(house, house.known, "does the dog play CHESS?")

    assert set(near[:2]) == {"Ada has a dog.", "Ada plays chess."}
    assert near[2:] == ["Ada runs a bakery.", "Ada reads novels.", "Ada knows Bob."]
    await house.known.forget(ADA, await house.scope(ADA), "F1")
    assert "Ada has a dog." not in await told(house, house.known, "dog")


async def test_an_embedding_model_decides_where_it_answers(tmp_path: Path) -> None:
    """Its cost counts; where it fails, the words decide."""
    clock = Clock()
    spending = spending_of(clock)
    embedder = WordEmbedder()
    embeddings = Embeddings(embedder, tmp_path / "state")
    async with open_workspace(tmp_path, clock=clock) as house:
        known = FactStore(house.store, embeddings=embeddings, cost_meter=spending)
        await house.said(ADA, talk(2))
        await learn(house, known, *TEXTS)

        assert (await told(house, known, "has a"))[0] == "Ada has a dog."
        assert (await spending.today()).usage.prompt == len(embedder.asked[0]) == len(TEXTS) + 1

        embedder.steps = [ModelAway("down", cause="unreachable")]
        assert (await told(house, known, "plays chess"))[0] == "Ada plays chess."
        await embeddings.aclose()


async def test_forgetting_takes_its_vector_along(tmp_path: Path) -> None:
    embeddings = Embeddings(WordEmbedder(), tmp_path / "state")
    async with open_workspace(tmp_path) as house:
        known = FactStore(house.store, embeddings=embeddings)
        await house.said(ADA, talk(2))
        await learn(house, known, *TEXTS)
        await told(house, known, "dog")
        await embeddings.aclose()
        assert _vectors(tmp_path) == len(TEXTS) + 1

        gone = await known.forget(ADA, await house.scope(ADA), "F1")

        assert gone is not None
        assert gone.text == "Ada has a dog."
        assert _vectors(tmp_path) == 0
        assert await known.forget(ADA, await house.scope(ADA), "F1") is None


async def test_a_turn_goes_on_without_facts_that_cannot_be_read(house: Workspace) -> None:
    ((await house.scope(ADA)).memory / FACTS).mkdir(parents=True)

    assert await told(house, house.known, "hello") == []


async def test_in_a_shared_scope_forgetting_takes_all_vectors_along(tmp_path: Path) -> None:
    """Another chat of the scope may have compared the fact."""
    embeddings = Embeddings(WordEmbedder(), tmp_path / "state")
    async with open_workspace(tmp_path, kind="workspace") as house:
        known = FactStore(house.store, embeddings=embeddings)
        await house.said(ADA, talk(2))
        await learn(house, known, *TEXTS)
        await told(house, known, "dog")
        await embeddings.aclose()

        await known.forget(ADA, await house.scope(ADA), "F1")

        assert (tmp_path / "memory" / FACTS).exists()
        assert not (tmp_path / "state/vectors.db").exists()


def _vectors(workspace: Path) -> int:
    with sqlite3.connect(workspace / "state/vectors.db") as file:
        (count,) = file.execute("SELECT count(*) FROM vectors").fetchone()
    return int(count)


# -- ``/memory`` and ``/forget`` -------------------------------------------------------------------------


def remembered(house: Workspace) -> MemoryCommands:
    scope_resolver = ScopeResolver(house.memory.scopes, store=house.store)
    return MemoryCommands(
        house.known, house.folder / "state", notes=house.memory.text, scope_of=scope_resolver.of
    )


async def learnt(house: Workspace, *texts: str, key: SessionKey = ADA) -> None:
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


async def test_notes_and_facts_are_shown_the_newest_first(house: Workspace) -> None:
    assert await shown(house) == ""
    await learnt(house, "Ada has a dog.", "Ada lives in Rome.")
    (await house.scope(ADA)).memory.joinpath("MEMORY.md").write_text("- notes\n")

    text = await shown(house)

    head = "Facts (/forget 1 deletes the first one):"
    assert text == f"- notes\n\n{head}\n1. Ada lives in Rome.\n2. Ada has a dog."


async def test_a_number_means_what_was_shown(house: Workspace) -> None:
    """A fact that was learnt meanwhile moves no other to another number."""
    await learnt(house, "Ada has a dog.", "Ada lives in Rome.", "Ada plays chess.")
    await shown(house)
    await learnt(house, "Ada drinks tea.")

    assert await forgotten(house, "2", id_="f1") == "Forgotten: Ada lives in Rome."
    assert await forgotten(house, "3.", id_="f2") == "Forgotten: Ada has a dog."
    assert await forgotten(house, "2", id_="f3") == GONE

    assert await texts(house) == ["Ada plays chess.", "Ada drinks tea."]


@guarantee("once", "A repeated `/forget` removes only the fact that was shown under its number.")
async def test_the_same_command_again_takes_out_no_other_fact(house: Workspace) -> None:
    """A crash before its answer was stored brings it again, after the facts were shown anew."""
    await learnt(house, "Ada has a dog.", "Ada lives in Rome.")
    assert await forgotten(house, "1", id_="f1") == "Forgotten: Ada lives in Rome."
    await shown(house)

    assert await forgotten(house, "1", id_="f1") == GONE

    assert await texts(house) == ["Ada has a dog."]


async def test_what_is_no_number_of_a_fact_is_answered(house: Workspace) -> None:
    assert await forgotten(house, "1", id_="f") == NO_FACTS
    await learnt(house, "Ada has a dog.")

    for wild in ("", "x", "-1", "1 2", "²", "9" * 40):
        assert await forgotten(house, wild, id_="f") == NO_NUMBER
    for beyond in ("0", "2"):
        assert await forgotten(house, beyond, id_="f") == "The facts in /memory are numbered from 1 to 1."
    assert await texts(house) == ["Ada has a dog."]


async def test_a_chat_takes_out_its_own_facts_alone(tmp_path: Path) -> None:
    other = SessionKey("telegram:9")
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        await house.said(other, talk(2))
        await learnt(house, "Ada has a dog.")
        await learnt(house, "Bob has a cat.", key=other)
        await shown(house)
        await shown(house, other)

        await forgotten(house, "1", id_="f", key=other)

        assert await texts(house) == ["Ada has a dog."]
        assert await texts(house, other) == []


async def test_many_facts_are_shown_in_part(house: Workspace) -> None:
    await learnt(house, *(f"Ada has dog number {at}." for at in range(33)))

    rows = (await shown(house)).split("\n")

    assert rows[1] == "1. Ada has dog number 32."
    assert rows[-2:] == ["30. Ada has dog number 3.", "… (3 older ones)"]
