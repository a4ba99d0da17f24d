"""Says of the tools that are off by default what they lack, and whether the sandbox works."""

from __future__ import annotations

from typing import Final

from gateway.app.wiring_tools import lacking
from gateway.config.settings import Settings
from gateway.doctor import owners
from gateway.doctor.finding import GRACE_S, LOCAL_S, Check, bounded, in_own_loop, patient
from session.errors import SessionError
from session.tools.sandbox import sandbox_here

# The trial of the sandbox has a limit of its own.
TRIAL_S: Final = 30.0


async def check(settings: Settings, *, local_s: float = LOCAL_S) -> list[Check]:
    """Return what is found; nothing where no such tool is enabled or named."""
    # Programs are looked for in the folders of PATH, any of which may hang.
    within_s = patient(TRIAL_S, local_s)
    looking = in_own_loop("tools", lambda: _found(settings), within_s=within_s)
    cure = "check the folders in PATH and the temporary folder"
    found = await bounded(
        "tools", looking, within_s=within_s, asked="the sandbox", cure=cure, grace_s=GRACE_S
    )
    return [found] if isinstance(found, Check) else found


async def _found(settings: Settings) -> list[Check]:
    findings = [Check("tools", "warn", text, cure) for text, cure in lacking(settings)]
    if settings.tools.shell.enabled:
        findings.append(owners.untried("tools", settings.workspace) or await _sandbox(settings))
    return findings


async def _sandbox(settings: Settings) -> Check:
    try:
        found = await sandbox_here()
    except SessionError as error:
        return Check("tools", "fail", f"shell refuses every command: {error}", error.hint)
    network = "with the network" if settings.tools.shell.network else "without network"
    return Check("tools", "ok", f"{found.name} confines commands, {network}")
