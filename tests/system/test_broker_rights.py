"""The rights of each role on a real RabbitMQ: a whole gateway works under them, and no role can do more."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aiormq.exceptions import ChannelAccessRefused
from structlog.testing import capture_logs

from gateway.errors import MailboxDown
from gateway.queue.mailbox import INBOUND, ParkedAs, Post, outbound
from gateway.queue.rabbitmq.consumer import RETRY_S
from tests.gateway.on_rabbit import serving
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, command
from tests.support.place import on
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram
from tests.system.rights_place import PARTITIONS, allowed, run, user

pytestmark = guarantee("security", "The RabbitMQ user of each role can do its work and nothing else.")


async def test_a_gateway_in_roles_works_under_them(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """The adapters come first, wait for the queues, and then messages and answers flow."""
    session_url = user(broker, broker_name, "session")
    channels_url = user(broker, broker_name, "channels", "telegram")
    async with TelegramServer() as server:
        config = on(broker, broker_name, partitions=PARTITIONS, **with_telegram(server))
        channels = Daemon(tmp_path, role="channels", config=config | {"broker.url": channels_url})
        session = Daemon(tmp_path, role="session", config=config | {"broker.url": session_url})
        try:
            await channels.start(wait=False)
            await channels.said("docs/rabbitmq.md has the rights of each role")
            await session.start()
            await channels.ready()
            server.write(ADA, "one")
            await server.said(ADA, lambda sent: sent.text == "echo: one")
            server.write(ADA, "two")
            await server.said(ADA, lambda sent: sent.text == "echo: two")

            assert [sent.text for sent in server.sent_to(ADA)] == ["echo: one", "echo: two"]
            assert await session.stop() == 0
            # The adapters have no port; whether they run is told all the same.
            assert (await command(tmp_path, "status", "--alive", config=config))[0] == 0
            assert await channels.stop() == 0
            assert (await command(tmp_path, "status", "--alive", config=config))[0] == 69
            # What a user may not ask is said in words, and is no fault.
            said = {
                url: await clock_of_the_broker(tmp_path, config, url) for url in (session_url, channels_url)
            }
            assert said[session_url] == "ok    clock: within 30 s of the broker's"
            assert said[channels_url].startswith(
                "ok    clock: the broker's time is unknown: this user may make"
            )
            assert b"Traceback" not in channels.log
        finally:
            for daemon in (channels, session):
                if daemon.alive:
                    await daemon.kill()


async def clock_of_the_broker(workspace: Path, config: dict[str, Any], url: str) -> str:
    _, out = await command(workspace, "doctor", config=config | {"broker.url": url})
    (line,) = (line for line in out.splitlines() if "clock: " in line and "the broker's" in line)
    return line


async def test_an_adapter_makes_the_queue_of_its_replies(broker: Broker, broker_name: str) -> None:
    """Its user may not prove that a young one stores: it goes on all the same when connections are lost."""
    session_url = user(broker, broker_name, "session")
    channels_url = user(broker, broker_name, "channels", "telegram")
    async with serving(session_url, broker_name, queue_type="quorum") as session:
        await session.ready()
        async with serving(channels_url, broker_name, queue_type="quorum") as channels:
            await channels.ready()
            async with channels.take(outbound("telegram")) as letters:
                await session.put(Post(outbound("telegram"), "telegram:1", "a", b"{}"))
                assert (await anext(aiter(letters))).id == "a"
            broker.ctl("close_all_user_connections", f"channels-{broker_name}", "of the test")

            async def placed() -> bool:
                with suppress(MailboxDown):
                    await channels.put(Post(INBOUND, "telegram:1", "b", b"{}"))
                    return True
                return False

            await until(placed, 60)


async def test_each_role_does_its_work_and_no_more(broker: Broker, broker_name: str) -> None:
    """Of an adapter, somebody else's program and the sessions; the policy holds for each of their queues."""
    urls = {role: user(broker, broker_name, role, "telegram") for role in ("channels", "program")}
    session_url = user(broker, broker_name, "session")
    run(broker, broker_name, "policies.sh")
    async with serving(session_url, broker_name, queue_type="quorum") as session:
        await session.ready()
        async with serving(urls["channels"], broker_name, queue_type="quorum") as channels:
            await channels.ready()
            await session.put(Post(outbound("telegram"), "telegram:1", "a", b"{}"))
            async with channels.take(outbound("telegram")) as letters:
                letter = await anext(aiter(letters))
                await channels.park(letter, ParkedAs("telegram:1", "refused", 1))
        # What a platform refuses for good the session daemons list.
        parked = await session.parked()
        assert [(one.id, one.box) for one in parked] == [("a", outbound("telegram"))]
        listed = broker.ctl("list_queues", "name", "policy").splitlines()
        broker.ctl("clear_policy", f"{broker_name}-balanced")
        for channel in ("telegram", "discord"):
            await session.put(Post(outbound(channel), f"{channel}:1", channel, b"{}"))
        for url in urls.values():
            assert await allowed(url, broker_name) == []
        assert (await session.depths(["discord"]))[outbound("discord")].count == 1
    async with await aio_pika.connect(session_url) as connection:
        with pytest.raises(ChannelAccessRefused):
            await (await connection.channel()).declare_queue(f"other-{broker_name}")

    ours = [line.split("\t") for line in listed if line.startswith(f"{broker_name}.")]
    assert len(ours) > PARTITIONS
    assert {policy for _, policy in ours} == {f"{broker_name}-balanced"}


async def test_who_may_take_no_messages_says_so_once(broker: Broker, broker_name: str) -> None:
    """A session daemon with the user of an adapter: of all its queues, in words that name the cure."""
    session_url = user(broker, broker_name, "session")
    url = user(broker, broker_name, "channels", "telegram")
    async with serving(session_url, broker_name) as session, serving(url, broker_name) as wrong:
        await session.ready()
        await wrong.ready()
        with capture_logs() as logs:
            async with wrong.take(INBOUND):
                await until(lambda: any(each["event"] == "queue.refused" for each in logs))
                await asyncio.sleep(2 * RETRY_S)

        (said,) = (each for each in logs if each["event"] == "queue.refused")
        assert said["error"].startswith(
            f"user 'channels-{broker_name}' may not use queue '{broker_name}.inbound."
        )
        assert said["hint"].startswith("rabbitmqctl set_permissions")


def test_a_role_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [ROOT / "deploy" / "rabbitmq" / "rights.sh", "nobody", "x"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "Usage: deploy/rabbitmq/rights.sh session USER" in done.stderr
