"""Checks everything that a gateway stands on, and says for each what is wrong and how to cure it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from channels import plugins
from channels.plugins import enabled
from durable import StateUnavailable
from gateway.config.checking import exposed_files
from gateway.config.finding import unread_files, usual_files
from gateway.config.settings import Settings
from gateway.doctor import broker, machine, services
from gateway.doctor import workspace as workspace_checks
from gateway.doctor.finding import LOCAL_S, Check, Steps, bounded, findings, looked
from gateway.outbound.standing import standing
from session.store.state import workspace_state

# Beside the limit of the request: what is imported for it may lie on a disk that hangs.
MODEL_S: Final = 120.0
# Older ones cannot wait for the end of a connection that they are told to close.
OLDEST_POSTGRES: Final = 14
_SERVER_CURE: Final = "check the server's log and the network between it and this machine"
_PACKAGES_CURE: Final = "check the disk with the gateway's packages"


async def _no_daemon() -> None:
    """Say that no daemon answers."""


async def examine(
    settings: Settings,
    *,
    tell: Callable[[str], None] = lambda _: None,
    daemon: broker.DaemonStatus = _no_daemon,
    local_s: float = LOCAL_S,
) -> AsyncIterator[Check]:
    """Yield one finding after the other; nothing is changed.

    What needs the workspace is left out where that cannot be used. ``tell`` is told what may take long;
    ``daemon`` returns what ``status`` shows of the running daemon, which holds an embedded queue for itself.
    ``local_s`` bounds each look at the disk, in seconds.
    """
    yield configuration(settings)
    file = settings.file or settings.workspace
    for check in await looked("permissions", lambda: _exposed(settings), file, within_s=local_s):
        yield check
    yield machine.versions()
    folder = await workspace_checks.usable(settings, within_s=local_s)
    yield folder
    for step in _steps(settings, tell, daemon, usable=folder.level != "fail", local_s=local_s):
        for check in await step:
            yield check


def configuration(settings: Settings) -> Check:
    """Name the workspace, the file that was read, and a usual file that was not."""
    read = f"read from {settings.file.absolute()}" if settings.file else "no configuration file"
    text = f"workspace {settings.workspace}, {read}"
    usual = settings.file in (None, *usual_files())
    unread = [f"{path} is not read: {why}" for path, why in unread_files()] if usual else []
    if not unread:
        return Check("configuration", "ok", text)
    cure = "keep one of them, or choose one with --config" if settings.file else "sudo chat-gateway doctor"
    return Check("configuration", "warn", "; ".join((text, *unread)), cure)


def _steps(
    settings: Settings,
    tell: Callable[[str], None],
    daemon: broker.DaemonStatus,
    *,
    usable: bool,
    local_s: float,
) -> Steps:
    if usable:
        yield from workspace_checks.access(settings, within_s=local_s)
    if usable or not settings.broker.embedded:
        if not settings.broker.embedded:
            tell(f"asking the broker, {broker.BROKER_S:g} s at most …")
        yield from broker.steps(settings, daemon, local_s=local_s)
    if settings.state_table.url:
        yield _state_database(settings)
    name = settings.model.name
    if name != "echo":
        tell(f"asking the model, {services.MODEL_S:g} s at most …")
    asking = asyncio.create_task(services.check_model(settings), name="doctor model")
    yield findings("model", asking, within_s=MODEL_S, asked=name, cure=_PACKAGES_CURE)
    asking = asyncio.create_task(services.check_embedding(settings), name="doctor embedding")
    name = settings.model.embedding
    yield findings("embedding", asking, within_s=MODEL_S, asked=name, cure=_PACKAGES_CURE)
    yield services.check_tools(settings, local_s=local_s)
    if usable:
        yield services.check_mcp(settings, local_s=local_s)
        yield from workspace_checks.contents(settings, within_s=local_s)
    yield looked("channels", lambda: _channels(settings), settings.workspace, within_s=local_s)
    yield services.check_platforms(settings)


async def _state_database(settings: Settings) -> list[Check]:
    name, asked = "state database", f"PostgreSQL at {settings.state_table.shown_url}"
    query = "SELECT current_setting('server_version'), current_setting('fsync')"
    read = workspace_state(settings.state).database.read_beside
    asking = asyncio.create_task(asyncio.to_thread(read, query, ()), name="doctor state database")
    try:
        found = await bounded(name, asking, within_s=broker.BROKER_S, asked=asked, cure=_SERVER_CURE)
    except StateUnavailable as error:
        return [Check(name, "fail", f"{asked}: {error}", error.hint)]
    if isinstance(found, Check):
        return [found]
    ((version, fsync),) = found
    if int(version.partition(".")[0]) < OLDEST_POSTGRES:
        return [Check(name, "fail", f"{asked} is {version}", f"use PostgreSQL {OLDEST_POSTGRES} or newer")]
    if fsync != "on":
        return [Check(name, "fail", f"{asked}: a power cut may damage it: fsync = {fsync}", "set fsync = on")]
    return [Check(name, "ok", f"{asked}, {version}")]


async def without_settings(
    configuration: Check, workspace: Path | None, *, local_s: float = LOCAL_S
) -> AsyncIterator[Check]:
    """Yield what can be found where the configuration cannot be had; ``configuration`` says why.

    ``workspace`` is the folder where somebody named it; None: only the configuration knows.
    """
    yield configuration
    yield machine.versions()
    if workspace is None:
        cure = "to check it, add --workspace: chat-gateway --workspace FOLDER doctor"
        yield Check("workspace", "warn", "not checked: only the configuration says where it is", cure)
        return
    settings = Settings.model_validate({"workspace": workspace})
    folder = await workspace_checks.usable(settings, within_s=local_s)
    yield folder
    if folder.level != "fail":
        for look in (workspace_checks.access, workspace_checks.contents):
            for step in look(settings, within_s=local_s):
                for check in await step:
                    yield check


def _exposed(settings: Settings) -> list[Check]:
    return [Check("permissions", "warn", text, cure) for text, cure in exposed_files(settings)]


def _channels(settings: Settings) -> list[Check]:
    """Show how each platform stands, and what other packages offer in vain."""
    checks = [
        Check("channels", "warn", problem, "update or remove that package")
        for problem in plugins.installed().problems
    ]
    platforms = enabled(settings.channels)
    if not platforms:
        return [*checks, Check("channels", "ok", "no platform is enabled; console and terminal always work")]
    for kind, table in platforms:
        found = standing(settings.state, kind.name)
        name = f"channels.{kind.name}"
        if found["up"]:
            checks.append(Check(name, "ok", f"up since {found['since']}"))
        else:
            checks.append(Check(name, "warn", str(found["error"]), _cure(kind.name)))
        if table.direct == "allowlist" and not table.allow_from:
            text = "direct is allowlist, but allow_from is empty: nobody can write to the bot"
            checks.append(Check(name, "warn", text, "add numeric user ids to allow_from"))
    return checks


def _cure(name: str) -> str:
    page = f"docs/{name}.md" if name in ("telegram", "discord") else "its own documentation"
    return f"check the log of the process that runs it, and {page}"
