"""The tools that are off until the configuration enables them: who is offered them, and what they lack."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import structlog

from gateway.config.settings import Settings
from session.errors import SessionError
from session.tools import Tool

if TYPE_CHECKING:
    from session.tools.sandbox import SandboxOfDaemon

OPTIONAL: Final = ("web_fetch", "shell")
EXTRACTS: Final = "trafilatura"
NO_EXTRACTION: Final = "tools.web_fetch is enabled, but the library that reads pages is not installed"
EXTRACTION_CURE: Final = "make extras, or pip install 'chat-gateway[web-fetch]'"
log = structlog.get_logger("tools")


class OptionalTools:
    """Those of them that this daemon has."""

    def __init__(self, settings: Settings) -> None:
        tools = settings.tools
        self.sandbox: SandboxOfDaemon | None = None
        self.tools: list[Tool] = []
        if tools.web_fetch.enabled and can_extract():
            self.tools.append(_web_fetch(settings))
        if tools.shell.enabled:
            self._add_shell(settings)

    def _add_shell(self, settings: Settings) -> None:
        # A daemon without the tool shall not wait for what it stands on.
        from session.tools.sandbox import SandboxOfDaemon
        from session.tools.shell import Shell

        table = settings.tools.shell
        self.sandbox = SandboxOfDaemon()
        shell = Shell(
            self.sandbox, network=table.network, timeout_s=table.timeout_s, private=(settings.workspace,)
        )
        self.tools.append(shell)

    async def look(self) -> None:
        """Find the sandbox before somebody asks for it; where none works, say so in the log."""
        if self.sandbox is None:
            return
        try:
            sandbox = await self.sandbox.get()
        except SessionError as error:
            log.warning("sandbox.missing", tool="shell", error=str(error), hint=error.hint)
        else:
            log.info("sandbox.found", sandbox=sandbox.name)


def _web_fetch(settings: Settings) -> Tool:
    # Its HTTP client takes longer to import than a daemon without the tool shall wait.
    from session.tools.web.fetching import Fetcher
    from session.tools.web.tool import WebFetch

    table = settings.tools.web_fetch
    return WebFetch(Fetcher(max_bytes=table.max_kb * 1024), timeout_s=table.timeout_s)


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
