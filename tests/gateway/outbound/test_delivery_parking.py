"""A letter that cannot be parked, since parking itself breaks, stops neither its channel nor its chat."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.errors import SendNever
from gateway.queue.mailbox import Post
from tests.gateway.delivery_place import BOX, Place, reply, until_empty
from tests.gateway.embedded_place import BreaksAt, serving
from tests.gateway.waits import until

TRIES = 3


@pytest.mark.parametrize("kind", ["unreadable", "refused"])
async def test_the_next_letter_is_sent_and_this_one_comes_again(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path)
    mailbox = BreaksAt(tmp_path / "state", parking=True)
    async with serving(mailbox), place.delivering(mailbox):
        if kind == "unreadable":
            await mailbox.put(Post(BOX, "fake:ada", "poison", b"not json"))
        else:
            place.platform.fail(SendNever("no"))
            await place.put(mailbox, reply(1, "refused"))
        await place.put(mailbox, reply(2, "hello"))
        await until(lambda: mailbox.tried == TRIES and place.platform.texts()[-1:] == ["hello"])
        assert place.delivery.parked == 0

    assert place.naps.taken == [1, 2]
    place.platform.fail(SendNever("no"))
    async with place.open() as again:
        await until_empty(again, parked=1)
    refused = (
        ["Fake rejected the answer to this message. The operator can see why."] if kind == "refused" else []
    )
    assert place.platform.texts() == [*refused, "hello"]
