"""A reply to a channel that nobody serves is told, with its age, by whoever is asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aio_pika
import pytest

from gateway.__main__ import main
from gateway.outbound.unserved import unserved
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import outbound
from tests.contracts.posts import post
from tests.gateway.on_rabbit import foreign, opened
from tests.support.broker import Broker


@pytest.fixture
def waiting(tmp_path: Path) -> list[str]:
    """A workspace in which one reply waits for slack, and one for a client of ours."""

    async def put() -> None:
        mailbox = EmbeddedMailbox(tmp_path / "state")
        serving = asyncio.create_task(mailbox.serve())
        await mailbox.ready()
        await mailbox.put(post("slack:1", 1, box=outbound("slack")))
        await mailbox.put(post("web:1", 1, box=outbound("web")))
        serving.cancel()
        await asyncio.wait([serving])

    asyncio.run(put())
    return ["--workspace", str(tmp_path)]


def test_status_and_doctor_tell_of_them_with_their_age(
    waiting: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *waiting]) == 0
    shown = capsys.readouterr().out
    main(["doctor", *waiting])
    examined = capsys.readouterr().out
    assert main(["status", *waiting, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    for said in (shown, examined):
        assert "1 reply waits for slack, the oldest for " in said
    assert "enable channels.slack" in shown
    assert [row["channel"] for row in document["unserved"]] == ["slack"]


def test_cron_add_says_at_once_that_nothing_serves_a_channel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = ["cron", "add", "--workspace", str(tmp_path), "--every", "2h", "--message", "hi", "--to"]

    assert main([*verb, "slack:1"]) == 0
    assert "no channel named slack is enabled" in capsys.readouterr().err
    assert main([*verb, "web:1"]) == 0
    assert "no channel named" not in capsys.readouterr().err


async def test_a_foreign_program_that_takes_from_a_queue_serves_it(broker: Broker, broker_name: str) -> None:
    """And what waits while nobody does is told with its age; no probe ever puzzles that program."""
    async with (
        opened(broker.url, broker_name, queue_type="classic") as mailbox,
        foreign(broker.url) as client,
    ):
        await mailbox.put(post("slack:1", 1, box=outbound("slack")))
        (row,) = unserved(await mailbox.depths(), {"web"})
        assert (row["channel"], row["count"], row["oldest_at"] is not None) == ("slack", 1, True)

        queue = await client.get_queue(f"{broker_name}.outbound.slack")
        taken: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(taken.put)
        first = await taken.get()
        assert first.body == b"slack:1#1"
        assert unserved(await mailbox.depths(), {"web"}) == []


async def test_a_classic_queue_of_replies_is_not_probed(broker: Broker, broker_name: str) -> None:
    """A foreign program that waits for its queue gets replies, and nothing else."""
    async with opened(broker.url, broker_name, queue_type="classic", young_s=1.0) as mailbox:
        putting = asyncio.create_task(mailbox.put(post("slack:1", 1, box=outbound("slack"))))
        async with foreign(broker.url) as client, asyncio.timeout(30):
            bodies: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await bodies.put(message.body)
                await message.ack()

            channel = client
            while True:
                try:
                    queue = await channel.get_queue(f"{broker_name}.outbound.slack")
                    break
                except aio_pika.exceptions.ChannelNotFoundEntity:
                    await channel.reopen()
            await queue.consume(take)
            await putting
            assert await bodies.get() == b"slack:1#1"
