"""The sandbox of this machine, with a folder to run commands in and secrets around it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from session.tools.sandbox import Bubblewrap, Limits, Outcome, Rules, run, sandbox_here

SECRET = "sesame-open-9431"


@dataclass(frozen=True)
class Yard:
    """A workspace with the folder of one chat in it, and what a command there may do."""

    sandbox: Bubblewrap
    workspace: Path
    rules: Rules

    @property
    def folder(self) -> Path:
        return self.rules.folder

    async def sh(self, command: str, *, timeout_s: float = 60, **rules: Any) -> Outcome:
        return await run(
            self.sandbox, ["/bin/bash", "-c", command], replace(self.rules, **rules), timeout_s=timeout_s
        )

    async def python(self, code: str, *, timeout_s: float = 60, **rules: Any) -> Outcome:
        """Run Python in it, the system's: what a shell has no word for."""
        return await run(
            self.sandbox,
            ["/usr/bin/env", "python3", "-c", code],
            replace(self.rules, **rules),
            timeout_s=timeout_s,
        )


async def yard(tmp_path: Path) -> Yard:
    """Lay out a workspace whose other files all hold ``SECRET``."""
    sandbox = await sandbox_here()
    workspace = tmp_path / "workspace"
    folder = workspace / "files/chats/ada"
    for name in ("files/chats/ada", "files/chats/bob", "state", "sessions"):
        (workspace / name).mkdir(parents=True, exist_ok=True)
    for name in ("files/chats/bob/diary.txt", "state/gateway.db", "sessions/bob.jsonl"):
        (workspace / name).write_text(SECRET)
    limits = Limits(memory_bytes=256 * 2**20, processes=64)
    return Yard(sandbox, workspace, Rules(folder, private=(workspace,), limits=limits))


def processes_with(word: str) -> Iterator[int]:
    """Find the processes that have ``word`` in what they were started with."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
