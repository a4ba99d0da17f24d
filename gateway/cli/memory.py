"""``memory show|consolidate|facts|forget``: what is remembered of a chat, and what is done with it now."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.app.sessions import SessionServices, build_session_services
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from gateway.errors import GatewayError, Unreachable
from session.background.report import Report
from session.errors import ModelAway
from session.memory.facts import Fact, active
from session.memory.notes import Notes


def show(args: argparse.Namespace) -> int:
    """Print MEMORY.md of the key's scope, and say where its HISTORY.md lies."""

    async def work(settings: Settings) -> tuple[Path, str, str]:
        async with _services(settings) as services:
            scope = await services.scope_with(args.key, args.agent)
            notes = Notes(scope.memory)
            memory, history = notes.memory(), notes.history()
            return notes.history_path, memory.decode("utf-8", "replace"), history.decode("utf-8", "replace")

    path, memory, history = attach.complete(work(settings_of(args)))
    if args.json:
        output.document({"key": args.key, "memory": memory, "history": history})
        return 0
    if memory.strip():
        output.data(memory.rstrip("\n"))
    else:
        output.words(f"no memory of {args.key} yet")
    if history:
        output.words(f"history: {path}")
    return 0


def consolidate(args: argparse.Namespace) -> int:
    """Move old messages into memory at once: those of ended sessions that wait, then the active one's."""

    async def work(settings: Settings) -> Report:
        async with _services(settings) as services:
            if (await services.memory.of_session(args.key, None)).model.plain:
                raise GatewayError(
                    "no language model is configured, and echo cannot write summaries",
                    hint="set model.name in the configuration",
                )
            try:
                return await services.jobs.at_once(args.key)
            except ModelAway as error:
                raise Unreachable(f"the language model is not available: {error}", hint=error.hint) from error

    settings = settings_of(args)
    report = attach.complete(work(settings))
    if args.json:
        output.document({"key": args.key, **asdict(report)})
        return 0
    for line in _said(report, newest=settings.memory.window // 2):
        output.shown(line)
    return 0


def facts(args: argparse.Namespace) -> int:
    """List the facts of the key's scope, oldest first; as JSON the former ones, too."""

    async def work(settings: Settings) -> Sequence[Fact]:
        async with _services(settings) as services:
            return await services.facts.known.facts(await services.scope_with(args.key, args.agent))

    found = attach.complete(work(settings_of(args)))
    if args.json:
        output.document([fact.as_dict() for fact in found])
        return 0
    rows = [{**fact.as_dict(), "text": fact.told} for fact in active(found)]
    output.rows(rows, ("id", "category", "confidence", "text"))
    if not rows:
        output.words(f"no facts are known about {args.key}")
    return 0


def forget(args: argparse.Namespace) -> int:
    """Remove a fact for good, with the former ones that it replaced."""

    async def work(settings: Settings) -> Fact | None:
        async with _services(settings) as services:
            return await services.facts.known.forget(
                args.key, await services.scope_with(args.key, args.agent), args.id
            )

    gone = attach.complete(work(settings_of(args)))
    if gone is None:
        raise GatewayError(
            f"{args.key} has no fact {args.id}", hint=f"chat-gateway memory facts {args.key} lists them"
        )
    output.words(f"deleted: {gone.text}")
    return 0


def _said(report: Report, *, newest: int) -> list[str]:
    if not report.messages:
        return [f"nothing to summarize: the newest {newest} messages stay in the session"]
    calls = output.counted(report.calls, "call")
    lines = [f"{output.counted(report.messages, 'message')} summarized into memory, {calls} of the model"]
    if report.raw:
        lines.append(f"{report.raw} of them copied unchanged, because the model gave no usable answer")
    lines += [
        f"{name}: {before} → {after} bytes"
        for name, before, after in (
            ("MEMORY.md", report.memory_bytes_before, report.memory_bytes),
            ("HISTORY.md", report.history_bytes_before, report.history_bytes),
        )
    ]
    return lines


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[SessionServices]:
    services = build_session_services(settings, status=lambda *_: [])
    try:
        yield services
    finally:
        close: Any = getattr(services.model, "close", None)
        if close is not None:
            await close()
        await services.aclose()
