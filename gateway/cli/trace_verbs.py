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
        "tell the life of one message, in order of time",
        more="Of queue, transcript, journal and ledger; exit 1 where nothing tells of it.",
        as_json=True,
    )
    trace.add_argument(
        "id", metavar="ID", type=message_id, help="as the log, the transcript and `parked list` name it"
    )
    trace.add_argument("--key", help="its conversation; quicker, and needed where several have such an id")
    usage = tree.verb(
        "usage",
        "gateway.cli.trace:usage",
        "show tokens and cost by day, model, person and chat",
        as_json=True,
    )
    usage.add_argument(
        "--days", metavar="N", type=count, default=30, help="how many days (default: %(default)s, at most 35)"
    )
    usage.add_argument("--key", help="of one conversation alone")
