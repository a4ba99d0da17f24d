"""The gateway as a service that runs as another user: ``python -m tests.support.service_victim UID …``.

Interpreter, packages and this repository may lie in folders that only root can pass. Root opens them here,
and the user reaches them by these descriptors: a path through one asks nothing of what lies above it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    """Open what the program consists of, become the user, be the gateway."""
    uid, *rest = sys.argv[1:]
    home, packages, ours = (_open(path) for path in (sys.base_prefix, sysconfig.get_path("purelib"), ROOT))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = {**os.environ, "PYTHONHOME": home, "PYTHONPATH": f"{ours}:{packages}"}
    environment["LD_LIBRARY_PATH"] = f"{home}/lib"
    os.chdir("/")
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    os.execve(f"{home}/bin/{version}", [version, "-m", "gateway", *rest], environment)


def _open(path: Path | str) -> str:
    """Open a folder for this process and what it becomes; return its path by the descriptor."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(fd, True)
    return f"/proc/self/fd/{fd}"


if __name__ == "__main__":
    main()
