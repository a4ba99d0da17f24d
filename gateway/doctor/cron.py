"""What doctor says of the clock: whether the file of its jobs is whole, and which of them cannot run."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import durable
from channels.cron.jobs import CHANNEL
from channels.cron.jobs_file import Contents, CronFile
from channels.cron.nanobot_jobs import Left
from channels.errors import ChannelError
from channels.storage import held
from gateway.doctor.finding import Finding

MOST_NAMED = 10
OVERDUE = timedelta(minutes=5)


def check(workspace: Path) -> Iterator[Finding]:
    """Yield level, text and cure of each finding; nothing is changed."""
    file = CronFile(workspace)
    try:
        contents = file.read()
    except ChannelError as error:
        yield "fail", str(error), error.hint
        return
    if contents.fault is not None:
        yield "fail", f"cron/jobs.json: {contents.fault.text}", contents.fault.cure
    for bad in contents.bad[:MOST_NAMED]:
        name = f"{bad.id}: " if bad.id else ""
        yield "warn", f"{name}{bad.problem}", bad.cure
    if len(contents.bad) > MOST_NAMED:
        yield "warn", f"{len(contents.bad) - MOST_NAMED} more cannot run", "chat-gateway cron list"
    yield from _open_to_others(file.path)
    for copy in sorted(file.path.parent.glob(f"{file.path.name}.corrupt-*")):
        yield "warn", f"cron/{copy.name} is the original of a damaged file", "check it, then delete it"
    yield _clock(workspace, contents)


def damage(workspace: Path, *, repair: bool = False) -> list[dict[str, Any]]:
    """Return the rows of ``sessions verify`` for the files of the jobs; that of the jobs a person mends."""
    return [*_damaged_jobs(workspace), *damaged_changes(workspace, repair=repair)]


def _damaged_jobs(workspace: Path) -> list[dict[str, Any]]:
    try:
        fault = CronFile(workspace).read().fault
    except ChannelError as error:
        return [{"file": "cron/jobs.json", "problem": str(error), "repaired": False}]
    if fault is None:
        return []
    return [{"file": "cron/jobs.json", "problem": f"{fault.text}; {fault.cure}", "repaired": False}]


def damaged_changes(workspace: Path, *, repair: bool = False) -> list[dict[str, Any]]:
    """Return the row for what another program left to be changed, where lines of that are damaged."""
    left = Left(workspace)
    row: dict[str, Any] = {"file": "cron/action.jsonl", "repaired": False}
    try:
        if not (lines := left.damaged()):
            return []
        row["problem"] = (
            f"{lines} damaged {'line' if lines == 1 else 'lines'}: changes of jobs were not applied"
        )
        if repair:
            left.mend()
            row["repaired"] = True
    except ChannelError as error:
        row["problem"] = str(error)
    except OSError as error:
        row["problem"] = f"cannot be read or written: {error.strerror}"
    return [row]


def _open_to_others(path: Path) -> Iterator[Finding]:
    for each in (path.parent, path):
        if each.exists() and stat.S_IMODE(each.stat().st_mode) & 0o077:
            yield "warn", f"others can read {each}", f"chmod -R go= {path.parent}"
            return


def _clock(workspace: Path, contents: Contents) -> Finding:
    jobs = [job for job in contents.jobs.values() if job.enabled and job.asks]
    count = f"{len(jobs)} job{'s' * (len(jobs) != 1)} scheduled" if jobs else "no jobs"
    if not held(workspace / "state", CHANNEL):
        return "ok", f"{count}; the gateway is not running", ""
    before = durable.now() - OVERDUE
    late = [job.id for job in jobs if 0 < (job.state_ms("nextRunAtMs") or 0) < before.timestamp() * 1000]
    if late and contents.fault is None:
        named = ", ".join(late[:MOST_NAMED])
        return (
            "warn",
            f"{len(late)} job{'s' * (len(late) != 1)} overdue: {named}",
            "chat-gateway status shows whether the queue is up",
        )
    return "ok", count, ""
