"""A process that holds money: ``python -m tests.session.spending_victim FOLDER NAME COUNT``.

Each of its ``COUNT`` requests may cost 0.1 of the 1.0 USD of the day. It prints ``ready``, begins at a
line on stdin, prints how many were held, and then settles none of them: it waits to be killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from session.models.caps import Caps
from session.models.model import Need, Payer, Usage
from session.models.spending import Spending

T = TypeVar("T")
CAPS = Caps(cost_per_day_usd=1.0)
HELD_S = 150.0


class AtOnce:
    """A disk that does its work in the caller's thread."""

    def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.set_result(job())
        return done


def spending_of(folder: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Spending:
    return Spending(folder, disk=AtOnce(), clock=clock, durable=True, caps=CAPS, held_s=HELD_S)


async def hold(folder: Path, name: str, count: int) -> None:
    spending = spending_of(folder)
    asks = (
        spending.reserve(Payer(f"cli:{name}", id=f"{name}-{n}"), Need(10, 0.1), Usage()) for n in range(count)
    )
    answers = await asyncio.gather(*asks)
    print(answers.count(None), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(hold(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
