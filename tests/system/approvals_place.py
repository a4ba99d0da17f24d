"""What the tests of approvals share: a gateway whose model writes a file, and a policy that asks first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model

NOTE = "notes.txt"


def asks(model: ModelServer, **more: Any) -> dict[str, Any]:
    """Configure a gateway that asks before it writes."""
    return with_model(model, **{"tools.policy.write": "ask", "facts.enabled": False, **more})


def writing(text: str = "milk", path: str = NOTE) -> Reply:
    """Let the model write a file."""
    return Reply(tool_calls=[("write", json.dumps({"path": path, "content": text}))])


def written(workspace: Path) -> list[str]:
    """Return what the files of that name hold, of every scope."""
    return [path.read_text() for path in sorted((workspace / "files").rglob(NOTE))]


def results(lines: list[dict[str, Any]]) -> list[str]:
    """Return the results of the tools in a transcript."""
    return [line["content"] for line in lines if line["role"] == "tool"]


async def waiting(daemon: Daemon, **query: str) -> list[dict[str, Any]]:
    """Return what waits for an approval."""
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(f"{daemon.url}/v1/approvals", params=query)
    found: list[dict[str, Any]] = answer.json()["approvals"]
    return found


async def decide(daemon: Daemon, id_: str, decision: str) -> tuple[int, dict[str, Any]]:
    """Decide over what waits, as the page does."""
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(f"{daemon.url}/v1/approvals/{id_}", json={"decision": decision})
    return answer.status_code, answer.json()
