"""``doctor``: every check with its state and cure."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gateway.app import log
from gateway.cli import attach, output
from gateway.config.finding import PREFIX
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.doctor import workspace
from gateway.doctor.checks import examine, without_settings
from gateway.doctor.finding import DISK_CURE, GRACE_S, LOCAL_S, Check, Hung, in_time
from gateway.doctor.fixes import fix
from gateway.errors import GatewayError
from session.disk.threads import start_thread
from session.store.listing import brief


def doctor(args: argparse.Namespace) -> int:
    """Run the checks; exit 1 where one failed."""
    read = asyncio.run(_read(args))
    if isinstance(read, Settings):
        log.setup(read, at_least="warning")
        if args.fix:
            _mend(read, _within_s(args))
    return asyncio.run(_told(read, args))


async def _read(args: argparse.Namespace) -> Settings | Check:
    """Read the configuration; where a file of it does not answer, that is a finding.

    Raises:
        ConfigError: with all problems.
    """
    files = [str(args.config or "the folders in which a configuration is looked for")]
    within_s = _within_s(args)
    reading = start_thread(
        lambda: load(args.config, args.workspace, at=lambda file: files.append(str(file))),
        name="doctor-configuration",
    )
    try:
        return await in_time(reading, within_s)
    except Hung:
        text = f"no answer from {files[-1]} within {within_s:g} s"
        return Check("configuration", "fail", text, DISK_CURE, hangs=True)


def _mend(settings: Settings, within_s: float) -> None:
    folder = asyncio.run(workspace.usable(settings, within_s=within_s))
    for text, cure in [(folder.text, folder.cure)] if folder.hangs else fix(settings):
        if cure:
            output.error(text, cure)
        else:
            output.words(text)


async def _told(read: Settings | Check, args: argparse.Namespace) -> int:
    """Tell each finding as soon as it is there; return the exit code."""
    found = []
    async for check in _checks(read, args):
        found.append(check)
        if not args.json:
            text = brief(check.text) if check.name == "transcripts" else check.text
            output.shown(f"{check.level:<4}  {check.name}: {text}")
            if check.cure:
                output.shown(f"      try: {check.cure}")
    if args.json:
        output.document([check.as_dict() for check in found])
    code = 1 if any(check.level == "fail" for check in found) else 0
    if any(check.hangs for check in found):
        # Processes that were begun are being ended.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=GRACE_S)
        _leave(code)
    return code


def _checks(read: Settings | Check, args: argparse.Namespace) -> AsyncIterator[Check]:
    within_s = _within_s(args)
    if isinstance(read, Check):
        named = args.workspace or os.environ.get(f"{PREFIX}WORKSPACE")
        return without_settings(read, Path(named).absolute() if named else None, local_s=within_s)

    async def daemon() -> dict[str, Any] | None:
        async with attach.daemon(read) as client:
            with contextlib.suppress(GatewayError):
                return await client.status() if client is not None else None
        return None

    return examine(read, tell=_nothing if args.json else output.words, daemon=daemon, local_s=within_s)


def _within_s(args: argparse.Namespace) -> float:
    return LOCAL_S if args.within is None else args.within


def _leave(code: int) -> None:
    """End the process at once: its threads that wait for a disk would be waited for, maybe for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _nothing(_: str) -> None:
    """Tell nobody."""
