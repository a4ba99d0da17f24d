"""A systemd that is busy: what its full socket did not take is told again."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import systemd
from gateway.systemd import Manager
from tests.support.until import until

NOISE = b"X=1"


class Busy:
    """The socket of a manager that reads nothing until it is asked to."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)

    def fill(self) -> None:
        """Let nothing more go in."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as others,
            contextlib.suppress(BlockingIOError),
        ):
            while True:
                others.sendto(NOISE, self.address)

    def read(self) -> list[str]:
        """Take out all that it was told by us, line by line."""
        found: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while data := self._socket.recv(4096):
                found += data.decode().splitlines() if data != NOISE else []
        return found

    def close(self) -> None:
        """Be gone."""
        self._socket.close()


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    monkeypatch.setattr(systemd, "BEAT_S", 0.02)
    found = Busy(tmp_path)
    yield found
    found.close()


async def test_it_hears_of_the_start_once_it_has_time(busy: Busy) -> None:
    """It is told once that the gateway serves; a start that it never heard of would be ended as too long."""
    status = "waits"
    manager = Manager({"NOTIFY_SOCKET": busy.address, "WATCHDOG_USEC": "60000000"})
    with manager.watching(lambda: status):
        assert "STATUS=waits" in busy.read()
        busy.fill()
        status = "answers"
        manager.ready()
        assert busy.read() == []

        told: list[str] = []
        await until(lambda: told.extend(busy.read()) or told.count("WATCHDOG=1") > 3)

    assert (told.count("READY=1"), told.count("STATUS=answers")) == (1, 1)
    assert not any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in told)


async def test_it_hears_of_the_end_once_it_has_time(busy: Busy) -> None:
    """And of the time that the end may take."""
    manager = Manager({"NOTIFY_SOCKET": busy.address})
    with manager.watching(lambda: "answers"):
        manager.ready()
        busy.fill()
        manager.stopping(100)
        assert "STOPPING=1" not in busy.read()

        told: list[str] = []
        await until(lambda: told.extend(busy.read()) or "STOPPING=1" in told)

    assert "EXTEND_TIMEOUT_USEC=100000000" in told
    assert "STATUS=ends its running turns" in told
