"""The place where a gateway of a test works: how it is configured, and what lies in its workspace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import durable
from tests.support.broker import Broker
from tests.support.model_server import ModelServer


def with_model(model: ModelServer | str, **more: Any) -> dict[str, Any]:
    """Configure a gateway for a model server, or for the address of one."""
    url = model if isinstance(model, str) else model.url
    return {"model.name": "openai/stub", "model.api_base": url, **more}


def on(broker: Broker | str, name: str, *, partitions: int = 1, **more: Any) -> dict[str, Any]:
    """Configure a gateway for a broker, or for the address of one; ``name`` begins its queues' names."""
    url = broker if isinstance(broker, str) else broker.url
    return {"broker.url": url, "broker.name": name, "broker.partitions": partitions, **more}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@contextmanager
def at_rest(workspace: Path, stem: str) -> Iterator[None]:
    """Let nobody put another file in the place of a key's transcript while it is looked at."""
    with durable.locked(workspace / "state" / "keys" / f"{stem}.lock"):
        yield


def transcript(workspace: Path, stem: str) -> Path:
    return workspace / "sessions" / f"{stem}.jsonl"


def archives(workspace: Path, stem: str) -> list[Path]:
    """Return the files of the ended sessions of a chat, oldest first."""
    folder = workspace / "sessions" / "archive" / stem
    # Their names begin with the time of the end; the ULID behind it has that of the beginning.
    return sorted(folder.glob("*.jsonl"), key=lambda path: path.name[-32:])


def head_of(path: Path) -> dict[str, Any]:
    """Return line 1 of a transcript."""
    head: dict[str, Any] = json.loads(path.read_bytes().partition(b"\n")[0])
    assert head["_type"] == "metadata"
    return head


def is_named(workspace: Path, stem: str) -> bool:
    path = transcript(workspace, stem)
    return path.exists() and bool(head_of(path)["metadata"].get("name"))


def lines_of(workspace: Path, stem: str) -> list[dict[str, Any]]:
    """Return the message lines of a chat, ended sessions first; fails on those that are not legal."""
    return [
        line for path in [*archives(workspace, stem), transcript(workspace, stem)] for line in _lines(path)
    ]


def contents(workspace: Path, stem: str) -> list[str]:
    return [line["content"] for line in lines_of(workspace, stem)]


def _lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n"), f"{path} has a torn tail"
    head, *lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
    assert head["_type"] == "metadata"
    assert all("role" in line for line in lines)
    return lines
