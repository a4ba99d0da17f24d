"""Says of the tools that are off by default what they lack, and which sandbox confines commands."""

from __future__ import annotations

from gateway.app.optional_tools import lacking
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding
from session.errors import SessionError
from session.tools.sandbox.sandbox import sandbox_here


async def check(settings: Settings) -> list[Finding]:
    """Return level, text and cure; nothing where no such tool is enabled or named."""
    findings: list[Finding] = [("warn", text, cure) for text, cure in lacking(settings)]
    if settings.tools.shell.enabled:
        findings.append(await _sandbox(settings))
    return findings


async def _sandbox(settings: Settings) -> Finding:
    try:
        found = await sandbox_here(settings.tools.shell.sandbox)
    except SessionError as error:
        return "fail", f"shell refuses every command: {error}", error.hint
    network = "with the network" if settings.tools.shell.network else "without network"
    told = f"{found.sandbox.name} confines commands, {network}"
    return "ok", "; ".join((told, *found.without)), ""
