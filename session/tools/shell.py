"""The tool ``shell``: a command in the files folder of the chat, confined by a sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import structlog

import durable
from session.errors import ToolError
from session.models.model import ToolSpec
from session.tools import MAX_RESULT_BYTES, ToolPlace, parameters
from session.tools.beneath import threaded
from session.tools.sandbox import NoSandbox, Outcome, Rules, SandboxOfDaemon, run, shortened
from session.transcript.agent import scopes_below

NAME = "shell"
OUT_BYTES = 44 * 1024
# What remains is for stderr and the lines between.
ERR_BYTES = MAX_RESULT_BYTES - OUT_BYTES - 2048
_SHELLS = ("/bin/bash", "/bin/sh")

_log = structlog.get_logger(__name__)


class Shell:
    """Runs one command to its end; nothing of it goes on afterwards."""

    repeatable: ClassVar[bool] = False

    def __init__(
        self, sandbox: SandboxOfDaemon, *, network: bool, timeout_s: float, private: Sequence[Path]
    ) -> None:
        """Run commands in ``sandbox``, for at most ``timeout_s`` each; none may read what is ``private``."""
        self._sandbox = sandbox
        self._network = network
        self._timeout_s = timeout_s
        self._private = tuple(private)
        reach = "It can use the network." if network else "It has no network."
        self.spec = ToolSpec(
            NAME,
            "Run a shell command in the files folder, the only place it may write to. It gets no input, "
            f"and its background processes end with it. {reach} Its time limit is {timeout_s:g} s.",
            parameters(
                "command",
                command={"type": "string", "description": "The command, for bash -c (or sh -c)"},
                timeout_s={"type": "integer", "minimum": 1, "description": "Time limit in seconds"},
            ),
        )

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return exit code and outputs, both ends of each; cancelled, end the command and what it started."""
        command = arguments["command"]
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in command):
            raise ToolError("the command contains characters that are not allowed")
        # The smaller first: a whole number may be larger than any float.
        limit_s = float(min(arguments.get("timeout_s", self._timeout_s), self._timeout_s))
        folder = await threaded(".", lambda: _folder(place.folder))
        rules = Rules(
            folder,
            network=self._network,
            private=self._private,
            closed=sorted(scopes_below(place.folder)),
        )
        try:
            sandbox = await self._sandbox.get()
            program = next(path for path in _SHELLS if os.path.exists(path))  # noqa: ASYNC240, PTH110
            outcome = await run(
                sandbox, [program, "-c", command], rules, timeout_s=limit_s, most_bytes=OUT_BYTES
            )
        except NoSandbox as error:
            raise ToolError(f"no command can be run: {error}; the owner's cure: {error.hint}") from error
        _log.info("shell.ended", key=place.key, sandbox=sandbox.name, exit_code=outcome.exit_code)
        return told(outcome, limit_s=limit_s)


def told(outcome: Outcome, *, limit_s: float) -> str:
    """Write down how a command ended: at most ``MAX_RESULT_BYTES``, of each output both ends."""
    ended = f"killed after {limit_s:g} s: time limit" if outcome.exit_code is None else ""
    head = ended or f"exit code: {outcome.exit_code}"
    parts = [head]
    for name, output, most in (("stdout", outcome.out, OUT_BYTES), ("stderr", outcome.err, ERR_BYTES)):
        if output.bytes:
            parts.append(f"{name}:\n{shortened(output.text(), most)}")
    return "\n".join(parts)


def _folder(folder: Path) -> Path:
    durable.make_folder(folder)
    # Namespaces and rules are about the place itself.
    return Path(os.path.realpath(folder))
