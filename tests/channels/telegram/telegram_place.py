"""An adapter of Telegram in front of the local server, with an emit that remembers and can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from channels.base import Arrival, Pulse, Site, steady_s
from channels.tables import TelegramTable as Table
from channels.telegram.adapter import Telegram
from channels.telegram.polling import Times
from tests.support.telegram_server import TelegramServer

ADA, BOB = 101, 102


class Ears:
    """An ``emit``: ``begun`` and ``heard`` in order; what ``holds`` says is held up until ``free``.

    Where it ``dismisses``, nothing will come back for any of it.
    """

    def __init__(self, holds: Callable[[Arrival], bool] = lambda _: False) -> None:
        self.begun: list[Arrival] = []
        self.heard: list[Arrival] = []
        self.holds = holds
        self.dismisses = False
        self.most = 0
        self._free = asyncio.Event()
        self._changed = asyncio.Condition()

    async def __call__(self, arrival: Arrival) -> bool:
        self.begun.append(arrival)
        self.most = max(self.most, len(self.begun) - len(self.heard))
        await self._tell()
        if self.holds(arrival):
            await self._free.wait()
        else:
            await asyncio.sleep(0)
        self.heard.append(arrival)
        await self._tell()
        return not self.dismisses

    def free(self) -> None:
        """Let go what is held up, and what will be."""
        self._free.set()

    def texts(self, chat_id: object = None) -> list[str]:
        """List what was heard, in all chats or in one."""
        return [each.text for each in self.heard if chat_id is None or each.chat_id == str(chat_id)]

    async def until(self, holds: Callable[[Ears], Any]) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Pauses:
    """A ``sleep`` that takes no time, and lists for how long it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._changed = asyncio.Condition()

    async def __call__(self, after_s: float) -> None:
        self.asked.append(after_s)
        async with self._changed:
            self._changed.notify_all()
        await asyncio.sleep(0)

    async def until(self, number: int) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: len(self.asked) >= number)


class Watched(Pulse):
    """A pulse that lists every failure."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def fail(self, error: str) -> None:
        self.failures.append(error)
        super().fail(error)


class Place:
    """One bot, one state folder, and any number of adapters after each other."""

    def __init__(self, server: TelegramServer, state: Path, *, grace_s: float = 10.0, **table: Any) -> None:
        fields: dict[str, Any] = {
            "poll_timeout_s": 1,
            "request_timeout_s": 5.0,
            "token": SecretStr(server.token),
        }
        fields |= {"base_url": server.base_url, "base_file_url": server.base_file_url}
        self.table = Table(enabled=True, **(fields | table))
        self.server = server
        self.state = state
        self.grace_s = grace_s
        # How long a pressed button turns.
        self.press_s = 60.0
        self.pulse = Watched()
        self.pauses = Pauses()
        self.began = datetime(2020, 1, 1, tzinfo=UTC)
        # How far the clock of this machine is.
        self.ahead = timedelta()
        self.channel = self.new()
        self._tasks: list[asyncio.Task[None]] = []

    def new(self, clock: Callable[[], float] | None = None) -> Telegram:
        """Build another adapter of the same bot."""
        times = Times(sleep=self.pauses, farewell_s=30.0, grace_s=self.grace_s, press_s=self.press_s)
        more = {} if clock is None else {"clock": clock}
        return Telegram(
            self.table, Site(self.state, self.pulse, {}, self.began, self.mark_s), times=times, **more
        )

    @property
    def mark_s(self) -> float:
        """When the process began, by the clock that nobody sets."""
        return steady_s() - (datetime.now(UTC) + self.ahead - self.began).total_seconds()

    def run(self, emit: Callable[[Arrival], Awaitable[bool]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self.channel.run(emit))
        self._tasks.append(task)
        return task

    async def restart(self) -> None:
        await self.stop()
        self.channel = self.new()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        # A test awaits the errors that it expects.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.channel.aclose()
