"""``status``: lanes, queue depths, parts, tokens and cost, of the running daemon or of the resting state."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.errors import Unreachable
from gateway.settings import Settings


def status(args: argparse.Namespace) -> int:
    """Print what goes on; without a daemon, what waits; exit 69 where a daemon's queue does not answer."""
    settings = settings_of(args)
    found = attach.complete(_status(settings))
    if args.json:
        output.document(found)
    else:
        for line in _lines(found):
            output.data(line)
        if not found["running"]:
            output.words("no daemon runs in this workspace: chat-gateway run")
    if found["queues"] is None:
        cure = f"start RabbitMQ, or correct broker.url ({settings.broker.shown_url})"
        output.error(
            "the queue does not answer; the daemon runs, and goes on once it does",
            "chat-gateway doctor" if settings.broker.embedded else cure,
        )
        return Unreachable.exit_code
    return 0


async def _status(settings: Settings) -> dict[str, Any]:
    async with attach.daemon(settings) as client:
        if client is not None:
            return {"running": True, "url": client.url, **await client.status()}
    return {
        "running": False,
        "url": None,
        "ready": False,
        "model": settings.model.name,
        "lanes": [],
        "queues": await _depths(settings),
        "parts": {},
        "usage_today": await _usage_today(settings),
    }


async def _usage_today(settings: Settings) -> dict[str, Any]:
    """Read what the daemons of today wrote, whatever the model is now."""
    from gateway.room import build_spending, spent_today
    from session.store import Store

    store = Store(settings.workspace, zone=settings.zone)
    try:
        return await spent_today(build_spending(settings, store, plain=False))
    finally:
        await store.aclose()


async def _depths(settings: Settings) -> dict[str, Any]:
    if settings.broker.embedded and not (settings.workspace / "state" / "queue.db").exists():
        return {}
    async with attach.queue(settings) as mailbox:
        return {box: depth.as_dict() for box, depth in (await mailbox.depths()).items()}


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    if found["running"]:
        state = "ready" if found["ready"] else "not ready"
        yield f"daemon: {state}, {found['url']}, version {found['version']}, process {found['pid']}"
    yield f"model: {found['model']}"
    for name, part in found["parts"].items():
        error = f" ({part['error']})" if part.get("error") else ""
        yield f"{name}: {'up' if part['up'] else 'down'}{error}"
    for box, depth in (found["queues"] or {}).items():
        age = f", oldest {_age(depth['oldest_at'])}" if depth["count"] and depth["oldest_at"] else ""
        yield f"{box}: {depth['count']}{age}"
    for lane in found["lanes"]:
        running = f"running for {lane['running_s']} s" if lane["running_s"] is not None else "not running"
        yield f"lane {lane['key']}: {running}, {lane['waiting']} waiting"
    usage = found["usage_today"]
    if usage:
        tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
        yield f"today: {usage['turns']} turns, {tokens}, {usage['cost_usd']:.4f} USD"


def _age(oldest_at: str) -> str:
    seconds = max((datetime.now(UTC) - datetime.fromisoformat(oldest_at)).total_seconds(), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
