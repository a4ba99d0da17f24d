"""The command line as a person has it: verbs in processes of their own, and one on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import forked
from tests.support.until import until

WITHIN_S = 150
# The line editor shows that it takes pasted text.
PROMPTS = {"xterm": "\x1b[?2004h", "dumb": "> "}


def command(workspace: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *args, "--workspace", str(workspace)]


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHAT_GATEWAY_")}
    return kept | {"CHAT_GATEWAY_HTTP__PORT": "0", "PYTHONUNBUFFERED": "1"} | extra


def run(
    workspace: Path, *args: str, env: dict[str, str] | None = None, stdin: str = "", anew: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end; ``anew``: not forked from a process that has its imports."""
    return forked.run(
        command(workspace, *args),
        text=True,
        timeout=WITHIN_S,
        env=env or environment(),
        input=stdin,
        cwd=workspace,
        anew=anew,
    )


@contextmanager
def daemon(workspace: Path, env: dict[str, str] | None = None) -> Iterator[forked.Process]:
    process = forked.start(
        command(workspace, "run"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=env or environment(),
        cwd=workspace,
    )
    assert process.stderr is not None
    rest: threading.Thread | None = None
    try:
        seen: list[str] = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("ready"):
                break
        else:
            raise AssertionError("".join(seen))
        # A daemon whose log nobody reads stands still once the pipe is full.
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        if rest is not None:
            rest.join()
        process.stderr.close()


def until_in(path: Path, text: str) -> None:
    """Wait until a file holds a text."""
    asyncio.run(until(lambda: path.exists() and text in path.read_text(), WITHIN_S))


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, args: Sequence[str], cwd: Path, env: dict[str, str], *, anew: bool = False) -> None:
        """``anew``: not forked from a process that has its imports."""
        self._us, them = pty.openpty()
        self.process = forked.start(
            args, stdin=them, stdout=them, stderr=them, env=env, cwd=cwd, terminal=True, anew=anew
        )
        os.close(them)
        self.seen = ""
        self._read_to = 0
        self._answered = 0

    def write(self, text: str) -> None:
        os.write(self._us, text.encode())

    def until(self, text: str) -> None:
        """Read until ``text`` came after what was read up to here."""
        end = time.monotonic() + WITHIN_S
        while (found := self.seen.find(text, self._read_to)) < 0:
            ready, _, _ = select.select([self._us], [], [], max(0, end - time.monotonic()))
            assert ready, f"waited for {text!r}, saw {self.seen!r}"
            try:
                came = os.read(self._us, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended before {text!r}: {self.seen!r}") from None
            self.seen += came
            while self.seen.count("\x1b[6n") > self._answered:
                self._answered += 1
                # Where the cursor is, as a terminal answers.
                self.write("\x1b[1;1R")
        self._read_to = found + len(text)

    def hang_up(self) -> None:
        """Close the terminal, as a person closes its window."""
        os.close(self._us)
        self._us = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._us >= 0:
            os.close(self._us)
