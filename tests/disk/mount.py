"""A mounted disk that forgets, for a test: mounted, cut, mounted again with what is left."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pickle
import sys
from pathlib import Path

from tests.disk.model import Disk, Fate

ROOT = Path(__file__).resolve().parent.parent.parent
_DETACH = 2


def why_not() -> str:
    """Say why nothing can be mounted here; empty: it can be."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse that may be opened"
    if os.geteuid() != 0:
        return "a mount needs root, or: unshare --map-root-user --mount"
    return ""


def save(disk: Disk, path: Path) -> None:
    temp = path.with_suffix(".new")
    temp.write_bytes(pickle.dumps(disk))
    temp.rename(path)


def saved(path: Path) -> Disk:
    """Read a disk; an empty one where there is none."""
    if not path.exists():
        return Disk()
    disk: Disk = pickle.loads(path.read_bytes())
    return disk


class Mount:
    """One disk; ``folder`` is where it is mounted, ``saved`` what is on it while it is not."""

    def __init__(self, folder: Path, saved: Path) -> None:
        self.folder = folder
        self.saved = saved
        self._process: asyncio.subprocess.Process | None = None

    async def mount(self, *options: object) -> None:
        """Mount what is left, with the options of ``tests.disk.forgetful``."""
        self.folder.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "tests.disk.forgetful", str(self.folder), str(self.saved)]
        self._process = await asyncio.create_subprocess_exec(
            *words, *map(str, options), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        said = await self._line()
        if said != "mounted":
            raise AssertionError(f"the disk was not mounted: {said!r}")

    async def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def cut(self) -> str:
        """Wait until it is cut; say where. Nobody who asks it is answered from now on."""
        return await self._line()

    async def remove(self) -> None:
        """End it after a cut, when everybody who waits for it was told to die."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._detach()

    async def unmount(self) -> None:
        """Save what is on it, with what is not synced."""
        assert self._process is not None
        self._process.terminate()
        await self._process.wait()
        self._detach()

    async def lose_power(self, fate: Fate) -> None:
        """Cut it now and mount what is left; nobody may have a file of it open."""
        await self.unmount()
        save(saved(self.saved).cut(fate), self.saved)
        await self.mount()

    def _detach(self) -> None:
        """Take the mount away, where the end of its process has not."""
        ctypes.CDLL(None).umount2(os.fsencode(self.folder), _DETACH)


def spread(disk: Disk, folder: Path) -> None:
    for number, path in disk.paths():
        node, there = disk.nodes[number], folder / path.lstrip("/")
        if node.is_folder:
            there.mkdir(parents=True, exist_ok=True)
        else:
            there.write_bytes(node.content)


if __name__ == "__main__":
    reason = why_not()
    print(f"no disk that forgets is mounted here ({reason})" if reason else "on a disk that forgets, by FUSE")
    sys.exit(1 if reason else 0)
