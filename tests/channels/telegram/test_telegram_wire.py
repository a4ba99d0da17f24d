"""The connection to the Bot API says nothing of its own."""

from __future__ import annotations

import warnings

from pydantic import SecretStr

from channels.tables import TelegramTable
from channels.telegram.wire import Wire
from tests.support.telegram_server import TelegramServer


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
