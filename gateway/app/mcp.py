"""Builds the servers of ``[mcp]``: each by its table, those on their stdio confined as commands are."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gateway.config.settings import Settings
from gateway.config.settings_mcp import McpServer
from session.context.scopes import Scopes
from session.mcp.process import Launch, unconfined
from session.mcp.servers import McpServers
from session.mcp.spec import ServerSpec

PACKAGE = "mcp"
MISSING = "the package mcp is not installed: no tool of these servers is offered"
CURE = "make extras"


def missing(settings: Settings) -> bool:
    """Say whether servers are configured, but what speaks with them is not installed; imports nothing."""
    return bool(settings.mcp) and find_spec(PACKAGE) is None


def build_servers(settings: Settings, scopes: Scopes, *, launch: Launch = unconfined) -> McpServers:
    """Know all servers of the configuration; none is started yet.

    Raises:
        NewerFormat: a newer version recorded what a server listed.
    """
    return McpServers(specs_of(settings), settings.state, scopes, launch=launch)


def specs_of(settings: Settings) -> Sequence[ServerSpec]:
    """Read the servers from the configuration."""
    return [_spec(settings.workspace, name, table) for name, table in settings.mcp.items()]


def _spec(workspace: Path, name: str, table: McpServer) -> ServerSpec:
    return ServerSpec(
        name,
        command=table.command,
        url=table.url,
        headers_file=workspace / Path(table.headers_file).expanduser() if table.headers_file else None,
        env={key: value.get_secret_value() for key, value in table.env.items()},
        network=table.network,
        readable=[Path(each) for each in table.readable],
        channels=table.channels,
        people=table.people,
        repeatable=table.repeatable,
        trusted=table.trusted,
        timeout_s=table.timeout_s,
    )
