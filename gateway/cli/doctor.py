"""``doctor``: every check with its state and cure."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict

from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.doctor import Check, examine
from session.listing import brief


def doctor(args: argparse.Namespace) -> int:
    """Run the checks; exit 1 where one failed."""
    settings = settings_of(args)
    found = asyncio.run(_all(settings, quiet=args.json))
    if args.json:
        output.document([asdict(check) for check in found])
    return 1 if any(check.level == "fail" for check in found) else 0


async def _all(settings: object, *, quiet: bool) -> list[Check]:
    from gateway.settings import Settings

    assert isinstance(settings, Settings)
    found = []
    async for check in examine(settings):
        found.append(check)
        if not quiet:
            text = brief(check.text) if check.name == "transcripts" else check.text
            output.data(f"{check.level:<4}  {check.name}: {text}")
            if check.cure:
                output.data(f"      try: {check.cure}")
    return found
