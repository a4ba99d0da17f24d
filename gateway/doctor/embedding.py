"""Asks the embedding model once, and says whether mode ``relevant`` can count on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import durable
from gateway.app.embedding import build_embedder
from gateway.config.presets import effective_history
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding
from session.context.embeddings import LIMIT_S
from session.errors import ModelAway, SessionError
from session.models.model import Embedder

ASK_S = 30.0


async def check(settings: Settings, *, clock: Callable[[], float] = durable.monotonic) -> list[Finding]:
    """Return level, text and cure; nothing where no embedding model is set and none is missed.

    ``clock`` says how long the answer took, in seconds.
    """
    embedder = build_embedder(settings, timeout_s=ASK_S)
    if embedder is not None:
        return [await _asked(embedder, settings.model.embedding, clock)]
    if settings.model.name == "echo" or effective_history(settings).mode != "relevant":
        return []
    text = "not set: history.mode is relevant, but the newest exchanges are sent instead of the most relevant"
    return [("warn", text, 'set model.embedding, e.g. "openai/text-embedding-3-small"')]


async def _asked(embedder: Embedder, name: str, clock: Callable[[], float]) -> Finding:
    await embedder.warm()
    began = clock()
    try:
        async with asyncio.timeout(ASK_S):
            await embedder.embed(["Say ok."])
    except ModelAway as error:
        return "fail", f"{name}: {error}", error.hint or "chat-gateway config show"
    except SessionError as error:
        return "fail", f"{name}: {error}", error.hint or "check model.embedding"
    except TimeoutError:
        return "fail", f"{name}: no answer in {ASK_S:g} s", "check model.api_base"
    finally:
        await embedder.close()
    took_s = clock() - began
    if took_s > LIMIT_S:
        return (
            "warn",
            f"{name} took {took_s:.1f} s; a turn waits at most {LIMIT_S:g} s",
            "use a faster one",
        )
    return "ok", f"{name} answers", ""
