"""``memory history|restore``: what memory said before, daemon or not."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.app.sessions import build_session_services
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.memory.former import Restored

COLUMNS = ("version", "file", "at", "cause", "bytes", "changed")


def history(args: argparse.Namespace) -> int:
    """List the former texts of the key's scope, the newest first."""

    async def work(settings: Settings) -> list[dict[str, Any]]:
        services = build_session_services(settings, status=lambda *_: [])
        try:
            scope = await services.scope_with(args.key, args.agent)
            return await services.former.history(args.key, scope, file=args.file or "")
        finally:
            await services.aclose()

    rows = attach.complete(work(settings_of(args)))
    if args.json:
        output.document(rows)
        return 0
    output.rows(rows, COLUMNS)
    if not rows:
        output.words(f"no earlier versions of the memory of {args.key}")
    return 0


def restore(args: argparse.Namespace) -> int:
    """Put a former text in the place of what stands there now, which becomes a version itself."""

    async def work(settings: Settings) -> Restored | None:
        services = build_session_services(settings, status=lambda *_: [])
        try:
            scope = await services.scope_with(args.key, args.agent)
            return await services.former.restore(args.key, scope, args.version_id.upper())
        finally:
            await services.aclose()

    done = attach.complete(work(settings_of(args)))
    if done is None:
        raise GatewayError(
            f"{args.key} has no version {args.version_id}",
            hint=f"chat-gateway memory history {args.key} lists them",
        )
    if args.json:
        output.document(done.as_dict())
    elif not done.changed:
        output.words(f"{done.file} has this text already")
    else:
        kept = f"; the text before is version {done.former}" if done.former else ""
        output.words(f"{done.file} is restored{kept}")
    return 0
