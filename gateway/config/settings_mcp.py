"""``[mcp.NAME]``: servers of the Model Context Protocol, and who may use their tools."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pydantic import Field, SecretStr, field_validator, model_validator

from channels.tables import ConfigTable, HttpUrl, Seconds, Strings

# It names files, tools and policies.
SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class McpServer(ConfigTable):
    """``[mcp.NAME]``: a server on its stdio by ``command``, or over HTTP at ``url``."""

    command: Strings = ()
    url: HttpUrl = Field(default="", repr=False)
    headers_file: str = ""
    env: Mapping[str, SecretStr] = Field(default_factory=dict)
    network: bool = False
    readable: Strings = ()
    channels: Strings = ()
    people: Strings = ()
    repeatable: Strings = ()
    trusted: bool = False
    timeout_s: Seconds = 60.0

    @field_validator("command")
    @classmethod
    def _found_anywhere(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The server works in a folder of its own, where a relative path means another place.
        if value and os.sep in value[0] and not os.path.isabs(value[0]):  # noqa: PTH117 - a word, not a path yet
            raise ValueError("use the program's absolute path, or a name found in PATH")
        return value

    @field_validator("readable")
    @classmethod
    def _whole_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not os.path.isabs(each) for each in value):  # noqa: PTH117 - words, not paths yet
            raise ValueError("use absolute paths")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("set command for a stdio server, or url for an HTTP server")
        mine = ("headers_file",) if self.command else ("env", "network", "readable")
        wrong = [name for name in mine if getattr(self, name)]
        if wrong:
            raise ValueError(
                f"{wrong[0]} cannot be set for a server with {'command' if self.command else 'url'}"
            )
        return self


def check_servers(servers: Mapping[str, McpServer], people: Mapping[str, object]) -> Mapping[str, McpServer]:
    """Return the tables of all servers.

    Raises:
        ValueError: a name cannot be that of a server, or of a person who is listed.
    """
    for name, server in servers.items():
        if not SERVER_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r}: expected a name of at most 32 letters, digits, '_' and '-', "
                "that starts with a letter or a digit"
            )
        unknown = [person for person in server.people if person not in people]
        if unknown:
            raise ValueError(f"{name}: people: [people] has no {unknown[0]!r}")
    return servers
