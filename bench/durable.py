"""Durable turns per second beside DBOS with PostgreSQL, on the same machine in the same run.

Both take a message with an id, run a model that echoes, and have the answer durable before the next
message of the chat: ours through its embedded queue, with the transcript; theirs as a workflow of two
steps. A server on the same machine keeps DBOS's state, and syncs each commit.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench import relay
from bench.row import Row, rate
from tests.support.peers import DBOS, python
from tests.support.postgres import Postgres

CHATS, EACH, ROUNDS = 100, 40, 3


def run() -> list[Row]:
    """Alternate the two."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(relay.embedded_queue())
        theirs.append(_dbos())
    what = f"{CHATS} chats at once, echo; DBOS: two steps a workflow, its server on the same two cores"
    return [rate("durable turns", ours, theirs, "DBOS + PostgreSQL", at_least=10, notes={"what": what})]


def _dbos() -> float:
    script = Path(__file__).with_name("dbos_turns.py")
    with Postgres() as server:
        command = [str(python(DBOS)), str(script), server.url, str(CHATS), str(EACH)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.split()[-1])
