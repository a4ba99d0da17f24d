"""Another number of partitions: nothing is lost or reordered, wherever it is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from gateway.errors import TopologyMismatch
from gateway.queue.mailbox import INBOUND, Letter
from gateway.queue.rabbitmq.connection import AmqpChannel, Link
from gateway.queue.rabbitmq.declare import Topology
from gateway.queue.rabbitmq.mailbox import RabbitMailbox
from gateway.queue.rabbitmq.repartition import Moved, StillServed, repartition
from gateway.queue.rabbitmq.topology import Names
from gateway.queue.rabbitmq.wire import BrokerMessage, LinkDown
from tests.contracts.posts import ADA, collect, post
from tests.gateway.on_rabbit import (
    ROOT,
    first_seen,
    foreign,
    opened,
    put_surely,
    send_bare,
    serving,
    stand_still,
    until_ready,
)
from tests.gateway.waits import until
from tests.support.broker import Broker
from tests.support.foreign import foreign as chatting
from tests.support.foreign import inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, environment
from tests.support.place import contents, on

pytestmark = guarantee(
    "loss", "A change of the number of partitions loses and reorders no message, wherever it is killed."
)

LATE_S, STILL_S = 0.6, 1.5
CHATS = [f"web:{number}" for number in range(12)]


async def moved(broker: Broker, name: str, partitions: int, queue_type: str = "auto") -> Moved:
    """Move, without waiting for beats any longer than a test has to."""
    link = await Link.open(broker.url, title="repartition", heartbeat_s=10)
    try:
        topology = Topology(Names(name, partitions), queue_type, 0.0)
        return await repartition(link, topology, listens_s=1.2)
    finally:
        await link.close()


class Slow(Link):
    """Shows only after a while what the broker hands over of the first queue, as a busy way does."""

    async def channel(self, *, confirms: bool = False) -> AmqpChannel:
        """Open one that takes its time."""
        channel = await super().channel(confirms=confirms)
        consume = channel.consume

        async def consume_late(
            queue: str,
            sink: Callable[[BrokerMessage], None],
            *,
            exclusive: bool = False,
            no_ack: bool = False,
        ) -> None:
            def late(message: BrokerMessage) -> None:
                asyncio.get_running_loop().call_later(LATE_S, sink, message)

            slow = queue.endswith(".00")
            await consume(queue, late if slow else sink, exclusive=exclusive, no_ack=no_ack)

        channel.consume = consume_late  # type: ignore[method-assign]
        return channel


class Closed(Link):
    """Loses the channel by which it takes letters: the broker closes it over a false acknowledgement."""

    async def channel(self, *, confirms: bool = False) -> AmqpChannel:
        """Open one that the broker closes as soon as it takes letters."""
        channel = await super().channel(confirms=confirms)
        consume = channel.consume

        async def consume_falsely(
            queue: str,
            sink: Callable[[BrokerMessage], None],
            *,
            exclusive: bool = False,
            no_ack: bool = False,
        ) -> None:
            await consume(queue, (lambda message: None) if not no_ack else sink, no_ack=no_ack)
            if not no_ack:
                channel.ack(1_000_000)

        channel.consume = consume_falsely  # type: ignore[method-assign]
        return channel


async def moved_over(
    kind: type[Link],
    broker: Broker,
    name: str,
    queue_type: str,
    *,
    settles_s: float = 2,
    on_step: Callable[[str], None] = lambda step: None,
) -> Moved:
    """Move two partitions to three over such a connection."""
    link = await kind.open(broker.url, title="repartition", heartbeat_s=10)
    try:
        topology = Topology(Names(name, 3), queue_type, 0.0)
        return await repartition(link, topology, listens_s=0.1, settles_s=settles_s, on_step=on_step)
    finally:
        await link.close()


async def taken(broker: Broker, name: str, queue_type: str, count: int) -> dict[str, list[str]]:
    """Take what a daemon with three partitions finds, each letter once."""
    async with (
        opened(broker.url, name, partitions=3, queue_type=queue_type) as mailbox,
        mailbox.take(INBOUND) as letters,
    ):
        came: list[Letter] = []
        async with asyncio.timeout(30):
            while len({letter.id for letter in came}) < count:
                came.append(await anext(letters))
    return first_seen(came)


async def fill(mailbox: RabbitMailbox, names: dict[str, list[str]], count: int) -> None:
    """Put ``count`` further letters of each chat."""
    for key in CHATS:
        for _ in range(count):
            letter = post(key, len(names[key]))
            await put_surely(mailbox, letter)
            names[key].append(letter.id)


async def move_dying(
    broker: Broker, name: str, partitions: int, step: str, queue_type: str = "auto"
) -> int | None:
    """Have a process of its own move, and die at the step; return its exit code."""
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.gateway.repartition_victim"),
        *(broker.url, name, str(partitions), queue_type, step),
        cwd=ROOT,
    )
    return await victim.wait()


async def verb(workspace: Path, config: Mapping[str, Any]) -> tuple[int, str]:
    """Type ``queues repartition 5``; return the exit code and what it says."""
    words = [sys.executable, "-m", "gateway", "--workspace", str(workspace), "queues", "repartition", "5"]
    process = await asyncio.create_subprocess_exec(
        *words, env=environment(config), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    return process.returncode or 0, said.decode()


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_what_waits_goes_before_what_comes(broker: Broker, broker_name: str, queue_type: str) -> None:
    """Adapters put on meanwhile, with the number of before; daemons are refused, then answer in order."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    options = {"queue_type": queue_type}
    async with opened(broker.url, broker_name, follows=True, **options) as adapter:
        await fill(adapter, names, 8)
        await send_bare(broker.url, f"{broker_name}.inbound", "007", b"not JSON")
        async with opened(broker.url, broker_name, **options) as daemon, daemon.take(INBOUND) as letters:
            await daemon.settle(await anext(letters))
            with pytest.raises(StillServed, match=r"daemons with 4 partitions still run: .*:[0-9]+ "):
                await moved(broker, broker_name, 3, queue_type)
        moving = asyncio.create_task(moved(broker, broker_name, 3, queue_type))
        await fill(adapter, names, 4)
        assert (await moving).letters >= 12 * 8

        async with serving(broker.url, broker_name, **options) as old:
            with pytest.raises(TopologyMismatch, match="the broker has 3 partitions") as refusal:
                await until_ready(old)
        assert "queues repartition 4" in refusal.value.hint
        async with (
            opened(broker.url, broker_name, partitions=3, **options) as new,
            new.take(INBOUND) as letters,
        ):
            total = 12 * 12
            came = await collect(letters, total)
            await fill(adapter, names, 1)
            came += await collect(letters, len(CHATS))
        with_ids = [letter for letter in came if letter.id]
        assert len(came) - len(with_ids) == 1
        seen = first_seen(with_ids)
        first = next(key for key, ids in names.items() if len(seen[key]) < len(ids))
        # One of them was settled before.
        assert sum(map(len, names.values())) - sum(map(len, seen.values())) == 1
        assert seen == names | {first: names[first][1:]}
        assert await moved(broker, broker_name, 3, queue_type) == Moved(3, 3, 0)


async def test_a_kill_at_each_step_costs_only_another_call(broker: Broker, broker_name: str) -> None:
    """Killed before each of its steps in turn, it ends all the same; until then no daemon starts."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2) as mailbox:
        await fill(mailbox, names, 5)
    old = [Names(broker_name, 2).inbound_queue(number) for number in range(2)]
    steps = [
        *("record the move", "make the new queues", *(f"unbind {queue}" for queue in old)),
        *(f"{does} {queue}" for queue in old for does in ("move", "delete")),
        *("bind the new queues", "record the end", "forget the move", ""),
    ]
    for step in steps:
        assert await move_dying(broker, broker_name, 3, step) == (-signal.SIGKILL if step else 0), step
        if step == steps[4]:
            async with serving(broker.url, broker_name, partitions=2) as early:
                with pytest.raises(TopologyMismatch, match="moved from 2 to 3") as refusal:
                    await until_ready(early)
            assert refusal.value.hint.endswith("queues repartition 3")

    async with opened(broker.url, broker_name, partitions=3) as mailbox, mailbox.take(INBOUND) as letters:
        await fill(mailbox, names, 1)
        await mailbox.put(post(ADA, "last"))
        came = []
        while len({letter.id for letter in came}) < 12 * 6 + 1:
            came.append(await anext(letters))
    assert first_seen(came) == names | {ADA: [f"{ADA}#last"]}


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_kill_between_two_letters_keeps_their_order(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """To more partitions, then to fewer, each move killed while letters are on their way."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2, queue_type=queue_type) as mailbox:
        await fill(mailbox, names, 30)
    for number in (5, 3):
        # Of one queue hundreds are out at once: some are in both when it dies, others gone from the old one.
        for step in ("put 100", "ack 40", "ack 7"):
            code = await move_dying(broker, broker_name, number, step, queue_type)
            assert code == -signal.SIGKILL, step
        assert await move_dying(broker, broker_name, number, "", queue_type) == 0

    options: dict[str, object] = {"partitions": 3, "queue_type": queue_type}
    async with opened(broker.url, broker_name, **options) as mailbox, mailbox.take(INBOUND) as letters:
        await fill(mailbox, names, 1)
        came = []
        while len({letter.id for letter in came}) < 12 * 31:
            came.append(await anext(letters))
    assert first_seen(came) == names
    assert len(came) > len({letter.id for letter in came})


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_letters_that_are_on_their_way_are_waited_for(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """The broker counts them neither as ready nor as taken while they come: the queue is not empty yet."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2, queue_type=queue_type) as mailbox:
        await fill(mailbox, names, 5)

    assert await moved_over(Slow, broker, broker_name, queue_type) == Moved(2, 3, 60)
    assert await taken(broker, broker_name, queue_type, 60) == names


async def test_a_queue_that_does_not_say_what_it_holds_is_not_taken_for_empty(
    broker: Broker, broker_name: str, tmp_path: Path
) -> None:
    """Of a quorum queue whose leader is slow the broker says that nothing is ready."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2, queue_type="quorum") as mailbox:
        await fill(mailbox, names, 5)

    begun = tmp_path / "begun"
    standing = asyncio.create_task(stand_still(broker, f"{broker_name}.inbound.2.00", STILL_S, begun))
    await until(lambda: begun.exists() or standing.done(), within_s=60)
    assert await moved_over(Slow, broker, broker_name, "quorum", settles_s=20) == Moved(2, 3, 60)
    assert await standing == "ok\n"
    assert await taken(broker, broker_name, "quorum", 60) == names


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_channel_that_is_closed_in_the_middle_ends_the_move(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """It says why, and another call goes on."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2, queue_type=queue_type) as mailbox:
        await fill(mailbox, names, 5)

    async with asyncio.timeout(20):
        with pytest.raises(LinkDown, match="unknown delivery tag"):
            await moved_over(Closed, broker, broker_name, queue_type)
    assert await moved_over(Link, broker, broker_name, queue_type) == Moved(2, 3, 60)
    assert await taken(broker, broker_name, queue_type, 60) == names


async def test_a_letter_that_comes_by_the_name_of_the_queue_is_moved_too(
    broker: Broker, broker_name: str
) -> None:
    """It is put behind all others, while they are on their way."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2, queue_type="quorum") as mailbox:
        await fill(mailbox, names, 2)
    async with foreign(broker.url) as client:
        late = aio_pika.Message(b"{}", message_id=f"{ADA}#late", headers={"key": ADA}, delivery_mode=2)
        queue = f"{broker_name}.inbound.2.00"
        puts: list[asyncio.Future[object]] = []

        def put() -> None:
            puts.append(asyncio.ensure_future(client.default_exchange.publish(late, queue)))

        def put_behind(step: str) -> None:
            if step == f"move {queue}":
                asyncio.get_running_loop().call_later(LATE_S / 2, put)

        went = await moved_over(Slow, broker, broker_name, "quorum", on_step=put_behind)
        await asyncio.gather(*puts)
    assert went == Moved(2, 3, 25)
    assert await taken(broker, broker_name, "quorum", 25) == names | {ADA: [f"{ADA}#late"]}


async def test_headers_that_fill_a_frame_do_not_stop_the_move(broker: Broker, broker_name: str) -> None:
    """Another program may write as many as the broker takes; the letter goes on with those that are read."""
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with opened(broker.url, broker_name, partitions=2) as mailbox:
        await mailbox.ready()
        async with foreign(broker.url) as client:
            long = "x" * 130_900
            for headers in ({"key": ADA, "other": long}, {"key": long}, {"key": ADA, **trace}):
                full = aio_pika.Message(b"{}", message_id=f"{ADA}#full", headers=headers, delivery_mode=2)
                await client.default_exchange.publish(full, f"{broker_name}.inbound.2.00")

    assert await moved_over(Link, broker, broker_name, "classic") == Moved(2, 3, 3)
    options: dict[str, object] = {"partitions": 3, "queue_type": "classic"}
    async with opened(broker.url, broker_name, **options) as mailbox, mailbox.take(INBOUND) as letters:
        came = [await anext(letters) for _ in range(3)]
    assert [(letter.key, dict(letter.headers)) for letter in came if letter.headers] == [(ADA, trace)]
    assert sorted(letter.key or "" for letter in came) == ["", ADA, ADA]


async def test_an_alarm_during_the_move_is_told_as_such(broker: Broker, broker_name: str) -> None:
    """The broker takes no messages any more: it says so, and another call goes on when the alarm is over."""
    names: dict[str, list[str]] = {key: [] for key in CHATS}
    async with opened(broker.url, broker_name, partitions=2) as mailbox:
        await fill(mailbox, names, 5)

    def alarm(step: str) -> None:
        if step == f"move {broker_name}.inbound.2.00":
            broker.alarm(True)

    try:
        with pytest.raises(LinkDown, match="memory or disk alarm"):
            await moved_over(Link, broker, broker_name, "auto", on_step=alarm)
    finally:
        broker.alarm(False)
    assert (await moved_over(Link, broker, broker_name, "auto")).partitions == 3
    assert await taken(broker, broker_name, "auto", 60) == names


async def test_verb_moves_what_waits(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """It names the daemon that still runs; afterwards one with the new number answers what waited."""

    def config(partitions: int) -> dict[str, object]:
        return on(broker, broker_name, partitions=partitions)

    async with Daemon(tmp_path, role="session", config=config(2)) as daemon:
        code, err = await verb(tmp_path, config(2))
        assert code == 1
        assert f"pid {daemon.pid} (role session)" in err
        assert await daemon.stop() == 0
    async with chatting(broker.url, name=broker_name) as client:
        for number in range(3):
            await client.put(inbound("foreign:a", f"a{number}", f"{number}"))
        code, err = await verb(tmp_path, config(2))
        assert code == 0
        assert "moved 3 messages from 2 to 5 partitions" in err
        assert "set broker.partitions = 5" in err
        async with Daemon(tmp_path, role="session", config=config(5)):
            await client.collect("foreign", 3)
    assert contents(tmp_path, "foreign_a")[::2] == ["0", "1", "2"]

    code, err = await verb(tmp_path / "alone", {})
    assert code == 78
    assert "embedded queue has no partitions" in err
