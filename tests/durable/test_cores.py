"""A process that keeps to a core, and what it starts: tried in processes of their own, since it stays so."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs two cores"),
    guarantee("operation", "Each worker keeps to a core of its own where there are enough."),
]

STARTS = {
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "os.posix_spawn",
    "os.system",
    "subprocess.Popen",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.run",
}
BEGIN = """
import asyncio, json, os, subprocess, sys, threading
import durable
from durable.cores import on_any_core
TELL = "import os, json; print(json.dumps(sorted(os.sched_getaffinity(0))))"
def mine():
    return sorted(os.sched_getaffinity(0))
def started():
    return json.loads(subprocess.check_output([sys.executable, "-c", TELL]))
def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
"""


def ran(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_it_and_its_threads_keep_to_one_core_and_what_it_starts_has_all() -> None:
    every = sorted(os.sched_getaffinity(0))
    kept, thread, loose, inside, of_thread, after = ran(
        f"""
durable.keep_to_core({every[-1]})
kept, thread, loose = mine(), in_thread(mine), started()
def start():
    with on_any_core():
        return started()
inside, of_thread = start(), in_thread(start)
print(json.dumps([kept, thread, loose, inside, of_thread, mine()]))
"""
    )

    assert (kept, thread, after) == ([every[-1]],) * 3
    # What is started without a word inherits it, so that each start has to say it.
    assert loose == [every[-1]]
    assert (inside, of_thread) == (every, every)


def test_of_two_that_start_something_at_once_the_last_goes_back() -> None:
    every = sorted(os.sched_getaffinity(0))
    first, between, after = ran(
        f"""
durable.keep_to_core({every[0]})
async def start(until):
    with on_any_core():
        await until.wait()
async def main():
    ends = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(start(end)) for end in ends]
    await asyncio.sleep(0)
    first = mine()
    ends[0].set()
    await tasks[0]
    between = mine()
    ends[1].set()
    await tasks[1]
    return [first, between, mine()]
print(json.dumps(asyncio.run(main())))
"""
    )

    assert (first, between, after) == (every, every, [every[0]])


def test_without_a_core_nothing_changes() -> None:
    every = sorted(os.sched_getaffinity(0))
    found = ran(
        """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
with on_any_core():
    inside = mine()
print(json.dumps([inside, mine()]))
"""
    )
    assert found == [[every[0]]] * 2


def test_what_is_spawned_may_run_on_every_core() -> None:
    """By a thread and by a loop, while the process keeps to one."""
    every = sorted(os.sched_getaffinity(0))
    by_thread, by_loop, after = ran(
        f"""
durable.keep_to_core({every[0]})
words = [sys.executable, "-c", TELL]
async def by_loop():
    child = await durable.spawn_async(words)
    return json.loads((await child.communicate())[0])
child = durable.spawn(words)
print(json.dumps([json.loads(child.communicate()[0]), asyncio.run(by_loop()), mine()]))
"""
    )

    assert (by_thread, by_loop, after) == (every, every, [every[0]])


def test_a_session_starts_nothing_but_by_spawn() -> None:
    """A child would inherit what its worker keeps to, and the environment with its keys."""
    calls = {
        ast.unparse(node.func): path.name
        for path in (ROOT / "session").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }

    assert {"spawn", "spawn_async"} <= calls.keys()
    assert {name: calls[name] for name in STARTS & calls.keys()} == {}
