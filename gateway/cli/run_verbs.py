"""The verb ``run`` and its options."""

from __future__ import annotations

from gateway.cli.memory_verbs import Verbs


def add_run(tree: Verbs) -> None:
    """Add the verb."""
    run = tree.verb(
        "run",
        "gateway.cli.run:run",
        "run the daemon in the foreground",
        more="Prints `ready` to stderr when it is; SIGTERM ends it once the running turns are done.",
    )
    run.add_argument(
        "--role",
        choices=("all", "channels", "session"),
        default="all",
        help="channels: the adapters; session: turns, memory and HTTP; either alone needs RabbitMQ",
    )
    run.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="processes that work on conversations, over RabbitMQ; 0: one a core (limits.workers)",
    )
    run.add_argument(
        "--stop-on-eof",
        action="store_true",
        help="end as at SIGTERM once stdin has ended: for a program that starts it and may be killed",
    )


def _workers(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


# argparse names it in its error.
_workers.__name__ = "whole number from 0"
