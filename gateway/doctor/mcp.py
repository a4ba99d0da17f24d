"""Starts each MCP server once, has it list its tools, and says what is not as it was approved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.app import mcp
from gateway.config.extras import CURE, MCP_MISSING, lacks_mcp
from gateway.config.memory_scope import scopes_of
from gateway.config.settings import Settings
from gateway.doctor.finding import NamedFinding
from session.errors import SessionError
from session.mcp.listing import shown
from session.mcp.server import Server


async def check(settings: Settings) -> Sequence[NamedFinding]:
    """Return name, level, text and cure for each server, all asked at once; nothing is recorded."""
    if not settings.mcp:
        return []
    if lacks_mcp(settings):
        return [("mcp", "fail", MCP_MISSING, CURE)]
    try:
        servers = mcp.build_servers(settings, scopes_of(settings)).servers
    except SessionError as error:
        return [("mcp", "fail", str(error), error.hint)]
    return await asyncio.gather(*map(_checked, servers))


async def _checked(server: Server) -> NamedFinding:
    name = f"mcp.{server.spec.name}"
    try:
        record, problems, protocol = await server.look()
    except SessionError as error:
        return name, "fail", str(error), error.hint or "look at its table in the configuration"
    if problems:
        text = f"not offered: {len(problems)} of its tools: {'; '.join(map(shown, problems[:3]))}"
        return name, "warn", text, "tell whoever made the server"
    if record.changes:
        kind, tool, _ = record.changes[0]
        text = (
            f"not as they were approved: {len(record.changes)} of its tools, {kind} {shown(tool)} the first"
        )
        return name, "warn", text, f"chat-gateway mcp list, then chat-gateway mcp approve {server.spec.name}"
    return name, "ok", f"{len(record.usable)} tools, protocol {protocol}", ""
