"""Long work that everybody else on the machine goes before."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.cli import output

NICE: Final = 5
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_SET_DEATH_SIGNAL: Final = 1
_BROKEN: Final = 70
_LOOK_S: Final = 0.05


def giving_way(work: Callable[[], int], args: argparse.Namespace) -> int:
    """Do the work of a verb in a session of its own, and return its exit code.

    Linux shares the processors out among sessions first, and by niceness within each alone: in the session
    of a shell, work however nice would take as much as the daemon.
    """
    if os.getsid(0) == os.getpid() or threading.active_count() > 1:
        _lower()
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # Until both know what to do with a Ctrl-C it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    child = os.fork()
    if child == 0:
        _be(work, args, parent)
    return _end_of(child)


def _be(work: Callable[[], int], args: argparse.Namespace, parent: int) -> None:
    """Do the work in the child, which never returns from here."""
    code = _BROKEN
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        stand_behind()
        _die_with(parent)
        code = work()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - here the command ends
        code = output.report(error, args)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end_of(child: int) -> int:
    """Wait for the child; what ends it by a signal ends this process by the same."""
    ended = status = 0
    while not ended:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            # A call that waits for good would miss a Ctrl-C that comes just before it.
            time.sleep(_LOOK_S)
            ended, status = os.waitpid(child, os.WNOHANG)
        except KeyboardInterrupt:
            # The terminal tells its own session alone.
            os.kill(child, signal.SIGINT)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def stand_behind() -> None:
    """Make a session of this process alone, behind all others; it may lead no group of processes yet."""
    os.setsid()
    _lower()


def _lower() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(NICE))


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with the one that a person sees."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:
        raise KeyboardInterrupt
