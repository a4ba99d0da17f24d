"""A port that is kept is free for its server, also again, and for nobody else."""

from __future__ import annotations

import socket

import pytest

from tests.support.ports import KeptPort


def test_a_kept_port_is_its_servers_alone() -> None:
    with KeptPort() as port:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with (
                socket.create_server(("127.0.0.1", port)) as server,
                socket.create_connection(("127.0.0.1", port)),
            ):
                server.accept()[0].close()
