"""Sends as fast as the limiter lets it: ``python -m … STATE CHAT COUNT``. The file has when, for a minute.

A group is a chat whose id is below zero.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from channels.limiter import Limiter, Rate, Rates

RATES = Rates(overall=Rate(10, 0.5), chat=Rate(100, 60.0), group=Rate(4, 0.4))


async def main(state: str, chat: str, count: str) -> None:
    limiter = Limiter(Path(state), "telegram", "12:secret", RATES)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(count)):
        await limiter.wait(chat, group=chat.startswith("-"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
