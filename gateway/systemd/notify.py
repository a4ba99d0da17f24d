"""Tells systemd how the process stands: that it is ready, that its loop moves, that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping

# How often a start is told of, and for how long each word lets systemd wait for the next.
BEAT_S = 10.0
START_AGAIN_S = 60.0


class Manager:
    """What started this process and waits for its words: systemd, or nobody.

    The variables that it left in the environment are taken out of it, so that no child speaks for us.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.pop("NOTIFY_SOCKET", "")
        limit_us, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = bool(self._address) and limit_us.isdecimal() and meant in ("", str(os.getpid()))
        self._watchdog_s = int(limit_us) / 1e6 if watched else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._status: Callable[[], str] = str
        self._said = ""
        self._ready = False
        # What it has to hear once, until it has.
        self._owed: list[str] = []

    @contextlib.contextmanager
    def watching(self, status: Callable[[], str]) -> Iterator[None]:
        """Keep it told while the context is open, from the running loop.

        A start may take as long as the loop moves: a broker that is away is waited for. Afterwards the
        watchdog is fed by the loop alone, by no thread: what blocks the loop starves it, a model that
        thinks does not.

        Args:
            status: the one line that ``systemctl status`` shows; called on the loop, and quick.
        """
        self._status = status
        if self._watchdog_s:
            # It ends a stuck process by SIGABRT: the journal then has the line at which each thread stood.
            faulthandler.enable()
        if self._address:
            self._beat()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def ready(self) -> None:
        """Say that it serves."""
        self._ready = True
        self._owed = ["READY=1"]
        self._tell()

    def stopping(self, within_s: float) -> None:
        """Say that it ends, and that this may take so long."""
        self._status = lambda: "ends its running turns"
        self._owed = ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}"]
        self._tell()

    def _beat(self) -> None:
        words = list[str]()
        if self._watchdog_s:
            words.append("WATCHDOG=1")
        if not self._ready:
            words.append(f"EXTEND_TIMEOUT_USEC={int(START_AGAIN_S * 1e6)}")
        self._tell(*words)
        # Three beats fit into the limit, so that a busy machine may be late with one.
        every_s = min(BEAT_S, self._watchdog_s / 3) if self._watchdog_s else BEAT_S
        self._timer = asyncio.get_running_loop().call_later(every_s, self._beat)

    def _tell(self, *words: str) -> None:
        """Say this, and what it has not heard yet."""
        status = " ".join(self._status().split())
        news = [f"STATUS={status}"] if status != self._said else []
        if self._send(*self._owed, *news, *words):
            self._owed, self._said = [], status

    def _send(self, *words: str) -> bool:
        """Return whether it went out; who is busy, or does not listen, is told again with the next beat."""
        if not self._address or not words:
            return False
        # A name that begins with "@" is an abstract one.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as sending:
                sending.sendto("\n".join(words).encode(), address)
        except OSError:
            return False
        return True
