"""Starts each MCP server once, has it list its tools, and says what is not as it was approved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gateway.app import wiring_mcp
from gateway.app.wiring_tools import MCP_CURE, MCP_MISSING, lacks_mcp
from gateway.config.agents import scopes_of
from gateway.config.settings import Settings
from gateway.doctor import owners
from gateway.doctor.finding import DISK_CURE, LOCAL_S, Check, bounded, patient
from session.disk.threads import start_thread
from session.errors import SessionError
from session.mcp.listing import shown, withheld
from session.mcp.server import Server
from session.mcp.spec import ServerFailed

# To start, to list its tools and to end it have limits of their own, which name what was waited for.
SERVER_S: Final = 75.0


async def check(settings: Settings, *, local_s: float = LOCAL_S) -> Sequence[Check]:
    """Return a finding for each server, all asked at once; nothing is recorded."""
    if not settings.mcp:
        return []
    if lacks_mcp(settings):
        return [Check("mcp", "fail", MCP_MISSING, MCP_CURE)]
    building = start_thread(lambda: _built(settings), name="doctor-mcp")
    records = settings.state / "mcp"
    servers = await bounded(
        "mcp", building, within_s=local_s, asked=str(records), cure=DISK_CURE, where=records
    )
    if isinstance(servers, Check):
        return [servers]
    within_s = patient(SERVER_S, local_s)
    return await asyncio.gather(*(_checked(server, untried, within_s) for server, untried in servers))


def _built(settings: Settings) -> list[tuple[Server, Check | None]]:
    servers = wiring_mcp.build_servers(settings, scopes_of(settings)).servers
    return [
        (each, owners.untried(f"mcp.{each.spec.name}", settings.workspace) if each.spec.command else None)
        for each in servers
    ]


async def _checked(server: Server, untried: Check | None, within_s: float) -> Check:
    if untried is not None:
        return untried
    name = f"mcp.{server.spec.name}"
    asking = asyncio.create_task(_asked(name, server), name=f"doctor {name}")
    cure = "check its program or address, and the disk with its files"
    return await bounded(name, asking, within_s=within_s, asked="this server", cure=cure)


async def _asked(name: str, server: Server) -> Check:
    try:
        record, problems, protocol = await server.look()
    except ServerFailed as error:
        cure = error.hint or error.cure or "check its table in the configuration"
        return Check(name, "fail", error.detail, cure)
    except SessionError as error:
        return Check(name, "fail", str(error), error.hint or "check its table in the configuration")
    if problems:
        return Check(name, "warn", withheld(problems), "report it to the author of the server")
    if record.changes:
        kind, tool, _ = record.changes[0]
        text = f"{len(record.changes)} of its tools changed since approval, first: {kind} {shown(tool)}"
        cure = f"chat-gateway mcp list, then chat-gateway mcp approve {server.spec.name}"
        return Check(name, "warn", text, cure)
    return Check(name, "ok", f"{(n := len(record.usable))} tool{'s' * (n != 1)}, protocol {protocol}")
