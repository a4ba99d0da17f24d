"""What becomes of a gateway whose workers cannot start, or that is not to have any."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

from gateway.workers.workers import ALONE
from tests.support.broker import Broker
from tests.support.gateway_team import gone, pids
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask
from tests.support.place import on
from tests.system.test_daemon import refused

pytestmark = guarantee(
    "operation", "A worker that cannot start ends the gateway with its error and exit code."
)

# What Python imports at each start: the worker's ends there, as it would for want of memory.
DIES = """
import os, sys
if "gateway.cli.worker" in sys.orig_argv:
    with open(os.environ["STARTS"], "a") as file:
        file.write("x")
    os._exit(3)
"""


async def test_with_the_embedded_queue_it_works_in_one_process(tmp_path: Path) -> None:
    """What was asked for cannot be had, which is said in one line, and it works."""
    async with Daemon(tmp_path, verb=("run", "--workers", "3")) as daemon:
        answer = await ask(daemon, "web:ada", "1", "hello")

        assert (answer or {})["reply"] == "echo: hello"
        assert daemon.log.decode().count(ALONE) == 1
        assert await pids(daemon) == []


async def test_it_ends_where_its_workers_cannot_start(
    broker: Broker, tmp_path: Path, broker_name: str
) -> None:
    """One start of each, the words of the failure, its exit code, and no process left."""
    (tmp_path / "sitecustomize.py").write_text(DIES)
    starts = tmp_path / "starts"
    prefix = ("env", f"PYTHONPATH={tmp_path}", f"STARTS={starts}")
    config = on(broker, broker_name, **{"limits.workers": 2})

    code, said = await refused(tmp_path / "w", config=config, prefix=prefix)

    assert code == 1
    assert len(starts.read_text()) <= 2
    assert "ended while it started (exit code 3)" in said
    assert said.count("\nerror: ") == 1
    assert "ready http" not in said


async def test_a_worker_that_can_start_no_more_ends_the_gateway_after_its_turns(
    broker: Broker, tmp_path: Path, broker_name: str
) -> None:
    """The folder was taken over by another version meanwhile: a drain, its words, and 78."""
    config = on(broker, broker_name, **{"limits.workers": 2, "limits.drain_s": 60.0})
    async with Daemon(tmp_path, config=config) as daemon:
        former = await pids(daemon)
        (tmp_path / "state" / "workspace.json").write_text('{"v": 1}')
        os.kill(former[0], signal.SIGKILL)

        code = await daemon.died()
        for pid in former:
            await gone(pid)

    assert code == 78
    assert daemon.log.decode().count("error: worker 1: ") == 1
    assert "try: " in daemon.log.decode()
    assert b"daemon.draining" in daemon.log


async def test_a_port_that_is_taken_starts_no_worker(tmp_path: Path) -> None:
    """It is taken before the broker is asked for anything: words and exit code as without workers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = {"broker.url": "amqp://guest:guest@127.0.0.1:1/", "http.port": port}
        code, said = await refused(tmp_path, verb=("run", "--workers", "2"), config=config)

    assert code == 1
    assert f"error: http.port {port} on 127.0.0.1 cannot be used" in said
    assert "worker" not in said


async def test_the_second_signal_ends_a_worker_that_stands_still(
    broker: Broker, tmp_path: Path, broker_name: str
) -> None:
    """It hears nothing, and goes with its gateway all the same."""
    config = on(broker, broker_name, **{"limits.workers": 2, "limits.worker_timeout_s": 600})
    async with Daemon(tmp_path, config=config) as daemon:
        frozen, other = await pids(daemon)
        os.kill(frozen, signal.SIGSTOP)
        try:
            daemon.signal(signal.SIGTERM)
            await daemon.said("daemon.draining")
            daemon.signal(signal.SIGTERM)

            assert await daemon.died() == 0
            await gone(other)
            await gone(frozen)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(frozen, signal.SIGKILL)
