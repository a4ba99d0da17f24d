"""Three nodes of RabbitMQ, one after the other killed at random and started again, while people write.

``CHAOS_SEED`` replays what is drawn, ``CHAOS_NODE_KILLS`` says how many kills there are.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.cluster import Cluster
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import on, with_model
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.verdict import check
from tests.system.rights_place import run, user

pytestmark = guarantee("loss", "Random kills of all nodes of a RabbitMQ cluster lose and reorder no message.")

NAME = "chat"
PARTITIONS = 4
CHATS = [f"c{number}" for number in range(12)]
KILLS = int(os.environ.get("CHAOS_NODE_KILLS", "6"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
# Who is killed: any node, the one that clients are connected to first, or one that leads a queue.
CHOICES = ("any", "first", "leader")


class People:
    """Write to all chats, again and again, until they are told to stop."""

    def __init__(self, client: Steady, dice: random.Random) -> None:
        self.sent: dict[str, list[str]] = {f"foreign_{chat}": [] for chat in CHATS}
        self.enough = asyncio.Event()
        self._client, self._dice = client, dice

    async def write(self) -> None:
        async with asyncio.TaskGroup() as group:
            for chat in CHATS:
                group.create_task(self._write(chat))

    async def _write(self, chat: str) -> None:
        mine = self.sent[f"foreign_{chat}"]
        while not self.enough.is_set():
            mine.append(f"{chat}-{len(mine):04}")
            await self._client.put(inbound(f"foreign:{chat}", mine[-1], mine[-1]))
            # People think a while.
            await asyncio.sleep(self._dice.uniform(0.2, 1.5))

    async def answered(self) -> None:
        """Return when all that was written by now is answered."""
        ids = [f"{id_}#reply" for of in self.sent.values() for id_ in of[: max(len(of) - 1, 0)]]
        await self._client.answered(*ids, within_s=300)


async def chosen(nodes: Sequence[Broker], alive: Broker, how: str, dice: random.Random) -> Broker:
    if how == "first":
        return nodes[0]
    if how == "leader":
        table = await asyncio.to_thread(alive.ctl, "list_queues", "name", "leader")
        leads = [line.split("\t")[1] for line in table.splitlines() if line.startswith(f"{NAME}.inbound")]
        at = dice.choice(sorted(leads)).partition("@")[0]
        return next(node for node in nodes if node.environment()["RABBITMQ_NODENAME"].startswith(f"{at}@"))
    return dice.choice(list(nodes))


@pytest.mark.timeout(1800)
async def test_any_node_is_killed_at_any_time(tmp_path: Path) -> None:
    """Two workers, twelve chats: nothing is lost, stored twice, reordered or told in two wordings."""
    dice = random.Random(SEED)
    print(f"replay: CHAOS_SEED={SEED} CHAOS_NODE_KILLS={KILLS}")
    killed: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        cluster = await asyncio.to_thread(Cluster().__enter__)
        stack.callback(cluster.close)
        nodes = cluster.nodes
        await asyncio.to_thread(run, nodes[0], NAME, "policies.sh")
        url = await asyncio.to_thread(user, nodes[0], NAME, "session")
        ports = [node.port for node in nodes]
        # As what stands before the nodes does: the first that answers; the gateway begins elsewhere.
        lines = [await stack.enter_async_context(Proxy(*ports[at:], *ports[:at])) for at in (0, 1)]
        client_url, its_url = (url.replace(str(ports[0]), str(line.port)) for line in lines)
        model = await stack.enter_async_context(ModelServer())
        model.delay_s = 0.2
        config = with_model(model, **on("", NAME, partitions=PARTITIONS))
        config |= {"broker.queue_type": "quorum", "facts.enabled": False}
        config |= {"broker.url": its_url, "limits.workers": 2}
        daemon = await stack.enter_async_context(Daemon(tmp_path, role="session", config=config))
        client = await stack.enter_async_context(Steady(admin(client_url, nodes[0]), name=NAME))
        people = People(client, random.Random(dice.random()))
        writing = asyncio.create_task(people.write())
        await until(lambda: len(client.replies) > len(CHATS), 120)
        for number in range(KILLS):
            how = CHOICES[number % len(CHOICES)]
            victim = await chosen(nodes, nodes[dice.randrange(len(nodes))], how, dice)
            await asyncio.sleep(dice.uniform(0.0, 2.0))
            await asyncio.to_thread(victim.kill)
            killed[how] += 1
            if dice.random() < 0.7:
                # The two that are left go on by themselves.
                await people.answered()
            await asyncio.to_thread(victim.start, 240)
        people.enough.set()
        await writing
        ids = [f"{id_}#reply" for of in people.sent.values() for id_ in of]
        await client.answered(*ids, within_s=300)
        assert await daemon.stop() == 0

    asked = Counter(seen.text.splitlines()[-1] for seen in model.turns)
    texts = {(reply["id"], reply["text"]) for reply in client.replies}
    print(
        f"{KILLS} kills {dict(killed)}, {len(ids)} messages, {asked.total()} model calls, "
        f"{len(client.replies) - len(texts)} replies told again"
    )
    verdict = check(tmp_path, people.sent)
    assert verdict.sound, verdict
    assert max(Counter(id_ for id_, _ in texts).values()) == 1
    for chat in CHATS:
        told = [reply["in_reply_to"] for reply in client.replies if reply["key"] == f"foreign:{chat}"]
        assert list(dict.fromkeys(told)) == people.sent[f"foreign_{chat}"]


def admin(url: str, node: Broker) -> str:
    """Return the address with the rights of a program that may do everything."""
    node.user("foreign", "foreign")
    return f"amqp://foreign:foreign@{url.rpartition('@')[2]}"
