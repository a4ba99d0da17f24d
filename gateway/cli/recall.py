"""``memory search``: finds what was said in a chat, daemon or not."""

from __future__ import annotations

import argparse

from gateway.app.sessions import build_session_services
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from session.recall.recall import Found


def search(args: argparse.Namespace) -> int:
    """Print what holds the words, the best first; an index that is out of date is brought up first."""
    text = " ".join(args.text)

    async def work(settings: Settings) -> Found:
        services = build_session_services(settings, status=lambda *_: [])
        try:
            return await services.recall.search(
                await services.scope_with(args.key, args.agent),
                args.key,
                text,
                limit=args.limit,
                neighbours=args.neighbours,
                within_s=None,
            )
        finally:
            await services.aclose()

    found = attach.complete(work(settings_of(args)))
    hits = [hit.as_dict(neighbours=bool(args.neighbours)) for hit in found.hits]
    if args.json:
        output.document(hits)
        return 0
    for hit in hits:
        said = f"{hit['kind']} {hit['session_id']} {hit['seq']}" if hit["kind"] == "message" else hit["kind"]
        output.shown(
            f"[{hit['at'] or ''} {hit['speaker'] or ''}] {hit['key']} ({said})".replace("[ ]", "[-]")
        )
        around = [*hit.get("before", ()), {"text": hit["text"], "speaker": ""}, *hit.get("after", ())]
        for each in around:
            said = f"{each['speaker']}: {each['text']}" if each["speaker"] else each["text"]
            output.shown("    " + said.replace("\n", "\n    "))
    if not hits:
        output.words(f"nothing in {args.key} matches {text!r}")
    if not found.all:
        output.words("the search is incomplete; try again in a moment")
    return 0
