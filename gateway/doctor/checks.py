"""Checks everything that a gateway stands on, and says for each what is wrong and how to cure it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from channels import registry
from channels.errors import ChannelError
from gateway.app.daemons import DaemonRegistry
from gateway.app.mailboxes import open_mailbox
from gateway.app.model import build_model
from gateway.app.replied import RepliedChannels
from gateway.app.served import enabled, served
from gateway.config import folder, memory_scope, not_built
from gateway.config.settings import Settings
from gateway.doctor import (
    certificates,
    cron,
    embedding,
    erasures,
    form,
    locks,
    machine,
    mcp,
    owners,
    platforms,
    tools,
)
from gateway.errors import GatewayError, StateInUse
from gateway.outbound.standing import standing
from gateway.outbound.unserved import cure_of, in_words, unserved
from gateway.queue.mailbox import Mailbox
from session.disk.layout import Layout
from session.disk.state import read_state
from session.errors import ModelAway, ModelRefused, SessionError
from session.kept import checking
from session.library.library import Library
from session.models.model import Prompt, Warms
from session.store.store import Store
from session.store.unnamed import media_bytes

Level = Literal["ok", "warn", "fail"]
BROKER_S = 8.0
LOOK_S = 0.1
MODEL_S = 30.0
STUCK_S = 30.0
MEDIA_MANY_BYTES = 5 * 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, how it stands, in words, and what to do about it."""

    name: str
    level: Level
    text: str
    cure: str = ""


Look = Callable[[Settings], Iterable[Check]]
DaemonStatus = Callable[[], Awaitable[Mapping[str, Any] | None]]


async def _no_daemon() -> None:
    """Say that no daemon answers."""


async def examine(
    settings: Settings, *, tell: Callable[[str], None] = lambda _: None, daemon: DaemonStatus = _no_daemon
) -> AsyncIterator[Check]:
    """Yield one finding after the other; nothing is changed.

    What needs the workspace is left out where that cannot be used. ``tell`` is told what may take long;
    ``daemon`` returns what ``status`` shows of the running daemon, which holds an embedded queue for itself.
    """
    workspace = settings.workspace
    yield Check("configuration", "ok", f"workspace {workspace}")
    for key in not_built.not_built(settings):
        yield Check("configuration", "warn", f"{key}: {not_built.WORDS}", not_built.CURE)
    yield _versions()
    folder_check = _folder(workspace)
    yield folder_check
    usable = folder_check.level != "fail"
    if usable:
        for check in _permissions(workspace):
            yield check
        for check in await _looked("owners", _owners, settings):
            yield check
    if usable or not settings.broker.embedded:
        if not settings.broker.embedded:
            tell(f"asks the broker, for {BROKER_S:g} s at most …")
        for check in await _broker(settings, daemon):
            yield check
        for level, text, cure in await certificates.check(settings.broker):
            yield Check("certificates", level, text, cure)
    if settings.model.name != "echo":
        tell(f"asks the model, for {MODEL_S:g} s at most …")
    yield await _model(settings)
    for level, text, cure in await embedding.check(settings):
        yield Check("embedding", level, text, cure)
    for level, text, cure in await tools.check(settings):
        yield Check("tools", level, text, cure)
    for name, level, text, cure in await mcp.check(settings) if usable else ():
        yield Check(name, level, text, cure)
    if usable:
        for name, look in _CONTENTS.items():
            for check in await _looked(name, look, settings):
                yield check
    for check in await _looked("channels", _channels, settings):
        yield check
    for name, level, text, cure in await platforms.check(settings):
        yield Check(name, level, text, cure)


async def _looked(name: str, look: Look, settings: Settings) -> list[Check]:
    """Look at one thing in a thread; what cannot be read there is its finding, and ends no other."""
    try:
        return await asyncio.to_thread(lambda: list(look(settings)))
    except (GatewayError, SessionError, ChannelError) as error:
        return [Check(name, "fail", str(error), error.hint)]
    except OSError as error:
        said = folder.explain(settings.workspace, error)
        text, cure = (str(said), "look at what lies there, and whose it is") if said else (str(error), "")
        return [Check(name, "fail", text, cure)]


def _erasures(settings: Settings) -> list[Check]:
    return [Check("erasures", *finding) for finding in erasures.check(settings.state)]


def _versions() -> Check:
    return Check("versions", *machine.versions())


def _folder(workspace: Path) -> Check:
    if (blocking := folder.in_the_way(workspace)) is not None:
        return Check("workspace", "fail", f"{blocking} is not a folder", folder.CURE)
    if not os.path.lexists(workspace):
        return Check("workspace", "ok", "does not exist yet; the first run makes it")
    if not os.access(workspace, os.R_OK | os.W_OK | os.X_OK):
        return Check("workspace", "fail", "cannot be written", f"chown -R $USER {workspace}")
    free = os.statvfs(workspace)
    free_mb = free.f_bavail * free.f_frsize // 2**20
    if free_mb < 100:
        return Check(
            "workspace", "warn", f"{free_mb} MB free", "make room: turns wait while the disk is full"
        )
    return Check("workspace", "ok", f"{free_mb} MB free")


def _permissions(workspace: Path) -> list[Check]:
    open_to_others = []
    for name in (".", "sessions", "memory", "state", "media", "files"):
        path = workspace / name
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            open_to_others.append(str(path))
    if not open_to_others:
        return [Check("permissions", "ok", "the folders are private")]
    return [
        Check("permissions", "warn", f"others can read {path}", f"chmod -R go= {path}")
        for path in open_to_others
    ]


def _owners(settings: Settings) -> list[Check]:
    level, text, cure = owners.check(settings.workspace)
    return [Check("owners", level, text, cure)]


async def _broker(settings: Settings, daemon: DaemonStatus) -> list[Check]:
    what = "embedded queue" if settings.broker.embedded else f"RabbitMQ at {settings.broker.shown_url}"
    mailbox = open_mailbox(settings, reports=False)
    serve = asyncio.create_task(mailbox.serve(), name="doctor mailbox")
    ready = asyncio.create_task(mailbox.ready(), name="doctor ready")
    try:
        await _first_answer(mailbox, serve, ready)
        if ready.done() and ready.exception() is not None:
            # ``serve`` ends with the reason.
            await asyncio.wait((serve,), timeout=BROKER_S)
        if serve.done():
            serve.result()
        if not ready.done():
            health = mailbox.health()
            fault = health.error if health.hint else f"no answer within {BROKER_S:g} s"
            return [
                Check("broker", "fail", f"{what}: {fault}", health.hint or "start it, or correct broker.url")
            ]
        depths = await mailbox.depths(RepliedChannels(settings.state).names())
    except StateInUse as in_use:
        running = DaemonRegistry(settings.workspace).running()
        if running:
            return _of_queue(f"{what}, in use by the daemon with pid {running[0].pid}", await daemon())
        return [Check("broker", "fail", str(in_use), in_use.hint)]
    except GatewayError as error:
        return [Check("broker", "fail", str(error), error.hint)]
    finally:
        for task in (serve, ready):
            task.cancel()
        await asyncio.gather(serve, ready, return_exceptions=True)
    queues = {box: depth.as_dict() for box, depth in depths.items()}
    return _of_queue(what, {"queues": queues, "unserved": unserved(depths, served(settings))})


def _of_queue(what: str, status: Mapping[str, Any] | None) -> list[Check]:
    """Judge what waits, as ``status`` has it; without it nothing is known but that the queue is there."""
    if status is None or status["queues"] is None:
        return [Check("broker", "ok", what)]
    now = datetime.now(UTC)
    checks = [
        Check("broker", "warn", in_words(row, now), cure_of(str(row["channel"])))
        for row in status["unserved"]
    ]
    counts = {box: depth["count"] for box, depth in status["queues"].items()}
    if parked := counts.pop("parked", 0):
        letters = "1 letter is" if parked == 1 else f"{parked} letters are"
        checks.append(Check("broker", "warn", f"{what}: {letters} parked", "chat-gateway parked list"))
    return checks or [Check("broker", "ok", f"{what}: {sum(counts.values())} letters wait")]


async def _first_answer(mailbox: Mailbox, *tasks: asyncio.Task[None]) -> None:
    """Wait until it is ready or has failed once: it would go on trying for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BROKER_S):
            while not mailbox.health().hint and not any(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)


async def _model(settings: Settings) -> Check:
    model = build_model(settings)
    if model.plain:
        return Check(
            "model", "warn", "echo repeats what it is told", 'set model.name, e.g. "openai/gpt-4.1-mini"'
        )
    if isinstance(model, Warms):
        # Loading LiteLLM takes seconds, and on a busy machine longer than any provider may take to answer.
        await model.warm()
    try:
        async with asyncio.timeout(MODEL_S):
            await model.ask(Prompt(messages=[{"role": "user", "content": "Say ok."}], max_tokens=16))
    except ModelAway as error:
        return Check("model", "fail", _of_model(settings, error), error.hint or "chat-gateway config show")
    except ModelRefused as error:
        return Check("model", "fail", _of_model(settings, error), error.hint or "correct model.name")
    except SessionError as error:
        return Check("model", "warn", _of_model(settings, error), error.hint)
    except TimeoutError:
        return Check(
            "model", "fail", f"{settings.model.name}: no answer in {MODEL_S:g} s", "check model.api_base"
        )
    return Check("model", "ok", f"{settings.model.name} answers")


def _of_model(settings: Settings, error: SessionError) -> str:
    name, text = settings.model.name, str(error)
    return text if text.startswith(name) else f"{name}: {text}"


def _machine(settings: Settings) -> list[Check]:
    return [Check(*finding) for finding in machine.check(settings.workspace)]


def _memory(settings: Settings) -> list[Check]:
    level, text, cure = memory_scope.check(settings)
    return [Check("memory", level, text, cure)]


def _jobs(settings: Settings) -> list[Check]:
    return [Check("cron", level, text, cure) for level, text, cure in cron.check(settings.workspace)]


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


def _locks(settings: Settings) -> list[Check]:
    return [Check("locks", *locks.check(settings.workspace))]


def _clock(settings: Settings) -> list[Check]:
    """A clock that was set back makes ages and retention wrong: compare it with the newest file."""
    newest = max(
        (path.stat().st_mtime for path in (settings.workspace / "sessions").glob("*.jsonl")), default=0.0
    )
    ahead_s = newest - datetime.now(UTC).timestamp()
    if ahead_s > STUCK_S:
        text = f"a transcript was written {ahead_s:.0f} s in the future"
        return [Check("clock", "warn", text, "set the clock")]
    leapt = read_state(settings.state / "retention.json").get("leapt")
    if leapt:
        text = f"it leapt to {leapt}: retention deletes nothing for a week"
        return [Check("clock", "warn", text, "set the clock; if it is right, there is nothing to do")]
    return [Check("clock", "ok", datetime.now(UTC).isoformat(timespec="seconds"))]


def _transcripts(settings: Settings) -> list[Check]:
    problems = asyncio.run(_verify(settings))
    cure = "chat-gateway sessions verify --repair"
    return [
        Check("transcripts", "warn", f"{problem['file']}: {problem['problem']}", cure) for problem in problems
    ] or [Check("transcripts", "ok", "all can be read in full")]


async def _verify(settings: Settings) -> list[dict[str, Any]]:
    store = Store(settings.workspace, zone=settings.zone)
    try:
        return await checking.verify(store)
    finally:
        await store.aclose()


def _instructions(settings: Settings) -> list[Check]:
    """Name the playbooks and skills that no model will see."""
    workspace = settings.workspace
    library = Library(workspace)
    try:
        bad = list(library.problems())
    finally:
        library.close()
    if not bad:
        return [Check("instructions", "ok", "all playbooks and skills can be read")]
    cure = "correct the lines between --- at its head; docs/context.md shows them"
    return [
        Check("instructions", "warn", f"{one.path.relative_to(workspace)} is skipped: {one.problem}", cure)
        for one in bad
    ]


def _media(settings: Settings) -> list[Check]:
    """Say how much people's files take, with a warning from ``MEDIA_MANY_BYTES`` on."""
    size = media_bytes(Layout(settings.workspace))
    text = f"{size / 2**20:.0f} MB in media/"
    if size <= MEDIA_MANY_BYTES:
        return [Check("media", "ok", text)]
    cure = "set session.retention_days, or sessions clear KEY --everything: files go with their sessions"
    return [Check("media", "warn", text, cure)]


_CONTENTS: dict[str, Look] = {
    "form": lambda settings: [Check("form", *form.check(settings.workspace))],
    "machine": _machine,
    "media": _media,
    "locks": _locks,
    "clock": _clock,
    "transcripts": _transcripts,
    "memory": _memory,
    "instructions": _instructions,
    "cron": _jobs,
    "erasures": _erasures,
}
