"""What a gateway sees of a worker whose loop stands still, and of one that dies again and again."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

import httpx

from tests.support.broker import Broker
from tests.support.gateway_team import gone, pids, running, worker_for, worker_of, workers
from tests.support.harness import Daemon, ask
from tests.support.place import contents, on
from tests.support.until import until

# What Python imports at each start. A signal blocks the thread of the loop, as an endless call would;
# while a file is there, a worker writes down when it was started and ends.
ILL = """
import os, signal, sys, time

def a_call_that_never_returns(*_):
    while True:
        time.sleep(3600)

if "gateway.cli.worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, a_call_that_never_returns)
    if os.path.exists(os.environ["DEATHS"]):
        with open(os.environ["DEATHS"], "a") as file:
            file.write(f"{time.monotonic()}\\n")
        os._exit(3)
"""


def ill(tmp_path: Path, config: dict[str, object]) -> tuple[Daemon, Path]:
    """A gateway of two workers that may fall ill, and the file by which they die."""
    (tmp_path / "sitecustomize.py").write_text(ILL)
    deaths = tmp_path / "deaths"
    prefix = ("env", f"PYTHONPATH={tmp_path}", f"DEATHS={deaths}")
    config = {"limits.workers": 2, "limits.drain_s": 30.0, **config}
    return Daemon(tmp_path / "w", config=config, prefix=prefix), deaths


async def test_a_worker_whose_loop_is_blocked_is_replaced_and_says_where_it_stood(
    broker: Broker, tmp_path: Path, broker_name: str
) -> None:
    """Its turn is gone on with by the next one; the log has the line at which the call stood."""
    config = on(broker, broker_name, partitions=4)
    config |= {"model.echo_delay_s": 2.0, "limits.worker_timeout_s": 6.0}
    daemon, _ = ill(tmp_path, config)
    async with daemon:
        victim = await worker_of(daemon, "web:ada", "who")
        asking = asyncio.create_task(ask(daemon, "web:ada", "1", "long"))
        await running(daemon, "web:ada", ended=asking)
        os.kill(victim, signal.SIGUSR2)

        answer = await asking
        await gone(victim)

        assert (answer or {}).get("reply") == "echo: long"
        assert b'"worker.stuck"' in daemon.log
        assert b"a_call_that_never_returns" in daemon.log
    assert contents(tmp_path / "w", "web_ada")[2:] == ["long", "echo: long"]


async def test_a_worker_that_dies_again_and_again_is_waited_for_longer(
    broker: Broker, tmp_path: Path, broker_name: str
) -> None:
    """Twice as long each time, while the other one answers and ``/readyz`` names the one that is missing."""
    daemon, deaths = ill(tmp_path, on(broker, broker_name, partitions=4))
    async with daemon:
        deaths.touch()
        second = (await pids(daemon))[1]
        of = {await worker_for(daemon, key): key for key in (f"web:c{number}" for number in range(20))}

        async def died() -> bool:
            # The spare process, where there is one already, is as well as the one that it replaces.
            if (first := (await workers(daemon))[0])["up"]:
                os.kill(first["pid"], signal.SIGKILL)
            return len(deaths.read_text().splitlines()) >= 4

        await until(died, 120)
        answer = await ask(daemon, of[second], "1", "hello")
        async with httpx.AsyncClient(timeout=30) as client:
            seen = (await client.get(f"{daemon.url}/readyz")).json()
        starts = [float(line) for line in deaths.read_text().splitlines()][:4]
        deaths.unlink()
        await until(lambda: _all_up(daemon), 120)

    assert (answer or {}).get("reply") == "echo: hello"
    assert seen["ready"]
    assert not seen["parts"]["workers"]["up"]
    assert "worker 1 ended (exit code 3) and is started anew" in seen["parts"]["workers"]["error"]
    waited = [later - before for before, later in itertools.pairwise(starts)]
    assert [took >= least for took, least in zip(waited, (0.5, 1, 2), strict=True)] == [True] * 3, waited


async def _all_up(daemon: Daemon) -> bool:
    return all(row["up"] for row in await workers(daemon))
