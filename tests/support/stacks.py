"""Where a process that does not end stands: its threads and tasks, told to its log on SIGUSR2."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
from types import FrameType

SIGNAL = signal.SIGUSR2


def tell_on_signal() -> None:
    """From now on write the stacks of all threads and tasks to stderr at each ``SIGNAL``."""
    signal.signal(SIGNAL, _tell)


def _tell(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback(file=2, all_threads=True)
    told = io.StringIO()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return
    for task in tasks:
        print(f"-- {task.get_name()}", file=told)
        task.print_stack(limit=8, file=told)
    os.write(2, told.getvalue().encode())
