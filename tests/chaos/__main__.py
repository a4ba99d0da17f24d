"""``make chaos``: kills gateways at random while messages flow, then checks every guarantee.

It works in a scratch folder, with its own model and RabbitMQ, and touches no gateway, workspace or account of
this machine. It exits with 1 if a guarantee is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable

from gateway.errors import GatewayError
from tests.chaos import report
from tests.chaos.batch import Result
from tests.chaos.run import Plan, run

_MOST_SEEDS = 10**6


def main() -> int:
    """Do what the options say; return the exit code."""
    plan, as_json = read_options(sys.argv[1:])
    broker = "RabbitMQ" if plan.rabbitmq else "the embedded queue"
    kills = f"{plan.kills} kill{'s' if plan.kills > 1 else ''}"
    print(f"{kills} over {broker}, seed {plan.seed}", file=sys.stderr)
    # SIGTERM also ends the processes that the run started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcome = asyncio.run(run(plan, told=_print_batch))
    except GatewayError as error:
        print(f"error: {error}", *([f"try: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        return 1
    print(json.dumps(report.document(plan, outcome)) if as_json else report.table(plan, outcome))
    return 1 if outcome.failed is not None else 0


def _print_batch(result: Result) -> None:
    print(report.batch_line(result), file=sys.stderr)


def read_options(words: list[str]) -> tuple[Plan, bool]:
    """Return what to run, and whether to print JSON; an impossible option ends the process with 2."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--kills", metavar="N", type=_from(1), default=200, help="number of kills (default: %(default)s)"
    )
    parser.add_argument(
        "--broker",
        choices=("embedded", "rabbitmq"),
        default="embedded",
        help="rabbitmq starts a private one; it must be installed (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default="",
        help="amqp://… of a broker set up for this test, without a gateway's queues",
    )
    parser.add_argument(
        "--daemons",
        metavar="1|3",
        type=int,
        choices=(1, 3),
        default=1,
        help="number of daemons; 3 need RabbitMQ (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_from(0),
        default=0,
        help="worker processes of one gateway over RabbitMQ (default: none)",
    )
    parser.add_argument(
        "--platform",
        choices=("telegram", "none"),
        default="telegram",
        help="telegram: two people write over a stub of its Bot API (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", metavar="S", type=_from(0), help="decides all random choices (default: a new one)"
    )
    parser.add_argument("--keep", action="store_true", help="keep all workspaces, logs and records")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse_args(words)
    rabbitmq = args.broker == "rabbitmq" or bool(args.url)
    if args.url and not args.url.startswith("amqp://"):
        parser.error("argument --url: must begin with amqp://")
    if args.daemons > 1 and not rabbitmq:
        parser.error(f"--daemons {args.daemons}: the embedded queue serves one daemon; add --broker rabbitmq")
    if args.workers and (not rabbitmq or args.daemons > 1):
        parser.error("--workers needs one gateway over RabbitMQ; add --broker rabbitmq --daemons 1")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(_MOST_SEEDS)
    plan = Plan(
        args.kills,
        rabbitmq,
        args.daemons,
        seed,
        url=args.url,
        keep=args.keep,
        platform=args.platform,
        workers=args.workers,
    )
    return plan, args.json


def _from(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return read


if __name__ == "__main__":
    sys.exit(main())
