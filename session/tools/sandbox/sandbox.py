"""Chooses the sandbox of this machine: each is tried before it is believed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from session.tools.sandbox.bubblewrap import Bubblewrap
from session.tools.sandbox.landlock import NEEDED_VERSION, Landlock, landlock_version
from session.tools.sandbox.rules import NoSandbox, Rules, Sandbox
from session.tools.sandbox.running import run

Wanted = Literal["auto", "bubblewrap", "landlock"]
TRIAL_S = 20.0
_TRIAL = ("/bin/echo", "works")
CURE = "apt-get install bubblewrap"
AS_ROOT = "the gateway runs as root, and no command does"
AS_ROOT_CURE = "run the gateway as an ordinary user; in a container with --user 10001:10001"
_TOLD_CHARS = 200


@dataclass(frozen=True, slots=True)
class Found:
    """The sandbox that works, and why those before it do not."""

    sandbox: Sandbox
    without: tuple[str, ...] = ()


async def sandbox_here(wanted: Wanted = "auto") -> Found:
    """Try what is asked for, each by running a command in it; bubblewrap is the first.

    Raises:
        NoSandbox: none works; the error says why, the hint what to install.
    """
    if sys.platform != "linux":
        raise NoSandbox("commands can be confined on Linux alone", hint="leave the tool off")
    if os.geteuid() == 0:
        raise NoSandbox(AS_ROOT, hint=AS_ROOT_CURE)
    candidates = ("bubblewrap", "landlock") if wanted == "auto" else (wanted,)
    problems: list[str] = []
    for name in candidates:
        try:
            sandbox = _bubblewrap() if name == "bubblewrap" else _landlock()
            await _tried(sandbox)
        except NoSandbox as error:
            problems.append(str(error))
        else:
            return Found(sandbox, tuple(problems))
    raise NoSandbox("; ".join(problems), hint=CURE)


class SandboxOfDaemon:
    """Looks for a sandbox once, when somebody first needs it; a failure is looked into again."""

    def __init__(self, wanted: Wanted = "auto") -> None:
        self._wanted: Wanted = wanted
        self._found: Found | None = None
        self._looking = asyncio.Lock()

    async def get(self) -> Sandbox:
        """Return the sandbox that works.

        Raises:
            NoSandbox: none does.
        """
        async with self._looking:
            if self._found is None:
                self._found = await sandbox_here(self._wanted)
            return self._found.sandbox


def _bubblewrap() -> Sandbox:
    program = shutil.which("bwrap")
    if program is None:
        raise NoSandbox("bubblewrap is not installed", hint=CURE)
    return Bubblewrap(program)


def _landlock() -> Sandbox:
    version = landlock_version()
    if version < NEEDED_VERSION:
        told = f"the kernel has Landlock {version}" if version else "the kernel has no Landlock"
        raise NoSandbox(f"{told}, {NEEDED_VERSION} is needed (Linux 6.12)", hint=CURE)
    return Landlock()


async def _tried(sandbox: Sandbox) -> None:
    """Run one command: what is installed may still be forbidden here.

    Raises:
        NoSandbox: it did not run.
    """
    with tempfile.TemporaryDirectory(prefix="chat-gateway-trial-") as name:
        rules = Rules(Path(name))
        outcome = await run(sandbox, _TRIAL, rules, timeout_s=TRIAL_S)
    if outcome.exit_code != 0 or outcome.out.text().strip() != "works":
        said = outcome.err.text().strip() or f"it ended with {outcome.exit_code}"
        raise NoSandbox(f"{sandbox.name} does not work here: {said[:_TOLD_CHARS]}", hint=CURE)
