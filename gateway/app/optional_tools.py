"""The tools that are off until the configuration enables them: who is offered them, and what they lack."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import structlog

from gateway.config.settings import Settings
from session.errors import SessionError
from session.tools import Tool
from session.tools.sandbox.sandbox import SandboxOfDaemon
from session.tools.shell import Shell
from session.tools.web.fetching import Fetcher
from session.tools.web.tool import WebFetch

OPTIONAL: Final = ("web_fetch", "shell")
EXTRACTS: Final = "trafilatura"
NO_EXTRACTION: Final = "tools.web_fetch is enabled, and the library that reads pages is not installed"
EXTRACTION_CURE: Final = "make extras, or pip install 'chat-gateway[web-fetch]'"
log = structlog.get_logger("tools")


class OptionalTools:
    """Those of them that this daemon has."""

    def __init__(self, settings: Settings) -> None:
        tools = settings.tools
        self._shell = tools.shell.enabled
        self.sandbox = SandboxOfDaemon(tools.shell.sandbox)
        self.tools: list[Tool] = []
        if tools.web_fetch.enabled and can_extract():
            fetcher = Fetcher(max_bytes=tools.web_fetch.max_kb * 1024)
            self.tools.append(WebFetch(fetcher, timeout_s=tools.web_fetch.timeout_s))
        if tools.shell.enabled:
            shell = Shell(
                self.sandbox,
                network=tools.shell.network,
                timeout_s=tools.shell.timeout_s,
                private=(settings.workspace,),
            )
            self.tools.append(shell)

    async def look(self) -> None:
        """Find the sandbox before somebody asks for it; where none works, say so in the log."""
        if not self._shell:
            return
        try:
            sandbox = await self.sandbox.get()
        except SessionError as error:
            log.warning("sandbox.missing", tool="shell", error=str(error), hint=error.hint)
        else:
            log.info("sandbox.found", sandbox=sandbox.name)


def granted(settings: Settings, *, group: bool) -> tuple[str, ...]:
    """Name the tools that a chat may use: what is enabled is for direct chats, and for groups where named."""
    tools = settings.tools
    if group:
        return tools.groups
    on = {"web_fetch": tools.web_fetch.enabled, "shell": tools.shell.enabled}
    return (*tools.direct, *(name for name in OPTIONAL if on[name] and name not in tools.direct))


def can_extract() -> bool:
    """Say whether the library that extracts text from pages is installed; it is not imported."""
    return find_spec(EXTRACTS) is not None


def lacking(settings: Settings) -> list[tuple[str, str]]:
    """Say of the configuration of these tools what has no effect, each with its cure."""
    tools, found = settings.tools, []
    for name in OPTIONAL:
        where = [f"tools.{list_}" for list_ in ("direct", "groups") if name in getattr(tools, list_)]
        if where and not getattr(tools, name).enabled:
            found.append(
                (f"{' and '.join(where)}: {name} is not enabled", f"set tools.{name}.enabled = true")
            )
    if tools.web_fetch.enabled and not can_extract():
        found.append((NO_EXTRACTION, EXTRACTION_CURE))
    return found
