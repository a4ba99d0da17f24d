"""``cron list|add|remove|enable|disable|run``: what is asked by the clock."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, tzinfo
from typing import Any

from channels.cron.job import BadJob, CronJob, Row, new_row
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import BadSchedule, asked, in_words
from gateway.app.served import served
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.agents import no_agent
from gateway.config.settings import Settings
from gateway.errors import MailboxDown, Unreachable
from gateway.outbound.unserved import cure_of
from gateway.service.zones import zone_for

USAGE = 2
COLUMNS = ("id", "name", "schedule", "next_run", "last_run", "status", "session", "agent", "owner", "to")


def list_(args: argparse.Namespace) -> int:
    """Print one row for each job, those that run next first; then what cannot run, and why."""
    settings = settings_of(args)
    contents = _file(settings).read()
    rows = contents.rows(datetime.now(UTC))
    if args.json:
        output.document(rows)
        return 0
    sound = [row for row in rows if "problem" not in row]
    bad = [row for row in rows if "problem" in row]
    words = {job.id: in_words(job.schedule, settings.zone) for job in contents.jobs.values()}
    output.rows([_shown(row, settings.zone, words, contents.jobs[row["id"]]) for row in sound], COLUMNS)
    if bad:
        output.words(f"{output.counted(len(bad), 'job')} cannot run:")
        output.rows(bad, ("id", "problem"))
    if not rows:
        output.words("no jobs; add one: chat-gateway cron add --every 2h --message TEXT")
    return 0


def add(args: argparse.Namespace) -> int:
    """Add a job and print its id."""
    settings = settings_of(args)
    now, agent = datetime.now(UTC), args.agent or ""
    if unknown := no_agent(settings, agent):
        output.error(unknown, "chat-gateway config show lists the agents")
        return USAGE
    zone = attach.complete(zone_for(settings, args.to or "", agent))
    try:
        schedule = asked(
            every=args.every,
            expr=args.cron,
            tz=args.tz,
            at=args.at,
            heartbeat=args.heartbeat,
            zone=zone,
            now=now,
        )
        row = new_row(
            schedule,
            args.message or "",
            at=now,
            to=args.to or "",
            name=args.name or "",
            policy=args.missed,
            in_chat=args.session == "chat",
            heartbeat=args.heartbeat is not None,
            agent=agent,
        )
    except (BadSchedule, BadJob) as error:
        output.error(str(error), error.hint)
        return USAGE
    file = _file(settings)
    job = file.add(row)
    _say_kept(file)
    _say_unserved(settings, job.answer_to)
    if args.json:
        output.document(next(each for each in file.read().rows(now) if each.get("id") == job.id))
        return 0
    output.data(job.id)
    chat = f", answers go to {job.answer_to}" if job.answer_to else f", answers stay in {job.key}"
    if job.in_chat:
        chat = f", runs in the session of {job.key}"
    output.words(f"{in_words(job.schedule, zone)}, next run {_next(job.row, zone)}{chat}")
    return 0


def remove(args: argparse.Namespace) -> int:
    """Remove a job for good; its conversation stays."""
    file = _file(settings_of(args))
    file.remove(args.id)
    _say_kept(file)
    output.words(f"job {args.id} is deleted")
    return 0


def enable(args: argparse.Namespace) -> int:
    """Switch a job on."""
    settings = settings_of(args)
    file = _file(settings)
    job = file.enable(args.id)
    _say_kept(file)
    output.words(f"job {args.id} is enabled, next run {_next(job.row, settings.zone)}")
    return 0


def disable(args: argparse.Namespace) -> int:
    """Switch a job off."""
    file = _file(settings_of(args))
    file.enable(args.id, False)
    _say_kept(file)
    output.words(f"job {args.id} is disabled")
    return 0


def run(args: argparse.Namespace) -> int:
    """Run a job now, beside its schedule."""

    async def work(settings: Settings) -> dict[str, Any]:
        async with attach.daemon(settings) as client:
            if client is not None:
                return await client.run_job(args.id)
        # `cron` starts sooner without the scheduler where a daemon answers, or for another verb.
        from channels.cron.by_hand import run_now
        from gateway.app.heartbeat import Texts
        from gateway.inbound.intake import Intake

        async with attach.queue(settings) as mailbox:
            try:
                return await run_now(_file(settings), args.id, Intake(mailbox).accept, Texts(settings))
            except MailboxDown as error:
                raise Unreachable(f"the queue: {error}", hint="chat-gateway doctor") from None

    settings = settings_of(args)
    done = attach.complete(work(settings))
    if args.json:
        output.document(done)
    else:
        job = _file(settings).read().jobs.get(args.id)
        own = ""
        if job is not None and job.agent and job.in_chat:
            own = f", or in {job.own_key} if another agent has that chat"
        output.words(f"{done['id']} is queued; the answer will appear in {done['key']}{own}")
    return 0


def _file(settings: Settings) -> CronFile:
    return CronFile(settings.workspace, zone=settings.zone)


def _say_kept(file: CronFile) -> None:
    if file.kept is not None:
        output.words(f"cron/jobs.json was damaged; its original is kept as {file.kept}")


def _say_unserved(settings: Settings, answer_to: str | None) -> None:
    """Tell at once of answers that nobody would take."""
    channel = (answer_to or "").partition(":")[0]
    if channel and channel not in served(settings):
        output.words(f"no channel named {channel} is enabled, so answers will wait: {cure_of(channel)}")


def _shown(row: Row, zone: tzinfo, words: dict[str, str], job: CronJob) -> Row:
    state = row["state"] if isinstance(row.get("state"), dict) else {}
    status = state.get("lastStatus") or ""
    if state.get("lastError"):
        status = f"{status}: {state['lastError']}"
    if row.get("enabled", True) is False:
        status = f"off, {status}" if status else "off"
    return {
        "id": row["id"],
        "name": row.get("name"),
        "schedule": words[row["id"]],
        "next_run": _local(row["next_run_at"], zone),
        "last_run": _local(state.get("lastRunAtMs"), zone),
        "status": status,
        "to": job.answer_to,
        "session": "chat" if job.in_chat else "job",
        "agent": job.agent,
        "owner": (job.owner.name or job.owner.id or job.owner.chat) if job.owner is not None else "",
    }


def _next(row: Any, zone: tzinfo) -> str:
    return _local(row["state"]["nextRunAtMs"], zone) or "never"


def _local(at: object, zone: tzinfo) -> str:
    """Write an instant on the clocks of the configured zone, with its name; empty where there is none."""
    try:
        if isinstance(at, str):
            moment = datetime.fromisoformat(at)
        elif isinstance(at, int) and at:
            moment = datetime.fromtimestamp(at / 1000, UTC)
        else:
            return ""
        return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError, OSError):
        return ""
