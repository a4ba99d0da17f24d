"""``doctor``: every check with its state and cure."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import Any

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from gateway.doctor import workspace
from gateway.doctor.checks import examine
from gateway.doctor.finding import Check
from gateway.doctor.fixes import fix
from gateway.errors import GatewayError
from session.store.listing import brief


def doctor(args: argparse.Namespace) -> int:
    """Run the checks; exit 1 where one failed."""
    settings = settings_of(args, any_form=True)
    if args.fix:
        folder = asyncio.run(workspace.usable(settings))
        for text, cure in [(folder.text, folder.cure)] if folder.hangs else fix(settings):
            if cure:
                output.error(text, cure)
            else:
                output.words(text)
    found = asyncio.run(_all(settings, quiet=args.json))
    if args.json:
        output.document([check.as_dict() for check in found])
    return 1 if any(check.level == "fail" for check in found) else 0


async def _all(settings: Settings, *, quiet: bool) -> list[Check]:
    found = []

    async def daemon() -> dict[str, Any] | None:
        async with attach.daemon(settings) as client:
            with contextlib.suppress(GatewayError):
                return await client.status() if client is not None else None
        return None

    async for check in examine(settings, tell=_nothing if quiet else output.words, daemon=daemon):
        found.append(check)
        if not quiet:
            text = brief(check.text) if check.name == "transcripts" else check.text
            output.shown(f"{check.level:<4}  {check.name}: {text}")
            if check.cure:
                output.shown(f"      try: {check.cure}")
    return found


def _nothing(_: str) -> None:
    """Tell nobody."""
