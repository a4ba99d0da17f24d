"""Builds from Settings what decides whether a tool may run, and who may say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime

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
from session.errors import StoreError
from session.tools import Toolbox, ToolPlace

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
