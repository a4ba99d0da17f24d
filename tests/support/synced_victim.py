"""The gateway, telling which folders it makes and syncs: ``python -m tests.support.synced_victim LOG …``.

Each line of LOG is ``made PATH`` or ``synced PATH``, in the order of the calls and after they came back.
Nothing in the product knows of it: the interpreter reports the calls of every thread.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_IN_HAND = ("fd", "folder", "parent")


class Record:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def watch(self, frame: FrameType, event: str, called: Any) -> None:
        """Note what a call of the system did, once it is done."""
        if event != "c_return":
            return
        if called is os.fsync:
            for name in _IN_HAND:
                fd = frame.f_locals.get(name)
                if type(fd) is int:
                    self._say("synced", str(Path(f"/proc/self/fd/{fd}").readlink()))
                    return
        elif called is os.mkdir:
            path = frame.f_locals.get("path", frame.f_locals.get("self"))
            if isinstance(path, Path):
                self._say("made", str(path))
            else:
                parent = Path(f"/proc/self/fd/{frame.f_locals['parent']}").readlink()
                self._say("made", f"{parent}/{frame.f_locals['name']}")

    def _say(self, what: str, path: str) -> None:
        os.write(self._fd, f"{what} {path}\n".encode())


def main() -> int:
    log, *rest = sys.argv[1:]
    record = Record(log)
    sys.argv = ["chat-gateway", *rest]
    from gateway.__main__ import main as gateway_main

    threading.setprofile(record.watch)
    sys.setprofile(record.watch)
    return gateway_main()


if __name__ == "__main__":
    sys.exit(main())
