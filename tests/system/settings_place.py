"""A gateway that a file alone configures, and the folder in which that file and its workspace lie."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ulid import ULID

from session.transcript.archive import name_of
from tests.support.harness import Daemon, answer_to
from tests.support.model_server import ModelServer, Seen
from tests.support.place import write
from tests.support.ports import KeptPort

MODEL = "one"


class Place:
    """The folder of one test; ``marked`` names the settings that the test says it holds."""

    def __init__(self, folder: Path, marked: Iterable[str]) -> None:
        self.workspace = folder / "home"
        self.port = 0
        self._file = folder / "config.toml"
        self._marked = tuple(marked)
        self._numbers = itertools.count()

    @asynccontextmanager
    async def gateway(self, model: ModelServer, lines: str) -> AsyncIterator[Daemon]:
        """Run one by a file of these lines; each setting that is marked has to stand there."""
        kept = KeptPort()
        self.port = kept.port
        always = {
            "workspace": self.workspace.name,
            "http.port": self.port,
            "model.name": f"openai/{MODEL}",
            "model.api_base": model.url,
            "log.format": "json",
        }
        text = "\n".join([*(f"{name} = {json.dumps(value)}" for name, value in always.items()), lines])
        for setting in self._marked:
            assert is_set(tomllib.loads(text), setting), f"{setting} is marked and not set"
        write(self._file, text)
        try:
            async with Daemon(self.workspace, file=self._file) as daemon:
                yield daemon
                assert await daemon.stop() == 0
        finally:
            kept.close()

    async def say(self, daemon: Daemon, key: str, *texts: str) -> None:
        """Send messages one after another, and wait for the answer to each."""
        for text in texts:
            answer = await answer_to(daemon, key, f"{key}-{next(self._numbers)}", text)
            assert answer["kind"] in ("reply", "command"), answer

    def ended(self, stem: str, **ago: float) -> Path:
        """Lay down an ended session, which memory has, and return its file; its summary tells its age."""
        at = datetime.now(UTC) - timedelta(**ago)
        path = self.workspace / "sessions" / "archive" / stem / name_of(at, str(ULID.from_datetime(at)))
        summary = " ".join(f"{count:g} {unit}" for unit, count in ago.items())
        write(path, _transcript(stem, at, "long ago", summary=f"They met {summary} ago."))
        return path

    def open(self, stem: str, text: str, **ago: float) -> None:
        """Lay down a session that goes on: one exchange, so long ago."""
        at = datetime.now(UTC) - timedelta(**ago)
        write(self.workspace / "sessions" / f"{stem}.jsonl", _transcript(stem, at, text))

    def version(self, stem: str, text: str, **ago: float) -> Path:
        """Lay down a former text of a chat's notes, and return its file."""
        at = datetime.now(UTC) - timedelta(**ago)
        name = f"{at:%Y%m%dT%H%M%SZ}-{ULID.from_datetime(at)}-consolidation-MEMORY.md"
        path = self.workspace / "memory" / "chats" / stem / "versions" / name
        write(path, text)
        return path


def is_set(table: Any, setting: str) -> bool:
    """Say whether a configuration has ``section.key``, or ``section.key = value`` with that value."""
    path, _, value = setting.partition(" = ")
    for name in path.split("."):
        if not isinstance(table, dict) or name not in table:
            return False
        table = table[name]
    return not value or bool(table == tomllib.loads(f"value = {value}")["value"])


def request_of(model: ModelServer, text: str) -> Seen:
    """Return the last request of a turn whose message begins with ``text``."""
    return [seen for seen in model.turns if seen.text.startswith(text)][-1]


def told(seen: Seen) -> str:
    """Return all that a request says."""
    return "\n".join(str(message.get("content")) for message in seen.messages)


def asked_before(seen: Seen) -> list[str]:
    """Return the first word of each older message of a person in a request."""
    texts = [str(message["content"]) for message in seen.messages if message["role"] == "user"]
    return [text.split()[0] for text in texts[:-1]]


def _transcript(stem: str, at: datetime, text: str, **inner: Any) -> str:
    stamp = at.isoformat()
    head = {
        "_type": "metadata",
        "key": stem.replace("_", ":", 1),
        "created_at": stamp,
        "updated_at": stamp,
        "metadata": inner,
        "last_consolidated": 2 if inner else 0,
    }
    said = [{"role": "user", "content": text}, {"role": "assistant", "content": "Fine."}]
    return "".join(json.dumps({**line, "timestamp": stamp}) + "\n" for line in said).join(
        [json.dumps(head) + "\n", ""]
    )
