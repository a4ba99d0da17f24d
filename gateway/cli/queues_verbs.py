"""The verbs of ``queues``, and their options."""

from __future__ import annotations

from collections.abc import Callable

from gateway.cli.memory_verbs import Verbs


def add_queues(tree: Verbs, *, count: Callable[[str], int]) -> None:
    """Add the verb; ``count`` reads a number from 1 on."""
    repartition = tree.verb(
        "repartition",
        "gateway.cli.queues:repartition",
        "have another number of inbound queues on RabbitMQ, with what waits in them in its order",
        more="The session daemons are stopped before; adapters may go on, and what comes meanwhile waits at "
        "its platform. A kill costs nothing: call it again.",
    )
    repartition.add_argument(
        "count",
        metavar="N",
        type=count,
        help="how many from now on, 1 to 256: broker.partitions of daemons",
    )
