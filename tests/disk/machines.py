"""Several machines at one network's disk, for a test: mounted, told to lose their locks, looked at."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from tests.disk.mount import ROOT

_DETACH = 2


class Machines:
    """Mounts of one disk, each a machine's: ``machines["a"]`` is where it is mounted."""

    def __init__(self, folder: Path, names: str, *options: str) -> None:
        self._folders = {name: folder / name for name in names}
        words = [sys.executable, "-m", "tests.disk.network", *map(str, self._folders.values()), *options]
        self._process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._answer() != "mounted":
            raise AssertionError("the network's disk was not mounted")

    def __getitem__(self, name: str) -> Path:
        return self._folders[name]

    def say(self, line: str) -> str:
        """Tell the network something, as ``tests.disk.network`` has it; return what it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def look(self, name: str, folder: str) -> dict[str, bytes]:
        """Read all files below a folder as the server has them, those aside that are being written."""
        self.say(f"expire {name}")
        top = self[name] / folder
        paths = [path for path in top.rglob("*") if not any(".tmp" in part for part in path.parts)]
        return {str(path.relative_to(top)): path.read_bytes() for path in paths if path.is_file()}

    def close(self) -> None:
        """Take the mounts away; nobody may have a file of them open."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        finally:
            self._process.kill()
            for folder in self._folders.values():
                ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)
