"""``cron list|add|remove|enable|disable|run``: what is asked by the clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal

import click

import durable
from channels.cron.schedule import BadSchedule, asked, in_words
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions, as_json, complete_jobs, group
from gateway.errors import MailboxDown, Unreachable
from gateway.outbound.unserved import cure_of

if TYPE_CHECKING:
    from channels.cron.jobs import CronJob, Row
    from channels.cron.jobs_file import CronFile
    from gateway.config.settings import Settings

cron = group("cron")
_id = click.argument("id", metavar="ID", help="its id, from `cron list`", shell_complete=complete_jobs)
USAGE = 2
COLUMNS = ("id", "name", "schedule", "next_run", "last_run", "status", "session", "agent", "owner", "to")


@cron.command("list")
@as_json
def list_(opts: GlobalOptions, as_json: bool) -> None:
    """List jobs, next run first."""
    settings = settings_of(opts)
    contents = _file(settings).read()
    rows = contents.rows(durable.now())
    if as_json:
        output.document(rows)
        return
    sound = [row for row in rows if "problem" not in row]
    bad = [row for row in rows if "problem" in row]
    words = {job.id: in_words(job.schedule, settings.zone) for job in contents.jobs.values()}
    output.rows([_shown(row, settings.zone, words, contents.jobs[row["id"]]) for row in sound], COLUMNS)
    if bad:
        output.words(f"{output.counted(len(bad), 'job')} cannot run:")
        output.rows(bad, ("id", "problem"))
    if not rows:
        output.words("no jobs; add one: chat-gateway cron add --every 2h --message TEXT")


@cron.command()
@click.option("--every", metavar="INTERVAL", help="such as 90s, 2h, 1h30m")
@click.option("--cron", metavar="EXPR", help='five fields, such as "0 9 * * 1-5"')
@click.option("--at", metavar="TIME", help="once, such as 2027-01-01T09:00")
@click.option("--heartbeat", metavar="INTERVAL", help="run the tasks of HEARTBEAT.md every 30m, 2h, …")
@click.option("--tz", metavar="ZONE", help="time zone of --cron or --at (default: the configured one)")
@click.option("--message", metavar="TEXT", help="what to ask each time (not with --heartbeat)")
@click.option("--to", metavar="KEY", help="chat that gets the answers, such as telegram:12345678")
@click.option(
    "--session",
    type=click.Choice(("job", "chat")),
    default="job",
    show_default=True,
    help="run in a session of its own or in the session of the chat",
)
@click.option(
    "--agent", metavar="NAME", help="agent that runs it (default: the agent of the chat at that time)"
)
@click.option("--name", metavar="NAME", help="name to show in lists (default: the start of the message)")
@click.option(
    "--missed",
    type=click.Choice(("skip", "once", "all")),
    default="once",
    show_default=True,
    help="runs missed in the last 24 hours while the gateway was down",
)
@as_json
def add(
    opts: GlobalOptions,
    every: str | None,
    cron: str | None,
    at: str | None,
    heartbeat: str | None,
    tz: str | None,
    message: str | None,
    to: str | None,
    session: str,
    agent: str | None,
    name: str | None,
    missed: Literal["skip", "once", "all"],
    as_json: bool,
) -> int:
    """Add a job and print its id.

    Exactly one of --every, --cron, --at and --heartbeat says when.
    """
    from channels.cron.jobs import BadJob, new_row
    from gateway.config.agents import no_agent
    from gateway.service.zones import zone_for

    settings = settings_of(opts)
    now, agent = durable.now(), agent or ""
    if unknown := no_agent(settings, agent):
        output.error(unknown, "chat-gateway config show lists the agents")
        return USAGE
    zone = asyncio.run(zone_for(settings, to or "", agent))
    try:
        schedule = asked(
            every=every,
            expr=cron,
            tz=tz,
            at=at,
            heartbeat=heartbeat,
            zone=zone,
            now=now,
        )
        row = new_row(
            schedule,
            message or "",
            at=now,
            to=to or "",
            name=name or "",
            policy=missed,
            in_chat=session == "chat",
            heartbeat=heartbeat is not None,
            agent=agent,
        )
    except (BadSchedule, BadJob) as error:
        output.error(str(error), error.hint)
        return USAGE
    file = _file(settings)
    job = file.add(row)
    _say_kept(file)
    _say_unserved(settings, job.answer_to)
    if as_json:
        output.document(next(each for each in file.read().rows(now) if each.get("id") == job.id))
        return 0
    output.data(job.id)
    chat = f", answers go to {job.answer_to}" if job.answer_to else f", answers stay in {job.key}"
    if job.in_chat:
        chat = f", runs in the session of {job.key}"
    output.words(f"{in_words(job.schedule, zone)}, next run {_next(job.row, zone)}{chat}")
    return 0


@cron.command()
@_id
def remove(opts: GlobalOptions, id: str) -> None:
    """Delete a job; its session is kept."""
    file = _file(settings_of(opts))
    file.remove(id)
    _say_kept(file)
    output.words(f"job {id} is deleted")


@cron.command()
@_id
def enable(opts: GlobalOptions, id: str) -> None:
    """Enable a job; runs missed while it was disabled are skipped."""
    settings = settings_of(opts)
    file = _file(settings)
    job = file.enable(id)
    _say_kept(file)
    output.words(f"job {id} is enabled, next run {_next(job.row, settings.zone)}")


@cron.command()
@_id
def disable(opts: GlobalOptions, id: str) -> None:
    """Disable a job."""
    file = _file(settings_of(opts))
    file.enable(id, False)
    _say_kept(file)
    output.words(f"job {id} is disabled")


@cron.command()
@_id
@as_json
def run(opts: GlobalOptions, id: str, as_json: bool) -> None:
    """Run a job now; its schedule stays the same."""

    async def work(settings: Settings) -> dict[str, Any]:
        async with attach.daemon(settings) as client:
            if client is not None:
                return await client.run_job(id)
        # `cron` starts sooner without the scheduler where a daemon answers, or for another verb.
        from channels.cron.scheduler import run_now
        from gateway.app.wiring_cron import Texts
        from gateway.inbound.pipeline import Intake

        async with attach.queue(settings) as mailbox:
            try:
                return await run_now(_file(settings), id, Intake(mailbox).accept, Texts(settings))
            except MailboxDown as error:
                raise Unreachable(f"the queue: {error}", hint="chat-gateway doctor") from None

    settings = settings_of(opts)
    done = asyncio.run(work(settings))
    if as_json:
        output.document(done)
    else:
        job = _file(settings).read().jobs.get(id)
        own = ""
        if job is not None and job.agent and job.in_chat:
            own = f", or in {job.own_key} if another agent has that chat"
        output.words(f"{done['id']} is queued; the answer will appear in {done['key']}{own}")


def _file(settings: Settings) -> CronFile:
    from channels.cron.jobs_file import CronFile

    return CronFile(settings.workspace, zone=settings.zone)


def _say_kept(file: CronFile) -> None:
    if file.kept is not None:
        output.words(f"cron/jobs.json was damaged; its original is kept as {file.kept}")


def _say_unserved(settings: Settings, answer_to: str | None) -> None:
    from channels.plugins import served

    channel = (answer_to or "").partition(":")[0]
    if channel and channel not in served(settings.channels):
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
