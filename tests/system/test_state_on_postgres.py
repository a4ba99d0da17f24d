"""A gateway whose state database is PostgreSQL, while its parts and the server are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.gateway_team import worker_of
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command, status
from tests.support.place import contents, on
from tests.support.postgres import Postgres
from tests.support.until import until


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def configured(broker: Broker, name: str, postgres: Postgres) -> dict[str, Any]:
    return {**on(broker, name, partitions=4), "state.url": postgres.url, "limits.workers": 2}


async def is_ready(daemon: Daemon) -> bool:
    async with httpx.AsyncClient(timeout=30) as client:
        return (await client.get(f"{daemon.url}/readyz")).status_code == 200


@guarantee("loss", "An outage of the state database's server loses, parks and announces no message.")
async def test_nothing_is_lost_while_server_worker_and_gateway_are_killed(
    broker: Broker, broker_name: str, postgres: Postgres, tmp_path: Path
) -> None:
    """While the server is away turns wait, untold; the next gateway goes on with the chats of a killed one.

    A message that comes again has its answer, and no second turn.
    """
    said = [str(number) for number in range(6)]
    workspace, config = tmp_path / "w", configured(broker, broker_name, postgres)
    daemon = Daemon(workspace, config=config)
    async with daemon:
        assert (await answer_to(daemon, "web:ada", "0", "0"))["reply"] == "echo: 0"
        postgres.kill()
        asking = asyncio.create_task(ask(daemon, "web:ada", "1", "1"))
        await until(lambda: _not(is_ready(daemon)))
        assert not asking.done()
        postgres.start()
        assert ((await asking) or {}).get("reply") == "echo: 1"
        await until(lambda: is_ready(daemon))

        os.kill(await worker_of(daemon, "web:ada", "2"), signal.SIGKILL)
        assert (await answer_to(daemon, "web:ada", "3", "3"))["reply"] == "echo: 3"
        await daemon.kill()

    second = Daemon(workspace, config=config)
    async with second:
        assert (await answer_to(second, "web:ada", "4", "4"))["reply"] == "echo: 4"
        assert (await answer_to(second, "web:ada", "1", "1"))["reply"] == "echo: 1"
        assert (await answer_to(second, "web:ada", "5", "5"))["reply"] == "echo: 5"

        _, told = await command(workspace, "doctor", config=config)
        assert f"PostgreSQL at postgresql://gateway:********@127.0.0.1:{postgres.port}/gateway, 1" in told
        assert "s3cret-words" not in told
        assert await second.stop() == 0

    said[2] = "who?"
    assert contents(workspace, "web_ada") == [line for text in said for line in (text, f"echo: {text}")]
    assert postgres.execute("SELECT count(*) FROM file_ops") == [(0,)]
    assert not (workspace / "state" / "gateway.db").exists()
    for log in (daemon.log, second.log):
        assert b"s3cret-words" not in log
        assert b'"parked"' not in log


async def test_a_second_gateway_stands_by(
    broker: Broker, broker_name: str, postgres: Postgres, tmp_path: Path
) -> None:
    """It takes over when the first one is killed or frozen; a frozen one that goes on ends."""
    config = configured(broker, broker_name, postgres)
    first, second = (Daemon(tmp_path / "w", config=config) for _ in range(2))
    await first.start()
    await second.start(wait=False)
    async with first, second:
        await answer_to(first, "web:ada", "1", "1")
        await second.said("state.standby")
        await until(lambda: _stands_by(first))
        await first.kill()
        await second.ready()
        await answer_to(second, "web:ada", "2", "2")

        first.log.clear()
        await first.start(wait=False)
        await first.said("state.standby")
        await second.freeze()
        postgres.execute("UPDATE state SET lives_until_ms = 1")
        await first.ready()
        second.signal(signal.SIGCONT)
        assert await second.died() == 69
        await answer_to(first, "web:ada", "3", "3")

    texts = [text for number in "123" for text in (number, f"echo: {number}")]
    assert contents(tmp_path / "w", "web_ada") == texts


async def test_messages_of_the_embedded_queue_before_are_pointed_out(
    broker: Broker, broker_name: str, postgres: Postgres, tmp_path: Path
) -> None:
    """They lie in a file that nothing is taken from any more."""
    before = {"model.echo_delay_s": 60.0}
    async with Daemon(tmp_path / "w", config=before) as daemon:
        await ask(daemon, "web:ada", "1", "1", wait_s=0.1)
        await daemon.kill()

    async with Daemon(tmp_path / "w", config=configured(broker, broker_name, postgres)) as daemon:
        assert b"1 waiting letter lies in" in daemon.log


async def _stands_by(daemon: Daemon) -> bool:
    part = (await status(daemon))["parts"]["state"]
    return bool(part["up"] and part["error"] == "standing by: 1")


async def _not(asked: Any) -> bool:
    return not await asked
