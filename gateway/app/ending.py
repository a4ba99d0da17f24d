"""How an application ends: in good order, once its turns are done, or at once."""

from __future__ import annotations

import asyncio
import os
import signal

from gateway.app.app import Application

LAST_WORDS_S = 3.0


class Ending:
    """Turns signals into an orderly end: the first drains, the second ends it at once."""

    def __init__(self, application: Application) -> None:
        self.asked = asyncio.Event()
        self._application = application
        self._task: asyncio.Task[None] | None = None
        self._main = asyncio.current_task()

    def listen(self) -> None:
        """Take the signals over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        self._listen_for_hangup(loop)

    def listen_once(self) -> None:
        """Take the signals over as a worker does, whose gateway alone may say that it shall end at once.

        A service manager signals each process of a service, and so does the gateway: that is one wish.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.ask)
        loop.add_signal_handler(signal.SIGINT, self.ask)
        self._listen_for_hangup(loop)

    def _listen_for_hangup(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the end of a terminal for a wish to end, unless whoever started this said that it is none."""
        # Kernel and shell both tell of one terminal: a second time is no further wish.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.ask)

    def ask(self) -> None:
        """Ask for an end in good order; asked again, nothing changes."""
        if not self.asked.is_set():
            self.asked.set()
            if not self._application.ready.is_set() and self._main is not None:
                self._main.cancel()

    def at_once(self) -> None:
        """End it at once: turns under way are cancelled, and come again."""
        self.ask()
        if self._task is None:
            self._task = asyncio.ensure_future(self._now())

    def _signalled(self) -> None:
        if self.asked.is_set():
            self.at_once()
        else:
            self.ask()

    async def _now(self) -> None:
        # A thread in a call that nothing can stop would hold the process beyond the time that was promised.
        asyncio.get_running_loop().call_later(LAST_WORDS_S - 0.5, self._exit)
        await self._application.end_now()

    def _exit(self) -> None:
        # One that stands still hears no word, and would outlive this process.
        if self._application.workers is not None:
            self._application.workers.kill()
        os._exit(0)
