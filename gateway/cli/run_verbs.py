"""The verb ``run`` and its options."""

from __future__ import annotations

import argparse

from gateway.cli.memory_verbs import Verbs


def add_run(tree: Verbs) -> None:
    """Add the verb."""
    run = tree.verb(
        "run",
        "gateway.cli.run:run",
        "run the gateway in the foreground",
        more="Prints `ready` to stderr when it is. SIGTERM stops it once the answers in progress are done.",
    )
    run.add_argument(
        "--role",
        choices=("all", "channels", "session"),
        default="all",
        help="channels: platforms and scheduled jobs; session: answers, memory and HTTP; both need RabbitMQ",
    )
    run.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="worker processes, with RabbitMQ; 0: one per core (default: limits.workers)",
    )
    run.add_argument(
        "--stop-on-eof",
        action="store_true",
        help="stop when stdin closes, so that it does not outlive the program that started it",
    )


def _workers(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
