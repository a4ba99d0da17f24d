"""Which tools a chat has and who decides whether one may run, by the Settings; what optional tools lack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import structlog

from channels import pairing
from channels.access import is_allowed
from channels.errors import ChannelError
from channels.message import Inbound
from channels.tables import Platform
from gateway.config.settings import Settings
from session.approvals.files import ApprovalFiles
from session.approvals.gate import Gate
from session.approvals.rules import PolicyRules, policy_name
from session.disk.threads import start_thread
from session.errors import SessionError, StoreError
from session.tools import Tool, Toolbox, ToolPlace

if TYPE_CHECKING:
    from session.tools.sandbox import SandboxOfDaemon


log = structlog.get_logger("approvals")

PRUNE_EVERY_S = 3600.0


def build_gate(
    settings: Settings, *, clock: Callable[[], datetime], files: ApprovalFiles | None = None
) -> Gate:
    """Build what every tool call passes; ``files`` are those that several have together."""
    return Gate(policy_rules(settings), files or ApprovalFiles(settings.state, clock=clock))


def policy_rules(settings: Settings) -> PolicyRules:
    """Read ``[tools.policy]``."""
    policy = settings.tools.policy
    return PolicyRules(
        tools=policy.tools,
        people=policy.people,
        chats=policy.chats,
        channels=policy.channels,
        person_of={key: name for name, keys in settings.people.items() for key in keys},
        timeout_s=policy.approval_timeout_s,
    )


def without_denied(gate: Gate, toolbox: Toolbox, names: Collection[str], place: ToolPlace) -> tuple[str, ...]:
    """Leave out the tools that the policy denies to whoever is answered: no model hears of them."""
    if not gate.rules.denies():
        return tuple(names)
    found = ((name, toolbox.get(name)) for name in names)
    return tuple(
        name for name, tool in found if tool is None or gate.rules.decide(policy_name(tool), place) != "deny"
    )


def warn_of_unknown(settings: Settings, toolbox: Toolbox) -> None:
    """Say in the log which names of the policy are no tool's: what is meant to be denied would run."""
    rules = policy_rules(settings)
    named = {name for name in rules.names() if name != "*" and not name.startswith("mcp.")}
    for name in sorted(each for each in named if toolbox.get(each) is None):
        log.warning("policy.unknown_tool", tool=name, hint="check [tools.policy]: no tool has this name")


async def keep_pruned(files: ApprovalFiles) -> None:
    """Remove what ended two days ago, now and every hour until cancelled."""
    while True:
        try:
            await start_thread(files.prune, name="approvals")
        except (StoreError, OSError) as error:
            # What stands there too long does no harm: it is looked at again.
            log.warning("approvals.not_pruned", error=str(error), hint=getattr(error, "hint", ""))
        await asyncio.sleep(PRUNE_EVERY_S)


class Deciders:
    """Tells people who may decide over what waits in their chat from all others."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, inbound: Inbound) -> bool:
        """Say whether the sender may; in a group whoever the operator let in, a doubt is a no."""
        table = getattr(self._settings.channels, inbound.channel, None)
        if not isinstance(table, Platform):
            # Clients of ours show a token; another program answers for whom it lets speak.
            return True
        if not inbound.group and table.direct == "open":
            return True
        try:
            approved = pairing.approved(self._settings.state, inbound.channel)
        except ChannelError:
            return False
        return is_allowed(inbound.sender.id, table=table, approved=approved)


OPTIONAL: Final = ("web_fetch", "shell")
EXTRACTS: Final = "trafilatura"
NO_EXTRACTION: Final = "tools.web_fetch is enabled, but the library that reads pages is not installed"
EXTRACTION_CURE: Final = "make extras, or pip install 'chat-gateway[web-fetch]'"


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


MCP_MISSING: Final = "the package mcp is not installed, so the tools of these servers are not offered"
MCP_CURE: Final = "make extras"


def lacks_mcp(settings: Settings) -> bool:
    """Say whether servers are configured, but what speaks with them is not installed."""
    return bool(settings.mcp) and find_spec("mcp") is None
