"""The limiter: never faster than the platform allows, whoever sends, and no chat waits for another."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import time as wall
from typing import Any

import orjson
import pytest

from channels.errors import NewerFile
from channels.limiter import Limiter, Rate, Rates, rates_of
from tests.channels.ticking import Ticking
from tests.gateway.embedded_place import files_at_most
from tests.support.until import until

TOKEN = "123456:AAF-secret"
TELEGRAM = rates_of("telegram")


def limiter(state: Path, time: Ticking, rates: Rates = TELEGRAM, token: str = TOKEN) -> Limiter:
    return Limiter(state, "telegram", token, rates, clock=time, sleep=time.sleep, frozen_s=0.05)


@pytest.fixture
def time() -> Ticking:
    return Ticking()


@pytest.fixture
def each(tmp_path: Path, time: Ticking) -> Limiter:
    return limiter(tmp_path, time)


async def sends(each: Limiter, time: Ticking, chat: str, count: int, *, group: bool = False) -> list[float]:
    """Send ``count`` times in a row; return when."""
    at = []
    for _ in range(count):
        await each.wait(chat, group=group)
        at.append(time.now)
    return at


def most_within(times: Iterable[float], window_s: float) -> int:
    """Count the largest number of instants in any window (the instant at its end is outside)."""
    times = sorted(times)
    return max(sum(1 for each in times if at <= each < at + window_s - 1e-6) for at in times)


async def test_a_group_gets_twenty_a_minute(tmp_path: Path, time: Ticking) -> None:
    [at] = await time.together(sends(limiter(tmp_path, time), time, "-100", 50, group=True))

    assert most_within(at, 60.0) == 20
    assert at[-1] - at[0] < 180.0


async def test_all_chats_together_get_thirty_a_second_and_none_is_left_behind(
    time: Ticking, each: Limiter
) -> None:
    at = await time.together(*(sends(each, time, str(chat), 2) for chat in range(100)))

    every = [instant for times in at for instant in times]
    assert most_within(every, 1.0) == 30
    assert max(every) - min(every) < 200 / 30 + 0.1
    # A first send is not behind everybody's second.
    assert max(first for first, _ in at) - min(every) < 4.0


async def test_a_topic_counts_with_its_chat(time: Ticking, each: Limiter) -> None:
    at = await time.together(
        sends(each, time, "-100:topic:5", 3, group=True), sends(each, time, "-100", 3, group=True)
    )

    assert most_within([*at[0], *at[1]], 3.0) == 3


async def test_a_pause_holds_its_chat_and_no_other(time: Ticking, each: Limiter) -> None:
    await each.pause("5", 17.0)

    paused, free = await time.together(sends(each, time, "5", 1), sends(each, time, "6", 3))

    assert paused == [1_017.0]
    assert free == [1_000.0] * 3


async def test_a_pause_reaches_who_waits_already_and_the_rate_holds_after_it(
    time: Ticking, each: Limiter
) -> None:
    async def pause() -> list[float]:
        await time.sleep(1.0)
        await each.pause("5", 10.0)
        return []

    _, *at = await time.together(pause(), *(sends(each, time, "5", 1) for _ in range(9)))

    later = sorted(instant for times in at for instant in times)[3:]
    assert later[0] == pytest.approx(1_011.0)
    assert most_within(later, 3.0) == 3


async def test_a_pause_of_all_holds_all(time: Ticking, each: Limiter) -> None:
    await each.pause(None, 4.0)

    at = await time.together(*(sends(each, time, str(chat), 1) for chat in range(40)))

    assert min(at) == [1_004.0]
    assert most_within([instant for [instant] in at], 1.0) == 30


async def test_counts_and_pauses_survive_a_restart(tmp_path: Path, time: Ticking) -> None:
    before = limiter(tmp_path, time)
    await time.together(sends(before, time, "5", 3))
    await before.pause("6", 60.0)
    del before

    after = limiter(tmp_path, time)
    five, six = await time.together(sends(after, time, "5", 1), sends(after, time, "6", 1))

    assert (five, six) == ([1_003.0], [1_060.0])


async def test_another_token_has_rates_of_its_own_and_no_file_shows_a_token(
    tmp_path: Path, time: Ticking
) -> None:
    await time.together(sends(limiter(tmp_path, time), time, "5", 3))

    [at] = await time.together(sends(limiter(tmp_path, time, token="9:other"), time, "5", 1))

    assert at == [1_000.0]
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    assert not any("secret" in f"{each.name}{each.read_text()}" for each in files)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


async def test_who_gives_up_waiting_leaves_no_hole(tmp_path: Path, time: Ticking, each: Limiter) -> None:
    await time.together(sends(each, time, "5", 3))
    asleep: list[float] = []

    async def for_ever(after_s: float) -> None:
        asleep.append(after_s)
        await asyncio.Event().wait()

    held = Limiter(tmp_path, "telegram", TOKEN, TELEGRAM, clock=time, sleep=for_ever)
    waiting = [asyncio.create_task(held.wait("5", group=False)) for _ in range(3)]
    await until(lambda: len(asleep) == 3)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    time.now += 3.0

    await asyncio.wait_for(held.wait("5", group=False), 10)

    assert len(asleep) == 3


async def test_after_a_start_of_the_machine_what_was_paused_still_is(tmp_path: Path) -> None:
    """The clock counts from the machine's start: what another start wrote is moved by the wall clock."""
    began, time = wall(), Ticking(now=50_000.0)
    await limiter(tmp_path, time).pause("5", 100.0)
    [file] = tmp_path.iterdir()
    content = orjson.loads(file.read_bytes().partition(b"\n")[0])
    file.write_bytes(orjson.dumps(content | {"boot": "another", "wall": content["wall"] - 40.0}) + b"\n")

    time = Ticking(now=7.0)
    [[at]] = await time.together(sends(limiter(tmp_path, time), time, "5", 1))

    assert 67.0 - (wall() - began) - 0.001 <= at <= 67.001


async def test_a_wall_clock_that_was_set_back_does_not_hold_anything(tmp_path: Path) -> None:
    time = Ticking(now=50_000.0)
    each = limiter(tmp_path, time)
    await time.together(sends(each, time, "5", 3))
    await each.pause("6", 20.0)
    [file] = tmp_path.iterdir()
    content = orjson.loads(file.read_bytes().partition(b"\n")[0])
    file.write_bytes(orjson.dumps(content | {"boot": "another", "wall": content["wall"] + 86_400.0}) + b"\n")

    time = Ticking(now=7.0)
    each = limiter(tmp_path, time)
    five, six = await time.together(sends(each, time, "5", 1), sends(each, time, "6", 1))

    assert (five, six) == ([pytest.approx(10.0)], [pytest.approx(27.0)])


DAMAGED = (b"", b"{", b"[1]\n", b'{"v":1}\n', b'{"v":1,"sent":5}\n', b"\0" * 50)


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold the lock of a limiter's file, as a process that was frozen does."""
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "what",
    [*(partial(Path.write_bytes, data=data) for data in DAMAGED), lambda _: files_at_most(0), held],
    ids=[*map(str, DAMAGED), "full disk", "frozen holder"],
)
async def test_whatever_became_of_its_file_one_process_keeps_the_rates(
    tmp_path: Path, time: Ticking, each: Limiter, what: Callable[[Path], object]
) -> None:
    [file] = tmp_path.iterdir()
    meanwhile = what(file)

    with meanwhile if isinstance(meanwhile, AbstractContextManager) else nullcontext():
        [at] = await time.together(sends(each, time, "5", 4))

    assert at == [1_000.0] * 3 + [1_003.0]


async def test_a_newer_file_is_refused(tmp_path: Path, time: Ticking) -> None:
    limiter(tmp_path, time)
    [file] = tmp_path.iterdir()
    file.write_bytes(b'{"v":2}\n')

    with pytest.raises(NewerFile):
        limiter(tmp_path, time)

    assert file.read_bytes() == b'{"v":2}\n'


async def together(tmp_path: Path, *chats: str) -> dict[str, list[float]]:
    """Let a process for each of the chats send fifteen; return when each chat was sent to."""
    words = (sys.executable, "-m", "tests.channels.limiter_sender", str(tmp_path))
    both = [
        await asyncio.create_subprocess_exec(
            *(*words, chat, "15"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for chat in chats
    ]
    for each in both:
        assert each.stdout is not None
        assert await each.stdout.readline() == b"ready\n"

    await asyncio.gather(*(each.communicate(b"go\n") for each in both))

    [file] = tmp_path.iterdir()
    sent: dict[str, list[float]] = orjson.loads(file.read_bytes().partition(b"\n")[0])["sent"]
    return sent


async def test_two_processes_share_the_rate_of_a_chat(tmp_path: Path) -> None:
    """Four in 0.4 s in a group: whoever sends, and however fast all other chats may be written to."""
    sent = await together(tmp_path, "-1", "-1")

    assert len(sent["-1"]) == 30
    assert most_within(sent["-1"], 0.4) <= 4


async def test_two_processes_share_one_rate(tmp_path: Path) -> None:
    """Ten in half a second, thirty to send: whoever sends them, they take a second."""
    sent = await together(tmp_path, "1", "2")

    # When they were let go, by the machine's own clock.
    times = sent[""]
    assert sorted(sent["1"] + sent["2"]) == times
    assert len(sent["1"]) == len(sent["2"]) == 15
    assert most_within(times, 0.5) <= 10
    assert 1.0 - 1e-6 < max(times) - min(times) < 20.0


def content(state: Path) -> dict[str, Any]:
    """Read the whole file, as whoever looks through a workspace does."""
    [file] = state.iterdir()
    read: dict[str, Any] = orjson.loads(file.read_bytes())
    return read


async def test_what_is_older_than_the_longest_window_is_forgotten(
    tmp_path: Path, time: Ticking, each: Limiter
) -> None:
    """To the instant: a minute is the longest that Telegram counts; a pause ends with its instant."""
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


async def test_a_send_counts_for_one_window_and_no_instant_longer(tmp_path: Path, time: Ticking) -> None:
    one = Rates(overall=Rate(50, 1.0), chat=Rate(2, 3.0))

    [at] = await time.together(sends(limiter(tmp_path, time, one), time, "5", 4))

    assert at == [1_000.0, 1_000.0, 1_003.0, 1_003.0]


async def test_a_pause_is_the_longest_that_was_asked_for(tmp_path: Path, time: Ticking) -> None:
    """Whoever asked, in whatever order; one in the past holds nobody."""
    one, other = limiter(tmp_path, time), limiter(tmp_path, time)
    await one.pause("5", 30.0)
    await other.pause("5", 10.0)
    await one.pause("6", 10.0)
    await other.pause("6", 30.0)

    at = await time.together(*(sends(other, time, chat, 1) for chat in "56"))

    assert at == [[1_030.0], [1_030.0]]


async def test_a_pause_that_the_disk_refused_is_told_once_it_takes_it(tmp_path: Path, time: Ticking) -> None:
    """The longer one holds, whichever was refused."""
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


async def test_a_shorter_line_takes_the_whole_place_of_a_longer_one(
    tmp_path: Path, time: Ticking, each: Limiter
) -> None:
    """The file neither grows with each write nor keeps anything of what stood there."""
    await each.pause("9" * 500, 1.0)
    [file] = tmp_path.iterdir()
    size = file.stat().st_size

    time.now += 60.0
    await each.pause("7", 1.0)

    written = file.read_bytes()
    assert list(orjson.loads(written)["until"]) == ["7"]
    assert (len(written), written.index(b"\n")) == (size, size - 1)


async def test_what_was_told_once_counts_once(tmp_path: Path, time: Ticking, each: Limiter) -> None:
    """What the disk took is not remembered beside it."""
    with files_at_most(0):
        await each.wait("5", group=False)
    await each.wait("5", group=False)
    await each.wait("6", group=False)
    [file] = tmp_path.iterdir()
    file.write_bytes(b"")

    await each.wait("7", group=False)

    assert content(tmp_path)["sent"] == {"7": [1_000.0], "": [1_000.0]}


async def test_who_finds_the_file_held_waits_for_what_its_holder_writes(
    tmp_path: Path, time: Ticking
) -> None:
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


async def test_who_was_held_up_looks_at_the_file_again_once_it_is_free(tmp_path: Path, time: Ticking) -> None:
    """It went by what it knew itself; what others did meanwhile counts from then on."""
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


async def test_a_chat_that_waits_for_itself_takes_no_place_among_all(tmp_path: Path, time: Ticking) -> None:
    """While a chat is over its own rate, others use the places over all chats that it cannot."""
    rates = Rates(overall=Rate(2, 1.0), chat=Rate(1, 10.0))
    each = limiter(tmp_path, time, rates)

    mine, other = await time.together(sends(each, time, "5", 2), sends(each, time, "6", 1))

    assert (mine, other) == ([1_000.0, 1_010.0], [1_000.0])


async def test_who_waits_goes_in_the_order_of_asking(tmp_path: Path, time: Ticking) -> None:
    rates = Rates(overall=Rate(1, 1.0), chat=Rate(5, 1.0))
    each = limiter(tmp_path, time, rates)

    at = await time.together(*(sends(each, time, str(chat), 1) for chat in range(5)))

    assert at == [[1_000.0 + number] for number in range(5)]


def test_the_rates_of_the_platforms() -> None:
    """Those of an unknown one are careful."""
    assert rates_of("matrix") == Rates(overall=Rate(20, 1.0), chat=Rate(5, 5.0))
    assert rates_of("telegram") == Rates(overall=Rate(30, 1.0), chat=Rate(3, 3.0), group=Rate(20, 60.0))
    assert rates_of("discord") == Rates(overall=Rate(50, 1.0), chat=Rate(5, 5.0))


async def test_a_file_of_another_machine_is_rewritten_in_its_own_time(
    tmp_path: Path, time: Ticking, each: Limiter
) -> None:
    """By the first look: what it says is moved by the wall clock once, not at each look."""
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


async def test_a_look_that_changes_nothing_writes_nothing(tmp_path: Path, time: Ticking) -> None:
    """Who waits for its chat, or for all, looks again and again."""
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


async def test_who_is_paused_meanwhile_gives_up_its_place_among_all(tmp_path: Path, time: Ticking) -> None:
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


async def test_who_was_held_up_once_waits_again_the_next_time(tmp_path: Path, time: Ticking) -> None:
    """One holder that did not move says nothing of the next one."""
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
