"""The chat platform of chaos, asked by the adapter's own client: offsets, replies, connections it resets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from channels.errors import ChannelError
from channels.tables import TelegramTable
from channels.telegram.wire import Wire
from tests.chaos.over_telegram import OverTelegram
from tests.chaos.records import Message
from tests.chaos.stub_telegram import TOKEN, StubTelegram

ONE = Message("eve-00001", "eve", "plain", "eve-00001 hello")
TWO = Message("finn-00002", "finn", "stop", "/stop")


@pytest.fixture
async def platform() -> AsyncIterator[StubTelegram]:
    async with StubTelegram() as platform:
        yield platform


@pytest.fixture
async def wire(platform: StubTelegram) -> AsyncIterator[Wire]:
    wire = Wire(
        TelegramTable(token=SecretStr(TOKEN), base_url=platform.address("a0.1"), poll_timeout_s=5),
        grace_s=10.0,
    )
    yield wire
    await wire.aclose()


async def test_an_update_stays_until_an_offset_passes_it(platform: StubTelegram, wire: Wire) -> None:
    """Who writes waits until a bot was there; what is handed out is marked with who got it."""
    over = OverTelegram(platform)
    writing = asyncio.create_task(over.put(ONE))
    assert (await wire.call("getMe"))["username"] == "chaos_bot"
    assert not writing.done()

    (first,) = await wire.poll(None, ())
    await writing
    await over.put(TWO)
    again = await wire.poll(None, ())
    (second,) = await wire.poll(first["update_id"] + 1, ())

    assert [each["message"]["text"] for each in again] == [ONE.text, TWO.text]
    assert (second["message"]["text"], second["message"]["chat"]["id"]) == ("/stop", 106)
    assert [bool(update.confirmed) for update in platform.updates.values()] == [True, False]
    assert [life for life, _ in platform.updates[1].handed] == ["a0.1", "a0.1"]
    assert over.named(f"telegram:4242424242:{second['update_id']}") == "finn-00002"
    assert (over.stem("finn"), over.named("foreign:1")) == ("telegram_106", "foreign:1")


async def test_what_is_said_is_told_as_the_answer_to_what_it_replies_to(
    platform: StubTelegram, wire: Wire
) -> None:
    """A later piece names its message itself; a command's answer is a reply, other words are notices."""
    platform.polled.set()
    over = OverTelegram(platform)
    for message in (ONE, TWO):
        await over.put(message)

    async def say(chat: int, text: str, to: int = 0) -> None:
        more = {"reply_parameters": {"message_id": to}} if to else {}
        await wire.call("sendMessage", chat_id=chat, text=text, **more)

    await say(105, "stub: eve-00001 hello", 1)
    await say(105, "eve-00001: more", 0)
    await say(106, "Nothing is running.", 2)
    await say(105, "Something went wrong.", 1)

    assert [(each.message, each.kind, each.text) for each in over.replies] == [
        ("eve-00001", "reply", "stub: eve-00001 hello\n\neve-00001: more"),
        ("finn-00002", "reply", "Nothing is running."),
        ("eve-00001", "notice", "Something went wrong."),
    ]


async def test_a_cut_resets_a_poll_that_waits(platform: StubTelegram, wire: Wire) -> None:
    polling = asyncio.create_task(wire.poll(None, ()))
    await platform.asked_by("a0.1")

    platform.cut("a0.2")
    assert not polling.done()
    platform.cut("a0.1")

    with pytest.raises(ChannelError):
        await polling


async def test_another_token_is_refused(platform: StubTelegram) -> None:
    wire = Wire(TelegramTable(token=SecretStr("1:no"), base_url=platform.address("a0.1")), grace_s=10.0)

    with pytest.raises(ChannelError, match="rejects the token"):
        await wire.call("getMe")
    await wire.aclose()
