"""Whole turns through LiteLLM to a local stub, beside LiteLLM alone with the same requests, 20 at once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from bench.application import application, letter, settings
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median
from gateway.app.app import Application
from gateway.queue.mailbox import outbound
from session.models.llm import LiteLLM
from session.models.model import Prompt
from tests.support.model_server import model_process

CHATS, EACH, ROUNDS = 20, 12, 3
MODEL = "openai/stub"


def run() -> list[Row]:
    """Alternate, in one process, so that both use the same library, loop and connections."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    ours, bare, streamed = run_loop(_measure)
    samples = {"ours": ours, "plain": bare, "streamed": streamed}
    what = f"{CHATS} chats of {EACH} turns, one in flight each, embedded queue, all durable"
    return [
        Row(
            "turns through LiteLLM",
            median(ours),
            median(streamed),
            "turns/s",
            "bare acompletion, same requests",
            median(ours) / median(streamed),
            at_least=0.8,
            notes={
                "what": f"{what}; bare: the same growing requests, streamed as ours are",
                "samples": samples,
            },
        ),
        Row(
            "… beside requests that do not stream",
            median(ours),
            median(bare),
            "turns/s",
            "bare acompletion, plain",
            median(ours) / median(bare),
            notes={
                "what": "told only: what LiteLLM itself takes for a streamed answer more than for a whole one"
            },
        ),
    ]


async def _measure() -> tuple[list[float], list[float], list[float]]:
    ours: list[float] = []
    bare: list[float] = []
    streamed: list[float] = []
    with folder() as workspace:
        async with model_process(Path(os.devnull)) as (url, _):
            config = settings(workspace, model__name=MODEL, model__api_base=url, memory__window=100_000)
            async with application(config) as here:
                await LiteLLM(name=MODEL, api_base=url).ask(Prompt([{"role": "user", "content": "warm"}]))
                await _turns(here, "warm")
                for number in range(ROUNDS):
                    ours.append(await _turns(here, f"r{number}"))
                    bare.append(await _bare(url, stream=False))
                    streamed.append(await _bare(url, stream=True))
    return ours, bare, streamed


async def _turns(here: Application, name: str) -> float:
    """Return turns per second of chats that each write again when they are answered."""
    waiting: dict[str, asyncio.Event] = {f"bench:{name}.{chat}": asyncio.Event() for chat in range(CHATS)}

    async def deliver() -> None:
        async with here.mailbox.take(outbound("bench")) as replies:
            async for reply in replies:
                waiting[reply.id.partition("#")[0]].set()
                await here.mailbox.settle(reply)

    async def chat(key: str) -> None:
        for number in range(EACH):
            waiting[key].clear()
            await here.mailbox.put(letter(key, number, f"message {number}"))
            await waiting[key].wait()

    delivery = asyncio.create_task(deliver(), name="delivery")
    began = time.perf_counter()
    await asyncio.gather(*(chat(key) for key in waiting))
    took = time.perf_counter() - began
    delivery.cancel()
    return CHATS * EACH / took


async def _bare(url: str, *, stream: bool) -> float:
    import litellm

    async def chat() -> None:
        messages: list[dict[str, Any]] = []
        for number in range(EACH):
            messages.append({"role": "user", "content": f"message {number}"})
            request: dict[str, Any] = {"model": MODEL, "api_base": url, "messages": messages}
            answer = await litellm.acompletion(**request, api_key="none", stream=stream, num_retries=0)
            if stream:
                text = "".join([piece.choices[0].delta.content or "" async for piece in answer])
            else:
                text = answer.choices[0].message.content
            messages.append({"role": "assistant", "content": text})

    began = time.perf_counter()
    await asyncio.gather(*(chat() for _ in range(CHATS)))
    return CHATS * EACH / (time.perf_counter() - began)
