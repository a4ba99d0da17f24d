"""What the limiter's file says to other processes and to later starts, and what is forgotten of it."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
from pathlib import Path
from typing import Any

import orjson

from channels.limiter import Limiter, Rate, Rates, rates_of
from tests.channels.test_limiter import TELEGRAM, TOKEN, limiter, sends
from tests.channels.ticking import Ticking
from tests.gateway.embedded_place import files_at_most
from tests.support.until import until


def content(state: Path) -> dict[str, Any]:
    """Read the whole file, as whoever looks through a workspace does."""
    [file] = state.iterdir()
    read: dict[str, Any] = orjson.loads(file.read_bytes())
    return read


async def test_what_is_older_than_the_longest_window_is_forgotten(tmp_path: Path) -> None:
    """To the instant: a minute is the longest that Telegram counts; a pause ends with its instant."""
    time = Ticking()
    each = limiter(tmp_path, time)
    await each.pause("6", 60.0)
    await each.pause("7", 61.0)
    [[old]] = await time.together(sends(each, time, "5", 1))
    time.now += 1.0
    [[young]] = await time.together(sends(each, time, "5", 1))
    assert content(tmp_path)["sent"] == {"5": [old, young], "": [old, young]}

    time.now = old + 60.0
    [[now]] = await time.together(sends(each, time, "8", 1))

    assert content(tmp_path)["sent"] == {"5": [young], "8": [now], "": [young, now]}
    assert content(tmp_path)["until"] == {"7": old + 61.0}


async def test_a_send_counts_for_one_window_and_no_instant_longer(tmp_path: Path) -> None:
    time = Ticking()
    one = Rates(overall=Rate(50, 1.0), chat=Rate(2, 3.0))

    [at] = await time.together(sends(limiter(tmp_path, time, one), time, "5", 4))

    assert at == [1_000.0, 1_000.0, 1_003.0, 1_003.0]


async def test_a_pause_is_the_longest_that_was_asked_for(tmp_path: Path) -> None:
    """Whoever asked, in whatever order; one in the past holds nobody."""
    time = Ticking()
    one, other = limiter(tmp_path, time), limiter(tmp_path, time)
    await one.pause("5", 30.0)
    await other.pause("5", 10.0)
    await one.pause("6", 10.0)
    await other.pause("6", 30.0)

    at = await time.together(*(sends(other, time, chat, 1) for chat in "56"))

    assert at == [[1_030.0], [1_030.0]]


async def test_a_pause_that_the_disk_refused_is_told_once_it_takes_it(tmp_path: Path) -> None:
    """The longer one holds, whichever was refused."""
    time = Ticking()
    one, other = limiter(tmp_path, time), limiter(tmp_path, time)
    await other.pause("5", 10.0)
    await other.pause("6", 30.0)
    with files_at_most(0):
        await one.pause("5", 30.0)
        await one.pause("6", 10.0)
        await one.pause("7", 20.0)
        await one.wait("8", group=False)

    await one.pause("9", 1.0)

    assert content(tmp_path)["until"] == {"5": 1_030.0, "6": 1_030.0, "7": 1_020.0, "9": 1_001.0}
    assert content(tmp_path)["sent"] == {"8": [1_000.0], "": [1_000.0]}
    at = await time.together(*(sends(other, time, chat, 1) for chat in "567"))
    assert at == [[1_030.0], [1_030.0], [1_020.0]]


async def test_a_shorter_line_takes_the_whole_place_of_a_longer_one(tmp_path: Path) -> None:
    """The file neither grows with each write nor keeps anything of what stood there."""
    time = Ticking()
    each = limiter(tmp_path, time)
    await each.pause("9" * 500, 1.0)
    [file] = tmp_path.iterdir()
    size = file.stat().st_size

    time.now += 60.0
    await each.pause("7", 1.0)

    written = file.read_bytes()
    assert list(orjson.loads(written)["until"]) == ["7"]
    assert (len(written), written.index(b"\n")) == (size, size - 1)


async def test_what_was_told_once_counts_once(tmp_path: Path) -> None:
    """What the disk took is not remembered beside it."""
    time = Ticking()
    each = limiter(tmp_path, time)
    with files_at_most(0):
        await each.wait("5", group=False)
    await each.wait("5", group=False)
    await each.wait("6", group=False)
    [file] = tmp_path.iterdir()
    file.write_bytes(b"")

    await each.wait("7", group=False)

    assert content(tmp_path)["sent"] == {"7": [1_000.0], "": [1_000.0]}


async def test_who_finds_the_file_held_waits_for_what_its_holder_writes(tmp_path: Path) -> None:
    time = Ticking()
    each = Limiter(tmp_path, "telegram", TOKEN, TELEGRAM, clock=time, sleep=time.sleep, frozen_s=600.0)
    [file] = tmp_path.iterdir()
    await limiter(tmp_path, time).pause("6", 1.0)
    held = content(tmp_path) | {"sent": {"5": [1_000.0] * 3, "": [1_000.0] * 3}}
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)

    sending = asyncio.ensure_future(time.together(sends(each, time, "5", 1)))
    done, _ = await asyncio.wait([sending], timeout=0.05)
    assert not done
    os.pwrite(fd, orjson.dumps(held) + b"\n", 0)
    os.close(fd)

    assert await sending == [[1_003.0]]


async def test_who_was_held_up_looks_at_the_file_again_once_it_is_free(tmp_path: Path) -> None:
    """It went by what it knew itself; what others did meanwhile counts from then on."""
    time = Ticking()
    each, other = limiter(tmp_path, time), limiter(tmp_path, time)
    [file] = tmp_path.iterdir()
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    await each.wait("5", group=False)
    os.close(fd)

    time.now += 0.5
    await other.wait("5", group=False)
    time.now += 0.5
    await each.wait("5", group=False)
    assert content(tmp_path)["sent"]["5"] == [1_000.0, 1_000.5, 1_001.0]
    [at] = await time.together(sends(other, time, "5", 1))
    assert at == [1_003.0]


async def test_a_chat_that_waits_for_itself_takes_no_place_among_all(tmp_path: Path) -> None:
    """While a chat is over its own rate, others use the places over all chats that it cannot."""
    time = Ticking()
    rates = Rates(overall=Rate(2, 1.0), chat=Rate(1, 10.0))
    each = limiter(tmp_path, time, rates)

    mine, other = await time.together(sends(each, time, "5", 2), sends(each, time, "6", 1))

    assert (mine, other) == ([1_000.0, 1_010.0], [1_000.0])


async def test_who_waits_goes_in_the_order_of_asking(tmp_path: Path) -> None:
    time = Ticking()
    rates = Rates(overall=Rate(1, 1.0), chat=Rate(5, 1.0))
    each = limiter(tmp_path, time, rates)

    at = await time.together(*(sends(each, time, str(chat), 1) for chat in range(5)))

    assert at == [[1_000.0 + number] for number in range(5)]


async def test_the_rates_of_the_platforms() -> None:
    assert rates_of("telegram") == Rates(overall=Rate(30, 1.0), chat=Rate(3, 3.0), group=Rate(20, 60.0))
    assert rates_of("discord") == Rates(overall=Rate(50, 1.0), chat=Rate(5, 5.0))


async def test_a_file_of_another_machine_is_rewritten_in_its_own_time(tmp_path: Path) -> None:
    """By the first look: what it says is moved by the wall clock once, not at each look."""
    time = Ticking()
    each = limiter(tmp_path, time)
    await each.pause("5", 100.0)
    [file] = tmp_path.iterdir()
    mine = content(tmp_path)
    other = mine | {"boot": "another", "clock": 7.0, "until": {"5": 107.0}, "sent": {"6": [7.0], "": [7.0]}}
    file.write_bytes(orjson.dumps(other) + b"\n")

    again = limiter(tmp_path, time)
    looking = asyncio.ensure_future(time.together(sends(again, time, "6", 1)))
    await looking

    now = content(tmp_path)
    assert now["boot"] == mine["boot"]
    assert now["clock"] == time.now
    assert 1_095.0 < now["until"]["5"] <= 1_100.0
    assert [995.0 < at <= 1_000.0 for at in now["sent"]["6"]] == [True, True]
    assert now["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_a_look_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    """Who waits for its chat, or for all, looks again and again."""
    time = Ticking()
    await limiter(tmp_path, time).pause("5", 10.0)
    written = content(tmp_path)
    looked = asyncio.Event()

    async def asleep(_: float) -> None:
        looked.set()
        await asyncio.Event().wait()

    for paused in ("5", None):
        if paused is None:
            await limiter(tmp_path, time).pause(None, 10.0)
            written = content(tmp_path)
        each = Limiter(tmp_path, "telegram", TOKEN, TELEGRAM, clock=time, sleep=asleep)
        time.now += 1.0
        looked.clear()
        waiting = asyncio.ensure_future(each.wait(paused or "6", group=False))
        async with asyncio.timeout(10):
            await looked.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert content(tmp_path) == written


async def test_who_is_paused_meanwhile_gives_up_its_place_among_all(tmp_path: Path) -> None:
    time = Ticking()
    rates = Rates(overall=Rate(1, 1.0), chat=Rate(5, 1.0))
    each = limiter(tmp_path, time, rates)
    await each.wait("1", group=False)

    async def pause() -> list[float]:
        await time.sleep(0.5)
        await each.pause("5", 10.0)
        return []

    async def later() -> list[float]:
        await time.sleep(1.5)
        return await sends(each, time, "6", 1)

    _, five, six = await time.together(pause(), sends(each, time, "5", 1), later())
    assert (five, six) == ([1_010.5], [1_001.5])


async def test_who_was_held_up_once_waits_again_the_next_time(tmp_path: Path) -> None:
    """One holder that did not move says nothing of the next one."""
    time = Ticking()
    each = Limiter(tmp_path, "telegram", TOKEN, TELEGRAM, clock=time, sleep=time.sleep, frozen_s=0.3)
    [file] = tmp_path.iterdir()
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    await each.wait("5", group=False)
    fcntl.flock(fd, fcntl.LOCK_UN)
    await each.wait("6", group=False)
    fcntl.flock(fd, fcntl.LOCK_EX)

    sending = asyncio.ensure_future(each.wait("7", group=False))
    done, _ = await asyncio.wait([sending], timeout=0.05)
    os.close(fd)
    await sending

    assert not done


async def test_its_folder_is_made_and_its_file_closed_with_it(tmp_path: Path) -> None:
    state = tmp_path / "not" / "there"
    each = limiter(state, Ticking())
    await each.wait("5", group=False)
    [file] = state.iterdir()

    def is_open() -> bool:
        links = [
            str(link.readlink())
            for link in Path("/proc/self/fd").iterdir()
            if link.is_symlink() and link.exists()
        ]
        return str(file) in links

    assert is_open()
    del each

    def is_closed() -> bool:
        gc.collect()
        return not is_open()

    # The thread that looked last may be about to let go of it.
    await until(is_closed)
