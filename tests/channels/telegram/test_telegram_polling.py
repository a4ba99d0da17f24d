"""What goes wrong while Telegram is polled."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr

from channels.base import Arrival
from channels.errors import ChannelDown, CredentialsRefused
from channels.tables import TelegramTable
from channels.telegram.client import Wire
from tests.channels.telegram.telegram_place import ADA, Ears, Place
from tests.support.telegram_server import TelegramServer

# -- what goes wrong while polling -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["429", "500", "502", "html", "drop", "drop_after", "garbage"])
async def test_a_broken_poll_is_waited_out(server: TelegramServer, place: Place, how: str) -> None:
    """Nothing is lost or repeated; the adapter says that it is down, and then that it is up."""
    server.write(ADA, "before")
    fault = server.fail("getUpdates", how=how, times=2, retry_after=7)
    ears = Ears()
    place.run(ears)
    last = server.write(ADA, "after")
    await server.until_confirmed(last)

    assert ears.texts() == ["before", "after"]
    assert fault.hits == len(place.pulse.failures) == 2
    assert place.pauses.asked == ([7.0, 7.0] if how == "429" else [1.0, 2.0])
    assert place.pulse.up


async def test_pauses_grow_to_half_a_minute(server: TelegramServer, place: Place) -> None:
    """Back-off doubles from 1 s to 30 s, and begins again after a success."""
    ears = Ears()
    server.fail("getUpdates", how="500", times=7)
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "one"))
    server.fail("getUpdates", how="500")
    await server.until_confirmed(server.write(ADA, "two"))

    assert place.pauses.asked == [1, 2, 4, 8, 16, 30, 30, 1]


async def test_another_program_on_the_token_is_named(server: TelegramServer, place: Place) -> None:
    """A conflict slows the polls down and says why; when the other one stops, ours go on."""
    server.fail("getUpdates", how="409", times=5)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "hello"))

    assert place.pauses.asked == [5, 10, 20, 30, 30]
    assert all("another program is polling with this token" in words for words in place.pulse.failures)
    assert place.pulse.up


async def test_two_programs_on_one_token_lose_nothing(server: TelegramServer, place: Place) -> None:
    """While two poll, each message reaches one of them at least."""
    second = Place(server, place.state)
    one, two = Ears(), Ears()
    place.run(one)
    second.run(two)
    ids = [server.write(ADA, str(number)) for number in range(10)]
    await server.until_confirmed(ids[-1])
    await second.stop()

    assert {*one.texts(), *two.texts()} == {str(number) for number in range(10)}


@pytest.mark.slow
async def test_a_poll_that_hangs_is_given_up_and_its_connection_replaced(
    server: TelegramServer, tmp_path: Path
) -> None:
    """Two stalls build the connection anew; sends go their way meanwhile."""
    place = Place(server, tmp_path, grace_s=0.3)
    server.add_chat(ADA)
    fault = server.fail("getUpdates", how="hang", times=2)
    ears = Ears()
    with structlog.testing.capture_logs() as lines:
        place.run(ears)
        await server.until_called("getUpdates")
        introduced = place.pulse.last_round_trip
        await place.channel.typing(str(ADA))
        await place.pauses.until(1)
        beat = place.pulse.last_round_trip
        await server.until_confirmed(server.write(ADA, "hello"))
    await place.stop()

    # Neither a send nor a poll that fails is a sign of life.
    assert beat == introduced
    assert [line["event"] for line in lines] == ["poll.failed", "poll.reconnected", "poll.failed"]
    assert fault.hits == 2
    assert place.pulse.failures == ["no answer from Telegram in time"] * 2
    assert "hello" in ears.texts()


async def test_sends_that_hang_do_not_keep_polls_from_their_way(
    server: TelegramServer, tmp_path: Path
) -> None:
    """More sends than there are connections may hang, and messages come in all the same."""
    place = Place(server, tmp_path, request_timeout_s=60.0)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "one"))
    server.fail("sendChatAction", how="hang", times=None)
    hanging = [asyncio.create_task(place.channel.typing(str(ADA))) for _ in range(70)]
    await server.until_called("sendChatAction", 64)
    for text in ("two", "three"):
        await server.until_confirmed(server.write(ADA, text))
    waiting = [task for task in hanging if not task.done()]
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    await place.stop()

    assert len(waiting) == 70
    assert ears.texts() == ["one", "two", "three"]


@pytest.mark.parametrize("method", ["getMe", "deleteWebhook"])
async def test_a_start_without_a_network_is_tried_again(
    server: TelegramServer, place: Place, method: str
) -> None:
    """Neither an outage nor nonsense at the start ends the adapter."""
    for how in ("500", "html", "drop", "429", "garbage"):
        server.fail(method, how=how, retry_after=9)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "hello"))

    assert place.pauses.asked == [1, 2, 4, 9, 16]
    assert ears.texts() == ["hello"]


@pytest.mark.parametrize("token", ["4242424242:wrong", "no-token"])
async def test_a_wrong_token_is_one_clear_error(server: TelegramServer, tmp_path: Path, token: str) -> None:
    """Telegram answers 401 or 404; trying again would be of no use."""
    place = Place(server, tmp_path, token=SecretStr(token))

    with pytest.raises(CredentialsRefused) as refused:
        await place.run(Ears())
    await place.stop()

    assert "BotFather" in refused.value.hint
    assert len(server.calls) == 1
    assert token not in repr(refused.value) + place.pulse.error
    assert place.pulse.error == "Telegram rejects the token"


async def test_a_token_that_is_revoked_later_ends_the_run(server: TelegramServer, place: Place) -> None:
    """A poll that is refused ends it as the start does, while an emit hangs."""
    ears = Ears(holds=lambda _: True)
    server.write(ADA, "hello")
    running = place.run(ears)
    await ears.until(lambda ears: ears.begun)
    server.fail("getUpdates", how="401", times=None)

    with pytest.raises(CredentialsRefused):
        await running
    assert ears.heard == []


async def test_an_emit_that_fails_ends_the_run_with_its_own_error(
    server: TelegramServer, place: Place
) -> None:
    """What nobody foresaw is seen by who runs the adapter; the update comes again."""

    async def broken(arrival: Arrival) -> None:
        raise ChannelDown(arrival.text)

    last = server.write(ADA, "hello")
    with pytest.raises(ChannelDown, match="hello"):
        await place.run(broken)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)

    assert ears.texts() == ["hello"]


async def test_no_call_is_warned_of_whoever_changes_the_filters(server: TelegramServer) -> None:
    """Another thread that puts back the filters it kept takes those away that were added meanwhile."""
    table = TelegramTable(token=SecretStr(server.token), base_url=server.base_url, poll_timeout_s=0)
    wire = Wire(table, grace_s=10.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.resetwarnings()
        warnings.simplefilter("always")
        me = await wire.call("getMe")
        await wire.poll(None, ())
    await wire.aclose()

    assert me["username"] == "gate_test_bot"
    assert [str(one.message) for one in told if "Bot." in str(one.message)] == []
