"""The checks of what answers over a network or is another process: models, platforms, MCP servers, tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

import durable
from channels.plugins import BUILT_IN, enabled
from channels.tables import Platform
from gateway.app import wiring_mcp
from gateway.app.wiring_model import build_embedder, model_warnings, opened_model, try_model
from gateway.app.wiring_tools import MCP_CURE, MCP_MISSING, lacking, lacks_mcp
from gateway.config.agents import scopes_of
from gateway.config.settings import Settings, effective_history
from gateway.doctor.finding import (
    DISK_CURE,
    GRACE_S,
    LOCAL_S,
    Check,
    bounded,
    findings,
    in_own_loop,
    patient,
)
from gateway.doctor.workspace import untried
from session.context.embeddings import LIMIT_S
from session.disk.threads import start_thread
from session.errors import ModelAway, ModelRefused, SessionError
from session.mcp.listing import shown, withheld
from session.mcp.server import Server
from session.mcp.spec import ServerFailed
from session.models.model import Embedder, Model
from session.tools.sandbox import sandbox_here

# A model may think before its first word.
MODEL_S = 60.0
EMBEDDING_S = 30.0


async def check_model(settings: Settings) -> list[Check]:
    """Say whether the model answers; its request alone is timed."""
    async with opened_model(settings) as model:
        return [await _model_asked(settings, model)]


async def _model_asked(settings: Settings, model: Model) -> Check:
    if model.plain:
        return Check(
            "model", "warn", "echo only repeats each message", 'set model.name, e.g. "openai/gpt-4.1-mini"'
        )
    try:
        async with asyncio.timeout(MODEL_S):
            await try_model(model)
    except ModelAway as error:
        return Check("model", "fail", _said(settings, error), error.hint or "chat-gateway config show")
    except ModelRefused as error:
        return Check("model", "fail", _said(settings, error), error.hint or "correct model.name")
    except SessionError as error:
        cure = error.hint or "try again; if it fails again, choose another model: docs/models.md"
        return Check("model", "warn", _said(settings, error), cure)
    except TimeoutError:
        return Check(
            "model",
            "fail",
            f"{settings.model.name}: no answer in {MODEL_S:g} s",
            "check model.api_base",
        )
    notes: list[tuple[str, str]] = getattr(model, "notes", list)()
    # The request may have met what the configuration already shows.
    warnings = await asyncio.to_thread(model_warnings, settings)
    found = [*notes, *(each for each in warnings if each[1] not in {cure for _, cure in notes})]
    if found:
        texts, cures = zip(*found, strict=True)
        said = "; ".join((f"{settings.model.name} answers", *texts))
        return Check("model", "warn", said, "; ".join(dict.fromkeys(cures)))
    return Check("model", "ok", f"{settings.model.name} answers")


def _said(settings: Settings, error: SessionError) -> str:
    name, text = settings.model.name, str(error)
    return text if text.startswith(name) else f"{name}: {text}"


async def check_embedding(
    settings: Settings, *, clock: Callable[[], float] = durable.monotonic
) -> list[Check]:
    """Return how it stands; nothing where no embedding model is set and none is missed.

    ``clock`` says how long the answer took, in seconds.
    """
    embedder = build_embedder(settings, timeout_s=EMBEDDING_S)
    if embedder is not None:
        return [await _embedder_asked(embedder, settings.model.embedding, clock)]
    if settings.model.name == "echo" or effective_history(settings).mode != "relevant":
        return []
    text = "not set: history.mode is relevant, but the newest exchanges are sent instead of the most relevant"
    return [Check("embedding", "warn", text, 'set model.embedding, e.g. "openai/text-embedding-3-small"')]


async def _embedder_asked(embedder: Embedder, name: str, clock: Callable[[], float]) -> Check:
    await embedder.warm()
    began = clock()
    try:
        async with asyncio.timeout(EMBEDDING_S):
            await embedder.embed(["Say ok."])
    except ModelAway as error:
        return Check("embedding", "fail", f"{name}: {error}", error.hint or "chat-gateway config show")
    except SessionError as error:
        return Check("embedding", "fail", f"{name}: {error}", error.hint or "check model.embedding")
    except TimeoutError:
        return Check("embedding", "fail", f"{name}: no answer in {EMBEDDING_S:g} s", "check model.api_base")
    finally:
        await embedder.close()
    took_s = clock() - began
    if took_s > LIMIT_S:
        text = f"{name} took {took_s:.1f} s; a turn waits at most {LIMIT_S:g} s"
        return Check("embedding", "warn", text, "use a faster one")
    return Check("embedding", "ok", f"{name} answers")


ASKED_S: Final = 8.0
APART_S: Final = 30.0
_REFUSED: Final = (401, 403, 404)


async def check_platforms(settings: Settings) -> Sequence[Check]:
    """Say whether each takes its token, and how far its clock is away; all are asked at once."""
    own = {kind.name for kind in BUILT_IN}
    asked = [(kind.name, table) for kind, table in enabled(settings.channels) if kind.name in own]
    found = await asyncio.gather(*(_platform_asked(name, table) for name, table in asked))
    return [finding for findings in found for finding in findings]


async def _platform_asked(name: str, table: Platform) -> list[Check]:
    part = f"{name} token"
    address, headers = _request(name, table)
    try:
        async with asyncio.timeout(ASKED_S), httpx.AsyncClient(timeout=ASKED_S) as client:
            answer = await client.get(address, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        # Its own words may hold the address, which holds the token.
        text = f"{name} does not answer: {type(error).__name__}"
        return [
            Check(part, "warn", text, "check the network, the proxy, and the address in the configuration")
        ]
    return [_token(name, answer), *_platform_clock(name, answer)]


def _request(name: str, table: Platform) -> tuple[str, dict[str, str]]:
    token = table.token.get_secret_value()
    if name == "telegram":
        return f"{getattr(table, 'base_url')}{token}/getMe", {}  # noqa: B009 - a table of its own kind
    agent = "DiscordBot (chat-gateway, 1)"
    base = str(getattr(table, "api_base_url")).rstrip("/")  # noqa: B009 - as above
    return f"{base}/users/@me", {"Authorization": f"Bot {token}", "User-Agent": agent}


def _token(name: str, answer: httpx.Response) -> Check:
    part = f"{name} token"
    if answer.status_code in _REFUSED:
        text = f"{name} rejects it (HTTP {answer.status_code})"
        return Check(part, "fail", text, f"renew channels.{name}.token; docs/{name}.md says where to get one")
    if answer.status_code != 200:
        return Check(part, "warn", f"{name} answers with HTTP {answer.status_code}", "try again later")
    return Check(part, "ok", f"{name} accepts it")


def _platform_clock(name: str, answer: httpx.Response) -> list[Check]:
    try:
        there = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError):
        return []
    apart_s = (durable.now() - there.astimezone(UTC)).total_seconds()
    if abs(apart_s) <= APART_S:
        return [Check("clock", "ok", f"within {APART_S:g} s of {name}'s")]
    way = "ahead of" if apart_s > 0 else "behind"
    cure = "set the clock: timedatectl set-ntp true"
    return [Check("clock", "warn", f"{abs(apart_s):.0f} s {way} {name}'s", cure)]


# The trial of the sandbox has a limit of its own.
TRIAL_S: Final = 30.0


async def check_tools(settings: Settings, *, local_s: float = LOCAL_S) -> list[Check]:
    """Return what is found; nothing where no such tool is enabled or named."""
    # Programs are looked for in the folders of PATH, any of which may hang.
    within_s = patient(TRIAL_S, local_s)
    looking = in_own_loop("tools", lambda: _tools_found(settings), within_s=within_s)
    cure = "check the folders in PATH and the temporary folder"
    return await findings(
        "tools", looking, within_s=within_s, asked="the sandbox", cure=cure, grace_s=GRACE_S
    )


async def _tools_found(settings: Settings) -> list[Check]:
    findings = [Check("tools", "warn", text, cure) for text, cure in lacking(settings)]
    if settings.tools.shell.enabled:
        findings.append(untried("tools", settings.workspace) or await _sandbox(settings))
    return findings


async def _sandbox(settings: Settings) -> Check:
    try:
        found = await sandbox_here()
    except SessionError as error:
        return Check("tools", "fail", f"shell refuses every command: {error}", error.hint)
    network = "with the network" if settings.tools.shell.network else "without network"
    return Check("tools", "ok", f"{found.name} confines commands, {network}")


# To start, to list its tools and to end it have limits of their own, which name what was waited for.
SERVER_S: Final = 75.0


async def check_mcp(settings: Settings, *, local_s: float = LOCAL_S) -> Sequence[Check]:
    """Return a finding for each server, all asked at once; nothing is recorded."""
    if not settings.mcp:
        return []
    if lacks_mcp(settings):
        return [Check("mcp", "fail", MCP_MISSING, MCP_CURE)]
    building = start_thread(lambda: _built(settings), name="doctor-mcp")
    records = settings.state / "mcp"
    servers = await bounded(
        "mcp", building, within_s=local_s, asked=str(records), cure=DISK_CURE, where=records
    )
    if isinstance(servers, Check):
        return [servers]
    within_s = patient(SERVER_S, local_s)
    return await asyncio.gather(*(_checked(server, untried, within_s) for server, untried in servers))


def _built(settings: Settings) -> list[tuple[Server, Check | None]]:
    servers = wiring_mcp.build_servers(settings, scopes_of(settings)).servers
    return [
        (each, untried(f"mcp.{each.spec.name}", settings.workspace) if each.spec.command else None)
        for each in servers
    ]


async def _checked(server: Server, untried: Check | None, within_s: float) -> Check:
    if untried is not None:
        return untried
    name = f"mcp.{server.spec.name}"
    asking = asyncio.create_task(_server_asked(name, server), name=f"doctor {name}")
    cure = "check its program or address, and the disk with its files"
    return await bounded(name, asking, within_s=within_s, asked="this server", cure=cure)


async def _server_asked(name: str, server: Server) -> Check:
    try:
        record, problems, protocol = await server.look()
    except ServerFailed as error:
        cure = error.hint or error.cure or "check its table in the configuration"
        return Check(name, "fail", error.detail, cure)
    except SessionError as error:
        return Check(name, "fail", str(error), error.hint or "check its table in the configuration")
    if problems:
        return Check(name, "warn", withheld(problems), "report it to the author of the server")
    if record.changes:
        kind, tool, _ = record.changes[0]
        text = f"{len(record.changes)} of its tools changed since approval, first: {kind} {shown(tool)}"
        cure = f"chat-gateway mcp list, then chat-gateway mcp approve {server.spec.name}"
        return Check(name, "warn", text, cure)
    return Check(name, "ok", f"{(n := len(record.usable))} tool{'s' * (n != 1)}, protocol {protocol}")
