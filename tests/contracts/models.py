"""Models of tests: one answers by script, one puts each word of a text at a place of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from zlib import crc32

from session.errors import ModelError
from session.models.model import Answer, Embedded, OnDelta, PartKind, Prompt, ToolSpec, Usage, unit_vectors

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
