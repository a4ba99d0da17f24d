"""``status``, ``trace`` and ``usage``: what runs and waits, a message's steps, what models cost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

import click

import durable
from gateway.cli import attach, output
from gateway.cli.config import name_place, settings_of
from gateway.cli.root import COUNT, GlobalOptions, MessageId, Verb, as_json, complete_keys
from gateway.errors import GatewayError, Unreachable
from gateway.outbound.standing import standing
from gateway.outbound.unserved import cure_of, in_words, unserved

if TYPE_CHECKING:
    from gateway.config.settings import Settings


@click.command(cls=Verb)
@click.option(
    "--alive",
    is_flag=True,
    help="print nothing; exit 0 if a gateway on this machine is ready, else 69 (for health checks)",
)
@as_json
def status(opts: GlobalOptions, alive: bool, as_json: bool) -> int:
    """Show what runs, what waits and today's cost."""
    if alive:
        return asyncio.run(_alive(settings_of(opts)))
    settings = settings_of(opts)
    found = asyncio.run(_status(settings))
    if as_json:
        output.document(found)
    else:
        name_place(opts, settings, write=output.shown)
        for line in _lines(found):
            output.shown(line)
        if not found["running"] and not found["ending"]:
            output.words(f"the gateway is not running on {settings.workspace}; start it: chat-gateway run")
    if found["queues"] is None:
        cure = f"start RabbitMQ, or correct broker.url ({settings.broker.shown_url})"
        output.error(
            "the queue does not answer; the gateway is running and continues once it does",
            "chat-gateway doctor" if settings.broker.embedded else cure,
        )
        return Unreachable.exit_code
    return 0


async def _alive(settings: Settings) -> int:
    """Say by the exit code whether a daemon became ready here and goes on; silent where it does."""
    from gateway.app.daemons import DaemonRegistry

    running = DaemonRegistry(settings.workspace).running()
    # A process of role channels serves no HTTP; a worker is nothing without the one that started it.
    if any(not one.url and one.role != "worker" for one in running):
        return 0
    async with attach.daemon(settings) as client:
        if client is not None:
            return 0
    words = "the gateway does not answer" if running else "no gateway is ready on this workspace"
    output.error(words, "chat-gateway doctor")
    return Unreachable.exit_code


async def _status(settings: Settings) -> dict[str, Any]:
    from session.disk.layout import Layout
    from session.store.media import media_bytes
    from session.subagents.records import shown as subagents_shown

    async with attach.daemon(settings) as client:
        # It may end just now.
        with contextlib.suppress(Unreachable):
            if client is not None:
                found = {"url": client.url, **await client.status()}
                found["lanes"] = [{**lane, "pid": found["pid"]} for lane in found["lanes"]]
                return {"running": True, **found, **_of_workspace(settings)}
    return {
        "running": False,
        "url": None,
        "ready": False,
        "model": settings.model.name,
        "lanes": [],
        "subagents": subagents_shown(settings.state),
        **await _queues(settings),
        "parts": _platforms(settings),
        **_of_workspace(settings),
        **await _usage_today(settings),
        "media_bytes": media_bytes(Layout(settings.workspace)),
    }


def _of_workspace(settings: Settings) -> dict[str, Any]:
    """Say what all processes of a workspace share: which there are, and which calls wait for a person."""
    from gateway.app.daemons import DaemonRegistry
    from session.approvals.files import ApprovalFiles

    registry = DaemonRegistry(settings.workspace)
    daemons = registry.running()
    shown = ("id", "key", "tool", "asked_at", "expires_at")
    waiting = [approval.as_dict() for approval in ApprovalFiles(settings.state).waiting()]
    return {
        "workspace": str(settings.workspace),
        "configuration": str(settings.file.absolute()) if settings.file is not None else None,
        "daemons": [
            {"pid": one.pid, "role": one.role, "url": one.url, "started_at": one.started_at}
            for one in daemons
        ],
        "ending": [one.pid for one in registry.ending()],
        "drain_s": settings.limits.drain_s,
        "approvals": [{name: row[name] for name in shown} for row in waiting],
    }


def _platforms(settings: Settings) -> dict[str, Any]:
    from channels.plugins import enabled

    return {kind.name: standing(settings.state, kind.name) for kind, _ in enabled(settings.channels)}


async def _usage_today(settings: Settings) -> dict[str, Any]:
    # `status` starts twice as fast without the session side where a daemon answers.
    from gateway.app.spending import build_spending, spent_today
    from session.store.store import Store

    store = Store(settings.workspace, zone=settings.zone)
    try:
        spending = build_spending(settings, store)
        return {"usage_today": await spent_today(spending), "limits": await spending.shown()}
    finally:
        await store.aclose()


async def _queues(settings: Settings) -> dict[str, Any]:
    from channels.plugins import served
    from gateway.app.daemons import DaemonRegistry
    from gateway.app.wiring_broker import RepliedChannels

    # One that is ending holds the embedded queue until its last turn has ended.
    held = settings.broker.embedded and DaemonRegistry(settings.workspace).ending()
    if held or not attach.has_queue(settings):
        return {"queues": {}, "unserved": []}
    async with attach.queue(settings) as mailbox:
        depths = await mailbox.depths(RepliedChannels(settings.state).names())
    return {
        "queues": {box: depth.as_dict() for box, depth in depths.items()},
        "unserved": unserved(depths, served(settings.channels)),
    }


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    if found["running"]:
        state = "ready" if found["ready"] else "not ready"
        yield f"gateway: {state}, {found['url']}, version {found['version']}, process {found['pid']}"
    for row in found.get("daemons") or ():
        yield f"process {row['pid']}: role {row['role']}, started {row['started_at'][:19]}Z"
    for pid in found["ending"]:
        yield f"process {pid}: shutting down; answers in progress have up to {found['drain_s']:g} s"
    yield f"model: {found['model']}"
    for row in found.get("agents") or ():
        yield f"agent {row['name']}: {row['model']}"
    for name, part in found["parts"].items():
        error = f" ({part['error']})" if part.get("error") else ""
        yield f"{name}: {'up' if part['up'] else 'down'}{error}"
    for box, depth in (found["queues"] or {}).items():
        age = f", oldest {_age(depth['oldest_at'])}" if depth["count"] and depth["oldest_at"] else ""
        yield f"{box}: {output.counted(depth['count'], 'message')}{age}"
    for row in found.get("workers") or ():
        yield _worker(row)
    # A daemon of an older version may answer.
    if held := found.get("in_memory"):
        yield _in_memory(held)
    yield from _notes(found.get("memory") or {})
    for row in found.get("unserved", []):
        yield f"{in_words(row, durable.now())}; {cure_of(row['channel'])}"
    for lane in found["lanes"]:
        running = f"answering for {lane['running_s']} s" if lane["running_s"] is not None else "idle"
        asking = f", {lane['asking']} needs approval" if lane.get("asking") else ""
        yield f"chat {lane['key']}: {running}, {lane['waiting']} waiting{asking}"
    for row in found.get("approvals") or ():
        yield f"approval {row['id']}: {row['tool']} in {row['key']}, expires {row['expires_at'][:19]}Z"
    for row in found.get("subagents") or ():
        yield f"subagent {row['key']}: started by {row['parent']} at {row['since'][:19]}Z"
    if found.get("media_bytes"):
        yield f"media: {found['media_bytes'] / 2**20:.1f} MB of uploads"
    usage = found["usage_today"]
    if usage:
        yield f"today: {output.counted(usage['turns'], 'turn')}, {output.spent(usage)}"
    for row in found.get("limits") or ():
        yield _limit(row)


def _worker(row: Mapping[str, Any]) -> str:
    state = f"process {row['pid']}" if row["up"] else "down"
    numbers = [str(each) for each in row["partitions"]]
    few = [*numbers[:2], "…", numbers[-1]] if len(numbers) > 4 else numbers
    return f"worker {row['number']}: {state}, partitions {', '.join(few)}"


def _in_memory(held: Mapping[str, Any]) -> str:
    size = f"{held['bytes'] / 2**20:.1f} of {held['max_bytes'] / 2**20:g} MB"
    return f"in memory: {output.counted(held['letters'], 'message')}, {size}"


def _notes(memory: Mapping[str, Any]) -> Iterator[str]:
    """Say what happened to notes since the daemon started that their people should look at."""
    counts = memory.get("consolidated") or {}
    if times := counts.get("unmerged"):
        tries = output.counted(times, "time")
        yield f"notes: MEMORY.md could not be shortened ({tries}); raise memory.max_kb, or shorten it by hand"
    if lost := counts.get("headings_lost"):
        headings = output.counted(lost, "heading")
        yield f"notes: {headings} left out of MEMORY.md; chat-gateway memory history KEY shows which"


def _limit(row: Mapping[str, Any]) -> str:
    who = f" for {row['who']}" if row["who"] else ""
    figures = {name: _figure(row, name) for name in ("left", "of", "reserved")}
    reserved = f", {figures['reserved']} reserved" if row["reserved"] else ""
    left = f"{figures['left']} of {figures['of']} left until midnight UTC"
    return f"limits.{row['limit']}{who}: {left}{reserved}"


def _figure(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:,.0f}" if row["limit"] == "tokens_per_day" else f"{row[name]:.4f} USD"


def _age(oldest_at: str) -> str:
    seconds = max((durable.now() - datetime.fromisoformat(oldest_at)).total_seconds(), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


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
    shell_complete=complete_keys,
)
@as_json
def trace(opts: GlobalOptions, id: str, key: str | None, as_json: bool) -> None:
    """Show what happened to one message, step by step.

    Reads queue, transcript, journal and send log. Exit 1 if the message is unknown.
    """
    settings = settings_of(opts)
    found = asyncio.run(_traced(settings, id, key))
    if as_json:
        output.document(found)
        return
    for line in _trace_lines(found, settings.zone):
        output.shown(line)


@click.command(cls=Verb)
@click.option(
    "--days", metavar="N", type=COUNT, default=30, show_default=True, help="how many days, at most 35"
)
@click.option("--key", metavar="KEY", help="only this chat", shell_complete=complete_keys)
@as_json
def usage(opts: GlobalOptions, days: int, key: str | None, as_json: bool) -> None:
    """Show tokens and cost by day, model, person and chat."""
    from session.models.usage_rows import KEPT_DAYS

    if days > KEPT_DAYS:
        raise GatewayError(f"usage is kept for {KEPT_DAYS} days", hint=f"--days {KEPT_DAYS}")
    found = asyncio.run(_spent(settings_of(opts), days, key or ""))
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
    async with attach.daemon(settings) as client:
        if client is not None:
            return await client.trace(message_id, key)
    # A verb that a daemon answers starts sooner without the session side in this process.
    from gateway.service.trace import Tracer

    async with AsyncExitStack() as stack:
        mailbox, unasked = None, "there is no queue yet"
        if attach.has_queue(settings):
            try:
                mailbox = await stack.enter_async_context(attach.queue(settings))
            except GatewayError as error:
                unasked = str(error)
        return await Tracer(settings, mailbox=mailbox, unasked=unasked).trace(message_id, key)


def _trace_lines(found: Mapping[str, Any], zone: tzinfo) -> Iterator[str]:
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
