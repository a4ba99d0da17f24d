"""Ports for servers of the tests that are away for a while, and must find theirs free when they come back."""

from __future__ import annotations

import socket


class KeptPort:
    """A port of this machine, kept free for a server that is started later, or away for a while.

    The socket is bound and never listens: a server that sets SO_REUSEADDR, as all of ours do, binds the port
    beside it, and the system gives it to nobody else who asks for any. Without that server nobody answers.

    Args:
        port: that one, or 0 for any.
    """

    def __init__(self, port: int = 0) -> None:
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", port))
        self.port = int(self._kept.getsockname()[1])

    def __enter__(self) -> int:
        return self.port

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._kept.close()
