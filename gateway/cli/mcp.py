"""``mcp list|approve``: the servers of the configuration, what their tools are, and which may be used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions, as_json, complete_servers, group
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from session.mcp.server import Server

mcp = group("mcp")
COLUMNS = ("server", "state", "tools", "changed", "error")


@mcp.command("list")
@as_json
def list_(opts: GlobalOptions, as_json: bool) -> None:
    """List MCP servers, their tools, and unapproved changes."""
    from gateway.app.wiring_tools import MCP_CURE, MCP_MISSING, lacks_mcp

    settings = settings_of(opts)
    rows = _rows(settings, asyncio.run(_parts(settings)))
    if as_json:
        output.document(rows)
        return
    output.rows(
        [{**row, "tools": len(row["tools"]), "changed": len(row["changed"])} for row in rows], COLUMNS
    )
    for row in rows:
        if row["hint"]:
            output.shown(f"{row['server']}: try: {row['hint']}")
        for line in _changes(row):
            output.shown(line)
    if not rows:
        output.words("no MCP server is configured; see docs/tools.md")
    elif any(row["changed"] for row in rows):
        output.words("new and changed tools are not offered until approved: chat-gateway mcp approve NAME")
    if lacks_mcp(settings):
        output.words(f"{MCP_MISSING}; {MCP_CURE}")


@mcp.command()
@click.argument(
    "name",
    metavar="NAME",
    help="its name, from [mcp.NAME] of the configuration",
    shell_complete=complete_servers,
)
def approve(opts: GlobalOptions, name: str) -> None:
    """Approve the tools that a server lists now."""
    settings = settings_of(opts)
    server = _server(settings, name)
    if server.record.identity != server.spec.identity:
        raise GatewayError(
            f"{name} has listed no tools yet",
            hint="start the gateway; chat-gateway doctor shows what is wrong",
        )
    changes = server.record.changes
    server.approve()
    for kind, tool, what in changes:
        output.shown(f"{kind}: {tool}" + (f" ({what})" if what else ""))
    output.words(f"{name}: {output.counted(len(server.tools), 'tool')} approved")


def _servers(settings: Settings) -> Sequence[Server]:
    from gateway.app import wiring_mcp
    from gateway.config.agents import scopes_of

    return wiring_mcp.build_servers(settings, scopes_of(settings)).servers


def _server(settings: Settings, name: str) -> Server:
    for server in _servers(settings):
        if server.spec.name == name:
            return server
    known = ", ".join(settings.mcp) or "none"
    raise GatewayError(f"no MCP server is named {name!r}; configured: {known}", hint="chat-gateway mcp list")


async def _parts(settings: Settings) -> Mapping[str, Mapping[str, Any]] | None:
    async with attach.daemon(settings) as client:
        if client is None:
            return None
        parts: Mapping[str, Mapping[str, Any]] = (await client.status())["parts"]
        return parts


def _rows(settings: Settings, parts: Mapping[str, Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    rows = []
    for server in _servers(settings):
        part = (parts or {}).get(f"mcp.{server.spec.name}", {})
        state = "no daemon runs" if parts is None else "up" if part.get("up") else "down"
        record = server.record
        changes = record.changes if record.identity == server.spec.identity else ()
        rows.append(
            {
                "server": server.spec.name,
                "state": state,
                "since": part.get("since"),
                "error": part.get("error", ""),
                "hint": part.get("hint", ""),
                "tools": [tool.name for tool in server.tools],
                "changed": [{"change": kind, "tool": tool, "what": what} for kind, tool, what in changes],
                "trusted": server.spec.trusted,
            }
        )
    return rows


def _changes(row: Mapping[str, Any]) -> Iterator[str]:
    for each in row["changed"]:
        what = f" ({each['what']})" if each["what"] else ""
        yield f"{row['server']}: {each['change']} {each['tool']}{what}"
