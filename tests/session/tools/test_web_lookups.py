"""Names of pages are looked up beside those of the process: one that hangs holds up nobody else."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from session.errors import ToolError
from session.tools.web.fetching import Fetcher
from session.tools.web.lookups import MAX_LOOKUPS, Lookups
from tests.session.tools.web_place import PUBLIC
from tests.support.until import until

ENDS = """
import asyncio, socket, threading
from session.tools.web.fetching import Fetcher
socket.getaddrinfo = lambda *a, **k: threading.Event().wait()
async def main():
    try:
        async with asyncio.timeout(0.2):
            await Fetcher(max_bytes=1000).fetch("http://slow.test/")
    except TimeoutError:
        print("gave up", flush=True)
asyncio.run(main())
"""


class Names:
    """What the system is asked: ``slow.test`` hangs until it is let go, any other is there at once."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.hanging = 0

    def getaddrinfo(self, host: str, port: int, *_: object, **__: object) -> list[Any]:
        if host == "slow.test":
            self.hanging += 1
            self.go_on.wait(30)
        if host == "none.test":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.go_on.set()


async def test_names_are_looked_up(names: Names) -> None:
    look = Lookups()

    assert await look("example.test", 80) == [PUBLIC]
    with pytest.raises(socket.gaierror):
        await look("none.test", 80)


async def test_names_that_hang_take_no_thread_that_others_wait_for(names: Names) -> None:
    """Neither while a page waits for them nor after it was given up."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    fetcher = Fetcher(max_bytes=1000)
    pages = [asyncio.create_task(fetcher.fetch("http://slow.test/")) for _ in range(MAX_LOOKUPS)]
    await until(lambda: names.hanging == MAX_LOOKUPS)
    async with asyncio.timeout(5):
        await loop.getaddrinfo("example.test", 80)
    for page in pages:
        page.cancel()
        with suppress(asyncio.CancelledError):
            await page

    async with asyncio.timeout(5):
        await loop.getaddrinfo("example.test", 80)


async def test_where_all_threads_are_taken_a_page_is_refused_with_words(names: Names) -> None:
    look = Lookups(most=2, wait_s=0.05)
    hanging = [asyncio.create_task(look("slow.test", 80)) for _ in range(2)]
    await until(lambda: names.hanging == 2)
    hanging[0].cancel()
    with pytest.raises(ToolError, match="names cannot be looked up now; try again later"):
        await look("example.test", 80)

    names.go_on.set()
    assert await hanging[1] == [PUBLIC]
    assert [await look("example.test", 80) for _ in range(5)] == [[PUBLIC]] * 5


def test_a_name_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=20, check=False
    )

    assert (ended.stdout, ended.returncode) == ("gave up\n", 0), ended.stderr
