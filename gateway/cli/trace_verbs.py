"""The verbs ``trace`` and ``usage`` and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gateway.cli.memory_verbs import Verbs


def message_id(given: str) -> str:
    """Take a message's id, which goes into addresses and queries: these hold text alone."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{given!r} is not UTF-8 text") from None
    return given


def add_trace(tree: Verbs, *, count: Callable[[str], int]) -> None:
    """Add the verbs; ``count`` reads a number from 1 on."""
    trace = tree.verb(
        "trace",
        "gateway.cli.trace:trace",
        "show what happened to one message, step by step",
        more="Reads queue, transcript, journal and send log. Exit 1 if the message is unknown.",
        as_json=True,
    )
    trace.add_argument(
        "id", metavar="ID", type=message_id, help="its id, from `sessions show`, `parked list` or the log"
    )
    trace.add_argument("--key", help="its chat: faster, and required if several chats have this id")
    usage = tree.verb(
        "usage",
        "gateway.cli.trace:usage",
        "show tokens and cost by day, model, person and chat",
        as_json=True,
    )
    usage.add_argument(
        "--days", metavar="N", type=count, default=30, help="how many days, at most 35 (default: %(default)s)"
    )
    usage.add_argument("--key", help="only this chat")
