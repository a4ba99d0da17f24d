"""A gateway of several processes over RabbitMQ: one port and one answer to every question, whoever works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.support.broker import Broker
from tests.support.gateway_team import gone, pids, post, running, worker_of, workers
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import contents, on
from tests.support.until import until
from tests.system.approvals_place import asks, decide, waiting, writing, written

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    guarantee(
        "operation",
        "A gateway with several workers acts as one: status, metrics, events and approvals on one port.",
    ),
]

TWO = {"limits.workers": 2, "limits.drain_s": 60.0, "session.retention_days": 0.0}


class Team:
    """A gateway with two workers, its model, and where it works."""

    def __init__(self, daemon: Daemon, model: ModelServer, config: dict[str, Any]) -> None:
        self.daemon = daemon
        self.model = model
        self.config = config


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Team]:
    async with ModelServer() as model:
        config = asks(model, **on(broker, "team", partitions=4), **TWO)
        async with Daemon(tmp_path_factory.mktemp("team"), config=config) as daemon:
            yield Team(daemon, model, config)
    broker.delete_queues(["team"])


async def metric(daemon: Daemon, name: str) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=30) as client:
        text = (await client.get(f"{daemon.url}/metrics")).text
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(name))
    return {row[0]: float(row[2]) for row in rows}


async def test_it_is_one_gateway_to_who_asks(team: Team) -> None:
    """One ``ready`` line, one port; status, readiness, registry and metrics are of all processes."""
    daemon = team.daemon
    before = sum((await metric(daemon, "chat_gateway_turns_total")).values())
    for number in range(8):
        answer = await answer_to(daemon, f"web:c{number}", "m", f"question {number}")
        assert answer["reply"] == f"stub: question {number}"

    found = await status(daemon)
    code, out = await command(daemon.workspace, "status", "--json", config=team.config)
    roles = [row["role"] for row in json.loads(out)["daemons"]]
    turns = await metric(daemon, "chat_gateway_turns_total")
    parts = await metric(daemon, "chat_gateway_part_up")

    assert daemon.log.count(b"ready http") == 1
    assert [(row["number"], row["up"], row["restarts"]) for row in found["workers"]] == [
        (1, True, 0),
        (2, True, 0),
    ]
    assert found["ready"]
    assert found["parts"]["workers"]["up"]
    assert len({daemon.pid, *await pids(daemon)}) == 3
    assert (code, sorted(roles)) == (0, ["all", "worker", "worker"])
    assert sum(turns.values()) == before + 8
    assert parts['chat_gateway_part_up{part="workers"}'] == 1
    assert len(await metric(daemon, "process_resident_memory_bytes")) == 3


async def test_both_workers_have_chats(team: Team) -> None:
    """The partitions are shared out among the workers as among any daemons, and the gateway has none."""
    keys = [f"web:share{number}" for number in range(16)]
    found: set[int] = set()
    tries = 0

    async def both() -> bool:
        nonlocal tries
        tries += 1
        found.update([await worker_of(team.daemon, key, f"s{tries}-{key[4:]}") for key in keys])
        return found == set(await pids(team.daemon))

    await until(both, 120)


async def test_what_runs_is_seen_streamed_stopped_and_cleared(team: Team) -> None:
    """Lanes, trace, a socket with the pieces of an answer, ``/v1/stop`` and clearing reach who works."""
    daemon, model, release = team.daemon, team.model, asyncio.Event()
    try:
        model.script += [Reply("never", held=release) for _ in range(3)]
        keys = ("web:ada", "web:bob", "web:eve")
        asking = {}
        async with connect(f"{daemon.url.replace('http', 'ws')}/v1/ws?key=web:dan") as socket:
            for key in keys:
                asking[key] = asyncio.create_task(ask(daemon, key, "long", "think"))
                await running(daemon, key)
                # One that is stopped before it asked its model leaves the held answer to the next who asks.
                await until(lambda: _thinking(model) == len(asking), 60)
            async with httpx.AsyncClient(timeout=30) as client:
                lanes = (await client.get(f"{daemon.url}/v1/lanes")).json()
                traced = (await client.get(f"{daemon.url}/v1/trace/web:long", params={"key": keys[0]})).json()
            held = await metric(daemon, "chat_gateway_lanes")

            stopped = await post(daemon, "/v1/stop", {"key": "web:bob"})
            cleared = await post(daemon, "/clear-session", {"key": "web:eve"})
            await answer_to(daemon, "web:dan", "1", "hello")
            kinds = [json.loads(await socket.recv())["kind"]]
            while kinds[-1] != "reply":
                kinds.append(json.loads(await socket.recv())["kind"])
        ended = await asking["web:bob"]

        assert ({lane["key"] for lane in lanes["lanes"]}, lanes["silent"]) == (set(keys), [])
        assert traced["state"] == "running"
        assert held['chat_gateway_lanes{state="running"}'] == 3
        assert (stopped.status_code, cleared.status_code) == (202, 200)
        assert "started" in kinds
        assert "delta" in kinds
        assert ended is not None
        assert ended["kind"] == "notice"
        await until(lambda: _lanes_are(daemon, {"web:ada"}), 60)
    finally:
        release.set()
    assert (await asking["web:ada"] or {})["reply"] == "never"
    asking["web:eve"].cancel()
    # What was cleared is not begun again, though its letter was handed in before.
    assert _thinking(model) == 3


def _thinking(model: ModelServer) -> int:
    return len([seen for seen in model.seen if "think" in str(seen.messages[-1])])


async def _lanes_are(daemon: Daemon, keys: set[str]) -> bool:
    return {lane["key"] for lane in (await status(daemon))["lanes"]} == keys


async def test_a_person_decides_over_what_waits_in_a_worker(team: Team) -> None:
    """What a tool waits for is listed and allowed over the one port, and the turn goes on."""
    daemon = team.daemon
    team.model.script += [writing(), Reply("written")]
    asking = asyncio.create_task(ask(daemon, "web:flo", "w", "write it down"))
    await until(lambda: waiting(daemon), 60)

    [approval] = await waiting(daemon)
    code, _ = await decide(daemon, approval["id"], "allow")

    assert code == 200
    assert (await asking or {})["reply"] == "written"
    assert written(daemon.workspace) == ["milk"]


@guarantee("loss", "A worker that crashes or hangs is replaced without losing or repeating a message.")
async def test_workers_that_die_or_stand_still_are_replaced(
    broker: Broker, tmp_path: Path, broker_name: str
) -> None:
    """Nothing is lost or answered twice, and nothing of it is left.

    A worker in mid-turn is killed, stopped and told to end; then the gateway is killed, and at last drained.
    """
    config = on(broker, broker_name, partitions=4, **TWO)
    config |= {"model.echo_delay_s": 2.0, "limits.worker_timeout_s": 6.0}
    daemon = Daemon(tmp_path, config=config)
    async with daemon:
        for number, signalled in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)):
            victim = await worker_of(daemon, "web:ada", f"who{number}")
            turns = [ask(daemon, key, f"m{number}", f"long {number}") for key in ("web:ada", "web:bob")]
            asking = [asyncio.create_task(turn) for turn in turns]
            await running(daemon, "web:ada", "web:bob", ended=asking[0])
            os.kill(victim, signalled)

            answers = await asyncio.gather(*asking)
            await gone(victim)
            await until(lambda victim=victim: _replaced(daemon, victim), 120)

            assert [(answer or {}).get("reply") for answer in answers] == [f"echo: long {number}"] * 2
        assert b'"worker.stuck"' in daemon.log
        former = await pids(daemon)
        asking = [asyncio.create_task(ask(daemon, "web:ada", "late", "late"))]
        await running(daemon, "web:ada", ended=asking[0])
        await daemon.kill()
        for pid in former:
            await gone(pid)
        await asyncio.gather(*asking)

        await daemon.start()
        again = await ask(daemon, "web:ada", "late", "late")
        asking = [asyncio.create_task(ask(daemon, "web:bob", "last", "last"))]
        await running(daemon, "web:bob", ended=asking[0])
        former = await pids(daemon)
        # As a service manager does it, which signals each process of a service.
        for pid in former:
            os.kill(pid, signal.SIGTERM)
        daemon.signal(signal.SIGTERM)
        ended, code = await asyncio.gather(asking[0], daemon.died())
        for pid in former:
            await gone(pid)

    assert (again or {})["reply"] == "echo: late"
    assert (ended, code) in (({**(ended or {}), "reply": "echo: last"}, 0), (None, 0))
    told = [f"long {number}" for number in range(3)]
    for stem, last in (("web_ada", "late"), ("web_bob", "last")):
        found = [each for each in contents(tmp_path, stem) if "who" not in each]
        assert found == [text for one in [*told, last] for text in (one, f"echo: {one}")]


async def _replaced(daemon: Daemon, victim: int) -> bool:
    rows = await workers(daemon)
    return all(row["up"] and row["pid"] != victim for row in rows) and any(row["restarts"] for row in rows)


async def test_the_second_signal_ends_all_at_once(team: Team) -> None:
    """SIGTERM waits for the turn that runs, a second one does not; no worker outlives it."""
    daemon = team.daemon
    team.model.script += [Reply("never", held=asyncio.Event())]
    asking = asyncio.create_task(ask(daemon, "web:ada", "held", "held"))
    await running(daemon, "web:ada")
    former = await pids(daemon)

    daemon.signal(signal.SIGTERM)
    await daemon.said("daemon.draining")
    daemon.signal(signal.SIGTERM)
    code = await daemon.died(30)
    for pid in former:
        await gone(pid)

    assert code == 0
    assert await asking is None
