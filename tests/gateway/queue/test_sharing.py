"""Daemons share the partitions of one broker out among them, and hand letters over without breaking order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from aio_pika.abc import AbstractIncomingMessage

from gateway.errors import LetterLost, MailboxDown
from gateway.queue.mailbox import INBOUND, Letter
from gateway.queue.rabbitmq import roster, share
from gateway.queue.rabbitmq.mailbox import RabbitMailbox
from gateway.queue.rabbitmq.topology import Names, partition_of
from session.transcript.key import slot_of
from tests.contracts.posts import ADA, collect, ids, post, put_all
from tests.gateway.on_rabbit import first_seen, foreign, opened, put_surely, sharers
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.until import until

pytestmark = guarantee(
    "order", "A partition moves to another process when its running turns have ended, and keeps its order."
)

PARTITIONS = 16
CHATS = [f"web:{number}" for number in range(60)]
# A chat of another of four partitions than Ada's, and one of the same.
OTHER = next(key for key in CHATS if partition_of(slot_of(key), 4) != partition_of(slot_of(ADA), 4))
BESIDE = next(key for key in CHATS if partition_of(slot_of(key), 4) == partition_of(slot_of(ADA), 4))
ALL = {partition_of(slot_of(key), PARTITIONS) for key in CHATS}


class Daemon:
    """Takes and settles whatever it is given, and keeps what it took."""

    def __init__(self, mailbox: RabbitMailbox, log: list[tuple[str, Letter]]) -> None:
        self.mailbox, self._log = mailbox, log
        self.attached = asyncio.Event()

    async def run(self) -> None:
        async with self.mailbox.take(INBOUND) as letters:
            self.attached.set()
            async for letter in letters:
                if not letter.begin():
                    continue
                self._log.append((str(letter.key), letter))
                await asyncio.sleep(0.002)
                with suppress(LetterLost, MailboxDown):
                    await self.mailbox.settle(letter)

    @property
    def served(self) -> set[int]:
        """The partitions that it serves alone, of those that have a chat."""
        return {partition_of(slot_of(key), PARTITIONS) for key in CHATS if self.mailbox.serves(key)}


async def shared_out(daemons: list[Daemon]) -> None:
    """Return when each partition is served by one of the daemons, and none has many more than another."""

    def even() -> bool:
        counts = [len(daemon.served) for daemon in daemons]
        return (
            all(counts) and sum(counts) == len(ALL) and set().union(*(each.served for each in daemons)) == ALL
        )

    await until(even, 60)


@asynccontextmanager
async def before_it_joins(
    url: str, name: str, queue_type: str
) -> AsyncIterator[tuple[RabbitMailbox, AsyncIterator[Letter], RabbitMailbox]]:
    """Yield a mailbox, what it takes, and the one that owns Ada's partition once it takes as well."""
    first, owner = sharers(2, partition_of(slot_of(ADA), 4))
    async with (
        opened(url, name, daemon=first, queue_type=queue_type) as one,
        one.take(INBOUND) as letters,
        opened(url, name, daemon=owner, queue_type=queue_type) as other,
    ):
        yield one, letters, other


@guarantee("writer", "A long turn does not delay the other chats of a partition that is about to move.")
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_long_turn_keeps_no_other_chat_waiting(
    broker: Broker, broker_name: str, queue_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that joins waits for its share while a turn runs there for minutes, and the others are served."""
    monkeypatch.setattr(roster, "SETTLED_BEATS", 0)
    async with before_it_joins(broker.url, broker_name, queue_type) as (one, letters, other):
        await put_all(one, ADA, 1)
        (long,) = await collect(letters, 1)
        assert long.begin()
        async with other.take(INBOUND) as rest:
            # Asked to make way it works on no chat alone any more, nor does the other.
            await until(lambda: not one.serves(ADA))
            for number in range(12):
                await one.put(post(BESIDE, number))
                (letter,) = await collect(letters, 1)
                assert letter.begin()
                await asyncio.sleep(0.3)
                await one.settle(letter)
            assert not long.lost
            assert not other.serves(ADA)

            await one.settle(long)
            await until(lambda: other.serves(ADA))
            await one.put(post(BESIDE, "next"))
            assert ids(await collect(rest, 1)) == [f"{BESIDE}#next"]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_partition_moves_when_its_running_letters_ended(
    broker: Broker, broker_name: str, queue_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that joins is given its share: what was begun is settled where it runs, the rest comes in order."""
    # Whatever runs is young enough to be waited for.
    monkeypatch.setattr(share, "YOUNG", 1e9)
    async with before_it_joins(broker.url, broker_name, queue_type) as (one, letters, other):
        names = await put_all(one, ADA, 5)
        taken = await collect(letters, 5)
        assert one.serves(ADA)
        assert all(letter.begin() for letter in taken[:3])
        async with other.take(INBOUND) as rest:
            following = asyncio.create_task(collect(rest, 3))
            await until(lambda: taken[3].lost)
            assert not taken[4].begin()
            assert not any(letter.lost for letter in taken[:3])
            # While its letters run here, nobody else may work on its chats.
            assert not other.serves(ADA)
            await one.settle(taken[0])
            await one.settle(taken[1])
            # One that pauses, for a person or a model, holds nothing up.
            taken[2].rest()
            came = await following

            assert taken[2].lost
            assert ids(came) == names[2:]
            for letter in came:
                await other.settle(letter)
            await until(lambda: other.serves(ADA) and not one.serves(ADA))
            await one.put(post(ADA, "next"))
            assert ids(await collect(rest, 1)) == [f"{ADA}#next"]


@guarantee(
    "writer", "The broker's deliveries prove who owns a chat, not the announcements of other processes."
)
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_behind_one_that_tells_nothing_no_chat_is_its_own(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """Whom the queue serves is what counts: a daemon of an older version tells no beats; no letter comes."""
    queue = Names(broker_name, 4).inbound_queue(partition_of(slot_of(ADA), 4))
    asked = asyncio.Event()

    async def take(letter: AbstractIncomingMessage) -> None:
        await letter.ack()
        asked.set()

    async with opened(broker.url, broker_name, queue_type=queue_type) as one, foreign(broker.url) as elder:
        await (await elder.get_queue(queue, ensure=False)).consume(take)
        async with one.take(INBOUND):
            # It stands in the line, and asks whom the queue serves.
            await asyncio.wait_for(asked.wait(), 30)
            await until(lambda: one.serves(OTHER))
            assert not one.serves(ADA)
            await elder.close()
            await until(lambda: one.serves(ADA))


async def test_ten_start_at_once_under_load_and_leave_again(broker: Broker, broker_name: str) -> None:
    """Each ends up with its share, letters keep the order of their chats, and nothing moves without need."""
    log: list[tuple[str, Letter]] = []
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    enough = asyncio.Event()

    async def write(mailbox: RabbitMailbox) -> None:
        number = 0
        while not enough.is_set():
            for key in CHATS:
                await put_surely(mailbox, post(key, number))
                names[key].append(f"{key}#{number}")
            number += 1
            await asyncio.sleep(0.05)

    async with AsyncExitStack() as lives, asyncio.TaskGroup() as group:
        mailboxes = [
            await lives.enter_async_context(opened(broker.url, broker_name, partitions=PARTITIONS))
            for _ in range(10)
        ]
        daemons = [Daemon(mailbox, log) for mailbox in mailboxes]
        writing = group.create_task(write(mailboxes[0]))
        first = group.create_task(daemons[0].run())
        await shared_out(daemons[:1])
        await until(lambda: len(log) > len(CHATS))
        running = [group.create_task(daemon.run()) for daemon in daemons[1:]]
        await shared_out(daemons)
        counts = [len(daemon.served) for daemon in daemons]
        assert max(counts) <= 2
        still = [daemon.served for daemon in daemons]
        # Nine leave in good order, whose partitions go to the one that stays.
        for task in running:
            task.cancel()
        await shared_out(daemons[:1])
        enough.set()
        await writing
        await until(lambda: len({letter.id for _, letter in log}) == sum(map(len, names.values())), 60)
        first.cancel()

    assert set().union(*still) == ALL
    assert first_seen([letter for _, letter in log]) == names


async def test_who_starts_together_shares_out_before_it_takes(broker: Broker, broker_name: str) -> None:
    """One that is there first waits for the other: what it took and gave up would be known as come before."""
    first, owner = sharers(2, partition_of(slot_of(ADA), 4))
    async with (
        opened(broker.url, broker_name, daemon=first, among=2) as one,
        opened(broker.url, broker_name, daemon=owner, among=2) as other,
        other.listen("daemons") as beats,
    ):
        await put_all(one, ADA, 3)
        await put_all(one, OTHER, 3)
        taken = dict[str, list[Letter]]()
        # What one of them holds when it leaves comes to the other.
        together = asyncio.Barrier(2)

        async def take(name: str, mailbox: RabbitMailbox) -> None:
            async with mailbox.take(INBOUND) as letters:
                taken[name] = await collect(letters, 3)
                await together.wait()

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(take(first, one))
            for _ in range(4):
                await anext(beats)
            tasks.create_task(take(owner, other))

        assert {letter.key for letter in taken[owner]} == {ADA}
        assert {letter.key for letter in taken[first]} == {OTHER}
        assert not any(letter.suspect for each in taken.values() for letter in each)


async def test_who_starts_with_one_that_never_comes_does_not_wait_long(
    broker: Broker, broker_name: str
) -> None:
    """A worker that cannot start holds the others up for seconds."""
    async with opened(broker.url, broker_name, among=2) as one:
        await put_all(one, ADA, 1)
        async with asyncio.timeout(20), one.take(INBOUND) as letters:
            assert len(await collect(letters, 1)) == 1
