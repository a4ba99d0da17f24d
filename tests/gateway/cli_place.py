"""Commands as a person gives them, and the files of other programs that they take in."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.__main__ import main
from tests.support import forked
from tests.support.harness import ROOT

SAMPLES = ROOT / "tests" / "data" / "nanobot-samples"
PROGRAM = (sys.executable, "-m", "gateway")


class Ran:
    """One command, run in this process as the shell would: its code, stdout and stderr."""

    def __init__(self, workspace: Path, *words: str | Path) -> None:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.code = main(["--workspace", str(workspace), *map(str, words)])
        for stream in (out, err):
            stream.flush()
        self.bytes, self.err = out.buffer.getvalue(), err.buffer.getvalue().decode()

    @property
    def out(self) -> str:
        return self.bytes.decode()


def import_into(workspace: Path, source: Path, *words: str | Path, name: str = "nanobot") -> Ran:
    """Take sessions in from a file or folder of the program ``name``."""
    return Ran(workspace, "sessions", "import", "--from", name, source, *words)


def listed(workspace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Ran(workspace, "sessions", "list", "--json").out)
    return found


def shown(workspace: Path, target: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Ran(workspace, "sessions", "show", target, "--json").out)[
        "messages"
    ]
    return found


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    return path


def session_file(path: Path, key: str, *texts: str, **metadata: str) -> Path:
    head = {"_type": "metadata", "key": key, "created_at": "2026-02-01T09:00:00.000001", "metadata": metadata}
    return write(
        path, head, *({"role": "user", "content": text, "timestamp": "2026-02-01T09:00:00"} for text in texts)
    )


def command(
    *args: str, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CHAT_GATEWAY_")}
    return forked.run(
        [*PROGRAM, *args],
        cwd=cwd,
        env=clean | {"HOME": str(cwd), "PYTHONPATH": str(ROOT)} | dict(environ or {}),
        text=True,
        timeout=60,
    )


def job(job_id: str, message: str = "what is new?") -> dict[str, Any]:
    return {
        "id": job_id,
        "name": job_id,
        "enabled": True,
        "schedule": {"kind": "every", "everyMs": 7200000},
        "payload": {"kind": "agent_turn", "message": message, "deliver": False},
        "state": {},
        "createdAtMs": 1,
        "updatedAtMs": 1,
        "deleteAfterRun": False,
    }


def nanobot_folder(root: Path) -> Path:
    """Make a nanobot's folder after years: old and base64 names, the newest folders, notes and jobs."""
    work = root / "workspace"
    session_file(work / "sessions" / "telegram_1.jsonl", "telegram:1", "old name")
    name = base64.urlsafe_b64encode(b"telegram:2").decode().rstrip("=")
    session_file(work / "sessions" / f"{name}.jsonl", "telegram:2", "base64 name")
    session_file(
        root / "sessions" / ("0123456789abcdef" * 2) / f"{name}x.jsonl", "telegram:3", "newest folder"
    )
    write(work / "sessions" / "broken.jsonl", {"a": 1})
    (work / "memory").mkdir()
    (work / "memory" / "MEMORY.md").write_text("Ada likes tea.\n")
    (work / "memory" / "HISTORY.md").write_text("[2026-02-01 09:00] Tea.\n")
    (work / "AGENTS.md").write_text("Be kind.\n")
    (work / "cron").mkdir()
    jobs = {"version": 1, "jobs": [job("aaaa1111"), job("bbbb2222")]}
    (work / "cron" / "jobs.json").write_text(json.dumps(jobs))
    return root
