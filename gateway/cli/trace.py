"""``trace`` and ``usage``: the life of one message, and what models cost, daemon or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

import click

import durable
from gateway.cli import attach, known, output
from gateway.cli.config import settings_of
from gateway.cli.root import COUNT, GlobalOptions, MessageId, Verb, as_json
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config.settings import Settings

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_written_tokens")
# What a line of the table shows apart.
_SHOWN = ("at", "step", "words", "source")


@click.command(cls=Verb)
@click.argument(
    "id", metavar="ID", type=MessageId(), help="its id, from `sessions show`, `parked list` or the log"
)
@click.option(
    "--key",
    metavar="KEY",
    help="its chat: faster, and required if several chats have this id",
    shell_complete=known.complete_keys,
)
@as_json
def trace(opts: GlobalOptions, id: str, key: str | None, as_json: bool) -> None:
    """Show what happened to one message, step by step.

    Reads queue, transcript, journal and send log. Exit 1 if the message is unknown.
    """
    settings = settings_of(opts)
    found = attach.complete(_traced(settings, id, key))
    if as_json:
        output.document(found)
        return
    for line in _lines(found, settings.zone):
        output.shown(line)


@click.command(cls=Verb)
@click.option(
    "--days", metavar="N", type=COUNT, default=30, show_default=True, help="how many days, at most 35"
)
@click.option("--key", metavar="KEY", help="only this chat", shell_complete=known.complete_keys)
@as_json
def usage(opts: GlobalOptions, days: int, key: str | None, as_json: bool) -> None:
    """Show tokens and cost by day, model, person and chat."""
    from session.models.usage_rows import KEPT_DAYS

    if days > KEPT_DAYS:
        raise GatewayError(f"usage is kept for {KEPT_DAYS} days", hint=f"--days {KEPT_DAYS}")
    found = attach.complete(_spent(settings_of(opts), days, key or ""))
    if as_json:
        output.document(found)
        return
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


async def _spent(settings: Settings, days: int, key: str) -> dict[str, Any]:
    from session.models.usage_rows import report
    from session.store.state import StoreState

    async with aclosing(StoreState(settings.state)) as state:
        return await report(state, today=durable.now().date(), days=days, key=key)


async def _traced(settings: Settings, message_id: str, key: str | None) -> dict[str, Any]:
    """Ask the daemon; without one, look into the files."""
    async with attach.daemon(settings) as client:
        if client is not None:
            return await client.trace(message_id, key)
    # A verb that a daemon answers starts sooner without the session side in this process.
    from gateway.service.trace import Tracer

    async with AsyncExitStack() as stack:
        mailbox, unasked = None, "there is no queue yet"
        if not settings.broker.embedded or (settings.state / durable.STATE_FILE).exists():
            try:
                mailbox = await stack.enter_async_context(attach.queue(settings))
            except* GatewayError as errors:
                unasked = str(attach.first(errors))
        return await Tracer(settings, mailbox=mailbox, unasked=unasked).trace(message_id, key)


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
