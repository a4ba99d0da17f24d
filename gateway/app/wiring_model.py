"""Builds the models from Settings: apart from the session side, which takes longer to import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.config.agents import settings_of
from gateway.config.settings import Settings
from session.context.embeddings import LIMIT_S, Embeddings
from session.disk.local_files import local_state
from session.errors import BadAnswer
from session.models import library
from session.models.library import dollars
from session.models.llm import LiteLLM, LiteLLMEmbedder, provider_of
from session.models.model import Answer, Echo, Embedder, HeardCall, Model, Prompt, ToolSpec


def build_embedder(settings: Settings, *, timeout_s: float = LIMIT_S) -> Embedder | None:
    """Choose the embedding model; None where none is configured.

    Address and key are those of the model where the same provider serves both.
    """
    model = settings.model
    if not model.embedding:
        return None
    same = provider_of(model.embedding) == provider_of(model.name)
    return LiteLLMEmbedder(
        name=model.embedding,
        api_base=model.api_base if same else "",
        api_key=model.api_key.get_secret_value() if same else "",
        timeout_s=timeout_s,
    )


def build_embeddings(settings: Settings) -> Embeddings | None:
    """Build what compares messages; None without an embedding model, and beside ``echo``."""
    embedder = build_embedder(settings)
    if embedder is None or settings.model.name == "echo":
        return None
    return Embeddings(embedder, local_state(settings.state))


COST_CAPS = ("cost_per_day_usd", *(f"cost_per_{who}_per_day_usd" for who in ("chat", "person", "job")))
_LOOK = ToolSpec(
    "ls", "List the files of a folder.", {"type": "object", "properties": {"path": {"type": "string"}}}
)


@asynccontextmanager
async def opened_model(settings: Settings) -> AsyncIterator[Model]:
    """Build the model for a few questions, load what it needs, and close its connections in the end."""
    model = build_model(settings)
    if not isinstance(model, LiteLLM):
        yield model
        return
    try:
        # Loading LiteLLM takes seconds, on a busy machine longer than a provider may take to answer.
        await model.warm()
        yield model
    finally:
        await model.close()


def build_model(settings: Settings, *, heard: HeardCall | None = None) -> Model:
    """Choose ``echo`` or LiteLLM; ``heard`` is told of each request to one that is asked over a network."""
    model = settings.model
    if model.name == "echo":
        return Echo(model.echo_delay_s)
    return LiteLLM(
        name=model.name,
        api_base=model.api_base,
        api_key=model.api_key.get_secret_value(),
        timeout_s=model.timeout_s,
        answer_timeout_s=settings.limits.turn_timeout_s,
        max_output_tokens=model.max_output_tokens,
        fallbacks=model.fallbacks,
        small=model.small,
        streams=model.stream == "always",
        takes=model.takes,
        cache=model.cache,
        heard=heard,
    )


async def try_model(model: Model) -> Answer:
    """Ask for a word as a turn asks: with a tool, as a stream, with as many tokens as it may take.

    An answer that was cut proves that model and key work.

    Raises:
        ModelError: as ``Model.ask``.
    """
    prompt = Prompt(messages=[{"role": "user", "content": "Say ok."}], tools=[_LOOK])
    try:
        return await model.ask(prompt, lambda _: None)
    except BadAnswer as error:
        if not error.cut:
            raise
        return Answer("", finish="length")


def model_warnings(settings: Settings) -> list[tuple[str, str]]:
    """Return what the models of a configuration lack, each with its cure.

    With a cap on cost it imports LiteLLM, which takes seconds: for threads.
    """
    every = [settings_of(settings, agent).model for agent in ("", *settings.agents)]
    names = {name: None for model in every for name in (model.name, model.small, *model.fallbacks)}
    found = [
        (f"{name} gets no tools: LiteLLM does not send them to ollama/", f'write "ollama_chat/{name[7:]}"')
        for name in names
        if name.startswith("ollama/")
    ]
    caps = [f"limits.{cap}" for cap in COST_CAPS if getattr(settings.limits, cap)]
    asked = [name for name in names if name not in ("", "echo")]
    if not caps or not asked:
        return found
    lib = library.load()
    return found + [
        (f"no price is known for {name}, so {', '.join(caps)} cannot count it", "set limits.tokens_per_day")
        for name in asked
        if dollars(lib, name, prompt_tokens=1, completion_tokens=1) is None
    ]
