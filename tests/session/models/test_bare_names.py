"""Models whose names have no slash: the configured key and address serve those of one provider alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.app.embedding import build_embedder
from gateway.config.settings import Settings
from session.errors import ModelAway
from session.models.credentials import VARIABLES
from session.models.llm import LiteLLM
from tests.contracts.models import prompt
from tests.session.conftest import KEY
from tests.support.model_server import ModelServer, Reply


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for group in VARIABLES.values() for name in group}:
        monkeypatch.delenv(name, raising=False)


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


async def test_a_model_without_a_key_of_its_own_is_known_as_such() -> None:
    model = LiteLLM(name="gpt-4o", api_key=KEY, fallbacks=["claude-sonnet-4-5"], small="claude-haiku-4-5")

    with pytest.raises(ModelAway) as caught:
        await LiteLLM(name="gpt-4o", api_key=KEY).ask(prompt("q", model="claude-sonnet-4-5"))

    assert model.trouble() is None
    assert caught.value.cause == "credentials"
    assert "ANTHROPIC_API_KEY" in caught.value.hint


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
