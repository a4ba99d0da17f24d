"""How similar texts of a conversation are to a new message, within a time limit, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

import durable
from session.errors import BadAnswer, ContextTooLong, ModelRefused, NotNow, OverCap, SessionError, loggable
from session.models.model import Embedder, Vector, cosine
from session.models.spending import EmbeddingMeter
from session.store.derived import Passage, Vectors

log = structlog.get_logger("embeddings")

LIMIT_S = 2.0
PAUSE_S = 60.0
# So many texts go into one request: every provider takes that many.
BATCH = 10
EVERYBODY = ""
T = TypeVar("T")


class Embeddings:
    """Compares texts by an embedding model; a text that is known is not asked for again.

    Args:
        embedder: the model.
        state: the folder in which vectors are kept.
        limit_s: how long one comparison may take in all.
        pause_s: how long a model that failed is left alone; one that refused a text, by its conversation.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        embedder: Embedder,
        state: Path,
        *,
        limit_s: float = LIMIT_S,
        pause_s: float = PAUSE_S,
        clock: Callable[[], float] = durable.monotonic,
    ) -> None:
        self._embedder = embedder
        self._vectors = Vectors(state)
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._clock = clock
        self._paused: dict[str, float] = {}
        # Whether the provider takes more than ``BATCH`` texts at once, as far as it is known.
        self._many = True
        self._thread = ThreadPoolExecutor(1, "disk")

    async def open(self) -> None:
        """Open what is kept.

        Raises:
            NewerFormat: a newer version wrote it.
        """
        await self._start(self._vectors.open)

    async def similarity(
        self,
        stem: str,
        question: str,
        texts: Sequence[str],
        meter: EmbeddingMeter,
        *,
        still: Callable[[], bool] | None = None,
    ) -> dict[str, float] | None:
        """Return the cosine of each text to ``question``; None where it cannot be known now.

        Args:
            stem: the conversation, by its file; what is known of its texts is found for it alone.
            question: the new message.
            texts: those to compare; what is first is asked for first.
            meter: holds and counts what the requests cost; where it refuses, nothing is known.
            still: says, asked from a thread, whether the texts may still be known when a vector is kept.
        """
        if not question or not texts:
            return None
        passages = [Passage(stem, text, still) for text in (question, *texts)]
        near = await self._within_limit(stem, question, passages, meter, at_once=False)
        return None if near is None else dict(zip(texts, near[1:], strict=True))

    async def nearness(
        self, stem: str, question: str, passages: Sequence[Passage], meter: EmbeddingMeter
    ) -> list[float] | None:
        """Return the cosine of each passage to ``question``, in their order; None as of ``similarity``.

        They may be of several conversations, and all that is not known of them goes into one request. Of the
        question no vector is kept.

        Args:
            stem: the conversation that asks.
            question: what is looked for.
            passages: those to compare.
            meter: as of ``similarity``.
        """
        if not question or not passages:
            return None
        return await self._within_limit(stem, question, passages, meter, at_once=True)

    async def aclose(self) -> None:
        """Write what is under way, and let go of model and thread."""
        await self._embedder.close()
        await asyncio.to_thread(self._close)

    def _start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, job)

    def _close(self) -> None:
        self._thread.shutdown()
        self._vectors.close()

    async def _within_limit(
        self, stem: str, question: str, passages: Sequence[Passage], meter: EmbeddingMeter, *, at_once: bool
    ) -> list[float] | None:
        if self._is_paused(stem):
            return None
        # The seconds in which the library is imported do not count against the limit.
        await self._embedder.warm()
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._near(question, passages, meter, at_once=at_once)
        except TimeoutError:
            self._pause(EVERYBODY, f"no answer in {self._limit_s:g} s")
        except (NotNow, OverCap) as error:
            # Nothing was asked: the model is not at fault.
            log.debug("embeddings.unpaid", reason=str(error))
        except (ModelRefused, ContextTooLong) as error:
            self._pause(stem, loggable(error))
        except SessionError as error:
            self._pause(EVERYBODY, loggable(error))
        return None

    async def _near(
        self, question: str, passages: Sequence[Passage], meter: EmbeddingMeter, *, at_once: bool
    ) -> list[float]:
        name, ask = self._embedder.name, self._ask_many if at_once else self._ask

        def look() -> dict[str, Vector]:
            known: dict[str, Vector] = {}
            for stem in dict.fromkeys(passage.stem for passage in passages):
                known |= self._vectors.read(name, stem, [each.text for each in passages if each.stem == stem])
            return known

        def keep(found: dict[str, Vector]) -> None:
            self._start(partial(self._vectors.keep, name, passages, found))

        known = await self._start(look)
        texts = list(dict.fromkeys([question, *(each.text for each in passages)]))
        known |= await ask([text for text in texts if text not in known], meter, keep)
        # The server may have another model under this name now, whose vectors are not comparable.
        if _lengths(known) > 1:
            known |= await ask(texts, meter, keep)
        if _lengths(known) > 1:
            raise BadAnswer(f"{name}: vectors of several lengths")
        return await self._start(lambda: [cosine(known[question], known[each.text]) for each in passages])

    async def _ask_many(
        self, texts: Sequence[str], meter: EmbeddingMeter, keep: Callable[[dict[str, Vector]], None]
    ) -> dict[str, Vector]:
        """Ask for all in one request; in several from when on the provider has refused so many."""
        if self._many and len(texts) > BATCH:
            try:
                return await self._ask(texts, meter, keep, batch=len(texts))
            except (ModelRefused, ContextTooLong):
                self._many = False
        return await self._ask(texts, meter, keep)

    async def _ask(
        self,
        texts: Sequence[str],
        meter: EmbeddingMeter,
        keep: Callable[[dict[str, Vector]], None],
        *,
        batch: int = BATCH,
    ) -> dict[str, Vector]:
        """Ask for vectors; each batch is kept at once, so that a slow model gets further at every turn."""
        name = self._embedder.name
        known: dict[str, Vector] = {}
        for start in range(0, len(texts), batch):
            some = texts[start : start + batch]
            async with meter.embedding(self._embedder, some) as count:
                answer = await self._embedder.embed(some)
                count(answer.usage)
            if len(answer.vectors) != len(some):
                raise BadAnswer(f"{name}: {len(answer.vectors)} vectors for {len(some)} texts")
            found = dict(zip(some, answer.vectors, strict=True))
            known.update(found)
            keep(found)
        return known

    def _is_paused(self, stem: str) -> bool:
        now = self._clock()
        return any(self._paused.get(who, now) > now for who in (EVERYBODY, stem))

    def _pause(self, who: str, error: str) -> None:
        now = self._clock()
        self._paused = {stem: until for stem, until in self._paused.items() if until > now}
        self._paused[who] = now + self._pause_s
        log.warning("embeddings.failed", model=self._embedder.name, error=error, pause_s=self._pause_s)


def _lengths(vectors: dict[str, Vector]) -> int:
    return len({len(vector) for vector in vectors.values()})
