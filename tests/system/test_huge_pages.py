"""What a gateway has in memory lies on huge pages where it fills them, and nothing else does."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.app import huge_pages
from gateway.app.huge_pages import HugePages
from tests.support import harness
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.huge import needs_huge_pages, on_huge_pages
from tests.support.until import until

pytestmark = guarantee("operation", "Memory that fills huge pages lies on huge pages.")

BLOCK = 2 * 2**20
SOME = 8 * BLOCK


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    """Memory of this process alone, of which no page is in use yet."""
    with mmap.mmap(-1, SOME, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as found:
        yield found


@needs_huge_pages
async def test_a_daemon_lies_on_them(tmp_path: Path) -> None:
    """Half of what it has, once it has been up for a moment."""
    async with Daemon(tmp_path, anew=True) as daemon:
        assert daemon.pid is not None
        pid = daemon.pid

        def dense() -> bool:
            huge, own = on_huge_pages(pid)
            return huge > own / 2

        await until(dense, 30)


@needs_huge_pages
async def test_one_that_was_forked_stays_where_it_is(tmp_path: Path) -> None:
    """As the tests' own daemons are: moved, their memory would no longer be that of all of them."""
    if not harness.FORKS:
        pytest.skip("these tests start their daemons anew")
    async with Daemon(tmp_path) as daemon:
        assert daemon.pid is not None
        # The first time that it is sought, and more than enough for a block.
        await asyncio.sleep(huge_pages.PAUSES_S[0] + 0.5)

        assert on_huge_pages(daemon.pid)[0] == 0


async def test_later_ones_are_sought_when_little_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever touches what is being moved waits: behind a second of work it is left where it is."""
    used = iter([0.0, 0.9, 0.9, 1.1, 1.1, 1.15, 9.9])
    slept: list[float] = []

    async def sleep(for_s: float) -> None:
        slept.append(for_s)
        assert len(slept) < 9

    monkeypatch.setattr(huge_pages.time, "process_time", lambda: next(used))
    monkeypatch.setattr(huge_pages.asyncio, "sleep", sleep)
    monkeypatch.setattr(huge_pages, "PAUSES_S", (1.5,))
    monkeypatch.setattr(huge_pages, "LATER_S", (2.5,))
    pages = HugePages()
    pages.allowed = True
    gathered: list[int] = []

    def gather() -> int:
        gathered.append(len(slept))
        pages.allowed = len(gathered) < 2
        return 0

    monkeypatch.setattr(pages, "gather", gather)

    await huge_pages._keep(pages)

    watched = huge_pages.WATCHED_S
    assert slept == [1.5, 2.5, watched, watched, watched]
    assert gathered == [1, 5]


@needs_huge_pages
def test_what_is_in_use_is_gathered_and_stays_as_it_was(memory: mmap.mmap) -> None:
    said = bytes(range(256)) * (SOME // 256)
    memory[:] = said
    pages = HugePages()
    before, _ = on_huge_pages()

    gathered = pages.gather()

    assert on_huge_pages()[0] - before >= SOME - 2 * BLOCK
    assert memory[:] == said
    assert pages.gather() >= gathered


@pytest.mark.parametrize(("still", "again"), [(1.0, False), (0.5, True), (None, False)])
def test_what_was_given_back_and_taken_again_is_gathered_again(
    still: float | None,
    again: bool,
    memory: mmap.mmap,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the same place, where small pages came to be; only how many are on huge ones is told, if that."""
    for path, said in (("SETTING", "[madvise]"), ("SIZE", str(BLOCK)), ("MAPS", _maps_of(memory))):
        (tmp_path / path).write_text(said)
        monkeypatch.setattr(huge_pages, path, tmp_path / path)
    rollup = tmp_path / "rollup"
    monkeypatch.setattr(huge_pages, "ROLLUP", rollup)
    memory[:] = b"x" * SOME
    asked: list[int] = []

    def put(block: int, *_: int) -> int:
        asked.append(block)
        return 0

    pages = HugePages()
    monkeypatch.setattr(pages._library, "madvise", put)
    gathered = pages.gather()
    assert gathered == len(asked) > 1
    if still is not None:
        rollup.write_text(f"Rss: 1 kB\nAnonHugePages:  {int(still * gathered * BLOCK) // 1024} kB\n")

    assert pages.gather() == gathered

    assert (len(asked) > gathered) is again


def _maps_of(memory: mmap.mmap) -> str:
    """Say where it lies, as the system does."""
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return f"{begin:x}-{begin + SOME:x} rw-p 00000000 00:00 0 \n"


@needs_huge_pages
def test_what_is_hardly_in_use_takes_no_more_than_before(memory: mmap.mmap) -> None:
    """A page of each four, as an arena is left by what came and went: on huge ones it would take all four."""
    HugePages().gather()
    for place in range(0, SOME, 4 * mmap.PAGESIZE):
        memory[place] = 1
    before, own = on_huge_pages()

    HugePages().gather()

    huge, now = on_huge_pages()
    assert huge - before < SOME / 2
    assert now - own < SOME / 4


@needs_huge_pages
def test_who_ends_waits_for_no_more_than_a_block(memory: mmap.mmap) -> None:
    memory[:] = b"x" * SOME
    pages = HugePages()
    pages.ending.set()

    assert pages.gather() == 1


@pytest.mark.parametrize("said", ["always madvise [never]\n", None])
def test_where_the_system_gives_none_nothing_is_done(
    said: str | None, memory: mmap.mmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the operator says, or on a system that has none."""
    setting = tmp_path / "enabled"
    if said is not None:
        setting.write_text(said)
    monkeypatch.setattr(huge_pages, "SETTING", setting)
    memory[:] = b"x" * SOME
    pages = HugePages()

    assert not pages.allowed
    assert pages.gather() == 0


@pytest.mark.parametrize("why", [errno.ENOMEM, errno.EBUSY])
def test_where_none_is_left_no_further_one_is_asked_for(
    why: int, memory: mmap.mmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the machine, or in a container: there each call throws out what the container has read of files."""
    for path, said in (("SETTING", "[madvise]"), ("SIZE", str(BLOCK))):
        (tmp_path / path).write_text(said)
        monkeypatch.setattr(huge_pages, path, tmp_path / path)
    memory[:] = b"x" * SOME
    asked: list[int] = []

    def refused(block: int, *_: int) -> int:
        asked.append(block)
        ctypes.set_errno(why)
        return -1

    pages = HugePages()
    monkeypatch.setattr(pages._library, "madvise", refused)

    assert pages.gather() == 0
    assert len(asked) == 1


async def test_where_nothing_says_what_is_mapped_the_search_ends_without_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, said in (("SETTING", "[madvise]"), ("SIZE", str(BLOCK))):
        (tmp_path / path).write_text(said)
        monkeypatch.setattr(huge_pages, path, tmp_path / path)
    monkeypatch.setattr(huge_pages, "MAPS", tmp_path / "none")
    monkeypatch.setattr(huge_pages, "PAUSES_S", (0.0,))

    with capture_logs() as said_there:
        await huge_pages._keep(HugePages())

    assert [(each["event"], each["log_level"]) for each in said_there] == [("memory.no_huge_pages", "info")]


def test_a_mapped_file_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is bytes, and may have what ends a line elsewhere."""
    maps = tmp_path / "maps"
    maps.write_bytes(
        b"30000000-30400000 rw-p 00000000 fe:00 12 /a \xff\xc2\x85 \x0c \x1c\xe2\x80\xa8 file\n"
        b"40000000-40200000 rw-p 00000000 00:00 0 \n"
    )
    for path, said in (("SETTING", "[madvise]"), ("SIZE", str(BLOCK))):
        (tmp_path / path).write_text(said)
        monkeypatch.setattr(huge_pages, path, tmp_path / path)
    monkeypatch.setattr(huge_pages, "MAPS", maps)
    looked: list[int] = []
    pages = HugePages()
    monkeypatch.setattr(pages, "_is_dense", looked.append)

    pages.gather()

    assert looked == [0x40000000]


def test_only_what_is_this_process_s_alone_counts() -> None:
    """Whole blocks at their places, of the heap and of what has no name; no file, stack or shared memory."""
    size = 0x200000
    said = """\
10000000-10100000 rw-p 00000000 00:00 0                          [heap]
20000000-20400000 rw-p 00000000 00:00 0
201ff000-20601000 rw-p 00000000 00:00 0                          [anon:arena]
30000000-30400000 rw-p 00000000 fe:00 12                         /a file
40000000-40400000 rw-s 00000000 00:01 0                          /dev/zero (deleted)
50000000-50400000 r-xp 00000000 00:00 0
60000000-60800000 rw-p 00000000 00:00 0                          [stack]
"""

    assert list(huge_pages.own_blocks(said, size)) == [0x20000000, 0x20200000, 0x20200000, 0x20400000]
