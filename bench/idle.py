"""What an idle daemon takes of a core: for two minutes, all kinds at once, once they have settled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.application import Process
from bench.place import folder
from bench.row import Row
from tests.browser.seeds import many_chats
from tests.support.broker import Broker
from tests.support.telegram_server import TelegramServer

SETTLED_S, MEASURED_S = 45.0, 120.0
KEYS = 10_000
PERCENT = 1.0
ECHO = {"broker.url": "embedded", "model.name": "echo"}
# A real model is loaded, and asked by nobody.
MODEL = {"model.name": "openai/stub", "model.api_base": "http://127.0.0.1:9", "model.api_key": "none"}


def run() -> list[Row]:
    """Measure the CPU time of idle daemons by what the system counts for their processes."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        telegram = stack.enter_context(TelegramServer())
        daemons = {
            name: stack.enter_context(_started(config, keys=keys))
            for name, config, keys in _kinds(broker, telegram)
        }
        time.sleep(SETTLED_S)
        before = {name: daemon.cpu() for name, daemon in daemons.items()}
        began = time.perf_counter()
        time.sleep(MEASURED_S)
        took_s = time.perf_counter() - began
        return [_row(name, before[name], daemon.cpu(), took_s) for name, daemon in daemons.items()]


def _kinds(broker: Broker, telegram: TelegramServer) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    rabbitmq = {"broker.url": broker.vhost("idle"), "broker.queue_type": "classic"}
    platform = {
        "channels.telegram.enabled": True,
        "channels.telegram.token": telegram.token,
        "channels.telegram.base_url": telegram.base_url,
        "channels.telegram.base_file_url": telegram.base_file_url,
        "channels.telegram.direct": "open",
    }
    yield "idle, embedded", ECHO, 0
    yield "idle, RabbitMQ", {**ECHO, **rabbitmq}, 0
    yield "idle, 10,000 known keys", ECHO, KEYS
    yield "idle, two agents and a model", {**ECHO, **MODEL, "agents.clerk.persona": "A clerk."}, 0
    yield "idle, polling Telegram", {**ECHO, **platform}, 0


@contextmanager
def _started(config: Mapping[str, Any], *, keys: int) -> Iterator[Process]:
    with folder() as workspace:
        _lay(workspace, keys)
        daemon = Process(workspace, config, role="all")
        try:
            daemon.ready()
            yield daemon
        finally:
            daemon.end()


def _lay(workspace: Path, keys: int) -> None:
    if keys:
        many_chats(workspace, keys)


def _row(name: str, before: Mapping[str, float], after: Mapping[str, float], took_s: float) -> Row:
    used = {part: (after[part] - before[part]) / took_s * 100 for part in after}
    whole = sum(used.values())
    notes = {"of a core": ", ".join(f"{part} {percent:.2f} %" for part, percent in used.items())}
    return Row(name, whole, PERCENT, "%", "limit", whole / PERCENT, at_most=1, notes=notes)
