"""Runs the benchmarks: ``python -m bench [name …]``, each in a process of its own; prints one table."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from pathlib import Path

from bench.row import Row, machine, read, table, write

NOUNS = {
    "startup": "help, ready, resident memory",
    "workers": "memory and CPU of a gateway in several processes",
    "length": "one more turn by the length of its transcript",
    "context": "what a request is made of, and what of it changes",
    "load": "a cold load of 10,000 messages",
    "recall": "what a search finds, how soon, and what its index costs",
    "scope": "a search and a request in a scope of 10,000 facts and 100 MB",
    "console": "the page with 5,000 chats and 10,000 messages in a real browser",
    "big": "a transcript of 100 MB, with and without its index",
    "conversation": "2,000 turns of one session",
    "relay": "RabbitMQ, beside a bare relay, and the embedded queue",
    "latency": "what the gateway adds to an answer's way, at half load and to the first word",
    "rates": "turns per second by number of chats, beside two relays and two nanobots",
    "killed": "what kill -9 loses, beside the same four",
    "cached": "memory of 1,000 chats in the cache",
    "neighbours": "500 letters of one key, and what the others feel of it",
    "crowd": "500 chats at once",
    "sockets": "500 clients that look on, and what a turn feels of it",
    "adapters": "Telegram and Discord, both ways, a burst and a gap",
    "metrics": "an answer to Prometheus with 10,000 keys in hand",
    "idle": "what a daemon takes of a core while nobody writes",
    "cron": "10,000 jobs of the clock, waiting and due",
    "backup": "a backup of 1 GB beside cp -a, and what the turns feel of it",
    "mcp": "a call of a tool on a server outside, beside the bare client",
    "takeover": "64 running turns whose daemon is killed, or freezes",
    "limited": "20 chats at a model that lets one request through per second",
    "bill": "what a provider bills for a long tool turn, with cache marks and without",
    "litellm": "whole turns through LiteLLM, beside LiteLLM alone",
    "scale": "a million chats a day, simulated from what a turn costs",
}
# Only when they are named.
LONG = {"soak": "a million turns over 10,000 chats"}


def main() -> int:
    """Run what is asked for; 1 where a figure is missed or a benchmark broke."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NOUNS | LONG))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.names) - set(NOUNS | LONG)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there is {', '.join(NOUNS | LONG)}")
    if options.here:
        for name in options.names:
            measure(name)
        return 0
    rows: list[Row] = []
    broken = []
    for name in options.names or NOUNS:
        print(f"{name}: {(NOUNS | LONG)[name]} …", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "bench", "--here", name]
        if subprocess.run(command, cwd=Path(__file__).parent.parent, check=False).returncode:
            broken.append(name)
        else:
            rows += read(name)
    for name, value in machine().items():
        print(f"{name}: {value}")
    print()
    print(table(rows))
    print("\n`python -m bench.report` brings them into docs/benchmarks.md")
    if broken:
        print(f"\nerror: {', '.join(broken)} did not run to its end", file=sys.stderr)
    return 1 if broken or any(row.verdict == "MISS" for row in rows) else 0


def measure(name: str) -> None:
    """Run one benchmark in this process and write its result."""
    began = time.monotonic()
    rows: list[Row] = importlib.import_module(f"bench.{name}").run()
    write(name, rows, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
