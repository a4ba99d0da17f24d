"""A model without its key is known as such before LiteLLM is imported, and told with the variable's name."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.app.wiring_model import build_embedder
from gateway.config.settings import Settings
from session.errors import ModelAway
from session.models.credentials import VARIABLES, cure, lacks_key
from session.models.llm import LiteLLM
from tests.contracts.models import prompt
from tests.session.conftest import KEY
from tests.support.model_server import ModelServer, Reply

KEYLESS = """
import asyncio, sys
from session.errors import ModelAway
from session.models.llm import LiteLLM
from tests.contracts.models import prompt

async def main():
    model = LiteLLM(name="anthropic/claude-sonnet-4-5", fallbacks=["openai/gpt-4o"])
    await model.warm()
    assert await model.context_window() == 0
    try:
        await model.ask(prompt("hi"))
    except ModelAway as error:
        print(error.cause, "|", error, "|", error.hint, "|", "litellm" in sys.modules)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for group in VARIABLES.values() for name in group}:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("model", "environment", "lacks"),
    [
        ("openai/gpt-4o", {}, True),
        ("openai/gpt-4o", {"OPENAI_API_KEY": "x"}, False),
        ("openai/gpt-4o", {"OPENAI_API_KEY": " "}, True),
        ("openai/gpt-4o", {"ANTHROPIC_API_KEY": "x"}, True),
        ("gpt-4o", {}, True),
        ("claude-sonnet-4-5", {}, True),
        ("claude-sonnet-4-5", {"ANTHROPIC_AUTH_TOKEN": "x"}, False),
        ("gemini/gemini-2.5-pro", {"GOOGLE_API_KEY": "x"}, False),
        ("openrouter/openai/gpt-4o", {"OPENAI_API_KEY": "x"}, True),
        ("bedrock/anthropic.claude", {}, False),
        ("vertex_ai/gemini-2.5-pro", {}, False),
        ("ollama/llama3", {}, False),
        ("mystery", {}, False),
    ],
)
def test_only_what_is_certain_counts(model: str, environment: dict[str, str], lacks: bool) -> None:
    """A key is missed where its provider is known to ask for one, and nowhere else."""
    assert lacks_key(model, environment) is lacks


def test_the_variables_are_those_of_litellm() -> None:
    """Any one of the named variables is a key that LiteLLM finds, or one that it names as missing."""
    from litellm import validate_environment

    for provider, names in VARIABLES.items():
        if provider == "cohere_chat":
            continue
        missing = validate_environment(f"{provider}/some-model")["missing_keys"]
        assert set(missing) & set(names), f"{provider}: LiteLLM misses {missing}"


def test_without_a_key_nothing_is_imported() -> None:
    """Neither request nor warming up imports LiteLLM where every model lacks its key."""
    done = subprocess.run([sys.executable, "-c", KEYLESS], capture_output=True, text=True, check=True)

    assert done.stdout == (
        "credentials | anthropic/claude-sonnet-4-5: no API key | "
        "set ANTHROPIC_API_KEY, or model.api_key_file | False\n"
    )


async def test_a_key_of_ones_own_or_a_server_is_enough() -> None:
    """``model.api_key`` and ``model.api_base`` serve the models of the same provider, and no others."""
    assert LiteLLM(name="openai/x").trouble() is not None
    assert LiteLLM(name="openai/x", api_key="k").trouble() is None
    assert LiteLLM(name="openai/x", api_base="http://127.0.0.1:1/v1").trouble() is None
    assert LiteLLM(name="openai/x", fallbacks=["ollama/y"]).trouble() is None
    other = LiteLLM(name="openai/x", api_key="k", small="groq/y")
    with pytest.raises(ModelAway) as caught:
        await other.ask(prompt("hi", model="groq/y"))
    assert (caught.value.cause, caught.value.hint) == ("credentials", cure("groq/y"))
    assert "GROQ_API_KEY" in caught.value.hint


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[str]]]:
    """Yield the address of a server that is away, and the heads of all requests that came to it."""
    heads: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", heads


async def test_another_provider_gets_neither_address_nor_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fallback of another one uses its environment, and the configured server never hears of it."""
    async with listening() as (ours, at_ours), listening() as (hers, at_hers):
        monkeypatch.setenv("ANTHROPIC_API_KEY", "her-key")
        monkeypatch.setenv("ANTHROPIC_API_BASE", hers)
        model = LiteLLM(
            name="gpt-4o", api_base=f"{ours}/v1", api_key=KEY, timeout_s=20, fallbacks=["claude-sonnet-4-5"]
        )

        with pytest.raises(ModelAway):
            await model.ask(prompt("q"))
        await model.close()

    assert [f"authorization: bearer {KEY.lower()}" in head for head in at_ours] == [True]
    assert ["x-api-key: her-key" in head for head in at_hers] == [True]
    assert not any(KEY.lower() in head for head in at_hers)


async def test_one_provider_is_known_by_both_forms_of_its_names(server: ModelServer) -> None:
    model = LiteLLM(name="gpt-4o", api_base=server.url, api_key=KEY, fallbacks=["openai/gpt-4o-mini"])
    server.script.append(Reply(status=503))

    await model.ask(prompt("q"))
    await model.close()

    assert [seen.body["model"] for seen in server.seen] == ["gpt-4o", "gpt-4o-mini"]
    assert [seen.headers["authorization"] for seen in server.seen] == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize(
    ("name", "embedding", "same"),
    [
        ("claude-sonnet-4-5", "text-embedding-3-small", False),
        ("claude-sonnet-4-5", "openai/text-embedding-3-small", False),
        ("gpt-4o", "text-embedding-004", False),
        ("mystery", "riddle", False),
        ("gpt-4o", "text-embedding-3-small", True),
        ("gpt-4o", "openai/text-embedding-3-small", True),
        ("openai/gpt-4o", "text-embedding-ada-002", True),
        ("mystery", "mystery", True),
    ],
)
def test_vectors_are_asked_of_the_same_provider_alone(
    tmp_path: Path, name: str, embedding: str, same: bool
) -> None:
    table = {"name": name, "embedding": embedding, "api_base": "http://127.0.0.1:1/v1", "api_key": KEY}
    embedder = build_embedder(Settings.model_validate({"workspace": tmp_path, "model": table}))

    assert embedder is not None
    assert ("http://127.0.0.1:1/v1" in embedder.name) is same
