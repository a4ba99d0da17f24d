"""The local Bot API keeps, gives and forgets updates as Telegram does, asked by the real client library."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import httpx
import pytest
from telegram.error import (
    Conflict,
)

from tests.channels.telegram.telegram_bot import ADA, Pair, bot_of, ids
from tests.support.telegram_server import TelegramServer


async def test_an_update_is_forgotten_only_by_a_poll_with_a_higher_offset(pair: Pair) -> None:
    server, bot = pair
    first, second = server.write(ADA, "one"), server.write(ADA, "two")

    seen = [ids(await bot.get_updates()), ids(await bot.get_updates(offset=first))]
    assert server.confirmed == 0
    seen.append(ids(await bot.get_updates(offset=second)))

    assert seen == [[first, second], [first, second], [second]]
    assert [update_id for _, update_id in server.confirmations] == [first]


async def test_confirmations_are_told_before_the_poll_is_answered(pair: Pair) -> None:
    server, bot = pair
    told: list[str] = []
    server.updates.on_confirm = lambda update: told.append(update["message"]["text"])
    server.write(ADA, "one")
    last = server.write(ADA, "two")

    await bot.get_updates(offset=last)

    assert told == ["one"]


async def test_a_waiting_poll_is_answered_when_somebody_writes(pair: Pair) -> None:
    server, bot = pair
    poll = asyncio.create_task(bot.get_updates(timeout=20))
    await server.until_called("getUpdates")

    update_id = server.write(ADA, "hello")

    assert ids(await poll) == [update_id]


async def test_of_two_waiting_polls_the_older_gets_a_conflict(pair: Pair) -> None:
    server, bot = pair
    older = asyncio.create_task(bot.get_updates(timeout=20))
    await server.until_called("getUpdates")

    async with bot_of(server) as other:
        younger = asyncio.create_task(other.get_updates(timeout=20))

        with pytest.raises(Conflict, match="terminated by other getUpdates request"):
            await older
        update_id = server.write(ADA, "hello")
        assert ids(await younger) == [update_id]


async def test_repeated_conflicts_are_answered_late(pair: Pair) -> None:
    server, bot = pair
    server.updates.conflict_delay_s = 0.3
    await bot.set_webhook("https://example.org/hook")
    began = time.monotonic()

    for _ in range(2):
        with pytest.raises(Conflict, match="webhook is active"):
            await bot.get_updates()

    assert time.monotonic() - began >= 0.3


async def test_polls_work_again_once_the_webhook_is_gone(pair: Pair) -> None:
    server, bot = pair
    await bot.set_webhook("https://example.org/hook")
    update_id = server.write(ADA, "hello")

    await bot.delete_webhook()

    assert ids(await bot.get_updates()) == [update_id]


async def test_the_same_offset_again_at_once_gives_one_update(pair: Pair) -> None:
    server, bot = pair
    first = server.write(ADA, "one")
    server.write(ADA, "two")
    server.updates.repeated_s = 60.0
    await bot.get_updates(offset=first)

    assert ids(await bot.get_updates(offset=first)) == [first]


async def test_a_negative_offset_takes_the_newest_and_forgets_the_rest(pair: Pair) -> None:
    server, bot = pair
    updates = [server.write(ADA, text) for text in "abcd"]

    assert ids(await bot.get_updates(offset=-2)) == updates[2:]
    assert server.confirmed == updates[1]


async def test_an_offset_far_ahead_gives_the_oldest_and_forgets_nothing(pair: Pair) -> None:
    server, bot = pair
    update_id = server.write(ADA, "one")

    assert ids(await bot.get_updates(offset=update_id + 50)) == [update_id]
    assert server.confirmed == 0


async def test_a_poll_gives_at_most_its_limit(pair: Pair) -> None:
    server, bot = pair
    updates = [server.write(ADA, str(n)) for n in range(120)]

    assert ids(await bot.get_updates(limit=3)) == updates[:3]
    assert ids(await bot.get_updates(offset=updates[1])) == updates[1:101]


async def test_updates_expire_after_a_day(pair: Pair) -> None:
    server, bot = pair
    old = server.write(ADA, "old")
    server.updates.clock = lambda: time.time() + 24 * 3600 + 1

    assert await bot.get_updates() == ()
    assert server.updates.expired == [old]


async def test_allowed_updates_stay_and_hold_for_what_comes_later(pair: Pair) -> None:
    server, bot = pair
    before = server.write(ADA, "before", edited=server.message_of[server.write(ADA, "x")])
    await bot.get_updates(offset=before, allowed_updates=["message"])

    assert server.write(ADA, "later", edited=1) == 0
    assert ids(await bot.get_updates(offset=before, limit=1)) == [before]


async def test_another_process_is_served_as_well() -> None:
    program = "import sys, httpx; print(httpx.get(sys.argv[1], trust_env=False).json()['result']['username'])"
    async with TelegramServer() as server:
        done = subprocess.run(
            [sys.executable, "-c", program, f"{server.base_url}{server.token}/getMe"],
            capture_output=True,
            text=True,
        )

    assert done.stdout.strip() == "gate_test_bot"


def test_it_serves_tests_without_a_loop() -> None:
    with TelegramServer() as server:
        server.write(ADA, "hello")
        body = {"chat_id": ADA, "text": "hi"}

        answer = httpx.post(f"{server.base_url}{server.token}/sendMessage", json=body, trust_env=False).json()

        assert answer["ok"]
        assert server.wait(lambda: server.sent)[0].text == "hi"
