"""A peer of ``durable``, run by an interpreter that has DBOS: one turn is a workflow of two steps.

``dbos_turns.py URL CHATS EACH`` runs EACH turns in each of CHATS chats, one after another within a chat,
and prints turns per second. The first fifth of each chat's turns is not counted.
"""

import asyncio
import sys
import time

import uvloop
from dbos import DBOS, DBOSConfig, SetWorkflowID


@DBOS.step()
async def answer(text: str) -> str:
    return f"echo: {text}"


@DBOS.step()
async def hand_over(reply: str) -> str:
    return reply


@DBOS.workflow()
async def turn(text: str) -> str:
    return await hand_over(await answer(text))


async def chat(number: int, first: int, last: int) -> None:
    for at in range(first, last):
        # The message's id, as with the gateway: a repeat does not run again.
        with SetWorkflowID(f"bench:{number}:{at}"):
            await turn(f"{at} What did we say about the garden yesterday?")


async def main(url: str, chats: int, each: int) -> None:
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    warm = each // 5
    await asyncio.gather(*(chat(number, 0, warm) for number in range(chats)))
    begun = time.perf_counter()
    await asyncio.gather(*(chat(number, warm, each) for number in range(chats)))
    print(chats * (each - warm) / (time.perf_counter() - begun))
    DBOS.destroy()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
