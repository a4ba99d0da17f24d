"""A platform that answers nothing but errors for a while costs no answer, though each may have been sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.base import Piece
from channels.errors import ChannelDown, SendUnknown
from channels.testing import FakeChannel
from gateway.outbound.sender import QUESTIONS_MAX
from tests.gateway.delivery_place import Place, reply, until_empty

UNKNOWN = SendUnknown("the server answered with an error (502)")


class FailingServer(FakeChannel):
    """A platform whose next calls fail, and do nothing; a ``mute`` one answers to nothing but sends."""

    faults: list[Exception]
    mute = False

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)

    async def send(self, piece: Piece) -> str:
        self._fail()
        return await super().send(piece)

    async def typing(self, chat_id: str) -> None:
        self._fail()
        if self.mute:
            raise UNKNOWN
        await super().typing(chat_id)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def server(place: Place) -> FailingServer:
    server = FailingServer(place.platform)
    place.channel = server
    return server


@pytest.mark.parametrize("fault", [UNKNOWN, ChannelDown("no connection"), TimeoutError()])
async def test_the_last_try_waits_until_the_platform_answers(
    place: Place, server: FailingServer, fault: Exception
) -> None:
    server.faults = [UNKNOWN, *[fault] * 9, UNKNOWN]
    async with place.open() as mailbox:
        await place.put(mailbox, reply(1, "first"), reply(2, "second"))
        await until_empty(mailbox)

    assert place.platform.texts() == ["first", "second"]
    assert not server.faults


async def test_a_platform_that_answers_nothing_but_sends_is_tried_in_the_end(
    place: Place, server: FailingServer
) -> None:
    server.faults, server.mute = [UNKNOWN], True
    async with place.open() as mailbox:
        await place.put(mailbox, reply(1, "first"))
        await until_empty(mailbox)

    assert place.platform.texts() == ["first"]
    assert len(place.naps.taken) == 1 + QUESTIONS_MAX
