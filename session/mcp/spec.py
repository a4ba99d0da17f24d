"""A server of the Model Context Protocol as the configuration has it, and how it fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from session.errors import SessionError
from session.tools import Tool


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server as the configuration has it: ``command`` or ``url``, and who may use it.

    ``network`` and ``readable`` are what a process of ours may reach beside its own folder.
    ``channels`` are names or keys, ``people`` names of people; empty: every one. ``repeatable`` are tools
    that may run again after a crash.
    """

    name: str
    command: Sequence[str] = ()
    url: str = field(default="", repr=False)
    headers_file: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    network: bool = False
    readable: Sequence[Path] = ()
    channels: Sequence[str] = ()
    people: Sequence[str] = ()
    repeatable: Sequence[str] = ()
    trusted: bool = False
    timeout_s: float = 60.0

    @property
    def identity(self) -> str:
        """What it is known by: with another command or address it is another server."""
        known = json.dumps([*self.command, self.url])
        return hashlib.sha256(known.encode("utf-8", "replace")).hexdigest()


class ServerFailed(SessionError):
    """The server is of no use as it is; ``str`` says why without a secret, for chat, log and status.

    ``stderr`` is the end of what its process wrote there, without secrets, for its operator and no log;
    ``cure`` is the likely one for that.
    """

    stderr = ""
    cure = ""

    @property
    def detail(self) -> str:
        """Why, with what the process wrote."""
        return f"{self}; it wrote: {self.stderr}" if self.stderr else str(self)


class ServerGone(ServerFailed):
    """It ended, or its connection did."""


class Flooded(ServerFailed):
    """It sent more than anybody asked for."""


class CallFailed(SessionError):
    """A call came to nothing; ``str`` is a sentence for the model."""


class CallLate(CallFailed):
    """The server did not answer in time; whether it did what it was asked nobody knows."""


# How the names begin under which tools of servers are offered.
PREFIX: Final = "mcp_"


class NoServers:
    """No server is configured: there is no tool, but the name that an old call bears is still a server's."""

    def tools(self) -> Sequence[Tool]:
        """List none."""
        return ()

    def get(self, name: str) -> Tool | None:
        """Find none."""
        return None

    def owns(self, name: str) -> bool:
        """Say whether a name is that of a tool of some server."""
        return name.startswith(PREFIX)
