"""The local Bot API fails as Telegram does, asked by the real client library."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import telegram
from telegram.error import (
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
)

from tests.channels.telegram.telegram_bot import ADA, Pair, ids
from tests.support.telegram_server import TelegramServer


@pytest.mark.parametrize(
    ("how", "error", "processed"),
    [
        ("429", RetryAfter, False),
        ("500", NetworkError, False),
        ("html", NetworkError, False),
        ("401", InvalidToken, False),
        ("403", Forbidden, False),
        ("409", Conflict, False),
        ("drop", NetworkError, False),
        ("drop_after", NetworkError, True),
        ("garbage", telegram.error.TelegramError, True),
    ],
)
async def test_a_fault_strikes_once(pair: Pair, how: str, error: type[Exception], processed: bool) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    server.fail("sendMessage", how=how)

    with pytest.raises(error):
        await bot.send_message(ADA, "first")
    await bot.send_message(ADA, "second")

    assert [sent.text for sent in server.sent] == (["first", "second"] if processed else ["second"])


async def test_a_fault_may_strike_one_chat_until_it_is_ended(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    server.write(7, "hi")
    fault = server.fail("sendMessage", how="429", times=None, chat_id=ADA, retry_after=7)

    for _ in range(2):
        with pytest.raises(RetryAfter, match="in 7 seconds"):
            await bot.send_message(ADA, "held")
    await bot.send_message(7, "free")
    fault.end()
    await bot.send_message(ADA, "held")

    assert [sent.chat_id for sent in server.sent] == [7, ADA]
    assert [call.outcome for call in server.called("sendMessage")] == ["refused 429"] * 2 + ["answered"] * 2


@pytest.mark.parametrize(("how", "held"), [("hang", 0), ("hang_after", 1)])
async def test_a_request_hangs_until_the_fault_ends(pair: Pair, how: str, held: int) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    fault = server.fail("sendMessage", how=how)
    sending = asyncio.create_task(bot.send_message(ADA, "late"))
    await server.until(lambda: fault.hits and len(server.sent) == held)

    fault.end()
    await sending

    assert [sent.text for sent in server.sent] == ["late"]


async def test_a_paused_server_refuses_connections_and_comes_back_with_all_it_had(pair: Pair) -> None:
    server, bot = pair
    update_id = server.write(ADA, "hi")
    server.pause()

    with pytest.raises(NetworkError) as refused:
        await bot.get_updates()
    server.resume()

    assert isinstance(refused.value.__cause__, httpx.ConnectError)
    assert ids(await bot.get_updates()) == [update_id]


@pytest.mark.parametrize(("token", "words"), [("1:wrong", "Unauthorized"), ("nonsense", "Not Found")])
async def test_a_wrong_token_is_refused(token: str, words: str) -> None:
    async with TelegramServer() as server, httpx.AsyncClient(trust_env=False) as client:
        answer = (await client.get(f"{server.base_url}{token}/getMe")).json()

    assert (answer["ok"], answer["description"]) == (False, words)


async def test_a_wait_for_what_never_comes_ends(pair: Pair) -> None:
    server, _ = pair

    with pytest.raises(TimeoutError):
        await server.sent_count(1, timeout_s=0.05)
