"""Requests of LiteLLM's alone, as many as one process makes: what a second process brings on this machine.

``python -m bench.bare_calls URL`` says ``ready`` once the library is imported, begins at the first line that
it is sent, and prints the requests a second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import uvloop

# Each asks again as soon as it is answered, with a history of a few messages.
ASKING, EACH, WARM = 20, 40, 2
MESSAGES = [{"role": role, "content": "a message of a few words"} for role in ("user", "assistant")] * 2


async def rate(url: str, each: int) -> float:
    """Return the requests a second."""
    import litellm

    async def ask() -> None:
        for _ in range(each):
            await litellm.acompletion(
                model="openai/stub",
                api_base=url,
                api_key="none",
                messages=[*MESSAGES, {"role": "user", "content": "what now?"}],
                num_retries=0,
            )

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(ASKING)))
    return ASKING * each / (time.perf_counter() - began)


async def side_by_side(url: str, processes: int) -> float:
    """Return what so many processes make together."""
    running = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.bare_calls", url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError("a process of bare calls ended early")
    found = await asyncio.gather(*(process.communicate(b"go\n") for process in running))
    return sum(float(said) for said, _ in found)


async def _main(url: str) -> None:
    await rate(url, WARM)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(await rate(url, EACH), flush=True)


if __name__ == "__main__":
    # It would fetch its prices from the network meanwhile.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(sys.argv[1]))
