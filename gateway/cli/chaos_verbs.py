"""The verb ``chaos`` and its options."""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.cli.memory_verbs import Verbs


def add_chaos(tree: Verbs, *, count: Callable[[str], int]) -> None:
    """Add the verb; ``count`` reads a number from 1 on."""
    chaos = tree.verb(
        "chaos",
        "gateway.cli.chaos:chaos",
        "kill gateways of its own at random while messages flow, and check every guarantee",
        more="In a scratch folder, with a model and a RabbitMQ of its own: no gateway of this machine, no "
        "workspace and no account is touched. Exit 1 where a guarantee broke.",
        as_json=True,
    )
    chaos.add_argument(
        "--kills", metavar="N", type=count, default=200, help="how many (default: %(default)s)"
    )
    chaos.add_argument(
        "--broker",
        choices=("embedded", "rabbitmq"),
        default="embedded",
        help="rabbitmq: a private one, where it is installed (default: %(default)s)",
    )
    chaos.add_argument(
        "--url",
        metavar="URL",
        type=_url,
        help="amqp://… of a broker made for this, which holds nobody's queues",
    )
    chaos.add_argument(
        "--daemons",
        metavar="1|3",
        type=int,
        choices=(1, 3),
        default=1,
        help="how many side by side; 3 need RabbitMQ (default: %(default)s)",
    )
    chaos.add_argument(
        "--workers",
        metavar="N",
        type=count,
        default=0,
        help="processes of the one gateway that work on conversations, over RabbitMQ (default: none)",
    )
    chaos.add_argument(
        "--platform",
        choices=("telegram", "none"),
        default="telegram",
        help="some people write over a Telegram that is made for it, or none do (default: %(default)s)",
    )
    chaos.add_argument(
        "--seed",
        metavar="S",
        type=_seed,
        help="what decides everything drawn (default: another one each time)",
    )
    chaos.add_argument("--keep", action="store_true", help="leave every workspace, log and record")


def _url(text: str) -> str:
    if not re.fullmatch(r"amqp://\S+", text):
        raise ValueError
    return text


_url.__name__ = "address amqp://…"


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


_seed.__name__ = "number from 0 on"
