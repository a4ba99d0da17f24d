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
    "startup": "time to `--help` and to ready, resident memory",
    "workers": "memory and CPU of a gateway in several processes",
    "length": "cost of one more turn by length of the transcript",
    "context": "building a request, and how much of it stays the same",
    "load": "cold load of 10,000 messages",
    "recall": "quality and speed of searches, cost of the index",
    "scope": "search and request in a scope with 10,000 facts and 100 MB",
    "console": "web console with 5,000 chats and 10,000 messages in a real browser",
    "big": "a transcript of 100 MB, with and without its index",
    "conversation": "2,000 turns of one session",
    "relay": "RabbitMQ compared with a bare relay, and the embedded queue",
    "latency": "latency added by the gateway, at half load and to the first word",
    "rates": "turns per second by number of chats, compared with two relays and two nanobots",
    "durable": "turns per second compared with DBOS and PostgreSQL",
    "killed": "messages lost by kill -9, compared with the same four",
    "cached": "memory of 1,000 chats in the cache",
    "neighbours": "effect of 500 messages of one chat on the others",
    "crowd": "500 chats at once",
    "sockets": "effect of 500 connected clients on a turn",
    "adapters": "Telegram and Discord, both ways, a burst and a gap",
    "metrics": "a Prometheus scrape with 10,000 active chats",
    "idle": "CPU use while idle",
    "cron": "10,000 scheduled jobs, waiting and due",
    "backup": "backup of 1 GB compared with cp -a, and its effect on turns",
    "mcp": "call of an MCP tool compared with the bare client",
    "takeover": "takeover of 64 running turns after their process is killed or freezes",
    "limited": "20 chats with a model that allows one request per second",
    "bill": "provider's bill for a long tool turn, with and without cache marks",
    "litellm": "complete turns through LiteLLM compared with LiteLLM alone",
    "scale": "a million chats a day, simulated from the cost of a turn",
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
