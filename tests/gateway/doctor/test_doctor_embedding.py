"""What ``doctor`` says of the embedding model."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.doctor import embedding
from tests.support.model_server import ModelServer, Vectors

# It waits for seconds.
pytestmark = pytest.mark.slow

KEY = "sk-very-secret-4711"


async def found(workspace: Path, *, took_s: float = 0.0, **config: str) -> list[embedding.Finding]:
    """Look, with a clock by which the answer takes so long."""
    environ = {f"CHAT_GATEWAY_{name.upper()}": value for name, value in config.items()}
    clock = itertools.count(step=took_s).__next__
    return await embedding.check(load(workspace=workspace, environ=environ), clock=clock)


@pytest.mark.parametrize(
    ("reply", "took_s", "level", "words"),
    [
        (Vectors(), 2.0, "ok", "openai/stub-embedding answers"),
        (Vectors(status=401), 0.0, "fail", "status 401"),
        (Vectors("nan"), 0.0, "fail", "of length 0"),
        (Vectors(), 2.1, "warn", "took 2.1 s; a turn waits at most 2 s"),
    ],
)
async def test_the_embedding_model_is_asked_like_the_model(
    tmp_path: Path, reply: Vectors, took_s: float, level: str, words: str
) -> None:
    """It answers in time, refuses, talks nonsense or takes too long; the key is not shown."""
    async with ModelServer() as server:
        server.vectors.append(reply)
        [finding] = await found(
            tmp_path,
            took_s=took_s,
            model__name="openai/stub",
            model__api_base=server.url,
            model__api_key=KEY,
            model__embedding="openai/stub-embedding",
        )

    assert finding[0] == level
    assert words in finding[1]
    assert KEY not in str(finding)
    assert (finding[2] == "") == (level == "ok")


async def test_one_that_is_missed_is_named_and_else_nothing_is_said(tmp_path: Path) -> None:
    """Mode ``relevant`` works without one, but not as it could; ``echo`` has no history."""
    relevant = {"history__mode": "relevant"}

    [(level, text, cure)] = await found(tmp_path, model__name="openai/stub", **relevant)

    assert level == "warn"
    assert "newest exchanges" in text
    assert "model.embedding" in cure
    assert await found(tmp_path, model__name="openai/stub") == []
    assert await found(tmp_path, model__name="echo", **relevant) == []
