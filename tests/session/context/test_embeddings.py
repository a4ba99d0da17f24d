"""How near texts are to a message: asked once, kept, within a time limit, or given up for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from session.context.embeddings import BATCH, Embeddings
from session.errors import BadAnswer, ModelAway, ModelError, ModelRefused, NewerFormat
from session.models.llm import LiteLLMEmbedder
from session.models.model import cosine
from session.models.spending import Meter
from session.store.derived import FILE, Vectors
from tests.contracts.models import WordEmbedder
from tests.session.conftest import KEY
from tests.support.clock import Clock
from tests.support.guarantee import guarantee
from tests.support.model_server import ModelServer
from tests.support.model_server import Vectors as Scripted

QUESTION = "warm fresh bread"
TEXTS = ["fresh bread again", "granite counters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Scripted(status=503), ModelAway),
        (Scripted(status=400), ModelRefused),
        (Scripted("nan"), BadAnswer),
    ],
)
async def test_litellm_fails_in_the_promised_ways_and_embeds_the_next_texts(
    server: ModelServer, failure: Scripted, kind: type[ModelError]
) -> None:
    """A unit vector for each in their order: equal texts are equal, texts of other words are not."""
    model = LiteLLMEmbedder(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=20)
    await model.warm()
    server.vectors.append(failure)

    with pytest.raises(kind):
        await model.embed(["fresh bread"])
    answer = await model.embed(["fresh bread", "stone wall", "fresh bread"])
    await model.close()

    one, other, again = answer.vectors
    assert cosine(one, again) == pytest.approx(1, abs=1e-4)
    assert cosine(one, other) < 0.9
    assert answer.usage.prompt > 0


@pytest.fixture
async def words() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def embeddings(tmp_path: Path, words: WordEmbedder, clock: Clock) -> AsyncIterator[Embeddings]:
    service = Embeddings(words, tmp_path, limit_s=30, pause_s=60, clock=clock.monotonic)
    yield service
    await service.aclose()


async def test_what_is_known_is_not_asked_again(
    tmp_path: Path, embeddings: Embeddings, words: WordEmbedder
) -> None:
    """A new message costs its own vector; after a restart the others are still known."""
    meter = Meter()

    first = await embeddings.similarity("ada", QUESTION, TEXTS, meter)
    await embeddings.aclose()
    again = Embeddings(words, tmp_path, limit_s=30)
    second = await again.similarity("ada", "new words", [*TEXTS, QUESTION], meter)
    await again.aclose()

    assert first is not None
    assert second is not None
    assert first[TEXTS[0]] > 0.45 > first[TEXTS[1]]
    assert words.asked == [[QUESTION, *TEXTS], ["new words"]]
    assert second.keys() == {*TEXTS, QUESTION}
    assert meter.usage.prompt == 4


async def test_a_conversation_finds_nothing_of_another(embeddings: Embeddings, words: WordEmbedder) -> None:
    for stem in ("ada", "bob"):
        await embeddings.similarity(stem, QUESTION, TEXTS, Meter())

    assert words.asked == [[QUESTION, *TEXTS]] * 2


@pytest.mark.parametrize(("question", "texts"), [("", TEXTS), (QUESTION, [])])
async def test_nothing_to_compare_asks_nothing(
    embeddings: Embeddings, words: WordEmbedder, question: str, texts: list[str]
) -> None:
    """A message without text, and a conversation without old exchanges, cost no request."""
    assert await embeddings.similarity("ada", question, texts, Meter()) is None
    assert words.asked == []


@pytest.mark.parametrize("error", [ModelAway("down", cause="unreachable"), BadAnswer("odd")])
async def test_a_model_that_failed_is_left_alone_for_a_while(
    embeddings: Embeddings, words: WordEmbedder, clock: Clock, error: ModelError
) -> None:
    """One request and one line in the log for all chats; a minute later it is asked again."""
    words.steps = [error]

    with capture_logs() as logged:
        assert await embeddings.similarity("ada", QUESTION, TEXTS, Meter()) is None
        clock.forward(59)
        assert await embeddings.similarity("bob", QUESTION, TEXTS, Meter()) is None
    assert [line["event"] for line in logged] == ["embeddings.failed"]
    assert len(words.asked) == 1

    clock.forward(1)
    assert await embeddings.similarity("bob", QUESTION, TEXTS, Meter()) is not None


async def test_a_text_that_is_refused_costs_its_own_conversation_alone(
    embeddings: Embeddings, words: WordEmbedder
) -> None:
    """The model answers others."""
    words.steps = [ModelRefused("odd text")]

    assert await embeddings.similarity("ada", QUESTION, TEXTS, Meter()) is None
    assert await embeddings.similarity("bob", QUESTION, TEXTS, Meter()) is not None
    assert await embeddings.similarity("ada", QUESTION, TEXTS, Meter()) is None
    assert len(words.asked) == 2


async def test_a_slow_model_gets_further_at_every_try(
    tmp_path: Path, embeddings: Embeddings, words: WordEmbedder
) -> None:
    """What came within the time is kept, so that a first comparison of many texts ends some day."""
    hurried = Embeddings(words, tmp_path, limit_s=1)
    # What the disk takes for that is no part of the second that follows.
    await hurried.open()
    texts = [f"text number {n}" for n in range(2 * BATCH - 1)]
    stuck = asyncio.Event()

    async def pass_by() -> None:
        """Answer at once."""

    async def hang() -> None:
        await stuck.wait()

    words.steps = [pass_by, hang]

    assert await hurried.similarity("ada", QUESTION, texts, Meter()) is None
    await hurried.aclose()
    assert await embeddings.similarity("ada", QUESTION, texts, Meter()) is not None
    assert [len(asked) for asked in words.asked] == [BATCH, BATCH, BATCH]


async def test_another_model_under_the_same_name_is_noticed(
    embeddings: Embeddings, words: WordEmbedder
) -> None:
    """Where the number of dimensions has changed, everything is asked for again, once."""
    await embeddings.similarity("ada", QUESTION, TEXTS, Meter())
    words.dimensions = 128

    similarity = await embeddings.similarity("ada", "fresh bread", TEXTS, Meter())

    assert similarity is not None
    assert similarity[TEXTS[0]] > 0.45
    assert words.asked[1:] == [["fresh bread"], ["fresh bread", *TEXTS]]


async def test_vectors_that_never_fit_each_other_are_given_up(
    embeddings: Embeddings, words: WordEmbedder
) -> None:
    """A server that changes its mind between two batches is not believed."""
    texts = [f"text number {n}" for n in range(BATCH)]

    async def change() -> None:
        words.dimensions += 1

    words.steps = [change] * 4

    assert await embeddings.similarity("ada", QUESTION, texts, Meter()) is None
    assert len(words.asked) == 4


async def test_a_newer_file_is_told_at_the_start(tmp_path: Path, embeddings: Embeddings) -> None:
    """So that the daemon ends with 78; a turn goes on without what is kept."""
    import sqlite3

    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("PRAGMA user_version=9")
    file.close()

    with pytest.raises(NewerFormat):
        await embeddings.open()
    assert await embeddings.similarity("ada", QUESTION, TEXTS, Meter()) is not None


@guarantee("failures", "A failing embedding model delays a turn by at most two seconds, once a minute.")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "limit_s"),
    [
        (Scripted("hang"), 3),
        (Scripted(status=500), 30),
        (Scripted(status=401), 30),
        (Scripted("fewer"), 30),
        (Scripted("nan"), 30),
        (Scripted("mixed"), 30),
        (Scripted("zero"), 30),
    ],
    ids=["hang", "500", "401", "fewer", "nan", "mixed", "zero"],
)
async def test_litellm_that_fails_costs_one_request_and_no_more_than_the_limit(
    tmp_path: Path, server: ModelServer, reply: Scripted, limit_s: float
) -> None:
    """Whatever the server does, the turn goes on in time; nothing of it is kept, no secret is logged."""
    model = LiteLLMEmbedder(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=limit_s)
    service = Embeddings(model, tmp_path, limit_s=limit_s)
    await model.warm()
    server.vectors.append(reply)

    with capture_logs() as logged:
        # The server would take a minute.
        async with asyncio.timeout(55):
            similarity = await service.similarity("ada", QUESTION, TEXTS, Meter())
        await service.similarity("ada", QUESTION, TEXTS, Meter())
    await service.aclose()

    assert similarity is None
    assert len(server.embedded) == 1
    assert [line["event"] for line in logged] == ["embeddings.failed"]
    assert KEY not in str(logged)
    assert Vectors(tmp_path).read(model.name, "ada", [QUESTION, *TEXTS]) == {}


async def test_answers_in_another_order_are_put_right(tmp_path: Path, server: ModelServer) -> None:
    """The index counts, not the place."""
    model = LiteLLMEmbedder(name="openai/stub", api_base=server.url, timeout_s=30)
    service = Embeddings(model, tmp_path, limit_s=30)
    server.vectors.append(Scripted("backwards"))

    similarity = await service.similarity("ada", QUESTION, TEXTS, Meter())
    await service.aclose()

    assert similarity is not None
    assert similarity[TEXTS[0]] > 0.45 > similarity[TEXTS[1]]
