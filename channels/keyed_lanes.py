"""Lanes by key: what belongs to one key is done in order, keys go on side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class KeyedLanes(Generic[T]):
    """Does ``work`` on each item, after all earlier items of its key; an empty lane costs nothing.

    Args:
        work: what it raises ends the lane with all that waits in it, and goes to whoever runs the lane.
        start: runs a lane, given with its key, as a task.
    """

    def __init__(
        self,
        work: Callable[[T], Awaitable[None]],
        *,
        start: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._work = work
        self._start = start
        self._lanes: dict[str, deque[T]] = {}
        self._closed = False
        self.waiting = 0

    def put(self, key: str, item: T) -> None:
        """Let an item wait for all others of its key; ``waiting`` counts it until its work has ended."""
        self.waiting += 1
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(item)
            return
        lane = self._lanes[key] = deque([item])
        self._start(self._run(key, lane), key)

    def items(self, key: str) -> Iterable[T]:
        """Return what waits in a lane, oldest first, with the item that is worked on."""
        return self._lanes.get(key, ())

    def close(self) -> None:
        """Begin no further work."""
        self._closed = True

    async def _run(self, key: str, lane: deque[T]) -> None:
        try:
            while lane and not self._closed:
                await self._work(lane[0])
                # Nothing is awaited from the end of the work to here: nobody finds an item that is done.
                lane.popleft()
                self.waiting -= 1
        finally:
            self.waiting -= len(lane)
            del self._lanes[key]
