"""``doctor``: every check with its state and cure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli import attach, output
from gateway.cli.root import GlobalOptions, Seconds, Verb, as_json
from gateway.config.finding import PREFIX
from gateway.doctor.finding import DISK_CURE, GRACE_S, LOCAL_S, Check, Hung, in_time
from gateway.errors import GatewayError
from session.disk.threads import start_thread

if TYPE_CHECKING:
    from gateway.config.settings import Settings


@click.command(cls=Verb)
@click.option("--fix", is_flag=True, help="first fix whatever is safe to fix, and say what was fixed")
@click.option(
    "--within",
    metavar="SECONDS",
    type=Seconds(),
    help="time limit of each check of a disk or process (default: 20, more where all files are read)",
)
@as_json
def doctor(opts: GlobalOptions, fix: bool, within: float | None, as_json: bool) -> int:
    """Check configuration, queue, model, disk, transcripts and more.

    Each check reports ok, warn or fail, and what to do. Exit 1 if a check failed.
    """
    from gateway.app import logging

    within_s = LOCAL_S if within is None else within
    read = asyncio.run(_read(opts, within_s))
    if not isinstance(read, Check):
        logging.setup(read, at_least="warning")
        if fix:
            _mend(read, within_s)
    return asyncio.run(_told(_checks(read, opts, within_s, quiet=as_json), as_json=as_json))


async def _read(opts: GlobalOptions, within_s: float) -> Settings | Check:
    """Read the configuration; where a file of it does not answer, that is a finding.

    Raises:
        ConfigError: with all problems.
    """
    from gateway.config.load import load

    files = [str(opts.config or "the folders in which a configuration is looked for")]
    reading = start_thread(
        lambda: load(opts.config, opts.workspace, at=lambda file: files.append(str(file))),
        name="doctor-configuration",
    )
    try:
        return await in_time(reading, within_s)
    except Hung:
        text = f"no answer from {files[-1]} within {within_s:g} s"
        return Check("configuration", "fail", text, DISK_CURE, hangs=True)


def _mend(settings: Settings, within_s: float) -> None:
    from gateway.doctor import workspace
    from gateway.doctor.workspace import fix

    folder = asyncio.run(workspace.usable(settings, within_s=within_s))
    for text, cure in [(folder.text, folder.cure)] if folder.hangs else fix(settings):
        if cure:
            output.error(text, cure)
        else:
            output.words(text)


async def _told(checks: AsyncIterator[Check], *, as_json: bool) -> int:
    from session.store.listing import brief

    found = []
    async for check in checks:
        found.append(check)
        if not as_json:
            text = brief(check.text) if check.name == "transcripts" else check.text
            output.shown(f"{check.level:<4}  {check.name}: {text}")
            if check.cure:
                output.shown(f"      try: {check.cure}")
    if as_json:
        output.document([check.as_dict() for check in found])
    code = 1 if any(check.level == "fail" for check in found) else 0
    if any(check.hangs for check in found):
        # Processes that were begun are being ended.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=GRACE_S)
        _leave(code)
    return code


def _checks(
    read: Settings | Check, opts: GlobalOptions, within_s: float, *, quiet: bool
) -> AsyncIterator[Check]:
    from gateway.doctor.checks import examine, without_settings

    if isinstance(read, Check):
        named = opts.workspace or os.environ.get(f"{PREFIX}WORKSPACE")
        return without_settings(read, Path(named).absolute() if named else None, local_s=within_s)

    async def daemon() -> dict[str, Any] | None:
        async with attach.daemon(read) as client:
            with contextlib.suppress(GatewayError):
                return await client.status() if client is not None else None
        return None

    return examine(read, tell=_nothing if quiet else output.words, daemon=daemon, local_s=within_s)


def _leave(code: int) -> None:
    """End the process at once: its threads that wait for a disk would be waited for, maybe for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _nothing(_: str) -> None:
    """Tell nobody."""
