"""``trace`` and ``usage``: the life of one message, and what models cost, daemon or not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, tzinfo
from typing import Any

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.disk.local_files import local_state
from session.models.usage_report import MOST_DAYS, report

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_written_tokens")
# What a line of the table shows apart.
_SHOWN = ("at", "step", "words", "source")


def trace(args: argparse.Namespace) -> int:
    """Print what became of a message, step by step; exit 1 where nothing tells of it."""
    settings = settings_of(args)
    found = attach.complete(_traced(settings, args.id, args.key))
    if args.json:
        output.document(found)
        return 0
    for line in _lines(found, settings.zone):
        output.shown(line)
    return 0


def usage(args: argparse.Namespace) -> int:
    """Print turns, tokens and cost of the last days."""
    if args.days > MOST_DAYS:
        raise GatewayError(f"usage is kept for {MOST_DAYS} days", hint=f"--days {MOST_DAYS}")
    settings = settings_of(args)
    found = report(
        settings.state / "usage", today=datetime.now(UTC).date(), days=args.days, key=args.key or ""
    )
    if args.json:
        output.document(found)
        return 0
    found["days"] = [day for day in found["days"] if day["turns"] or day["calls"]]
    for name, title in (("days", "day"), ("models", "model"), ("people", "person"), ("chats", "key")):
        if found[name]:
            rows = [{**row, "cost": output.cost(row)} for row in found[name]]
            output.rows(rows, (title, "turns", "calls", *_TOKENS, "cost"))
            output.data("")
    total = found["total"]
    calls = f"{output.counted(total['calls'], 'background call')} (titles, summaries, memory)"
    output.shown(
        f"{found['from']} to {found['to']}: {output.counted(total['turns'], 'turn')}, {calls}, "
        f"{output.spent(total)}"
    )
    return 0


async def _traced(settings: Settings, message_id: str, key: str | None) -> dict[str, Any]:
    """Ask every daemon, since the line of the message's chat is in one of them; without one, the files."""
    async with attach.daemons(settings) as clients:
        if clients:
            return _joined(*await _asked(clients, message_id, key))
    # A verb that a daemon answers starts sooner without the session side in this process.
    from gateway.service.trace import Tracer

    async with AsyncExitStack() as stack:
        mailbox, unasked = None, "there is no queue yet"
        if not settings.broker.embedded or (local_state(settings.state) / "queue.db").exists():
            try:
                mailbox = await stack.enter_async_context(attach.queue(settings))
            except* GatewayError as errors:
                unasked = str(attach.first(errors))
        return await Tracer(settings, mailbox=mailbox, unasked=unasked).trace(message_id, key)


async def _asked(
    clients: Sequence[Any], message_id: str, key: str | None
) -> tuple[list[dict[str, Any]], Exception | None]:
    found: list[dict[str, Any]] = []
    refused: Exception | None = None
    for client in clients:
        try:
            found.append(await client.trace(message_id, key, alone=True))
        except GatewayError as error:
            refused = error
    return found, refused


def _joined(found: list[dict[str, Any]], refused: Exception | None) -> dict[str, Any]:
    if not found:
        assert refused is not None
        raise refused
    from gateway.service.trace import joined

    return joined(found)


def _lines(found: Mapping[str, Any], zone: tzinfo) -> Iterator[str]:
    yield f"{found['id']} of {found['key'] or 'an unknown chat'}: {found['words']}"
    for step in found["steps"]:
        at = datetime.fromisoformat(step["at"]).astimezone(zone) if step["at"] else None
        time = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}" if at is not None else "-" * 23
        more = ", ".join(f"{name} {_value(value)}" for name, value in step.items() if name not in _SHOWN)
        yield f"{time}  {step['step']:<10} {step['words']}{f' ({more})' if more else ''}"
    for gap in found["unknown"]:
        yield f"unknown: {gap}"


def _value(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
