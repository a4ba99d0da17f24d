"""The queue of updates behind ``getUpdates``: what is forgotten, when, and which of two polls is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from tests.support.telegram_faults import WORDS, Refused, bad_request
from tests.support.telegram_texts import as_json

DAY_S = 24 * 3600.0
NOT_BY_DEFAULT = {"chat_member", "message_reaction", "message_reaction_count"}
WEBHOOK = (
    "Conflict: can't use getUpdates method while webhook is active;"
    " use deleteWebhook to delete the webhook first"
)


class Updates:
    """Updates wait here until a later poll names a higher offset, for 24 hours at most.

    ``confirmations`` lists ``(monotonic time, update id)`` in the order of forgetting; ``on_confirm`` is
    called with each update at that instant, on the server's thread, before the poll is answered.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.pending: deque[tuple[float, dict[str, Any]]] = deque()
        self.next_id = 800_000_001
        self.confirmed = 0
        self.confirmations: list[tuple[float, int]] = []
        self.expired: list[int] = []
        self.on_confirm: Callable[[dict[str, Any]], None] | None = None
        self.changed: Callable[[], None] = lambda: None
        self.allowed: set[str] | None = None
        self.webhook = ""
        self.clock: Callable[[], float] = time.time
        self.conflict_delay_s = 3.0
        # A poll that repeats its offset within that time gets a single update.
        self.repeated_s = 0.5
        self._lock = lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll: asyncio.Future[bool] | None = None
        self._previous: tuple[int, float] = (0, -10.0)
        self._next_conflict = 0.0

    def push(self, update: dict[str, Any]) -> int:
        """Queue an update unless the ``allowed_updates`` of the moment leave it out; return its id or 0."""
        with self._lock:
            kind = next((name for name in update if name != "update_id"), "")
            wanted = kind not in NOT_BY_DEFAULT if self.allowed is None else kind in self.allowed
            if not wanted:
                return 0
            update_id = int(update.get("update_id", self.next_id))
            self.next_id = update_id + 1
            self.pending.append((self.clock(), {"update_id": update_id, **update}))
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)
        return update_id

    def _wake(self) -> None:
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(True)

    async def get(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Answer ``getUpdates``."""
        self._loop = asyncio.get_running_loop()
        if self.webhook:
            await self._conflict(WEBHOOK)
        offset, limit, timeout = (
            _number(params, "offset", 0),
            _number(params, "limit", 100),
            _number(params, "timeout", 0),
        )
        limit, timeout = min(max(limit, 1), 100), min(max(timeout, 0), 50)
        self._filter(params)
        now = time.monotonic()
        if offset == self._previous[0] and now < self._previous[1] + 3.0:
            timeout = max(timeout, 3)
        if offset == self._previous[0] and now < self._previous[1] + self.repeated_s:
            limit = 1
        self._previous = (offset, now)
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(False)
        self._confirm(offset)
        self.changed()
        return await self._wait(limit, timeout)

    def _filter(self, params: dict[str, Any]) -> None:
        listed = as_json(params.get("allowed_updates"))
        if listed is not None:
            if not isinstance(listed, list):
                raise bad_request("can't parse allowed_updates: expected an Array of String")
            self.allowed = {str(name) for name in listed} or None

    def _confirm(self, offset: int) -> None:
        """Forget what ``offset`` confirms: nothing where it is far ahead of all that came."""
        with self._lock:
            while self.pending and self.pending[0][0] < self.clock() - DAY_S:
                self.expired.append(self.pending.popleft()[1]["update_id"])
            if offset < 0:
                offset = (
                    self.pending[max(len(self.pending) + offset, 0)][1]["update_id"] if self.pending else 0
                )
            elif offset > self.next_id + 10:
                return
            while self.pending and self.pending[0][1]["update_id"] < offset:
                _, update = self.pending.popleft()
                self.confirmed = max(self.confirmed, update["update_id"])
                self.confirmations.append((time.monotonic(), update["update_id"]))
                if self.on_confirm is not None:
                    self.on_confirm(update)

    async def _wait(self, limit: int, timeout_s: int) -> list[dict[str, Any]]:
        ends = time.monotonic() + timeout_s
        while True:
            with self._lock:
                found = [update for _, update in islice(self.pending, limit)]
                left = ends - time.monotonic()
                if found or left <= 0:
                    return found
                poll = self._poll = asyncio.get_running_loop().create_future()
            await asyncio.wait([poll], timeout=left)
            if poll.done() and not poll.result():
                await self._conflict(WEBHOOK if self.webhook else WORDS[409])

    def abort(self) -> None:
        """End the waiting poll with a conflict, as ``setWebhook`` does."""
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(False)

    async def _conflict(self, words: str) -> None:
        now = time.monotonic()
        if now < self._next_conflict:
            await asyncio.sleep(self.conflict_delay_s)
        else:
            self._next_conflict = now + self.conflict_delay_s
        raise Refused(409, words)


def _number(params: dict[str, Any], name: str, default: int) -> int:
    try:
        return int(params.get(name, default))
    except (TypeError, ValueError):
        return default
