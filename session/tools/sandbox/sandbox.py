"""Finds bubblewrap and tries it before it is believed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from session.tools.sandbox import seccomp
from session.tools.sandbox.bubblewrap import Bubblewrap
from session.tools.sandbox.rules import NoSandbox, Rules
from session.tools.sandbox.running import run

TRIAL_S = 20.0
_TRIAL = ("/bin/echo", "works")
CURE = "apt-get install bubblewrap"
FORBIDDEN_CURE = "allow user namespaces; docs/tools.md explains how for services and containers"
AS_ROOT = "the gateway runs as root, and commands never run as root"
AS_ROOT_CURE = "run the gateway as an ordinary user; in a container with --user 10001:10001"
_TOLD_CHARS = 200


async def sandbox_here() -> Bubblewrap:
    """Find bubblewrap, and run a command in it: what is installed may still be forbidden here.

    Raises:
        NoSandbox: no command can be confined; the error says why, the hint what to do.
    """
    if sys.platform != "linux":
        raise NoSandbox("the sandbox needs Linux", hint="disable the tool")
    if os.geteuid() == 0:
        raise NoSandbox(AS_ROOT, hint=AS_ROOT_CURE)
    program = shutil.which("bwrap")
    if program is None:
        raise NoSandbox("bubblewrap is not installed", hint=CURE)
    # Compiled in a thread and cached, so that no command blocks the loop for it.
    for network in (False, True):
        await asyncio.to_thread(seccomp.program, network=network)
    sandbox = Bubblewrap(program)
    with tempfile.TemporaryDirectory(prefix="chat-gateway-trial-") as name:
        outcome = await run(sandbox, _TRIAL, Rules(Path(name)), timeout_s=TRIAL_S)
    if outcome.exit_code != 0 or outcome.out.text().strip() != "works":
        said = outcome.err.text().strip() or f"it exited with {outcome.exit_code}"
        raise NoSandbox(f"bubblewrap does not work here: {said[:_TOLD_CHARS]}", hint=FORBIDDEN_CURE)
    return sandbox


class SandboxOfDaemon:
    """Looks for the sandbox once, when somebody first needs it; a failure is looked into again."""

    def __init__(self) -> None:
        self._found: Bubblewrap | None = None
        self._looking = asyncio.Lock()

    async def get(self) -> Bubblewrap:
        """Return the sandbox that works.

        Raises:
            NoSandbox: none does.
        """
        async with self._looking:
            if self._found is None:
                self._found = await sandbox_here()
            return self._found
