"""What the gateway adds to an answer's way: at half load through RabbitMQ, and to the first streamed word.

Letters come at even times, whether or not the ones before were answered: half as many a second as the same
daemon answered just before while each chat wrote again at once, sent and taken by the same process, which
needs its share of the cores, and collects no garbage meanwhile: that held letters up for 40 ms before they
were sent. The bare relay gets as many on the same broker, in turn with ours; what is told
is by how much ours is later, quantile by quantile, and so what a place in a line costs counts.

The first word is that of a model which writes at once, over HTTP as its clients ask. Beside it the request
that the gateway then made, with its instructions, history and tools, is made once more without the gateway:
by the gateway's own client, so that what is told is all the rest of the way; and by LiteLLM as it comes,
told only. All one after the other, in turn. Whoever asks the gateway does as little as can be, over a
connection that is open: what a client's library takes for a request (1.4 ms with httpx) is no work of the
gateway. Nor is what a model that is a program of ours keeps of its requests: it writes no log, and collects
no garbage.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import aio_pika
import httpx
import orjson
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from bench import bare
from bench.application import Process, letter, process
from bench.application import run as run_loop
from bench.backlog import OUT, declare_out, of_ours, of_relay, running
from bench.place import TEXT, folder
from bench.row import Row, quantile
from gateway.queue.mailbox import Post
from session.models.llm import LiteLLM
from session.models.model import Prompt, ToolSpec
from tests.support.broker import Broker
from tests.support.model_server import model_process

CHATS, ROUNDS = 100, 3
# What comes in the first seconds of a round warms both up.
ROUND_S, WARM_S, LAST_S = 10.0, 2.0, 30.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
LIMIT_MS, FIRST_LIMIT_MS = 15.0, 5.0
FIRST, FIRST_WARM = 300, 20
MODEL = "openai/stub"
Samples = dict[str, list[float]]
Route = Callable[[Post], tuple[str, str]]


def run() -> list[Row]:
    """Measure both."""
    rate, waits = _half_load()
    alone, plain = run_loop(_firsts)
    what = (
        f"{rate:,.0f} letters/s of {CHATS} chats, half of what it answers to this sender; echo, all durable"
    )
    rows = [
        _row(
            f"added at half load, {name}",
            waits,
            part,
            LIMIT_MS if name == "p99" else None,
            what,
            "bare relay",
        )
        for name, part in QUANTILES.items()
    ]
    what = f"{FIRST} requests to /v1/chat/completions, one after the other, a model that writes at once"
    for name in ("p50", "p99"):
        limit_ms = FIRST_LIMIT_MS if name == "p99" else None
        rows.append(
            _row(f"first word added, {name}", alone, QUANTILES[name], limit_ms, what, "its request alone")
        )
        beside = f"first word beside plain LiteLLM, {name}"
        rows.append(_row(beside, plain, QUANTILES[name], None, what, "acompletion of the same"))
    return rows


def _row(name: str, waits: Samples, part: float, limit_ms: float | None, what: str, peer: str) -> Row:
    ours, theirs = (quantile(waits[who], part) * 1e3 for who in ("ours", "peer"))
    added = ours - theirs
    told = f"{what}; ours {ours:.2f} ms, {peer} {theirs:.2f} ms"
    if limit_ms is None:
        return Row(name, added, theirs, "ms", f"{peer}, in all", added / theirs, notes={"what": told})
    return Row(name, added, limit_ms, "ms", "limit", added / limit_ms, at_most=1, notes={"what": told})


# -- at half load ----------------------------------------------------------------------------------


def _half_load() -> tuple[float, Samples]:
    """Return the letters a second, and the seconds that each took, ours and the relay's."""
    waits: Samples = {"ours": [], "peer": []}
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        ours, theirs = broker.vhost("ours"), broker.vhost("theirs")
        config = {"broker.url": ours, "broker.queue_type": "classic"}
        workspace = stack.enter_context(folder())
        with process(workspace, config):
            """It sets the broker up."""
        run_loop(lambda: declare_out(ours))
        daemon = Process(workspace, config)
        stack.callback(daemon.end)
        rate = run_loop(lambda: _most(ours, OUT, of_ours)) / 2
        print(f"latency: {rate:,.0f} letters a second …", file=sys.stderr, flush=True)
        run_loop(lambda: bare.declare(theirs, "relay"))
        stack.enter_context(running([sys.executable, "-m", "bench.bare", theirs, "relay"]))
        ways: dict[str, tuple[str, str, Route]] = {
            "ours": (ours, OUT, of_ours),
            "peer": (theirs, "relay.outbound", of_relay("relay", bare.PARTITIONS)),
        }
        for number in range(ROUNDS):
            for who, way in ways.items():
                with _no_garbage_collected():
                    waits[who] += run_loop(lambda way=way, number=number: _round(number, rate, *way))
    return rate, waits


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _most(url: str, queue: str, route: Route) -> float:
    """Return the replies a second while each chat writes as soon as it is answered, once warm."""
    times: list[float] = []

    async with _channel(url) as channel, _channel(url) as replies:

        async def take(message: AbstractIncomingMessage) -> None:
            times.append(time.perf_counter())
            chat = str(message.message_id).removeprefix("bench:").partition("#")[0]
            await _put(channel, post := letter(f"bench:{chat}", -len(times), TEXT), *route(post))

        out = await replies.get_queue(queue, ensure=False)
        await out.consume(take, no_ack=True)
        for chat in range(CHATS):
            await _put(channel, post := letter(f"bench:{chat}", 0, TEXT), *route(post))
        await asyncio.sleep(WARM_S + ROUND_S)
        counted = [at for at in times if at >= times[0] + WARM_S]
    return len(counted) / (counted[-1] - counted[0])


async def _round(number: int, rate: float, url: str, queue: str, route: Route) -> list[float]:
    """Send letters at even times; return the seconds from when each was to be sent to its reply."""
    due: dict[str, float] = {}
    waits: list[float] = []
    count = int(rate * ROUND_S)
    over = asyncio.Event()

    async with _channel(url) as channel, _channel(url) as replies:
        began = 0.0

        def take(message: AbstractIncomingMessage) -> None:
            at = due.pop(str(message.message_id).removesuffix("#reply"), None)
            if at is None:
                return
            if at - began >= WARM_S:
                waits.append(time.perf_counter() - at)
            if not due and len(sent) == count:
                over.set()

        sent: list[str] = []
        out = await replies.get_queue(queue, ensure=False)
        await asyncio.sleep(0.5)
        await out.purge()
        await out.consume(_as_task(take), no_ack=True)
        began = time.perf_counter() + 0.1
        for place in range(count):
            at = began + place / rate
            if (ahead := at - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            post = letter(f"bench:{place % CHATS}", number * 10**6 + place, f"{place} {TEXT}")
            due[post.id] = at
            sent.append(post.id)
            await _put(channel, post, *route(post))
        async with asyncio.timeout(LAST_S):
            await over.wait()
    return waits


def _as_task(take: Callable[[AbstractIncomingMessage], None]) -> Callable[[AbstractIncomingMessage], Any]:
    async def took(message: AbstractIncomingMessage) -> None:
        take(message)

    return took


@asynccontextmanager
async def _channel(url: str) -> AsyncIterator[AbstractChannel]:
    """Open a channel that waits for no confirmation: what is measured is the others' work."""
    async with await aio_pika.connect(url) as connection:
        yield await connection.channel(publisher_confirms=False)


async def _put(channel: AbstractChannel, post: Post, exchange: str, routing_key: str) -> None:
    to = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
    message = aio_pika.Message(post.body, delivery_mode=2, message_id=post.id, headers={"key": post.key})
    await to.publish(message, routing_key, mandatory=False)


# -- the first word --------------------------------------------------------------------------------


async def _firsts() -> tuple[Samples, Samples]:
    """Return the seconds to the first word: beside the gateway's own request alone, and LiteLLM's."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    # It would fetch its prices from the network meanwhile.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    async with model_process(None) as (model, _):
        config = {"model.name": MODEL, "model.api_base": model, "model.api_key": "none"}
        with folder() as workspace, process(workspace, config, role="all") as daemon:
            _, url = daemon.ready()
            with _no_garbage_collected():
                plain = await _beside(url, model, "plain", partial(_plain, model))
            # Behind the other: from here on LiteLLM is set in this process as the gateway sets it.
            client = LiteLLM(name=MODEL, api_base=model, api_key="none", max_output_tokens=4096)
            with _no_garbage_collected():
                alone = await _beside(url, model, "alone", partial(_alone, client))
            await client.close()
    return alone, plain


async def _beside(
    url: str, model: str, chat: str, ask: Callable[[dict[str, Any]], Awaitable[float]]
) -> Samples:
    """Ask the gateway, then ``ask`` for what it asked its model; return the seconds to the first words."""
    waits: Samples = {"ours": [], "peer": []}
    # It imports LiteLLM here, which takes longer than a connection may rest.
    await ask({"messages": [{"role": "user", "content": "hello"}], "stream": True})
    async with _Client.open(url) as client, httpx.AsyncClient() as looking:
        for number in range(FIRST + FIRST_WARM):
            ours = await client.first(chat, number)
            request = (await looking.get(f"{model}/last")).json()
            peer = await ask(request)
            if number >= FIRST_WARM:
                waits["ours"].append(ours)
                waits["peer"].append(peer)
    return waits


async def _plain(url: str, request: dict[str, Any]) -> float:
    """Ask for it by LiteLLM as it comes."""
    import litellm

    first = 0.0
    began = time.perf_counter()
    answer = await litellm.acompletion(
        **{**request, "model": MODEL}, api_base=url, api_key="none", num_retries=0
    )
    async for piece in answer:
        if not first and piece.choices and piece.choices[0].delta.content:
            first = time.perf_counter() - began
    return first


async def _alone(client: LiteLLM, request: dict[str, Any]) -> float:
    """Ask for it as the gateway does."""
    functions = [each["function"] for each in request.get("tools", ())]
    tools = [ToolSpec(each["name"], each["description"], each["parameters"]) for each in functions]
    first = 0.0

    def heard(_: str) -> None:
        nonlocal first
        first = first or time.perf_counter() - began

    began = time.perf_counter()
    await client.ask(Prompt(request["messages"], tools), heard)
    return first


class _Client:
    """Asks the gateway over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[_Client]:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield cls(reader, writer, f"{host}:{port}")
        finally:
            writer.close()

    async def first(self, chat: str, number: int) -> float:
        """Ask; return the seconds to the first word, once the answer is whole."""
        said = [{"role": "user", "content": f"message {number}"}]
        body = orjson.dumps({"model": "chat-gateway", "user": chat, "messages": said, "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json"
        request = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        first = 0.0
        began = time.perf_counter()
        self._writer.write(request)
        status = await self._reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the gateway answered {status!r}")
        # The last of the chunks is empty; no line of an event looks like its length.
        while (line := await self._reader.readline()) != b"0\r\n":
            if not line:
                raise RuntimeError("the gateway closed the connection")
            if not first and line.startswith(b"data: {") and _says(orjson.loads(line[6:])["choices"]):
                first = time.perf_counter() - began
        await self._reader.readline()
        return first


def _says(choices: Sequence[dict[str, Any]]) -> bool:
    return bool(choices and choices[0].get("delta", {}).get("content"))
