"""A process with one adapter of Telegram whose emit writes each message durably to a file; made to be killed.

Arguments: the configuration table as JSON, the state folder, the file. One byte goes to stdout per message.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from channels.base import Arrival, Pulse, Site
from channels.tables import TelegramTable as Table
from channels.telegram.adapter import build

SLOW = ("55", "255")


async def main(table: str, state: str, file: str) -> None:
    """Receive until killed."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    jitter = random.Random(7)

    async def emit(arrival: Arrival) -> bool:
        # Some take longer than the distance between two polls: those go on behind them.
        await asyncio.sleep(1.0 if arrival.text in SLOW else jitter.random() / 50)
        line = json.dumps([arrival.id, arrival.chat_id, arrival.text]) + "\n"
        os.write(out, line.encode())
        os.fsync(out)
        os.write(1, b".")
        return True

    site = Site(Path(state), Pulse(), {})
    await build(Table.model_validate_json(table), site).run(emit)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
