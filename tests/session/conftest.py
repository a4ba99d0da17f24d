"""What tests of the session package share: a model server, LiteLLM in front, a workspace that grows old."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from session.models.llm import LiteLLM
from tests.session.retention_place import World
from tests.support.model_server import ModelServer

KEY = "sk-very-secret-4711"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.aclose()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def llm(server: ModelServer) -> AsyncIterator[LiteLLM]:
    model = LiteLLM(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=20)
    yield model
    await model.close()
