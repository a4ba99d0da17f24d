"""The verbs of ``queues``, and their options."""

from __future__ import annotations

from collections.abc import Callable

from gateway.cli.memory_verbs import Verbs


def add_queues(tree: Verbs, *, count: Callable[[str], int]) -> None:
    """Add the verb; ``count`` reads a number from 1 on."""
    repartition = tree.verb(
        "repartition",
        "gateway.cli.queues:repartition",
        "change the number of inbound queues on RabbitMQ; waiting messages keep their order",
        more="Stop all processes of role session first; those of role channels may keep running. If it is "
        "interrupted, run it again: no message is lost.",
    )
    repartition.add_argument(
        "count",
        metavar="N",
        type=count,
        help="new number, 1 to 256; set broker.partitions to the same",
    )
