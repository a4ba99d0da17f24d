"""What the tests of the session package share: a model server, and LiteLLM in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from session.models.llm import LiteLLM
from tests.support.model_server import ModelServer

KEY = "sk-very-secret-4711"


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def llm(server: ModelServer) -> AsyncIterator[LiteLLM]:
    model = LiteLLM(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=20)
    yield model
    await model.close()
