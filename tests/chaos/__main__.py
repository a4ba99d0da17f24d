"""``make chaos``: kills gateways at random while messages flow, then checks every guarantee.

It works in a scratch folder, with its own model and RabbitMQ, and touches no gateway, workspace or account of
this machine. It exits with 1 if a guarantee is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.batch import Batch, Plan, Result
from tests.support import harness, prepared
from tests.support.broker import BIN, Broker

BATCH_KILLS = 200
_MOST_SEEDS = 10**6
# What a gateway sees of this machine.
_SEEN = ("PATH", "LANG", "TZ", "TMPDIR")


def main() -> int:
    """Do what the options say; return the exit code."""
    plan = read_options(sys.argv[1:])
    missing = not (BIN / "rabbitmq-server").exists() or shutil.which("epmd") is None
    if plan.rabbitmq and missing:
        print("error: RabbitMQ is not installed\ntry: apt-get install rabbitmq-server", file=sys.stderr)
        return 1
    broker = "RabbitMQ" if plan.rabbitmq else "the embedded queue"
    kills = f"{plan.kills} kill{'s' if plan.kills > 1 else ''}"
    print(f"{kills} over {broker}, seed {plan.seed}", file=sys.stderr)
    # SIGTERM also ends the processes that the run started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The kit's own client would complain of every connection that is broken here.
    for library in ("aio_pika", "aiormq", "asyncio", "httpx"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="chat-gateway-chaos-"))
    seen = {name: os.environ[name] for name in _SEEN if name in os.environ}
    os.environ.clear()
    os.environ.update(seen, HOME=str(folder))
    harness.FORKS = True
    results: list[Result] = []
    with ExitStack() as stack:
        stack.callback(prepared.end_servers)
        node = stack.enter_context(Broker()) if plan.rabbitmq else None
        for number in range(-(-plan.kills // BATCH_KILLS)):
            kills_now = min(plan.kills - number * BATCH_KILLS, BATCH_KILLS)
            batch = Batch(
                folder / f"seed-{plan.seed + number}",
                seed=plan.seed + number,
                kills=kills_now,
                plan=plan,
                broker=node,
            )
            try:
                results.append(asyncio.run(batch.run()))
            except KeyboardInterrupt:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            except Exception:
                print(f"{replay(plan, plan.seed + number, kills_now)}\nfiles: {folder}", file=sys.stderr)
                raise
            print(batch_line(results[-1]), file=sys.stderr)
            if results[-1].account.broken:
                break
            if not plan.keep:
                shutil.rmtree(folder / f"seed-{plan.seed + number}")
    print("\n".join(table(plan, results)))
    if not plan.keep and not results[-1].account.broken:
        shutil.rmtree(folder)
    else:
        print(f"workspaces, logs and records are kept in {folder}")
    return 1 if results[-1].account.broken else 0


def read_options(words: list[str]) -> Plan:
    """Return what to run; an impossible option ends the process with 2."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=200, help="number of kills (default: %(default)s)")
    parser.add_argument(
        "--broker",
        choices=("embedded", "rabbitmq"),
        default="embedded",
        help="rabbitmq starts a private one; it must be installed (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        choices=(0, 3),
        default=0,
        help="worker processes of the gateway; 3 need RabbitMQ (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, help="decides all random choices (default: a new one)")
    parser.add_argument("--keep", action="store_true", help="keep all workspaces, logs and records")
    args = parser.parse_args(words)
    rabbitmq = args.broker == "rabbitmq"
    if args.kills < 1:
        parser.error("--kills must be 1 or more")
    if args.workers and not rabbitmq:
        parser.error(f"--workers {args.workers}: the embedded queue has no workers; add --broker rabbitmq")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(_MOST_SEEDS)
    return Plan(args.kills, rabbitmq, args.workers, seed, args.keep)


def replay(plan: Plan, seed: int, kills: int) -> str:
    broker = "rabbitmq" if plan.rabbitmq else "embedded"
    where = f"--broker {broker} --workers {plan.workers}"
    return f"replay: python -m tests.chaos --seed {seed} --kills {kills} {where} --keep"


def batch_line(result: Result) -> str:
    account = result.account
    found = f"{len(account.broken)} VIOLATIONS" if account.broken else "nothing broken"
    return (
        f"seed {result.seed}: {result.kills} kills, {account.messages} messages, "
        f"{account.calls} model calls, {len(account.repeats)} repeats, {result.took_s:.0f} s: {found}"
    )


def table(plan: Plan, results: Sequence[Result]) -> list[str]:
    accounts = [result.account for result in results]
    lines = ["", f"{'':4}{'guarantee':<88}{'checked':>9}{'broken':>8}"]
    for same in zip(*(account.guarantees for account in accounts), strict=True):
        checked, broken = sum(each.checked for each in same), sum(len(each.broken) for each in same)
        lines.append(f"{same[0].name:<4}{same[0].promise:<88}{checked:>9}{broken:>8}")
    deaths = sum((result.deaths for result in results), Counter[str]())
    kills = sum(result.kills for result in results)
    lines += ["", f"{kills} kills of daemons and {deaths['broker']} of the broker: {_counted(deaths)}"]
    faults = sum((result.faults for result in results), Counter[str]())
    lines += [f"other faults: {_counted(faults) or 'none'}"]
    calls, least = sum(each.calls for each in accounts), sum(each.least_calls for each in accounts)
    lines += [f"model calls: {calls} ({least} without faults and stops)"]
    lines += [f"chunks sent to Telegram: {sum(each.pieces for each in accounts)}"]
    repeats = [repeat for account in accounts for repeat in account.repeats]
    for name, kind in (("model calls", "request"), ("replies", "reply"), ("chunks", "piece")):
        causes = Counter(each.cause or "UNEXPLAINED" for each in repeats if each.what.startswith(kind))
        lines.append(f"{name} repeated: {causes.total()} ({_counted(causes) or 'none'})")
    failed = results[-1]
    if failed.account.broken:
        lines += ["", *failed.account.broken, "", replay(plan, failed.seed, failed.kills)]
    return lines


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
