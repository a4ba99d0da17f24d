"""Keeps which updates are under way, so that the offset never passes one that is not confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import durable

MAX_PENDING = 1_000


class UpdateWindow:
    """The updates that Telegram still keeps for us, in the order in which they came.

    Telegram forgets what lies before the offset of a poll. Ids are compared with nothing but each other's
    place in that order: after a quiet week they begin again anywhere.
    """

    def __init__(self) -> None:
        # Update id → whether it is confirmed, oldest first.
        self._done: dict[int, bool] = {}
        self._left = 0
        self._offset: int | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._head_done = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether no further update may begin."""
        return self._left >= MAX_PENDING

    def offset(self) -> int | None:
        """Return the offset for the next poll, which forgets the confirmed updates before the first other.

        Returns:
            None before the first update: Telegram then begins with the oldest that it keeps.
        """
        for update_id, done in list(self._done.items()):
            if not done:
                self._offset = update_id
                break
            del self._done[update_id]
            self._offset = update_id + 1
        self._head_done.clear()
        return self._offset

    def admit(self, update_ids: Sequence[int]) -> set[int]:
        """Take in what a poll brought; return the ids that were not here before."""
        fresh = {update_id for update_id in update_ids if update_id not in self._done}
        for update_id in update_ids:
            if update_id in fresh:
                self._done[update_id] = False
        self._left += len(fresh)
        if self._left:
            self._idle.clear()
        return fresh

    def confirm(self, update_id: int) -> None:
        """Note that an update is durable, or dismissed."""
        if self._done[update_id]:
            return
        self._done[update_id] = True
        self._left -= 1
        if next(iter(self._done)) == update_id:
            self._head_done.set()
        if not self._left:
            self._idle.set()

    async def settle(self, within_s: float) -> bool:
        """Wait until nothing is under way, at most ``within_s`` seconds; say whether that came true."""
        return await _wait(self._idle, within_s)

    async def move(self, within_s: float) -> bool:
        """Wait until the oldest update is confirmed, at most ``within_s`` seconds; say whether it is."""
        return await _wait(self._head_done, within_s)


async def _wait(event: asyncio.Event, within_s: float) -> bool:
    await durable.first_of(event.wait(), timeout_s=within_s)
    return event.is_set()
