"""Which facts are told with a message, by embeddings or by words, and what forgetting takes along."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from session.context.embeddings import Embeddings
from session.errors import ModelAway
from session.memory.facts import FACTS, Drawn, Fact
from session.memory.known_facts import KnownFacts
from tests.contracts.models import WordEmbedder
from tests.session.memory_place import ADA, Clock, Workspace, open_workspace, spending_of, talk

TEXTS = [
    "Ada likes tea.",
    "Ada has a dog.",
    "Ada lives in Rome.",
    "Ada plays chess.",
    "Ada knows Bob.",
    "Ada reads novels.",
    "Ada runs a bakery.",
]


async def learn(house: Workspace, known: KnownFacts, *texts: str) -> list[str]:
    facts = [
        Fact(f"F{at}", text, "background", 0.9, ADA, "m", "2026-01-31T09:15:00+00:00")
        for at, text in enumerate(texts)
    ]
    return [one.id for one in known.file(await house.scope(ADA)).add([Drawn(one) for one in facts])]


async def told(house: Workspace, known: KnownFacts, text: str) -> list[str]:
    async with house.store.open(ADA) as session:
        return await known.nearest(await house.scope(ADA), session, text)


async def test_five_are_told_the_nearest_by_words_first(tmp_path: Path) -> None:
    """Those that share no word fill it up, the newest first; a change of the file is seen."""
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
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
        known = KnownFacts(house.store, embeddings=embeddings, cost_meter=spending)
        await house.said(ADA, talk(2))
        await learn(house, known, *TEXTS)

        assert (await told(house, known, "has a"))[0] == "Ada has a dog."
        assert spending.today().usage.prompt == len(embedder.asked[0]) == len(TEXTS) + 1

        embedder.steps = [ModelAway("down", cause="unreachable")]
        assert (await told(house, known, "plays chess"))[0] == "Ada plays chess."
        await embeddings.aclose()


async def test_forgetting_takes_its_vector_along(tmp_path: Path) -> None:
    embeddings = Embeddings(WordEmbedder(), tmp_path / "state")
    async with open_workspace(tmp_path) as house:
        known = KnownFacts(house.store, embeddings=embeddings)
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


async def test_in_a_shared_scope_forgetting_takes_all_vectors_along(tmp_path: Path) -> None:
    """Another chat of the scope may have compared the fact."""
    embeddings = Embeddings(WordEmbedder(), tmp_path / "state")
    async with open_workspace(tmp_path, kind="workspace") as house:
        known = KnownFacts(house.store, embeddings=embeddings)
        await house.said(ADA, talk(2))
        await learn(house, known, *TEXTS)
        await told(house, known, "dog")
        await embeddings.aclose()

        await known.forget(ADA, await house.scope(ADA), "F1")

        assert (tmp_path / "memory" / FACTS).exists()
        assert not (tmp_path / "state/vectors.db").exists()


async def test_a_turn_goes_on_without_facts_that_cannot_be_read(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as house:
        await house.said(ADA, talk(2))
        ((await house.scope(ADA)).memory / FACTS).mkdir(parents=True)

        assert await told(house, house.known, "hello") == []


def _vectors(workspace: Path) -> int:
    with sqlite3.connect(workspace / "state/vectors.db") as file:
        (count,) = file.execute("SELECT count(*) FROM vectors").fetchone()
    return int(count)
