"""Asks the model and the embedding model once, and says what keeps them from answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import durable
from gateway.app.wiring_model import build_embedder, model_warnings, opened_model, try_model
from gateway.config.settings import Settings, effective_history
from gateway.doctor.finding import Check, Finding
from session.context.embeddings import LIMIT_S
from session.errors import ModelAway, ModelRefused, SessionError
from session.models.model import Embedder, Model

# A model may think before its first word.
MODEL_S = 60.0
EMBEDDING_S = 30.0


async def check(settings: Settings) -> Check:
    """Return how it stands; its request alone is timed."""
    async with opened_model(settings) as model:
        return await _asked(settings, model)


async def _asked(settings: Settings, model: Model) -> Check:
    if model.plain:
        return Check(
            "model", "warn", "echo only repeats each message", 'set model.name, e.g. "openai/gpt-4.1-mini"'
        )
    try:
        async with asyncio.timeout(MODEL_S):
            await try_model(model)
    except ModelAway as error:
        return Check("model", "fail", _said(settings, error), error.hint or "chat-gateway config show")
    except ModelRefused as error:
        return Check("model", "fail", _said(settings, error), error.hint or "correct model.name")
    except SessionError as error:
        cure = error.hint or "try again; if it fails again, choose another model: docs/models.md"
        return Check("model", "warn", _said(settings, error), cure)
    except TimeoutError:
        return Check(
            "model", "fail", f"{settings.model.name}: no answer in {MODEL_S:g} s", "check model.api_base"
        )
    notes: list[tuple[str, str]] = getattr(model, "notes", list)()
    # The request may have met what the configuration already shows.
    warnings = await asyncio.to_thread(model_warnings, settings)
    found = [*notes, *(each for each in warnings if each[1] not in {cure for _, cure in notes})]
    if found:
        texts, cures = zip(*found, strict=True)
        said = "; ".join((f"{settings.model.name} answers", *texts))
        return Check("model", "warn", said, "; ".join(dict.fromkeys(cures)))
    return Check("model", "ok", f"{settings.model.name} answers")


def _said(settings: Settings, error: SessionError) -> str:
    name, text = settings.model.name, str(error)
    return text if text.startswith(name) else f"{name}: {text}"


async def check_embedding(
    settings: Settings, *, clock: Callable[[], float] = durable.monotonic
) -> list[Finding]:
    """Return level, text and cure; nothing where no embedding model is set and none is missed.

    ``clock`` says how long the answer took, in seconds.
    """
    embedder = build_embedder(settings, timeout_s=EMBEDDING_S)
    if embedder is not None:
        return [await _embedder_asked(embedder, settings.model.embedding, clock)]
    if settings.model.name == "echo" or effective_history(settings).mode != "relevant":
        return []
    text = "not set: history.mode is relevant, but the newest exchanges are sent instead of the most relevant"
    return [("warn", text, 'set model.embedding, e.g. "openai/text-embedding-3-small"')]


async def _embedder_asked(embedder: Embedder, name: str, clock: Callable[[], float]) -> Finding:
    await embedder.warm()
    began = clock()
    try:
        async with asyncio.timeout(EMBEDDING_S):
            await embedder.embed(["Say ok."])
    except ModelAway as error:
        return "fail", f"{name}: {error}", error.hint or "chat-gateway config show"
    except SessionError as error:
        return "fail", f"{name}: {error}", error.hint or "check model.embedding"
    except TimeoutError:
        return "fail", f"{name}: no answer in {EMBEDDING_S:g} s", "check model.api_base"
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
