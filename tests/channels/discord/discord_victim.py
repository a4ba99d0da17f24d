"""An adapter in a process of its own, to be killed; each line that it prints is a message that was taken."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic import SecretStr

from channels.base import Arrival, Pulse, Site
from channels.discord.adapter import Discord
from channels.discord.ingress import Tempo
from channels.tables import DiscordTable as Table


async def emit(arrival: Arrival) -> bool:
    # A queue takes so long to confirm.
    await asyncio.sleep(0.002)
    print("taken", arrival.chat_id, arrival.text, flush=True)
    return True


async def main(api_base_url: str, token: str, state: str, people: str) -> None:
    table = Table(
        enabled=True,
        token=SecretStr(token),
        api_base_url=api_base_url,
        sweep_s=0.5,
        allow_from=tuple(people.split(",")),
    )
    tempo = Tempo(deadline_s=5.0, pause_s=0.02, longest_pause_s=0.1, guilds_s=0.05)
    await Discord(table, Site(Path(state), Pulse(), {}), tempo=tempo).run(emit)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
