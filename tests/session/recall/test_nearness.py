"""With an embedding model what was found is ranked by its meaning, too, and without its answer by words."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from session.context.embeddings import BATCH
from session.errors import ModelAway, ModelRefused
from session.models.caps import Caps
from session.models.model import Payer, Totals, Usage
from session.recall.recall import MEANING, fused
from session.store import archived
from tests.contracts.models import WordEmbedder
from tests.session.recall.place import ADA, BOB, GROUP, fact, place
from tests.session.spending_place import spending_in
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

QUESTION = "what were they all about then the violins and the strings"
# Both hold the words that are looked for; the shorter one is the better by them, and about something else.
BY_WORDS = "violins strings"
BY_MEANING = "oh what were they all about then the violins and the strings"
OTHER = "strings of pearls"


def vectors(workspace: Path) -> int:
    path = workspace / "state/vectors.db"
    if not path.exists():
        return 0
    file = sqlite3.connect(path)
    try:
        (rows,) = file.execute("SELECT count(*) FROM vectors").fetchone()
        return int(rows)
    finally:
        file.close()


async def test_the_nearest_comes_first_where_words_put_another_before_it(tmp_path: Path) -> None:
    """The same messages, by their words alone and then by vectors, too, asked for once and in one request."""
    async with place(tmp_path) as here:
        await here.say(ADA, BY_WORDS, OTHER, BY_MEANING, "ok")
        by_words = await here.texts(ADA, QUESTION)
    words = WordEmbedder()
    async with place(tmp_path, embedder=words) as here:
        hits = await here.find(ADA, QUESTION)
        again = await here.find(ADA, QUESTION)
        # More are compared than are wanted.
        (best,) = await here.find(ADA, QUESTION, limit=1)

    assert by_words[0] == BY_WORDS
    assert hits[0].text == best.text == BY_MEANING
    assert sorted(hit.text for hit in hits) == sorted(by_words)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert [hit.text for hit in again] == [hit.text for hit in hits]
    first, second, _ = words.asked
    assert first[0] == QUESTION
    assert set(first[1:]) == {BY_WORDS, BY_MEANING, OTHER}
    # Of the question nothing is kept.
    assert second == [QUESTION]


@pytest.mark.parametrize("error", [ModelAway("down", cause="unreachable"), ModelRefused("odd")])
async def test_a_model_that_fails_leaves_the_order_of_the_words(
    tmp_path: Path, error: ModelAway | ModelRefused
) -> None:
    """It is asked once, then left alone."""
    words = WordEmbedder()
    words.steps = [error]
    async with place(tmp_path, embedder=words) as here:
        await here.say(ADA, BY_WORDS, OTHER, BY_MEANING, "ok")

        first = await here.texts(ADA, QUESTION)
        second = await here.texts(ADA, QUESTION)

    assert first == second
    assert first[0] == BY_WORDS
    assert len(words.asked) == 1


async def test_a_provider_that_takes_few_texts_is_asked_for_few(tmp_path: Path) -> None:
    """One refusal teaches it; the next search does not try again."""
    words = WordEmbedder()
    words.steps = [ModelRefused("too many")]
    async with place(tmp_path, embedder=words) as here:
        await here.say(ADA, *(f"strings number {number}" for number in range(2 * BATCH)), BY_MEANING)

        first = await here.texts(ADA, QUESTION)
        await here.say(BOB, *(f"strings of bob {number}" for number in range(2 * BATCH)))
        await here.texts(BOB, QUESTION)

    assert first[0] == BY_MEANING
    sizes = [len(texts) for texts in words.asked]
    assert sizes[0] > 2 * BATCH
    assert max(sizes[1:]) == BATCH


async def test_vectors_are_kept_under_the_chat_that_said_it(tmp_path: Path) -> None:
    """A search in one chat of a circle; clearing another takes its vectors out and leaves the rest."""
    words = WordEmbedder()
    async with place(tmp_path, kind="workspace", embedder=words) as here:
        await here.say(ADA, "strings of ada", "ok")
        await here.say(BOB, "strings of bob", "ok")
        await here.say(GROUP, "strings of all", "ok", group=True)
        await here.say(GROUP, "strings of some", "ok", group=True)
        assert len(await here.find(ADA, "strings")) == 2
        assert vectors(tmp_path) == 2

        await here.store.clear(BOB)
        assert vectors(tmp_path) == 1
        await here.find(GROUP, "strings")
        assert vectors(tmp_path) == 3
        await here.store.clear(ADA)

    assert vectors(tmp_path) == 2
    assert not any("strings of all" in text for text in words.asked[0])


@guarantee("privacy", "Cleared text leaves no embedding vector, not even one that was being computed.")
async def test_what_is_cleared_while_the_model_answers_leaves_no_vector(tmp_path: Path) -> None:
    """The active session, an ended one, and the notes."""
    words = WordEmbedder()
    async with place(tmp_path, embedder=words) as here:
        await here.say(ADA, "strings of old", "ok")
        await here.end()
        await here.say(ADA, "strings of new", "ok")
        note = here.note("MEMORY.md", "- strings of notes\n")
        here.note("facts.jsonl", fact("likes strings"))
        (old,) = (tmp_path / "sessions/archive/telegram_1").iterdir()

        async def clear() -> None:
            await here.store.clear(ADA)
            await asyncio.to_thread(
                archived.delete,
                here.store.state,
                here.store.layout,
                "telegram:1",
                "telegram_1",
                old.name[17:43],
            )
            note.unlink()

        words.steps = [clear]
        assert len(await here.find(ADA, "strings")) == 4

    # That of the fact alone, which still stands.
    assert vectors(tmp_path) == 1


async def test_what_it_costs_is_counted_and_a_cap_leaves_the_order_of_the_words(tmp_path: Path) -> None:
    """The cost is the chat's and no turn's; at a cap nothing is asked."""
    clock = Clock(datetime(2027, 1, 1, 12, tzinfo=UTC))
    caps = Caps(tokens_per_day=20)
    spending = spending_in(clock=clock, caps=caps)
    words = WordEmbedder()
    async with place(tmp_path, embedder=words, cost_meter=spending) as here:
        await here.say(ADA, "strings one", "strings two", "strings three", "ok")
        await here.find(ADA, "strings")
        (row,) = await spending.left(Payer(ADA))
        asked = len(words.asked)
        await here.say(ADA, BY_WORDS, BY_MEANING)
        found = await here.texts(ADA, QUESTION)

    assert asked == 1
    assert (row["used"], row["reserved"]) == (4, 0)
    assert await spending.today() == Totals(0, Usage(4))
    assert len(words.asked) == asked
    assert found[0] == BY_WORDS


def test_both_orders_count_and_what_was_not_compared_stays_behind() -> None:
    scores = fused([4.0, 2.0, 1.0], [0.0, 1.0])

    words = 1 - MEANING
    assert scores == pytest.approx([words + MEANING / 2, words / 2 + MEANING, words / 4])
    assert fused([], []) == []
    assert fused([2.0, 1.0], [-1.0, -1.0]) == pytest.approx([1 - MEANING, (1 - MEANING) / 2])
