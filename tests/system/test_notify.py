"""What systemd is told of a running gateway, over a real notification socket."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, until_running
from tests.support.ports import KeptPort

pytestmark = guarantee(
    "operation",
    "systemd sees when the gateway is ready and restarts a blocked one, not one with a slow model.",
)

WATCHDOG_S = 1.5
WITHIN_S = 60


class Told:
    """The socket of a manager: each datagram in order, and whether it keeps coming."""

    def __init__(self, folder: Path, *, abstract: bool = False) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.address = f"@chat-gateway-test-{folder.name}" if abstract else str(folder / "notify")
        self._socket.bind(f"\0{self.address[1:]}" if abstract else self.address)
        self._socket.setblocking(False)

    def prefix(self) -> tuple[str, ...]:
        """The program that starts a daemon as systemd does."""
        return ("env", f"NOTIFY_SOCKET={self.address}", f"WATCHDOG_USEC={int(WATCHDOG_S * 1e6)}")

    async def next(self, within_s: float = WITHIN_S) -> dict[str, str]:
        """The next datagram, by its names."""
        async with asyncio.timeout(within_s):
            data = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
        return dict(line.split("=", 1) for line in data.decode().splitlines())

    async def several(self, times: int, *, within_s: float) -> list[dict[str, str]]:
        """So many datagrams, each of them in time."""
        return [await self.next(within_s) for _ in range(times)]

    async def until(self, name: str, times: int = 1) -> list[dict[str, str]]:
        """All that is told up to the one that has ``name`` for the so-manieth time."""
        seen: list[dict[str, str]] = []
        while sum(name in one for one in seen) < times:
            seen.append(await self.next())
        return seen

    def drop_what_waits(self) -> None:
        """Forget what was told so far."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(4096):
                pass

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


@pytest.fixture
async def told(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Told]:
    listening = Told(tmp_path, abstract=getattr(request, "param", False))
    yield listening
    listening.close()


def gateway(workspace: Path, told: Told, *, stuck: bool = False, **config: Any) -> Daemon:
    program = ("tests.support.stuck",) if stuck else ()
    config = {name.replace("__", "."): value for name, value in config.items()}
    return Daemon(workspace, prefix=told.prefix(), program=program, config=config)


@pytest.mark.parametrize("told", [True], indirect=True, ids=["a name without a file"])
async def test_it_is_ready_when_it_serves_and_says_when_it_ends(tmp_path: Path, told: Told) -> None:
    """READY comes once its clients are served, STOPPING with the time for a drain when it is told to end."""
    async with gateway(tmp_path / "workspace", told, limits__drain_s=100.0) as daemon:
        seen = await told.until("READY")
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{daemon.url}/readyz")).status_code == 200
        daemon.signal(signal.SIGTERM)
        ended = await told.until("STOPPING")

        assert seen[-1]["READY"] == "1"
        assert not any("READY" in one for one in seen[:-1])
        assert [one["STATUS"] for one in seen if "STATUS" in one][-1] == "answers"
        assert int(ended[-1]["EXTEND_TIMEOUT_USEC"]) > 100_000_000
        assert await daemon.died() == 0


async def test_it_is_not_ready_while_its_broker_is_away(tmp_path: Path, told: Told) -> None:
    """A start may wait for the broker for ever: systemd is told so and gives it time, and no more."""
    port = KeptPort()
    url = f"amqp://guest:secret-word@127.0.0.1:{port.port}/"
    daemon = gateway(tmp_path / "workspace", told, broker__url=url)
    try:
        await daemon.start(wait=False)

        seen = await told.until("WATCHDOG", 4)

        assert all("READY" not in one for one in seen)
        assert all(int(one["EXTEND_TIMEOUT_USEC"]) >= 30_000_000 for one in seen)
        assert any("the queue does not answer" in one.get("STATUS", "") for one in seen)
        assert "secret-word" not in str(seen)
    finally:
        await daemon.kill()
        port.close()


async def test_a_slow_model_feeds_the_watchdog_and_a_blocked_loop_does_not(
    tmp_path: Path, told: Told
) -> None:
    """While a turn waits for its model each limit is kept; once the loop stands still nothing comes."""
    workspace = tmp_path / "workspace"
    async with gateway(workspace, told, stuck=True, model__echo_delay_s=3600.0) as daemon:
        await told.until("READY")
        async with httpx.AsyncClient() as client:
            await client.post(f"{daemon.url}/v1/messages", json={"chat_id": "ada", "text": "hello"})
        await until_running(daemon, 0)
        told.drop_what_waits()

        beats = await told.several(4, within_s=WATCHDOG_S)
        daemon.signal(signal.SIGUSR1)
        # What had been sent before the signal may still lie here.
        with pytest.raises(TimeoutError):
            await told.several(4, within_s=WATCHDOG_S)
        # As systemd does it then.
        daemon.signal(signal.SIGABRT)

        assert all(one["WATCHDOG"] == "1" for one in beats)
        assert await daemon.died() == -signal.SIGABRT
        # The log says where it stood.
        assert b"_block" in daemon.log


async def test_nobody_is_told_where_nobody_asks(tmp_path: Path) -> None:
    """Without a manager, or with one that is gone, it runs as ever."""
    prefix = ("env", f"NOTIFY_SOCKET={tmp_path}/gone", "WATCHDOG_USEC=nonsense")
    async with Daemon(tmp_path / "workspace", prefix=prefix) as daemon:
        assert await daemon.stop() == 0
