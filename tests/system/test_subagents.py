"""Subagents through a running daemon, on both kinds of queue: begun, told, ended and cleaned away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.harness import Daemon, ask, status
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, on, with_model, write
from tests.support.team import Team
from tests.support.until import until

KEY, STEM = "web:ann", "web_ann"


@pytest.fixture(params=["embedded", "rabbitmq"])
def queue(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The configuration of each kind of queue."""
    if request.param == "embedded":
        return {}
    broker: Broker = request.getfixturevalue("broker")
    return on(broker, request.getfixturevalue("broker_name"))


@asynccontextmanager
async def serving(
    workspace: Path, queue: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[Daemon, Team]]:
    async with ModelServer() as model:
        config = with_model(model) | (queue or {}) | more
        async with Daemon(workspace, config=config) as daemon:
            yield daemon, Team(model)


async def say(daemon: Daemon, id_: str, text: str, key: str = KEY) -> str:
    answer = await ask(daemon, key, id_, text)
    assert answer is not None
    return str(answer["reply"])


def answers(workspace: Path, stem: str = STEM) -> list[str]:
    return [str(line["content"]) for line in lines_of(workspace, stem) if line.get("final")]


async def until_answered(workspace: Path, *texts: str, stem: str = STEM) -> None:
    await until(lambda: answers(workspace, stem) == list(texts))


def left_of_subagents(workspace: Path) -> list[str]:
    """Name the files of conversations of subagents."""
    home = workspace / "state" / "subagents"
    return [str(path) for path in home.rglob("*") if path.is_file() and path.name.startswith("sub_")]


def on_record(workspace: Path) -> list[dict[str, Any]]:
    """Return what is on record of subagents."""
    files = (workspace / "state" / "subagents" / "chats").glob("*.json")
    return [row for path in files for row in json.loads(path.read_text())["subagents"]]


async def test_a_result_comes_back_and_nothing_of_the_subagent_stays(
    tmp_path: Path, queue: dict[str, Any]
) -> None:
    """It shares its parent's facts, and nothing else; when its result is told it is cleaned away."""
    memory = tmp_path / "memory" / "chats" / STEM
    write(memory / "MEMORY.md", "- sesame memory\n")
    write(memory / "USER.md", "sesame profile\n")
    write(memory / "HISTORY.md", "[2026-01-01 09:00] sesame history\n")
    fact = {"id": "01KG9NB3H0Q5W4XZ2WM29XRYBN", "text": "Ann likes apples."}
    write(memory / "facts.jsonl", json.dumps(fact) + "\n")
    async with serving(tmp_path, queue) as (daemon, team):
        await say(daemon, "0", "sesame said")
        assert await say(daemon, "1", "spawn count apples") == "begun"
        await until_answered(tmp_path, "stub: sesame said", "begun", "heard count apples")
        await until(lambda: not left_of_subagents(tmp_path))

        (request,) = team.requests
        text = json.dumps(request.body)
        assert "Ann likes apples." in text
        assert "sesame" not in text
        assert sorted(request.tools) == ["edit", "grep", "ls", "read", "skill_read", "write"]
        (label, key, result) = team.results[0]
        assert (label, result) == ("count apples", "did count apples")
        line = next(line for line in lines_of(tmp_path, STEM) if "<subagent-result" in str(line["content"]))
        assert line["sender"] == {"id": "subagent", "name": "count apples"}
        assert [row["state"] for row in on_record(tmp_path)] == ["told"]
        assert "apples" not in json.dumps(on_record(tmp_path))
        async with httpx.AsyncClient(base_url=daemon.url) as http:
            listed = (await http.get("/v1/sessions")).json()["sessions"]
            sent = await http.post("/v1/messages", json={"key": key, "text": "hello"})
        assert [row["key"] for row in listed] == [KEY]
        assert sent.status_code == 400
        told = await status(daemon)
        assert told["subagents"] == []
        assert "outbound.sub" not in told["queues"]
        assert told["queues"]["parked"]["count"] == 0
        assert await daemon.stop() == 0
