"""The verbs of ``memory`` and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Verbs(Protocol):
    """One level of verbs of the command line."""

    def verb(
        self, name: str, code: str, text: str, *, more: str = "", keyed: bool = False, as_json: bool = False
    ) -> argparse.ArgumentParser:
        """Add a verb, done by ``code``."""
        ...


def add_memory(tree: Verbs, *, count: Callable[[str], int]) -> None:
    """Add the verbs; ``count`` reads a number from 1 on."""
    show = tree.verb("show", "gateway.cli.memory:show", "show the memory of a chat", as_json=True, keyed=True)
    _add_agent(show)
    search = tree.verb(
        "search",
        "gateway.cli.recall:search",
        "search messages, notes and facts of a chat, best match first",
        more="Closed sessions are searched, too.",
        as_json=True,
        keyed=True,
    )
    search.add_argument("text", metavar="TEXT", nargs="+", help="a question, or a few words")
    search.add_argument(
        "--limit", metavar="N", type=count, default=10, help="show at most N results (default: %(default)s)"
    )
    search.add_argument(
        "--neighbours", metavar="N", type=count, default=0, help="also show N messages before and after each"
    )
    tree.verb(
        "consolidate",
        "gateway.cli.memory:consolidate",
        "summarize older messages into memory now",
        as_json=True,
        keyed=True,
    )
    facts = tree.verb(
        "facts", "gateway.cli.memory:facts", "list the facts of a chat", as_json=True, keyed=True
    )
    forget = tree.verb("forget", "gateway.cli.memory:forget", "delete a fact for good", keyed=True)
    for verb in (search, facts, forget):
        _add_agent(verb)
    _add_whole(tree)
    forget.add_argument("id", metavar="ID", help="its id, from `memory facts`")
    _add_versions(tree)


def _add_versions(tree: Verbs) -> None:
    history = tree.verb(
        "history",
        "gateway.cli.memory_versions:history",
        "list earlier versions of the memory of a chat, newest first",
        more="Each row is a replaced version: when, by what, and what changed.",
        as_json=True,
        keyed=True,
    )
    history.add_argument("--file", choices=("MEMORY.md", "USER.md", "facts.jsonl"), help="only this file")
    restore = tree.verb(
        "restore",
        "gateway.cli.memory_versions:restore",
        "restore an earlier version",
        more="The current text is kept as a version.",
        as_json=True,
        keyed=True,
    )
    restore.add_argument("version_id", metavar="VERSION", help="its id, from `memory history`")
    for verb in (history, restore):
        _add_agent(verb)


def _add_agent(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--agent", metavar="NAME", help="whose memory (default: the agent of the chat)")


def _add_whole(tree: Verbs) -> None:
    export = tree.verb(
        "export",
        "gateway.cli.whole:export",
        "export all data about a chat or person as a tar file",
        more="Transcripts, archives, notes, facts, files, media, journal and jobs; manifest.json lists them.",
    )
    _add_subject(export)
    export.add_argument(
        "-o", "--output", metavar="PATH", type=Path, help="output file, private to you (default: stdout)"
    )
    erase = tree.verb(
        "erase",
        "gateway.cli.whole:erase",
        "delete all data about a chat or person for good",
        more="Asks first. Lists what was deleted, and what cannot be deleted.",
        as_json=True,
    )
    _add_subject(erase)
    erase.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_subject(verb: argparse.ArgumentParser) -> None:
    of = verb.add_mutually_exclusive_group(required=True)
    of.add_argument("key", metavar="KEY", nargs="?", help="the chat, such as telegram:12345678")
    of.add_argument("--person", metavar="NAME", help="all chats of this person in [people]")
