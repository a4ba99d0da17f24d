"""What tests of cron/jobs.json share: rows, and what lies on the disk."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from channels.cron.jobs_file import CronFile
from tests.support import peers
from tests.support.peers import Peer

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def job(job_id: str, **fields: Any) -> dict[str, Any]:
    """A job as a person writes it: what is needed and no more."""
    return {
        "id": job_id,
        "name": job_id,
        "schedule": {"kind": "every", "everyMs": 60_000},
        "payload": {"message": f"message of {job_id}"},
        **fields,
    }


def put(file: CronFile, content: object) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    file.path.parent.mkdir(exist_ok=True)
    file.path.write_bytes(data)
    return data


def on_disk(file: CronFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.path.read_bytes())
    return found


# -- real nanobots -------------------------------------------------------------------------------------


class Theirs:
    """One version of nanobot on one workspace."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer, self.workspace, self._home = peer, folder / "workspace", folder / "home"
        self.workspace.mkdir()
        self._home.mkdir()

    def do(self, do: str, **request: Any) -> Any:
        return peers.ask(self.peer, self._home, do=do, workspace=str(self.workspace), **request)
