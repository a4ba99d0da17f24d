"""A mounted disk that forgets, for a test: mounted, cut, mounted again with what is left."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_DETACH = 2


def why_not() -> str:
    """Say why nothing can be mounted here; empty: it can be."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse that may be opened"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        return f"libfuse3-3 or mfusepy is missing: {error}"
    if os.geteuid() != 0:
        return "a mount needs root, or: unshare --map-root-user --mount"
    return ""


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

    async def unmount(self) -> int:
        """Save what is on it, with what is not synced; return how many syncs there were."""
        assert self._process is not None
        self._process.terminate()
        said = await self._line()
        await self._process.wait()
        self._detach()
        return int(said.split()[1]) if said.startswith("left") else 0

    def _detach(self) -> None:
        """Take the mount away, where the end of its process has not."""
        ctypes.CDLL(None).umount2(os.fsencode(self.folder), _DETACH)
