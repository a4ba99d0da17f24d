"""The RabbitMQ mailbox keeps the contract of every mailbox, and the names of the queue's contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aio_pika
import pytest
from pamqp.common import FieldTable

from gateway.errors import LetterLost, MailboxDown, TopologyMismatch
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post, outbound
from gateway.queue.rabbitmq import topology
from gateway.queue.rabbitmq.broker import RabbitMailbox
from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.contracts.mailbox import MailboxContract
from tests.contracts.posts import ADA, BOB, WEB, collect, ids, park_one, post, put_all
from tests.gateway.on_rabbit import (
    by_key,
    foreign,
    opened,
    put_surely,
    send_bare,
    serving,
    until_ready,
    vanish,
)
from tests.support.broker import Broker
from tests.support.guarantee import guarantee

CHATS = [f"web:{number}" for number in range(40)]

pytestmark = [
    guarantee("interfaces", "Both brokers fulfil the same contract."),
    guarantee("loss", "Different messages that are parked under one id are all kept."),
]


class _OnRabbit(MailboxContract):
    refuses_repeats = False
    queue_type = "auto"

    @pytest.fixture(autouse=True)
    def _place(self, broker: Broker, broker_name: str) -> None:
        self.url, self.name = broker.url, broker_name

    @asynccontextmanager
    async def open_mailbox(self) -> AsyncIterator[Mailbox]:
        async with opened(self.url, self.name, queue_type=self.queue_type) as mailbox:
            yield mailbox

    @asynccontextmanager
    async def take_over(self, first: Mailbox) -> AsyncIterator[Mailbox]:
        assert isinstance(first, RabbitMailbox)
        await vanish(first)
        async with self.open_mailbox() as mailbox:
            yield mailbox


class TestClassic(_OnRabbit):
    """The contract, over classic queues."""

    queue_type = "classic"


class TestQuorum(_OnRabbit):
    """The contract, over quorum queues."""

    queue_type = "quorum"


# ── what lies on the broker ───────────────────────────────────────────────────────────────────────────────


async def test_message_is_as_the_contract_says(broker: Broker, broker_name: str) -> None:
    """A put is persistent JSON with message id and key, in the queue of its key's partition."""
    async with opened(broker.url, broker_name) as mailbox, foreign(broker.url) as client:
        await mailbox.put(post(ADA, 1, body=b"{}"))
        await mailbox.put(post(ADA, 2, box=outbound("mine"), body=b"{}"))

        partition = slot_of(ADA) * 4 // 256
        replies = await client.get_queue(f"{broker_name}.outbound.mine")
        reply = await replies.get()
        async with mailbox.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)

    assert (reply.message_id, reply.content_type, reply.delivery_mode) == (f"{ADA}#2", "application/json", 2)
    assert reply.headers == {"key": ADA}
    assert letter.stream.queue == f"{broker_name}.inbound.4.{partition:02d}"  # type: ignore[attr-defined]


async def test_partitions_are_recorded(broker: Broker, broker_name: str) -> None:
    """The topology queue holds one record, which stays there."""
    async with opened(broker.url, broker_name), opened(broker.url, broker_name):
        pass
    async with foreign(broker.url) as client:
        queue = await client.get_queue(f"{broker_name}.topology")
        record = await queue.get()
        assert json.loads(record.body) == {"v": 1, "partitions": 4, "slots": 256}
        assert await queue.get(fail=False) is None


async def test_two_first_daemons_agree(broker: Broker, broker_name: str) -> None:
    """Of two daemons that meet an empty broker at once with different counts, exactly one is refused."""
    async with (
        serving(broker.url, broker_name, partitions=4) as one,
        serving(broker.url, broker_name, partitions=8) as other,
    ):
        outcome = await asyncio.gather(until_ready(one), until_ready(other), return_exceptions=True)

    assert sorted(type(each).__name__ for each in outcome) == ["NoneType", "TopologyMismatch"]


async def test_who_comes_back_together_waits_for_nobody(
    broker: Broker, broker_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hides the record from the others while it reads it: none takes itself for the first for that."""
    monkeypatch.setattr(topology, "RECORD_LOOK_S", 90.0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(opened(broker.url, broker_name))
        back = [
            await stack.enter_async_context(serving(broker.url, broker_name, young_s=90.0)) for _ in range(10)
        ]
        # One after the other they would take a quarter of an hour.
        await asyncio.gather(*(until_ready(mailbox) for mailbox in back))


async def test_auto_follows_what_exists(broker: Broker, broker_name: str) -> None:
    """``auto`` uses the queues that it finds; a configured type that differs is refused."""
    async with opened(broker.url, broker_name, queue_type="quorum") as first:
        await first.put(post(ADA, 1))
    async with opened(broker.url, broker_name) as second, second.take(INBOUND) as letters:
        assert ids(await collect(letters, 1)) == [f"{ADA}#1"]
    async with serving(broker.url, broker_name, queue_type="classic") as third:
        with pytest.raises(TopologyMismatch, match="queue_type"):
            await until_ready(third)


async def test_new_queues_are_left_alone_first(broker: Broker, broker_name: str) -> None:
    """Nothing is put before the queues made here have stood for the time of youth."""
    began = asyncio.get_running_loop().time()
    async with opened(broker.url, broker_name, young_s=0.5):
        # The record is looked at for a while, then the queues are left alone while they are young.
        assert asyncio.get_running_loop().time() - began >= 1.0
        began = asyncio.get_running_loop().time()
    async with opened(broker.url, broker_name, young_s=30):
        assert asyncio.get_running_loop().time() - began < 25


# ── foreign programs ──────────────────────────────────────────────────────────────────────────────────────


async def test_foreign_letter_is_taken(broker: Broker, broker_name: str) -> None:
    """A letter of a plain client, with neither id nor header nor sense, is taken, parked and listed."""
    async with (
        opened(broker.url, broker_name) as mailbox,
        mailbox.take(INBOUND) as letters,
    ):
        await send_bare(broker.url, f"{broker_name}.inbound", "255", b"\xff")
        (letter,) = await collect(letters, 1)
        await mailbox.park(letter, ParkedAs(None, "not JSON", 0))
        (parked,) = await mailbox.parked()

        assert (letter.id, letter.body) == ("", b"\xff")
        assert len(parked.id) == 26
        assert parked.key is None and parked.origin.endswith(".inbound.4.03")
        await mailbox.replay(parked.id)
        assert (await collect(letters, 1))[0].body == b"\xff"


async def test_probes_are_not_letters(broker: Broker, broker_name: str) -> None:
    """A probe is acknowledged and never handed out."""
    async with (
        opened(broker.url, broker_name) as mailbox,
        foreign(broker.url) as client,
        mailbox.take(INBOUND) as letters,
    ):
        exchange = await client.get_exchange(f"{broker_name}.inbound")
        await exchange.publish(aio_pika.Message(b"{}", headers={"probe": True}), f"{slot_of(ADA):03d}")
        await mailbox.put(post(ADA, 1))

        assert ids(await collect(letters, 1)) == [f"{ADA}#1"]
        assert (await mailbox.depths())[INBOUND].count == 1


async def test_reply_to_a_channel_never_seen(broker: Broker, broker_name: str) -> None:
    """The queue of a channel is made before its first reply, and again when somebody deletes it."""
    box = outbound("new")
    async with opened(broker.url, broker_name) as mailbox:
        await mailbox.put(post(ADA, 1, box=box))
        async with foreign(broker.url) as client:
            await client.queue_delete(f"{broker_name}.outbound.new")
        await mailbox.put(post(ADA, 2, box=box))

        async with mailbox.take(box) as replies:
            assert ids(await collect(replies, 1)) == [f"{ADA}#2"]


async def test_deleted_inbound_queue_is_made_again(broker: Broker, broker_name: str) -> None:
    """A put that no queue takes is not confirmed; the queue is made, bound and consumed again."""
    partition = slot_of(ADA) * 4 // 256
    async with opened(broker.url, broker_name) as mailbox, mailbox.take(INBOUND) as letters:
        async with foreign(broker.url) as client:
            await client.queue_delete(f"{broker_name}.inbound.4.{partition:02d}")
        with pytest.raises(MailboxDown):
            await mailbox.put(post(ADA, 1))
        await put_surely(mailbox, post(ADA, 1))

        assert ids(await collect(letters, 1)) == [f"{ADA}#1"]


async def test_refused_put_is_not_confirmed(broker: Broker, broker_name: str) -> None:
    """A queue that is full refuses: the put says so, and nothing was stored."""
    async with opened(broker.url, broker_name) as mailbox, foreign(broker.url) as client:
        full: FieldTable = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await client.declare_queue(f"{broker_name}.outbound.full", durable=True, arguments=full)
        await mailbox.put(post(ADA, 1, box=outbound("full")))
        with pytest.raises(MailboxDown):
            await mailbox.put(post(ADA, 2, box=outbound("full")))

        assert (await queue.get()).message_id == f"{ADA}#1"
        await mailbox.put(post(ADA, 2, box=outbound("full")))


# ── taking ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_replies_go_to_one_process(broker: Broker, broker_name: str) -> None:
    """Of two processes that take one channel's replies one gets all; the other follows when it leaves."""
    async with opened(broker.url, broker_name) as one, opened(broker.url, broker_name) as other:
        async with asyncio.TaskGroup() as tasks:
            tried = asyncio.Event()

            async def follow() -> list[str]:
                async with other.take(WEB) as replies:
                    tried.set()
                    return ids(await collect(replies, 3))

            async with one.take(WEB) as replies:
                waiting = tasks.create_task(follow())
                await tried.wait()
                for number in range(4):
                    await one.put(post(ADA, number, box=WEB))
                first, *_ = await collect(replies, 4)
                await one.settle(first)
        assert waiting.result() == [f"{ADA}#{number}" for number in (1, 2, 3)]


async def test_renewal_brings_the_letters_back(broker: Broker, broker_name: str) -> None:
    """A queue whose oldest letter is old is opened anew, and all of its letters come again."""
    async with (
        opened(broker.url, broker_name, renew_after_s=2) as mailbox,
        mailbox.take(INBOUND) as letters,
    ):
        names = await put_all(mailbox, ADA, 3)
        taken = await collect(letters, 3)
        again = await collect(letters, 3)

        assert ids(again) == names
        assert all(letter.suspect for letter in again) and all(letter.lost for letter in taken)
        with pytest.raises(LetterLost):
            await mailbox.settle(taken[0])
        for letter in again:
            await mailbox.settle(letter)


async def test_each_worker_takes_its_partitions_and_no_other(broker: Broker, broker_name: str) -> None:
    """One has the even, one the odd numbers; where one ends, its letters wait for it."""
    of = {number: [key for key in CHATS if partition_of(slot_of(key), 4) % 2 == number] for number in (0, 1)}
    async with (
        opened(broker.url, broker_name),
        opened(broker.url, broker_name, takes=range(0, 4, 2)) as even,
        opened(broker.url, broker_name, takes=range(1, 4, 2)) as odd,
    ):
        for key in CHATS:
            await even.put(post(key, 1))
        async with odd.take(INBOUND) as letters:
            async with even.take(INBOUND) as others:
                taken = await collect(others, len(of[0]))
                mine = await collect(letters, len(of[1]))
            assert [{letter.key for letter in each} for each in (taken, mine)] == [set(of[0]), set(of[1])]
            assert all(letter.lost for letter in taken) and not any(letter.lost for letter in mine)
            for key in CHATS:
                await even.put(post(key, 2))
            assert {letter.key for letter in await collect(letters, len(of[1]))} == set(of[1])

        async with even.take(INBOUND) as others:
            again = await collect(others, 2 * len(of[0]))
    assert by_key(again) == {key: [f"{key}#1", f"{key}#2"] for key in of[0]}


# ── parked ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_looking_does_not_empty_the_parked(broker: Broker, broker_name: str, queue_type: str) -> None:
    """Parked letters are still all there, in order, after many looks, two of them at once."""
    async with (
        opened(broker.url, broker_name, queue_type=queue_type) as mailbox,
        opened(broker.url, broker_name, queue_type=queue_type) as other,
    ):
        names = await put_all(mailbox, ADA, 5)
        async with mailbox.take(INBOUND) as letters:
            for letter in await collect(letters, 5):
                await mailbox.park(letter, ParkedAs(ADA, "poison", 3))

        for _ in range(6):
            looks = await asyncio.gather(mailbox.parked(), other.parked())
            assert [ids(look) for look in looks] == [names, names]


async def test_parked_reply_returns_to_its_channel(broker: Broker, broker_name: str) -> None:
    """A parked reply is put back to its channel; copies of one letter are one."""
    async with opened(broker.url, broker_name) as mailbox:
        for _ in range(2):
            await park_one(mailbox, Post(WEB, BOB, "r", b"{}"), key=BOB)
        parked = await mailbox.replay("r")

        assert parked is not None and parked.box == WEB
        assert await mailbox.parked() == []
        async with mailbox.take(WEB) as replies:
            assert ids(await collect(replies, 1)) == ["r"]
