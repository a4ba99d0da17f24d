"""Which files may leave the workspace with a letter: those of ``media/``, and of the chat's own scope."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from channels.message import Outbound
from gateway.config.memory_scope import scopes_of
from gateway.config.settings import Settings
from session.memory.circles import Circles
from session.store.store import Store
from session.transcript.agent import AGENTS, is_name

Folders = Callable[[Outbound], Awaitable[Sequence[Path]]]


def folders_by(settings: Settings) -> Folders:
    """Build what names the folders of a letter's files, by what its chat may see.

    The answer of a job may bring what the job wrote, as far as those may see it who get the answer.
    """
    workspace = settings.workspace

    async def folders(out: Outbound) -> Sequence[Path]:
        if not out.attachments:
            return ()
        store = Store(workspace, zone=settings.zone)
        circles = Circles(scopes_of(settings), store=store)
        try:
            # What one agent sent may wait here while the chat goes to another.
            agents = await asyncio.to_thread(_agents_of, workspace)
            found = [workspace / "media"]
            found += [each.files for each in await circles.all_of_key(out.key, agents=agents)]
            job = (out.in_reply_to or "").partition("@")[0]
            if job.startswith("cron:") and job != out.key:
                found += [each.files for each in await circles.all_of_key(job, out.key, agents=agents)]
        finally:
            await store.aclose()
        return found

    return folders


def _agents_of(workspace: Path) -> list[str]:
    """List all agents that have files here, whether they are configured or were."""
    return ["", *(path.name for path in (workspace / AGENTS).glob("*") if is_name(path.name))]


async def media_alone(out: Outbound) -> Sequence[Path]:
    """Name no folder but that of what people sent, relative to the workspace."""
    return (Path("media"),)
