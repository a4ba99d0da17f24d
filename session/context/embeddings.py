"""How similar texts of a conversation are to a new message, within a time limit, or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from session.disk.threads import DiskThreads
from session.errors import BadAnswer, ContextTooLong, ModelRefused, SessionError
from session.models.model import Embedder, Meter, Vector
from session.models.similarity import cosine
from session.store.vectors import Vectors

log = structlog.get_logger("embeddings")

LIMIT_S = 2.0
PAUSE_S = 60.0
# So many texts go into one request: every provider takes that many.
BATCH = 10
EVERYBODY = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """For whom a comparison is: the conversation, what counts its cost, and whether it is wanted yet."""

    stem: str
    meter: Meter
    still: Callable[[], bool] | None


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embedder = embedder
        self._vectors = Vectors(state)
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._clock = clock
        self._paused: dict[str, float] = {}
        self._threads = DiskThreads(threads=1)

    async def open(self) -> None:
        """Open what is kept.

        Raises:
            NewerFormat: a newer version wrote it.
        """
        await self._threads.start(self._vectors.open)

    async def similarity(
        self,
        stem: str,
        question: str,
        texts: Sequence[str],
        meter: Meter,
        *,
        still: Callable[[], bool] | None = None,
    ) -> dict[str, float] | None:
        """Return the cosine of each text to ``question``; None where it cannot be known now.

        Args:
            stem: the conversation, by its file; what is known of its texts is found for it alone.
            question: the new message.
            texts: those to compare; what is first is asked for first.
            meter: counts what the requests cost.
            still: says, asked from a thread, whether the texts may still be known when a vector is kept.
        """
        if not question or not texts or self._is_paused(stem):
            return None
        # The seconds in which the library is imported do not count against the limit.
        await self._embedder.warm()
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._compare(_Asked(stem, meter, still), question, texts)
        except TimeoutError:
            self._pause(EVERYBODY, f"no answer in {self._limit_s:g} s")
        except (ModelRefused, ContextTooLong) as error:
            self._pause(stem, str(error))
        except SessionError as error:
            self._pause(EVERYBODY, str(error))
        return None

    async def aclose(self) -> None:
        """Write what is under way, and let go of model and thread."""
        await self._embedder.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.close()
        self._vectors.close()

    async def _compare(self, wanted: _Asked, question: str, texts: Sequence[str]) -> dict[str, float]:
        name = self._embedder.name
        asked = list(dict.fromkeys([question, *texts]))
        known = await self._threads.start(lambda: self._vectors.read(name, wanted.stem, asked))
        await self._ask(wanted, [text for text in asked if text not in known], known)
        # The server may have another model under this name now, whose vectors are not comparable.
        if _lengths(known) > 1:
            await self._ask(wanted, asked, known)
        if _lengths(known) > 1:
            raise BadAnswer(f"{name}: vectors of several lengths")
        return await self._threads.start(
            lambda: {text: cosine(known[question], known[text]) for text in texts}
        )

    async def _ask(self, wanted: _Asked, missing: Sequence[str], known: dict[str, Vector]) -> None:
        """Ask for vectors; each batch is kept at once, so that a slow model gets further at every turn."""
        name = self._embedder.name
        for start in range(0, len(missing), BATCH):
            texts = missing[start : start + BATCH]
            answer = await self._embedder.embed(texts)
            wanted.meter.add(answer.usage.prompt, answer.usage.completion, answer.usage.cost_usd)
            if len(answer.vectors) != len(texts):
                raise BadAnswer(f"{name}: {len(answer.vectors)} vectors for {len(texts)} texts")
            found = dict(zip(texts, answer.vectors, strict=True))
            known.update(found)
            self._threads.start(partial(self._vectors.write, name, wanted.stem, found, still=wanted.still))

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
