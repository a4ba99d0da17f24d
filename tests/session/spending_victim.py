"""A worker that holds money: ``python -m tests.session.spending_victim FD NAME COUNT``.

Each of its ``COUNT`` requests may cost 0.1 of the 1.0 USD of the day. It prints ``ready``, begins at a
line on stdin, prints how many were held, and then settles none of them: it waits to be killed.
Started as a gateway starts its workers, with two descriptors alone, it holds nine at once.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from durable import RemoteState
from session.models.caps import Caps
from session.models.model import Need, Payer, Usage
from session.models.spending import Spending

CAPS = Caps(cost_per_day_usd=1.0)


async def hold(end: socket.socket, name: str, count: int) -> None:
    async with RemoteState(end, Path()).opened() as state:
        spending = Spending(state, clock=lambda: datetime.now(UTC), caps=CAPS)
        asks = (
            spending.reserve(Payer(f"cli:{name}", id=f"{name}-{n}"), Need(10, 0.1), Usage())
            for n in range(count)
        )
        answers = await asyncio.gather(*asks)
        print(answers.count(None), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        fd, name, count = sys.argv[2], "w", "9"
    else:
        _, fd, name, count = sys.argv
        print("ready", flush=True)
        sys.stdin.readline()
    asyncio.run(hold(socket.socket(fileno=int(fd)), name, int(count)))
