"""What tests of the session package share: stores that are closed, a model server, workspaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.models.llm import LiteLLM
from session.store.store import Store
from tests.session.recall.place import Place, place
from tests.session.retention_place import World
from tests.session.store_place import Make
from tests.support.model_server import ModelServer

KEY = "sk-very-secret-4711"
# What comes is the same whether somebody reads along, so that the answer is streamed, or nobody does.
both_ways = pytest.mark.parametrize("on_delta", [None, lambda _: None], ids=["whole", "streamed"])


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Store] = []

    def open_store(**options: Any) -> Store:
        made.append(Store(options.pop("workspace", tmp_path), zone=UTC, **options))
        return made[-1]

    yield open_store
    for store in made:
        await store.aclose()


@pytest.fixture
def store(make: Make, tmp_path: Path) -> Store:
    return make(workspace=tmp_path / "w")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.aclose()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def llm(server: ModelServer) -> AsyncIterator[LiteLLM]:
    model = LiteLLM(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=20)
    yield model
    await model.close()
