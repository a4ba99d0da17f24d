"""Long work of a verb is done in a session of its own, behind everybody else, and ends with the verb."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.backup import NICE

_VERB = """\
import os, signal, sys, time
from gateway.cli.backup import at_low_priority
from gateway.cli.root import GlobalOptions

def work():
    print(os.getpid(), os.getsid(0), os.nice(0), flush=True)
    {work}

try:
    sys.exit(at_low_priority(lambda: work(), GlobalOptions()))
except KeyboardInterrupt:
    sys.exit(1)
"""

# A verb to which it comes as soon as there are two processes.
_EARLY = """\
import os, signal
fork = os.fork

def forked():
    child = fork()
    if child:
        os.kill(os.getpid(), signal.SIGINT)
    return child

os.fork = forked
"""


def verb(work: str) -> subprocess.Popen[str]:
    """Start a process that is the leader of no session, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-c", _VERB.format(work=work)], stdout=subprocess.PIPE, text=True
    )


def begun(process: subprocess.Popen[str]) -> tuple[int, int, int]:
    assert process.stdout is not None
    pid, session, nice = map(int, process.stdout.readline().split())
    return pid, session, nice


def test_it_is_done_apart_and_its_code_comes_back() -> None:
    with verb("return 3") as process:
        pid, session, nice = begun(process)

    assert process.returncode == 3
    assert pid == session != process.pid
    assert nice == NICE + os.nice(0)


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel knows no groups of sessions"
)
def test_others_go_before_its_session() -> None:
    """The session that it was called in is served as before."""
    own = Path("/proc/self/autogroup").read_text()
    with verb("print(open('/proc/self/autogroup').read()); return 0") as process:
        begun(process)
        assert process.stdout is not None
        told = process.stdout.read().strip()

    assert told.endswith(f"nice {NICE}")
    assert Path("/proc/self/autogroup").read_text() == own


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_it_ends_with_the_verb(number: signal.Signals, code: int) -> None:
    """Whatever ends what a person sees ends the work: nothing goes on unseen."""
    with verb("while True: time.sleep(0.1)") as process:
        pid, _, _ = begun(process)
        work = os.pidfd_open(pid)
        process.send_signal(number)
        assert process.wait(60) == code
        # A descriptor of a process is readable once it is gone.
        ready = select.select([work], [], [], 60)[0]
        os.close(work)

    assert ready == [work]


def test_what_kills_the_work_kills_the_verb() -> None:
    with verb("os.kill(os.getpid(), signal.SIGKILL)") as process:
        begun(process)

    assert process.returncode == -signal.SIGKILL


def test_a_ctrl_c_that_comes_before_the_verb_waits_ends_it() -> None:
    """Between the two processes and the wait for one of them it was lost, or left the work behind."""
    script = _EARLY + _VERB.format(work="while True: time.sleep(0.1)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)

    assert done.returncode == 130
