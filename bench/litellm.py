"""Whole turns through LiteLLM to a local stub, beside LiteLLM alone with the same requests, 20 at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench.application import application, letter, settings
from bench.application import run as run_loop
from bench.backlog import Backlog
from bench.bare_calls import side_by_side
from bench.place import folder
from bench.rates import daemon_rate
from bench.row import Row, median, rate
from gateway.app.application import Application
from gateway.queue.mailbox import outbound
from session.models.llm import LiteLLM
from session.models.model import Prompt
from tests.support.broker import Broker
from tests.support.lean_model import lean_model_process

CHATS, EACH, ROUNDS = 20, 12, 3
# What comes before the clock runs has both workers import the library.
BACKLOG = Backlog(100, 20, 400, 2_000)
# Turns a second of one worker, once it had 70.
WANTED = 1.5 * 70
MODEL = "openai/stub"
# The channel whose answers somebody reads while they are written.
READ = "read"
# By way: turns per second, and CPU milliseconds a turn.
Samples = dict[str, list[tuple[float, float]]]


def run() -> list[Row]:
    """Alternate, in one process, so that all use the same library, loop and connections."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    samples = run_loop(_measure)
    one, two = run_loop(_workers)
    bare_one, bare_two = run_loop(_bare_processes)
    what = f"{CHATS} chats of {EACH} turns, one in flight each, embedded queue, all durable"
    whole = [taken for taken, _ in samples["ours, whole"]]
    return [
        Row(
            "turns through LiteLLM",
            median(whole),
            WANTED,
            "turns/s",
            "limit",
            median(whole) / WANTED,
            at_least=1,
            notes={"what": f"{what}; nobody reads along"},
        ),
        _row("… beside LiteLLM alone", samples, "whole", None, "told only: bare: the same requests"),
        _row(
            "… with a reader along",
            samples,
            "streamed",
            0.6,
            "the same where every answer is asked for as a stream",
        ),
        rate(
            "… with two workers",
            two,
            one,
            "one worker",
            at_least=1.7,
            notes={
                "what": f"{BACKLOG.keys} chats, backlog of {BACKLOG.last} in RabbitMQ; gateway, broker "
                "and model on the same cores"
            },
        ),
        rate(
            "… two processes without a gateway",
            bare_two,
            bare_one,
            "one process",
            notes={
                "what": "told only: what the machine gives: bare acompletion, whole, in two processes beside "
                "the model; no broker, no file"
            },
        ),
    ]


async def _workers() -> tuple[list[float], list[float]]:
    """Return the turns a second of one worker and of two, in turn."""
    rates: tuple[list[float], list[float]] = ([], [])
    async with lean_model_process() as (url, _):
        config = {"model.name": MODEL, "model.api_base": url, "model.api_key": "none"}
        with Broker() as broker:
            for number in range(ROUNDS):
                for workers, each in enumerate(rates, 1):
                    vhost = broker.vhost(f"r{number}w{workers}")
                    each.append(
                        await asyncio.to_thread(daemon_rate, vhost, BACKLOG, workers=workers, config=config)
                    )
    return rates


async def _bare_processes() -> tuple[list[float], list[float]]:
    """Return the requests a second of one process that only makes them, and of two, in turn."""
    rates: tuple[list[float], list[float]] = ([], [])
    async with lean_model_process() as (url, _):
        for _ in range(ROUNDS):
            for processes, each in enumerate(rates, 1):
                each.append(await side_by_side(url, processes))
    return rates


def _row(name: str, samples: Samples, kind: str, at_least: float | None, what: str) -> Row:
    ours, bare = samples[f"ours, {kind}"], samples[f"bare, {kind}"]
    rates = {way: [taken for taken, _ in each] for way, each in samples.items()}
    cpu = {way: f"{median([used for _, used in each]):.1f} ms" for way, each in samples.items()}
    mine, peer = median([each for each, _ in ours]), median([each for each, _ in bare])
    return Row(
        name,
        mine,
        peer,
        "turns/s",
        f"bare acompletion, {kind}",
        mine / peer,
        at_least=at_least,
        notes={"what": what, "CPU of this process a turn": cpu, "samples": rates},
    )


async def _measure() -> Samples:
    """Return turns per second and CPU milliseconds a turn, of each way."""
    samples: Samples = {}
    with folder() as workspace:
        async with lean_model_process() as (url, _):
            config = settings(workspace, model__name=MODEL, model__api_base=url, memory__window=100_000)
            async with application(config) as here:
                await LiteLLM(name=MODEL, api_base=url).ask(Prompt([{"role": "user", "content": "warm"}]))
                await _turns(here, "warm")
                for number in range(ROUNDS):
                    ways: dict[str, Callable[[], Awaitable[float]]] = {
                        "ours, whole": partial(_turns, here, f"r{number}"),
                        "bare, whole": partial(_bare, url, stream=False),
                        "ours, streamed": partial(_turns, here, f"s{number}", channel=READ),
                        "bare, streamed": partial(_bare, url, stream=True),
                    }
                    here.events.watch(None, 600, channel=READ)
                    for way, work in ways.items():
                        before = time.process_time()
                        taken = await work()
                        used = (time.process_time() - before) / (CHATS * EACH) * 1e3
                        samples.setdefault(way, []).append((taken, used))
    return samples


async def _turns(here: Application, name: str, *, channel: str = "bench") -> float:
    """Return turns per second of chats that each write again when they are answered."""
    keys = [f"{channel}:{name}.{chat}" for chat in range(CHATS)]
    waiting: dict[str, asyncio.Event] = {key: asyncio.Event() for key in keys}

    async def deliver() -> None:
        async with here.mailbox.take(outbound(channel)) as replies:
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
