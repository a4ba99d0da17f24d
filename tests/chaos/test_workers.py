"""The workers of a gateway, as chaos finds them: by what the system knows, and by what their gateway says."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.blows import Blow, draw_blow
from tests.chaos.crew import Crew

# A process that has the word in its command line, connects to the port that it is given, and waits.
_WORKER = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """The children of this process are the workers."""
    crew = Crew(tmp_path)
    crew.begin("d0.1", os.getpid())
    yield crew
    crew.kill()


def test_a_connection_tells_which_worker_made_it(crew: Crew, tmp_path: Path) -> None:
    """One that no worker made is the gateway's; of an earlier life it keeps the name of that life."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = [sys.executable, "-c", _WORKER, str(port), "gateway.cli.worker"]
        env = {"HOME": str(tmp_path)}
        with subprocess.Popen(words, stdin=subprocess.PIPE, env=env) as worker:
            theirs, (_, at) = server.accept()
            with socket.create_connection(("127.0.0.1", port)) as ours, theirs:
                name = f"d0.1.w{worker.pid}"

                assert crew.living() == [worker.pid]
                assert crew.of_port("d0.1", at) == name
                # Another program may have the same port, at another address or towards another end.
                with socket.create_server(("127.0.0.2", at)):
                    assert crew.of_port("d0.1", at) == name
                assert crew.of_port("d0.1", ours.getsockname()[1]) == "d0.1"
                assert not crew.has_started(worker.pid)
                crew.numbered("d0.1", 2, worker.pid)
                assert crew.has_started(worker.pid)
                assert (crew.by_number("d0.1", 2), crew.by_number("d0.1", 1)) == (name, "d0.1")
                crew.begin("d0.2", 2**22 + 1)
                assert (crew.living(), crew.names()) == ([], [name])
                crew.kill()
            assert worker.wait(30) == -9
    assert crew.names() == []


def test_one_that_was_never_seen_and_stands_still_is_killed_too(tmp_path: Path) -> None:
    """… once its gateway is gone; a worker of somebody else is left alone."""
    mine, other = Crew(tmp_path), tmp_path / "other"
    words = [sys.executable, "-c", "import sys; sys.stdin.read()", "gateway.cli.worker"]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, env={"HOME": str(tmp_path)}) as unseen,
        subprocess.Popen(words, stdin=subprocess.PIPE, env={"HOME": str(other)}) as theirs,
    ):
        unseen.send_signal(signal.SIGSTOP)

        mine.kill()

        assert unseen.wait(30) == -signal.SIGKILL
        assert theirs.poll() is None
    assert theirs.returncode == 0


def test_a_seed_decides_every_blow_and_all_are_dealt() -> None:
    def blows(seed: int) -> list[Blow]:
        dice = random.Random(seed)
        return [draw_blow(dice) for _ in range(1000)]

    assert blows(1) == blows(1) != blows(2)
    assert {(blow.of, blow.how) for blow in blows(1)} == {
        *(("gateway", how) for how in ("kill", "freeze", "cut")),
        *(("worker", how) for how in ("kill", "freeze", "stuck", "cut")),
    }
