"""``chaos``: kills at random while messages flow, and what became of each guarantee."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal

from gateway.chaos import report
from gateway.chaos.batch import Result
from gateway.chaos.run import Plan, run
from gateway.cli import output
from gateway.errors import ConfigError

_MOST_SEEDS = 10**6


def chaos(args: argparse.Namespace) -> int:
    """Do as the options say; 1 where a guarantee broke."""
    rabbitmq = args.broker == "rabbitmq" or bool(args.url)
    if args.daemons > 1 and not rabbitmq:
        raise ConfigError(
            ["--daemons 3: the embedded queue serves one daemon"],
            hint="chat-gateway chaos --daemons 3 --broker rabbitmq",
        )
    if args.workers and (not rabbitmq or args.daemons > 1):
        raise ConfigError(
            ["--workers: one gateway over RabbitMQ has them"],
            hint=f"chat-gateway chaos --workers {args.workers} --broker rabbitmq",
        )
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(_MOST_SEEDS)
    plan = Plan(
        args.kills,
        rabbitmq,
        args.daemons,
        seed,
        url=args.url or "",
        keep=args.keep,
        platform=args.platform,
        workers=args.workers,
    )
    broker = "RabbitMQ" if rabbitmq else "the embedded queue"
    output.words(f"{output.counted(plan.kills, 'kill')} over {broker}, seed {seed}")
    # A run that is told to end must end everything that it started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = asyncio.run(run(plan, told=_say))
    if args.json:
        output.document(report.document(plan, outcome))
    else:
        output.shown(report.table(plan, outcome))
    return 1 if outcome.failed is not None else 0


def _say(result: Result) -> None:
    output.words(report.batch_line(result))
