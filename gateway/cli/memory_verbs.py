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
    show = tree.verb(
        "show", "gateway.cli.memory:show", "show what is remembered of a chat", as_json=True, keyed=True
    )
    _add_agent(show)
    search = tree.verb(
        "search",
        "gateway.cli.recall:search",
        "find what was said in a chat, in its notes and facts, the best first",
        more="Ended sessions are searched as well.",
        as_json=True,
        keyed=True,
    )
    search.add_argument("text", metavar="TEXT", nargs="+", help="a question, or a few words")
    search.add_argument(
        "--limit", metavar="N", type=count, default=10, help="how many at most (default: %(default)s)"
    )
    search.add_argument(
        "--neighbours", metavar="N", type=count, default=0, help="so many messages before and after each"
    )
    tree.verb(
        "consolidate",
        "gateway.cli.memory:consolidate",
        "move old messages into memory now",
        as_json=True,
        keyed=True,
    )
    facts = tree.verb(
        "facts", "gateway.cli.memory:facts", "list the facts of a chat", as_json=True, keyed=True
    )
    forget = tree.verb("forget", "gateway.cli.memory:forget", "remove a fact for good", keyed=True)
    for verb in (search, facts, forget):
        _add_agent(verb)
    _add_whole(tree)
    forget.add_argument("id", metavar="ID", help="as `memory facts` shows it")
    _add_versions(tree)


def _add_versions(tree: Verbs) -> None:
    history = tree.verb(
        "history",
        "gateway.cli.memory_versions:history",
        "list former texts of what is remembered of a chat, the newest first",
        more="Each row is a text that was replaced: when, by what, and what that changed.",
        as_json=True,
        keyed=True,
    )
    history.add_argument("--file", choices=("MEMORY.md", "USER.md", "facts.jsonl"), help="of this file alone")
    restore = tree.verb(
        "restore",
        "gateway.cli.memory_versions:restore",
        "put a former text back",
        more="What stands there now becomes a version itself.",
        as_json=True,
        keyed=True,
    )
    restore.add_argument("version_id", metavar="VERSION", help="as `memory history` shows it")
    for verb in (history, restore):
        _add_agent(verb)


def _add_agent(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--agent", metavar="NAME", help="what it is with this agent (default: the chat's own)")


def _add_whole(tree: Verbs) -> None:
    export = tree.verb(
        "export",
        "gateway.cli.whole:export",
        "write all that is kept of a chat or person into one tar",
        more="Transcripts, archives, notes, facts, files, media, journal, jobs; manifest.json lists them.",
    )
    _add_subject(export)
    export.add_argument(
        "-o", "--output", metavar="PATH", type=Path, help="the file, for your eyes alone (default: stdout)"
    )
    erase = tree.verb(
        "erase",
        "gateway.cli.whole:erase",
        "remove all that is kept of a chat or person, for good",
        more="From every place, index and log; says what it removed and what stays. Asks before.",
        as_json=True,
    )
    _add_subject(erase)
    erase.add_argument("--yes", action="store_true", help="do not ask")


def _add_subject(verb: argparse.ArgumentParser) -> None:
    of = verb.add_mutually_exclusive_group(required=True)
    of.add_argument("key", metavar="KEY", nargs="?", help="conversation, such as telegram:12345678")
    of.add_argument("--person", metavar="NAME", help="all that is a person's of [people]")
