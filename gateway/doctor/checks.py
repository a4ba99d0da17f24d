"""Checks everything that a gateway stands on, and says for each what is wrong and how to cure it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from channels import registry
from gateway.app.served import enabled
from gateway.config import not_built
from gateway.config.settings import Settings
from gateway.doctor import (
    broker,
    certificates,
    embedding,
    machine,
    mcp,
    model,
    platforms,
    tools,
    workspace,
)
from gateway.doctor.finding import LOCAL_S, Check, looked
from gateway.outbound.standing import standing


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
    yield Check("configuration", "ok", f"workspace {settings.workspace}")
    for key in not_built.not_built(settings):
        yield Check("configuration", "warn", f"{key}: {not_built.WORDS}", not_built.CURE)
    yield Check("versions", *machine.versions())
    folder = await workspace.usable(settings, within_s=local_s)
    yield folder
    usable = folder.level != "fail"
    if usable:
        async for check in workspace.access(settings, within_s=local_s):
            yield check
    async for check in _asked(settings, tell, daemon, usable=usable, local_s=local_s):
        yield check
    if usable:
        async for check in workspace.contents(settings, within_s=local_s):
            yield check
    channels = await looked("channels", lambda: _channels(settings), settings.workspace, within_s=local_s)
    for check in channels:
        yield check
    for name, level, text, cure in await platforms.check(settings):
        yield Check(name, level, text, cure)


async def _asked(
    settings: Settings,
    tell: Callable[[str], None],
    daemon: broker.DaemonStatus,
    *,
    usable: bool,
    local_s: float,
) -> AsyncIterator[Check]:
    """Ask what answers over a network, or is another process."""
    if usable or not settings.broker.embedded:
        if not settings.broker.embedded:
            tell(f"asks the broker, for {broker.BROKER_S:g} s at most …")
        for check in await _own_certificate(settings, local_s):
            yield check
        async for check in broker.check(settings, daemon):
            yield check
    if settings.model.name != "echo":
        tell(f"asks the model, for {model.MODEL_S:g} s at most …")
    yield await model.check(settings)
    for level, text, cure in await embedding.check(settings):
        yield Check("embedding", level, text, cure)
    for level, text, cure in await tools.check(settings):
        yield Check("tools", level, text, cure)
    for name, level, text, cure in await mcp.check(settings) if usable else ():
        yield Check(name, level, text, cure)


async def _own_certificate(settings: Settings, local_s: float) -> list[Check]:
    def look() -> list[Check]:
        return [Check("certificates", *found) for found in certificates.own(settings.broker)]

    where = Path(settings.broker.cert_file).parent
    return await looked("certificates", look, where, within_s=local_s)


def _channels(settings: Settings) -> list[Check]:
    """Show how each platform stands, and what other packages offer in vain."""
    checks = [
        Check("channels", "warn", problem, "update or remove that package")
        for problem in registry.installed().problems
    ]
    platforms = enabled(settings)
    if not platforms:
        return [*checks, Check("channels", "ok", "no platform is enabled; web and terminal always are")]
    for kind, table in platforms:
        found = standing(settings.state, kind.name)
        name = f"channels.{kind.name}"
        if found["up"]:
            checks.append(Check(name, "ok", f"up since {found['since']}"))
        else:
            checks.append(Check(name, "warn", str(found["error"]), _cure(kind.name)))
        if table.direct == "allowlist" and not table.allow_from:
            text = "direct = allowlist, and allow_from is empty: nobody may write"
            checks.append(Check(name, "warn", text, "name people's numeric ids in allow_from"))
    return checks


def _cure(name: str) -> str:
    page = f"docs/{name}.md" if name in ("telegram", "discord") else "its own documentation"
    return f"look into the log of the process that runs it, and into {page}"
