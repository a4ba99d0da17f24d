"""Jobs beside the loop: what is queued is done at the end, and an error that nobody sees is no noise."""

from __future__ import annotations

import threading

import pytest

from session.disk.threads import DiskThreads


def name() -> str:
    return threading.current_thread().name


async def test_one_thread_does_all_while_it_keeps_up() -> None:
    disk = DiskThreads()

    names = {await disk.start(name) for _ in range(50)}

    disk.close()
    assert len(names) == 1


async def test_the_end_does_what_is_queued_and_refuses_what_comes_later() -> None:
    disk = DiskThreads()
    begun, go_on = threading.Event(), threading.Event()
    disk.start(lambda: begun.set() or go_on.wait())
    queued = [disk.start(name) for _ in range(30)]
    assert begun.wait(10)
    go_on.set()

    disk.close()

    assert len({await each for each in queued}) == 1
    with pytest.raises(RuntimeError, match="shutdown"):
        disk.start(name)
