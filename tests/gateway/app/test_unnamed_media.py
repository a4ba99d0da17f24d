"""Files that no line names go after a week, never those of a letter that waits or is parked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from channels.message import Attachment, Inbound
from gateway.app.wiring_broker import awaited_files
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post
from gateway.queue.rabbitmq.broker import RabbitMailbox
from session.background.retention import UNNAMED_FOR, Retention
from session.store.media import media_bytes
from tests.gateway.embedded_place import serving
from tests.gateway.http_place import open_place
from tests.session.retention_place import World, brought
from tests.support.broker import Broker
from tests.support.until import until

NAMES = [f"media/{digit * 2}/{digit * 64}.jpg" for digit in "abcd"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.store.aclose()


def retention(world: World, mailbox: Mailbox) -> Retention:
    awaited = partial(awaited_files, mailbox, on_its_way_s=0.0)
    return world.rules(awaited=awaited)


def post(id_: str, ref: str) -> Post:
    inbound = Inbound(v=1, id=id_, key="telegram:1", channel="telegram", chat_id="1", text="look")
    inbound = inbound.model_copy(update={"attachments": [Attachment(ref=ref)]})
    return Post(INBOUND, inbound.key, id_, inbound.to_bytes())


def named(ref: str) -> dict[str, Any]:
    return {"attachments": [{"kind": "photo", "name": "x", "mime": "image/jpeg", "size": 3, "ref": ref}]}


async def test_what_nobody_names_goes_after_a_week(world: World, tmp_path: Path) -> None:
    files = [brought(tmp_path, name) for name in NAMES[:2]]
    young = brought(tmp_path, NAMES[2], days=2)
    odd = brought(tmp_path, "media/aa/notes.txt")
    await world.say("a", **named(NAMES[1]))
    async with serving(EmbeddedMailbox(tmp_path / "state")) as mailbox:
        world.clock.forward(days=UNNAMED_FOR.days - 1)
        await retention(world, mailbox).prune()
        assert [path.exists() for path in (*files, young, odd)] == [True] * 4
        world.clock.forward(days=2)
        await retention(world, mailbox).prune()

    assert [path.exists() for path in (*files, young, odd)] == [False, True, True, True]
    assert media_bytes(world.store.layout) == 9


async def test_files_of_letters_that_wait_run_or_are_parked_stay(world: World, tmp_path: Path) -> None:
    waiting, running, parked, dropped = (brought(tmp_path, name) for name in NAMES)
    async with serving(EmbeddedMailbox(tmp_path / "state", window=1)) as mailbox:
        world.clock.forward(days=20)
        for id_, ref in zip("pdrw", (NAMES[2], NAMES[3], NAMES[1], NAMES[0]), strict=True):
            await mailbox.put(post(id_, ref))
        async with mailbox.take(INBOUND) as letters:
            for id_ in "pd":
                letter = await anext(letters)
                assert letter.id == id_
                await mailbox.park(letter, ParkedAs("telegram:1", "failed", 1))
            assert (await anext(letters)).id == "r"
            await retention(world, mailbox).prune()
            assert [path.exists() for path in (waiting, running, parked, dropped)] == [True] * 4
            assert await mailbox.drop("d") is not None
            assert await mailbox.replay("p") is not None
            await retention(world, mailbox).prune()

    assert [path.exists() for path in (waiting, running, parked, dropped)] == [True, True, True, False]


async def test_a_file_of_an_ended_session_stays_for_a_parked_letter(world: World, tmp_path: Path) -> None:
    shared = brought(tmp_path, NAMES[0])
    await world.say("a", **named(NAMES[0]))
    await world.end()
    await world.say("b")
    await world.end()
    async with serving(EmbeddedMailbox(tmp_path / "state")) as mailbox:
        await mailbox.put(post("p", NAMES[0]))
        async with mailbox.take(INBOUND) as letters:
            await mailbox.park(await anext(letters), ParkedAs("telegram:1", "failed", 1))
        world.clock.forward(days=40)
        await retention(world, mailbox).prune()
        assert [step.do for step in await retention(world, mailbox).prune()] == []
        assert shared.exists()
        assert await mailbox.drop("p") is not None
        await retention(world, mailbox).prune()

    assert not shared.exists()


async def test_without_a_limit_of_age_what_nobody_names_goes_all_the_same(
    world: World, tmp_path: Path
) -> None:
    nobodys, named_one = brought(tmp_path, NAMES[0]), brought(tmp_path, NAMES[1])
    await world.say("a", **named(NAMES[1]))
    async with serving(EmbeddedMailbox(tmp_path / "state")) as mailbox:
        world.clock.forward(days=UNNAMED_FOR.days + 1)
        forever = world.rules(days=0, awaited=lambda: awaited_files(mailbox))
        assert await forever.prune() == []

    assert (nobodys.exists(), named_one.exists()) == (False, True)


async def test_what_nobody_names_goes_once_nothing_waits_at_a_broker(
    world: World, tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """What waits there cannot be read: while anything does, here or in another process, nothing is swept."""
    nobodys = brought(tmp_path, NAMES[0])
    world.clock.forward(days=40)

    async def swept(mailbox: Mailbox) -> bool:
        awaited = partial(awaited_files, mailbox, on_its_way_s=0.0)
        await world.rules(awaited=awaited).prune()
        return not nobodys.exists()

    async with (
        serving(RabbitMailbox(broker.url, name=broker_name, partitions=1)) as mailbox,
        serving(RabbitMailbox(broker.url, name=broker_name, partitions=1)) as other,
    ):
        await mailbox.put(post("w", NAMES[1]))
        assert not await swept(mailbox)
        async with mailbox.take(INBOUND) as letters:
            letter = await anext(letters)
            assert not await swept(mailbox)
            await mailbox.settle(letter)
            async with other.take(INBOUND):
                assert not await swept(mailbox)
            await until(lambda: swept(mailbox))


async def test_the_application_tells_its_retention_which_files_letters_still_name(tmp_path: Path) -> None:
    """No transcript names that of a parked letter: without a look at the queue it would go, too."""
    async with open_place(tmp_path, session={"retention_days": 30}) as place:
        mailbox = place.application.mailbox
        body = orjson.dumps({"v": 1, "text": 5, "attachments": [{"ref": NAMES[0]}]})
        await mailbox.put(Post(INBOUND, "web:a", "web:odd", body))
        await until(mailbox.parked)
        parked, nobodys = (brought(tmp_path, name, days=-3000) for name in NAMES[:2])
        await place.services.retention.prune()

    assert (nobodys.exists(), parked.exists()) == (False, True)
