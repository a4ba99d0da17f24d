"""Faults around a gateway: cut connections, a killed broker, a frozen daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.gateway_team import worker_for
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask, until_running
from tests.support.model_server import ModelServer, Reply
from tests.support.place import contents, lines_of, on, with_model
from tests.support.proxy import Proxy
from tests.support.until import until
from tests.support.verdict import check

KEY = "foreign:ann"
STEM = "foreign_ann"


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """A node that these tests may kill; each leaves it running."""
    with Broker() as node:
        yield node


def through(proxy: Proxy, broker: Broker) -> str:
    """The broker's address through the proxy."""
    return broker.url.replace(str(broker.port), str(proxy.port))


# -- connections that break ------------------------------------------------------------------------


@guarantee("connection", "A connection cut during a turn costs no second model request and repeats no reply.")
async def test_a_connection_cut_in_mid_turn_costs_no_second_call(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """The letter comes again while its turn runs: one request, one reply."""
    async with ModelServer() as model, Proxy(broker.port) as proxy:
        config = on(through(proxy, broker), broker_name) | with_model(model)
        async with (
            Daemon(tmp_path, role="session", config=config) as daemon,
            Steady(broker.url, name=broker_name) as client,
        ):
            end = asyncio.Event()
            model.script.append(Reply(text="stub: one", held=end))
            await client.put(inbound(KEY, "m1", "one"))
            await model.arrived(1)
            proxy.cut()
            await daemon.said("broker.connected", times=2)
            await client.put(inbound(KEY, "m2", "two"))
            # Behind the first one, which has come again.
            await until_running(daemon, 1)
            assert model.seen[0].outcome == "running"
            end.set()
            await client.answered("m1#reply", "m2#reply")

            await model.finished(2)
            assert [seen.outcome for seen in model.seen] == ["answered", "answered"]
            assert [reply["text"] for reply in client.replies] == ["stub: one", "stub: two"]
    assert check(tmp_path, {STEM: ["m1", "m2"]}).sound


@pytest.mark.parametrize("point", ["ack.before:1", "publish.after:4"])
async def test_a_connection_cut_between_reply_and_ack_repeats_nothing(
    tmp_path: Path, broker: Broker, broker_name: str, point: str
) -> None:
    """The reply is confirmed, its letter is not acknowledged, and comes again: nothing is sent twice."""
    async with Proxy(broker.port) as proxy, cutting(proxy) as (port, cut):
        daemon = Daemon(
            tmp_path,
            role="session",
            config=on(through(proxy, broker), broker_name),
            cut_at=f"{point}!{port}",
        )
        async with daemon, Steady(broker.url, name=broker_name) as client:
            for number in range(4):
                await client.put(inbound(KEY, f"m{number}", f"{number}"))
            await client.answered(*(f"m{number}#reply" for number in range(4)))
            await asyncio.wait_for(cut.wait(), 120)
            await client.put(inbound(KEY, "m4", "4"))
            await client.answered("m4#reply")

            assert [reply["text"] for reply in client.replies] == [f"echo: {number}" for number in range(5)]
            await emptied(broker, f"{broker_name}.inbound")
    assert check(tmp_path, {STEM: [f"m{number}" for number in range(5)]}).sound


@asynccontextmanager
async def cutting(proxy: Proxy) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Listen for a daemon that has reached its point, and cut all connections while it stands there."""
    done = asyncio.Event()

    async def reached(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.cut()
        done.set()
        writer.close()

    server = await asyncio.start_server(reached, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], done
    finally:
        server.close()


async def emptied(broker: Broker, prefix: str) -> None:
    """Wait until no letter of these queues waits or is unacknowledged."""

    async def so() -> bool:
        rows = await asyncio.to_thread(broker.ctl, "list_queues", "name", "messages", "--formatter=json")
        return not any(row["messages"] for row in json.loads(rows) if row["name"].startswith(prefix))

    await until(so, 120)


# -- the broker ------------------------------------------------------------------------------------


@guarantee("loss", "A killed broker loses no message that it confirmed.")
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_broker_killed_while_200_letters_flow_loses_none(
    tmp_path: Path, own_broker: Broker, queue_type: str
) -> None:
    """Over HTTP a message is refused meanwhile, and answered once it is back, under the same id."""
    chats = [f"c{number}" for number in range(10)]
    ids = {chat: [f"{chat}-{number:02d}" for number in range(20)] for chat in chats}
    config = on(own_broker, f"kill-{queue_type}", partitions=2, **{"broker.queue_type": queue_type})
    config["model.echo_delay_s"] = 0.02
    async with (
        Daemon(tmp_path, role="session", config=config) as daemon,
        Steady(own_broker.url, name=f"kill-{queue_type}") as client,
    ):

        async def write(chat: str) -> None:
            for id_ in ids[chat]:
                await client.put(inbound(f"foreign:{chat}", id_, f"I am {id_}"))

        async with asyncio.TaskGroup() as group:
            for chat in chats:
                group.create_task(write(chat))
            await daemon.said("turn.replied", times=20)
            own_broker.kill()
            try:
                async with httpx.AsyncClient(base_url=daemon.url, timeout=30) as http:
                    body = {"chat_id": "a", "text": "one", "id": "1"}
                    refused = await http.post("/v1/messages", json=body)
                    ready = await http.get("/readyz")
            finally:
                await asyncio.to_thread(own_broker.start)
        async with asyncio.timeout(120):
            while (found := await ask(daemon, "web:a", "1", "one")) is None:
                await asyncio.sleep(0.1)
        wanted = [f"{id_}#reply" for each in ids.values() for id_ in each]
        texts = await client.answered(*wanted, within_s=90)
        assert await daemon.stop() == 0

    assert (refused.status_code, ready.status_code) == (503, 503)
    assert "again" in refused.json()["hint"]
    assert found["reply"] == "echo: one"
    assert contents(tmp_path, "web_a") == ["one", "echo: one"]
    assert texts == {f"{id_}#reply": f"echo: I am {id_}" for each in ids.values() for id_ in each}
    assert {(reply["id"], reply["text"]) for reply in client.replies} == set(texts.items())
    for chat in chats:
        first = list(dict.fromkeys(r["in_reply_to"] for r in client.replies if r["chat_id"] == chat))
        assert first == ids[chat]
    verdict = check(tmp_path, {f"foreign_{chat}": ids[chat] for chat in chats})
    assert verdict.sound, verdict


async def test_a_memory_alarm_holds_back_and_loses_nothing(tmp_path: Path, own_broker: Broker) -> None:
    async with (
        Daemon(tmp_path, role="session", config=on(own_broker, "alarm")) as daemon,
        Steady(own_broker.url, name="alarm") as client,
    ):
        await client.put(inbound(KEY, "m0", "0"))
        await client.answered("m0#reply")
        await asyncio.to_thread(own_broker.alarm, True)
        try:
            puts = asyncio.gather(*(ask(daemon, "web:a", f"w{n}", f"{n}", wait_s=40) for n in range(5)))
            putting = asyncio.create_task(client.put(inbound(KEY, "m1", "1")))
            await until_not_ready(daemon)
        finally:
            await asyncio.to_thread(own_broker.alarm, False)
        await putting
        await client.answered("m1#reply")
        told = [answer or await ask(daemon, "web:a", f"w{n}", f"{n}") for n, answer in enumerate(await puts)]

    assert [answer["reply"] for answer in told if answer] == [f"echo: {n}" for n in range(5)]
    assert contents(tmp_path, STEM) == ["0", "echo: 0", "1", "echo: 1"]
    assert sorted(contents(tmp_path, "web_a")) == sorted(
        text for n in range(5) for text in (f"{n}", f"echo: {n}")
    )


async def until_not_ready(daemon: Daemon) -> None:
    async with httpx.AsyncClient(timeout=30) as client:

        async def so() -> bool:
            return (await client.get(f"{daemon.url}/readyz")).status_code == 503

        await until(so, 120)


# -- several workers -------------------------------------------------------------------------------


@guarantee("once", "Another process resumes the turn of a killed one after its last stored step.")
async def test_a_killed_workers_turn_is_gone_on_with_by_the_next(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """It goes on after the last stored line: the first round and its tool are not done again."""
    async with ModelServer() as model:
        config = on(broker, broker_name, **{"limits.workers": 2}) | with_model(model)
        async with (
            Daemon(tmp_path, role="session", config=config) as daemon,
            Steady(broker.url, name=broker_name) as client,
        ):
            write = ("write", '{"path": "a.txt", "content": "x"}')
            model.script += [Reply(tool_calls=[write]), Reply(kind="hang")]
            await client.put(inbound(KEY, "m1", "one"))
            await client.put(inbound(KEY, "m2", "two"))
            await client.put(inbound(KEY, "m3", "three"))
            await model.arrived(2)
            os.kill(await worker_for(daemon, KEY), signal.SIGKILL)
            await client.answered("m1#reply", "m2#reply", "m3#reply")

            assert [reply["in_reply_to"] for reply in client.replies] == ["m1", "m2", "m3"]
            rounds = [
                len(seen.messages[-1].get("tool_calls") or seen.messages[-1]["role"]) for seen in model.seen
            ]
    # m1: tool, answer, and the answer again after the kill; m2; m3.
    assert len(rounds) == 5
    assert [seen.messages[-1]["role"] for seen in model.seen] == ["user", "tool", "tool", "user", "user"]
    assert check(tmp_path, {STEM: ["m1", "m2", "m3"]}).sound
    results = [line for line in lines_of(tmp_path, STEM) if line["role"] == "tool"]
    assert len(results) == 1
    assert "is_error" not in results[0]
