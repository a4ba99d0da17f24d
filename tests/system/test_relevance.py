"""A running gateway in mode ``relevant`` sends the old exchanges that are near to the new message."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer, Vectors
from tests.support.place import with_model

KEY = "web:a"


async def talk(daemon: Daemon, texts: list[str]) -> None:
    for n, text in enumerate(texts):
        assert await ask(daemon, KEY, f"{len(text)}-{n}", text)


def config_of(model: ModelServer) -> dict[str, Any]:
    more = {"model.embedding": "openai/stub-embedding", "compaction.preset": "annabelle"}
    return with_model(model, **more)


@guarantee("sessions", "History mode `relevant` sends complete exchanges that are similar to the message.")
async def test_a_near_exchange_is_sent_and_a_far_one_is_not(tmp_path: Path) -> None:
    """Over five old topics, with a restart: the one asked about goes along, in every round of the turn."""
    topics = [
        "sourdough bread needs warm water",
        "granite kitchen counters scratch easily",
        "violin strings break when tuned high",
        "penguins colony counted near glacier",
        "railway timetable changes next sunday",
    ]

    async with ModelServer() as model:
        config = config_of(model)
        async with Daemon(tmp_path, config=config) as daemon:
            await talk(daemon, topics)
            assert await daemon.stop() == 0
        embedded = len(model.embedded)
        async with Daemon(tmp_path, config=config) as daemon:
            await ask(daemon, KEY, "new", 'warm water sourdough bread again [[tool:ls {"path": "."}]]')
            assert await daemon.stop() == 0
        first, second = (
            [message["content"] for message in seen.messages if message["role"] == "user"]
            for seen in model.turns[-2:]
        )
        asked_again = [text for texts in model.embedded[embedded:] for text in texts]

    assert [any(topic in text for text in first) for topic in topics] == [True, False, True, True, True]
    assert first[-1].startswith("warm water sourdough bread again")
    assert second == first
    assert topics[0] not in asked_again
    assert len(model.embedded) == embedded + 1
    assert not any(topic.encode() in file.read_bytes() for file in state_files(tmp_path) for topic in topics)


async def test_without_its_embedding_model_a_turn_goes_on(tmp_path: Path) -> None:
    """A dead embedding model costs one request, then it is left alone; the newest exchanges are sent."""
    topics = [f"topic number {name}" for name in ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot")]

    async with ModelServer() as model:
        model.vectors.extend([Vectors(status=503)] * 9)
        async with Daemon(tmp_path, config=config_of(model)) as daemon:
            await talk(daemon, topics)
            assert await daemon.stop() == 0
        sent = [message["content"] for message in model.turns[-1].messages if message["role"] == "user"]
        requests = len(model.embedded)

    assert sent == topics
    assert requests == 1


def state_files(workspace: Path) -> list[Path]:
    return [path for path in (workspace / "state").glob("vectors*") if path.is_file()]


def vectors_in(workspace: Path) -> int:
    file = sqlite3.connect(workspace / "state" / "vectors.db")
    try:
        (rows,) = file.execute("SELECT count(*) FROM vectors").fetchone()
        return int(rows)
    finally:
        file.close()
