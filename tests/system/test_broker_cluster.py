"""Three nodes of RabbitMQ, set up as deploy/rabbitmq says, one of which dies while messages flow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.broker import BIN
from tests.support.cluster import Cluster
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.place import contents, on
from tests.support.proxy import Proxy
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import with_telegram
from tests.system.rights_place import PARTITIONS, allowed, run, user

pytestmark = guarantee(
    "loss", "The death of a node in a RabbitMQ cluster loses, repeats and reorders no message."
)

NAME = "chat"
PEOPLE = range(1001, 1007)
BEFORE, AFTER = range(3), range(3, 6)


@pytest.mark.timeout(600)
async def test_a_node_dies_while_messages_flow(tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, each chat keeps its order; and each role may do its own alone."""
    if not (BIN / "rabbitmq-server").exists() or shutil.which("epmd") is None:
        pytest.fail("install rabbitmq-server (apt-get install rabbitmq-server), or run: make test")
    with Cluster() as cluster:
        first, second, third = cluster.nodes
        run(first, NAME, "policies.sh")
        urls = [user(first, NAME, "session"), user(first, NAME, "channels", "telegram")]
        async with TelegramServer() as server, Proxy(first.port) as proxy:
            config = on("", NAME, partitions=PARTITIONS, **with_telegram(server)) | {
                "broker.queue_type": "quorum",
                "model.echo_delay_s": 0.2,
            }
            through = [url.replace(str(first.port), str(proxy.port)) for url in urls]
            session, channels = (
                Daemon(tmp_path, role=role, config=config | {"broker.url": url})
                for role, url in zip(("session", "channels"), through, strict=True)
            )
            async with session, channels:
                queues = listed(first.ctl("list_queues", "name", "type", "policy", "leader", "members"))
                write(server, BEFORE)
                await answered(server, 1)
                first.kill()
                # As what stands before the nodes does, once one of them does not answer.
                proxy.lead_to(second.port)
                write(server, AFTER)
                await answered(server, len(BEFORE) + len(AFTER))
                assert await channels.stop() == 0
                assert await session.stop() == 0

            said = {person: [sent.text for sent in server.sent_to(person)] for person in PEOPLE}
        may = await allowed(urls[1].replace(str(first.port), str(third.port)), NAME)

    expected = [f"echo: {number}" for number in (*BEFORE, *AFTER)]
    assert said == dict.fromkeys(PEOPLE, expected)
    for person in PEOPLE:
        asked = contents(tmp_path, f"telegram_{person}")[::2]
        assert asked == [str(number) for number in (*BEFORE, *AFTER)]
    assert may == []
    ours = [words for name, *words in queues if name.startswith(f"{NAME}.")]
    assert len(ours) > PARTITIONS
    assert {(kind, policy, len(members.split(","))) for kind, policy, _, members in ours} == {
        ("quorum", f"{NAME}-balanced", 3)
    }
    assert len({leader for *_, leader, _ in ours}) == 3


def write(server: TelegramServer, numbers: range) -> None:
    for number in numbers:
        for person in PEOPLE:
            server.write(person, str(number))


async def answered(server: TelegramServer, count: int) -> None:
    """Wait until each person has so many answers."""
    await server.until(lambda: all(len(server.sent_to(person)) >= count for person in PEOPLE), timeout_s=120)


def listed(table: str) -> list[list[str]]:
    return [line.split("\t") for line in table.splitlines() if "\t" in line]
