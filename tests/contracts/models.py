"""A model that answers by script, and what every model must keep to; for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from zlib import crc32

import pytest

from session.errors import BadAnswer, ContextTooLong, EmptyAnswer, ModelAway, ModelError, ModelRefused
from session.models.model import Answer, Embedded, Embedder, Model, OnDelta, PartKind, Prompt, ToolSpec, Usage
from session.models.similarity import cosine, unit_vectors

Step = Answer | ModelError | str | Callable[[Prompt], Answer | str]

LOOK = ToolSpec("look", "Look at a thing.", {"type": "object", "properties": {"at": {"type": "string"}}})


class Script:
    """Gives one step per request, then repeats the newest message; keeps every prompt it was asked.

    A step is an answer, a text, an error to raise, or a function of the prompt. ``held`` and
    ``release`` stop and continue a request in its middle: it waits after the first half of the text.
    """

    name = "script"

    def __init__(self, steps: Iterable[Step] = (), *, plain: bool = False) -> None:
        self.plain = plain
        self.parts: set[PartKind] = set()
        self.steps = list(steps)
        self.prompts: list[Prompt] = []
        self.held = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    def takes(self, part: PartKind) -> bool:
        """Take what the test says."""
        return part in self.parts

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        """Play the next step."""
        self.prompts.append(prompt)
        step = self.steps.pop(0) if self.steps else f"script: {prompt.messages[-1]['content']}"
        if isinstance(step, ModelError):
            raise step
        if not isinstance(step, Answer | str):
            step = step(prompt)
        answer = Answer(step) if isinstance(step, str) else step
        half = len(answer.text) // 2
        if on_delta is not None and answer.text[:half]:
            on_delta(answer.text[:half])
        self.held.set()
        await self.release.wait()
        if on_delta is not None and answer.text[half:]:
            on_delta(answer.text[half:])
        return answer


def prompt(text: str, **fields: object) -> Prompt:
    """Make a prompt of one user message."""
    return Prompt(messages=[{"role": "user", "content": text}], **fields)  # type: ignore[arg-type]


class WordEmbedder:
    """Puts every word at a place of its own: texts that share words are near. Keeps what it was asked.

    A step is an error to raise, or what to do first; ``dimensions`` may change between two requests.
    """

    name = "words"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.steps: list[ModelError | Callable[[], Awaitable[None]]] = []
        self.dimensions = 64

    async def warm(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Play the next step, then embed."""
        self.asked.append(list(texts))
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, ModelError):
            raise step
        if step is not None:
            await step()
        rows = [{"embedding": self._counts(text)} for text in texts]
        return Embedded(unit_vectors(rows, len(texts)), Usage(prompt=len(texts)))

    def _counts(self, text: str) -> list[int]:
        counts = [0] * self.dimensions
        for word in text.split() or [""]:
            counts[crc32(word.encode()) % self.dimensions] += 1
        return counts


class EmbedderContract:
    """What every embedding model keeps to; a subclass gives the fixture ``embedder``."""

    @pytest.fixture
    def embedder(self) -> Embedder:
        """Return the model under test; texts that share words must be near to each other."""
        raise NotImplementedError

    async def arrange(self, what: str) -> None:
        """Make the next request end in ``away``, ``refused`` or ``bad``."""
        raise NotImplementedError

    async def test_a_unit_vector_for_each_text_in_their_order(self, embedder: Embedder) -> None:
        """Equal texts are equal, texts of other words are not; the cosine of a text to itself is 1."""
        await embedder.warm()

        answer = await embedder.embed(["fresh bread", "stone wall", "fresh bread"])

        one, other, again = answer.vectors
        assert cosine(one, again) == pytest.approx(1, abs=1e-4)
        assert cosine(one, other) < 0.9
        assert answer.usage.prompt > 0
        assert embedder.name

    @pytest.mark.parametrize(
        ("what", "kind"), [("away", ModelAway), ("refused", ModelRefused), ("bad", BadAnswer)]
    )
    async def test_embedding_fails_in_the_promised_ways(
        self, embedder: Embedder, what: str, kind: type[ModelError]
    ) -> None:
        """Each failure is of its own class, and the next request is not touched by it."""
        await self.arrange(what)

        with pytest.raises(kind):
            await embedder.embed(["fresh bread"])

        assert len((await embedder.embed(["fresh bread"])).vectors) == 1


class ModelContract:
    """What every model keeps to; a subclass gives the fixture ``model``."""

    @pytest.fixture
    def model(self) -> Model:
        """Return the model under test, which answers with a text that holds the message."""
        raise NotImplementedError

    async def test_answers_with_the_message_in_its_text(self, model: Model) -> None:
        """One prompt gets one answer."""
        answer = await model.ask(prompt("good morning"))

        assert "good morning" in answer.text
        assert list(answer.tool_calls) == []
        assert answer.finish == "stop"

    async def test_deltas_are_the_text(self, model: Model) -> None:
        """The pieces that were written, put together, are the answer's text."""
        pieces: list[str] = []

        answer = await model.ask(prompt("good morning"), pieces.append)

        assert "".join(pieces) == answer.text

    async def test_answers_do_not_mix(self, model: Model) -> None:
        """Many requests at once each get their own answer."""
        answers = await asyncio.gather(*(model.ask(prompt(f"number {i:03}")) for i in range(20)))

        assert [f"number {i:03}" in answer.text for i, answer in enumerate(answers)] == [True] * 20


class FullModelContract(ModelContract):
    """What a model with tools and failures keeps to; ``arrange`` prepares its next request."""

    async def arrange(self, what: str) -> None:
        """Make the next request end in ``call``, ``away``, ``refused``, ``too_long`` or ``bad``."""
        raise NotImplementedError

    async def test_calls_a_tool(self, model: Model) -> None:
        """A tool call comes with an id, a name and its arguments as text."""
        await self.arrange("call")

        answer = await model.ask(prompt("look", tools=[LOOK]))

        assert [(call.name, call.arguments) for call in answer.tool_calls] == [("look", '{"at": "it"}')]
        assert answer.tool_calls[0].id
        assert answer.finish == "tool_calls"

    @pytest.mark.parametrize(
        ("what", "kind"),
        [
            ("away", ModelAway),
            ("refused", ModelRefused),
            ("too_long", ContextTooLong),
            ("bad", EmptyAnswer),
        ],
    )
    async def test_fails_in_the_promised_ways(self, model: Model, what: str, kind: type[ModelError]) -> None:
        """Each failure is of its own class, and the next request is not touched by it."""
        await self.arrange(what)

        with pytest.raises(kind) as caught:
            await model.ask(prompt("good morning"))

        assert type(caught.value) is kind
        assert caught.value.said.endswith(".")
        assert "good morning" in (await model.ask(prompt("good morning"))).text
