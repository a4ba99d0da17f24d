"""In order for one key, side by side for all."""

from __future__ import annotations

import asyncio

from channels.keyed_lanes import KeyedLanes
from tests.support.until import until

WITHIN_S = 10.0


class Hall:
    """Lanes whose work waits until the test lets it end; each lane is a task of its own."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Future[None]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.lanes: KeyedLanes[str] = KeyedLanes(
            self._work, start=lambda lane, _: self.tasks.append(asyncio.ensure_future(lane))
        )

    async def _work(self, item: str) -> None:
        self.begun.append(item)
        self.ends[item] = asyncio.get_running_loop().create_future()
        await self.ends[item]


async def begun(hall: Hall, *items: str) -> None:
    await until(lambda: hall.begun == list(items))


async def test_items_of_a_key_wait_for_each_other_and_for_no_other_key() -> None:
    """The second of a key begins when the first has ended, whatever other keys do."""
    hall = Hall()
    for key, item in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        hall.lanes.put(key, item)
    await begun(hall, "a1", "b1")
    assert (list(hall.lanes.items("a")), hall.lanes.waiting) == (["a1", "a2"], 3)

    hall.ends["a1"].set_result(None)
    await begun(hall, "a1", "b1", "a2")

    for item in ("a2", "b1"):
        hall.ends[item].set_result(None)
    await asyncio.wait(hall.tasks, timeout=WITHIN_S)
    assert (list(hall.lanes.items("a")), hall.lanes.waiting) == ([], 0)


async def test_an_error_ends_its_lane_and_leaves_nothing_behind() -> None:
    """Whoever runs the lane gets it; nothing of the key is left."""
    hall = Hall()
    hall.lanes.put("a", "a1")
    hall.lanes.put("a", "a2")
    await begun(hall, "a1")

    hall.ends["a1"].set_exception(ValueError())
    await asyncio.wait(hall.tasks, timeout=WITHIN_S)

    assert isinstance(hall.tasks[0].exception(), ValueError)
    assert (list(hall.lanes.items("a")), hall.lanes.waiting) == ([], 0)
