"""The log of ``chat``: in a file, since what it writes to the terminal is the conversation."""

from __future__ import annotations

import io
import os
from pathlib import Path

from durable import make_folder, open_private

MAX_BYTES = 2**20


class ChatLog(io.TextIOBase):
    """Appends to ``chat.log``; makes it with the first line, and sets a large one aside as ``chat.log.1``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used = False
        self._file: io.TextIOWrapper | None = None

    def write(self, text: str) -> int:
        """Write at once.

        Raises:
            OSError: the folder takes no file.
        """
        if self._file is None:
            self._file = self._open()
        self.used = True
        return self._file.write(text)

    def flush(self) -> None:
        """Hand on what was written."""
        if self._file is not None:
            self._file.flush()

    def isatty(self) -> bool:
        """Say no."""
        return False

    def _open(self) -> io.TextIOWrapper:
        make_folder(self.path.parent)
        if self.path.exists() and self.path.stat().st_size > MAX_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))
        # As root's in the folder of a service's user it would stop that user's next chat.
        fd = open_private(self.path, os.O_WRONLY | os.O_APPEND)
        return open(fd, "a", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123 - by its descriptor
