"""What an adapter adds between platform and queue, both ways; a burst of updates; a gap swept on Discord.

The platforms are local servers, the client libraries are the real ones, the adapters run in a process of
their own beside RabbitMQ. Ingress is measured from the moment a person writes to the moment the platform
learns that the message is taken, which is later than the broker's confirm; egress from the put of a reply to
the platform's call. Chats are many, so that no limiter of the platform's own rates holds a send.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aio_pika

from bench.application import Process, process
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median, quantile
from tests.support.broker import Broker
from tests.support.discord_server import REAL_LIMITS, DiscordServer
from tests.support.telegram_server import TelegramServer

INGRESS, EGRESS, BURST = 400, 120, 1000
LIMIT_S = 0.020
GAP_MESSAGES, GAP_CHANNELS, GAP_LIMIT_S = 2000, 20, 30.0


def run() -> list[Row]:
    """Measure Telegram both ways and a burst, then Discord's sweep."""
    with folder() as home, Broker() as broker:
        rows = run_loop(lambda: _telegram(home / "telegram", broker.url))
        return [*rows, run_loop(lambda: _sweep(home / "discord", broker.vhost("sweep")))]


def _config(url: str, **table: Any) -> dict[str, Any]:
    return {"broker.url": url, **table}


async def _telegram(workspace: Path, url: str) -> list[Row]:
    async with TelegramServer() as server:
        table = {
            "channels.telegram.enabled": True,
            "channels.telegram.token": server.token,
            "channels.telegram.base_url": server.base_url,
            "channels.telegram.base_file_url": server.base_file_url,
            "channels.telegram.poll_timeout_s": 10,
            "channels.telegram.direct": "open",
            "channels.telegram.stream": False,
        }
        with process(workspace, _config(url, **table), role="channels") as adapters:
            server.write(1, "first")
            await server.until(lambda: len(server.confirmations) == 1)
            ingress = await _ingress(server)
            egress = await _egress(server, url)
            burst = await _burst(server, adapters)
    return [
        _latency("a message to the queue, Telegram", ingress, "from writing to the platform's confirmation"),
        _latency("a reply to the platform, Telegram", egress, "from its put to the platform's call"),
        burst,
    ]


def _latency(name: str, took: list[float], what: str) -> Row:
    p99 = quantile(took, 0.99)
    notes = {"what": f"{what}, {len(took)} of them", "p50": f"{median(took) * 1000:.1f} ms"}
    ours = p99 * 1000
    return Row(name, ours, LIMIT_S * 1000, "ms", "limit of the p99", p99 / LIMIT_S, at_most=1, notes=notes)


async def _ingress(server: TelegramServer) -> list[float]:
    wrote: dict[int, float] = {}
    for number in range(INGRESS):
        at = time.monotonic()
        wrote[server.write(100 + number % 50, f"m{number}")] = at
        await asyncio.sleep(0.02)
    await server.until(lambda: server.confirmed >= max(wrote), timeout_s=60)
    return [at - wrote[number] for at, number in server.confirmations if number in wrote]


async def _egress(server: TelegramServer, url: str) -> list[float]:
    put: dict[str, float] = {}
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("chat.outbound", ensure=False)
        for number in range(EGRESS):
            chat = 10_000 + number
            server.add_chat(chat)
            text = f"reply {number}"
            body = {
                "v": 1,
                "id": f"m{number}#reply",
                "key": f"telegram:{chat}",
                "channel": "telegram",
                "chat_id": str(chat),
                "text": text,
                "in_reply_to": f"m{number}",
            }
            message = aio_pika.Message(json.dumps(body).encode(), message_id=str(body["id"]), delivery_mode=2)
            put[text] = time.monotonic()
            await exchange.publish(message, routing_key="telegram")
            await asyncio.sleep(0.05)
    await server.until(lambda: len([1 for sent in server.sent if sent.text in put]) == EGRESS, timeout_s=60)
    return [sent.at - put[sent.text] for sent in server.sent if sent.text in put]


async def _burst(server: TelegramServer, adapters: Process) -> Row:
    before = adapters.resident_mb()
    at = time.monotonic()
    last = max(server.write(1_000_000 + number % 20, f"burst {number}") for number in range(BURST))
    await server.until(lambda: server.confirmed >= last, timeout_s=120)
    took = time.monotonic() - at
    grown = adapters.resident_mb() - before
    notes = {"what": f"{BURST} updates at once, {BURST / took:.0f} a second, all confirmed"}
    return Row("memory of a burst", grown, 20, "MB", "limit", grown / 20, at_most=1, notes=notes)


async def _sweep(workspace: Path, url: str) -> Row:
    async with DiscordServer(limits=dict(REAL_LIMITS)) as server:
        guild = server.guild("home")
        places = [server.channel(guild, f"c{number}") for number in range(GAP_CHANNELS)]
        table = {
            "channels.discord.enabled": True,
            "channels.discord.token": server.token,
            "channels.discord.api_base_url": server.api_base_url,
            "channels.discord.direct": "open",
            "channels.discord.groups": "all",
            "channels.discord.group_allow": ["*"],
        }
        config = _config(url, **table)
        first = Process(workspace, config, role="channels")
        try:
            await asyncio.to_thread(first.ready)
            await server.connected(within_s=60)
            await asyncio.sleep(3)
        finally:
            await asyncio.to_thread(first.end)
        for number in range(GAP_MESSAGES):
            server.write(places[number % GAP_CHANNELS], f"gap {number}", user="ada", live=False)
        at = time.monotonic()
        second = Process(workspace, config, role="channels")
        try:
            await asyncio.to_thread(second.ready)
            await _accepted(url, GAP_MESSAGES)
            took = time.monotonic() - at
        finally:
            await asyncio.to_thread(second.end)
    what = f"{GAP_MESSAGES} messages in {GAP_CHANNELS} channels, start-up included, at the platform's limits"
    notes = {"what": what}
    return Row(
        "a gap swept, Discord", took, GAP_LIMIT_S, "s", "limit", took / GAP_LIMIT_S, at_most=1, notes=notes
    )


async def _accepted(url: str, count: int) -> None:
    """Wait until the inbound queues hold that many letters."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        names = [f"chat.inbound.16.{number:02d}" for number in range(16)]
        async with asyncio.timeout(120):
            while True:
                queues = [await channel.declare_queue(name, passive=True) for name in names]
                if sum(queue.declaration_result.message_count or 0 for queue in queues) >= count:
                    return
                await asyncio.sleep(0.05)
