"""The limiter: never faster than the platform allows, whoever sends, and no chat waits for another."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from time import time as wall

import orjson
import pytest

from channels.errors import NewerFile
from channels.limiter import Limiter, Rate, Rates, rates_of
from tests.channels.ticking import Ticking
from tests.gateway.embedded_place import files_at_most
from tests.support.until import until

TOKEN = "123456:AAF-secret"
TELEGRAM = rates_of("telegram")
DISCORD = rates_of("discord")


def limiter(state: Path, time: Ticking, rates: Rates = TELEGRAM, token: str = TOKEN) -> Limiter:
    return Limiter(state, "telegram", token, rates, clock=time, sleep=time.sleep, frozen_s=0.05)


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


async def test_a_chat_gets_a_small_burst_then_one_a_second(tmp_path: Path) -> None:
    time = Ticking()

    [at] = await time.together(sends(limiter(tmp_path, time), time, "5", 30))

    assert at[2] == at[0]
    assert most_within(at, 3.0) == 3
    assert at[-1] - at[0] == pytest.approx(27.0)


async def test_a_group_gets_twenty_a_minute(tmp_path: Path) -> None:
    time = Ticking()

    [at] = await time.together(sends(limiter(tmp_path, time), time, "-100", 50, group=True))

    assert most_within(at, 60.0) == 20
    assert at[-1] - at[0] < 180.0


async def test_all_chats_together_get_thirty_a_second_and_none_is_left_behind(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)

    at = await time.together(*(sends(each, time, str(chat), 2) for chat in range(100)))

    every = [instant for times in at for instant in times]
    assert most_within(every, 1.0) == 30
    assert max(every) - min(every) < 200 / 30 + 0.1
    # A first send is not behind everybody's second.
    assert max(first for first, _ in at) - min(every) < 4.0


async def test_a_discord_channel_gets_five_in_five_seconds(tmp_path: Path) -> None:
    time = Ticking()

    [at] = await time.together(sends(limiter(tmp_path, time, DISCORD), time, "7", 12))

    assert most_within(at, 5.0) == 5
    assert at[-1] - at[0] == pytest.approx(10.0)


async def test_a_topic_counts_with_its_chat(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)

    at = await time.together(
        sends(each, time, "-100:topic:5", 3, group=True), sends(each, time, "-100", 3, group=True)
    )

    assert most_within([*at[0], *at[1]], 3.0) == 3


async def test_a_pause_holds_its_chat_and_no_other(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)
    await each.pause("5", 17.0)

    paused, free = await time.together(sends(each, time, "5", 1), sends(each, time, "6", 3))

    assert paused == [1_017.0]
    assert free == [1_000.0] * 3


async def test_a_pause_reaches_who_waits_already_and_the_rate_holds_after_it(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)

    async def pause() -> list[float]:
        await time.sleep(1.0)
        await each.pause("5", 10.0)
        return []

    _, *at = await time.together(pause(), *(sends(each, time, "5", 1) for _ in range(9)))

    later = sorted(instant for times in at for instant in times)[3:]
    assert later[0] == pytest.approx(1_011.0)
    assert most_within(later, 3.0) == 3


async def test_a_pause_of_all_holds_all(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)
    await each.pause(None, 4.0)

    at = await time.together(*(sends(each, time, str(chat), 1) for chat in range(40)))

    assert min(at) == [1_004.0]
    assert most_within([instant for [instant] in at], 1.0) == 30


async def test_counts_and_pauses_survive_a_restart(tmp_path: Path) -> None:
    time = Ticking()
    before = limiter(tmp_path, time)
    await time.together(sends(before, time, "5", 3))
    await before.pause("6", 60.0)
    del before

    after = limiter(tmp_path, time)
    five, six = await time.together(sends(after, time, "5", 1), sends(after, time, "6", 1))

    assert (five, six) == ([1_003.0], [1_060.0])


async def test_another_token_has_rates_of_its_own_and_no_file_shows_a_token(tmp_path: Path) -> None:
    time = Ticking()
    await time.together(sends(limiter(tmp_path, time), time, "5", 3))

    [at] = await time.together(sends(limiter(tmp_path, time, token="9:other"), time, "5", 1))

    assert at == [1_000.0]
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    assert not any("secret" in f"{each.name}{each.read_text()}" for each in files)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


async def test_who_gives_up_waiting_leaves_no_hole(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)
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


@pytest.mark.parametrize("content", [b"", b"{", b"[1]\n", b'{"v":1}\n', b'{"v":1,"sent":5}\n', b"\0" * 50])
async def test_a_damaged_file_counts_as_nothing_sent(tmp_path: Path, content: bytes) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)
    [file] = tmp_path.iterdir()
    file.write_bytes(content)

    [at] = await time.together(sends(each, time, "5", 4))

    assert at == [1_000.0] * 3 + [1_003.0]


async def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    time = Ticking()
    limiter(tmp_path, time)
    [file] = tmp_path.iterdir()
    file.write_bytes(b'{"v":2}\n')

    with pytest.raises(NewerFile):
        limiter(tmp_path, time)

    assert file.read_bytes() == b'{"v":2}\n'


async def test_on_a_full_disk_one_process_still_keeps_the_rates(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)

    with files_at_most(0):
        [at] = await time.together(sends(each, time, "5", 4))

    assert at == [1_000.0] * 3 + [1_003.0]


async def test_a_frozen_holder_of_the_lock_stops_nobody(tmp_path: Path) -> None:
    time = Ticking()
    each = limiter(tmp_path, time)
    [file] = tmp_path.iterdir()
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)

    try:
        [at] = await time.together(sends(each, time, "5", 4))
    finally:
        os.close(fd)

    assert at == [1_000.0] * 3 + [1_003.0]


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


async def test_rates_of_an_unknown_platform_are_careful() -> None:
    assert rates_of("matrix") == Rates(overall=Rate(20, 1.0), chat=Rate(5, 5.0))
