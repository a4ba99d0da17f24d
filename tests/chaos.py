"""Kills and cuts at random while messages flow, then checks every guarantee: ``make chaos N=20``.

Each cycle starts a whole gateway and feeds several chats with plain messages, tool calls, ``/new`` and
``/stop``. Then the gateway dies: at a random named point (``tests/support/killable.py``) or by SIGKILL at a
random instant. Over RabbitMQ the broker is killed now and then, or all connections to it are cut. The next
cycle goes on with the same workspace. At the end everything may come to rest, and is looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos_check import Account, Message, check
from tests.chaos_feed import CHATS, Feed, OverHttp, OverRabbit
from tests.support.broker import Broker
from tests.support.foreign import Steady
from tests.support.harness import Daemon, command
from tests.support.model_server import ModelServer
from tests.support.proxy import Proxy

# Each with the highest number of the passage at which one dies there.
POINTS = {
    "append": 8,
    "fdatasync": 14,
    "ask": 8,
    "tool": 3,
    "settle": 8,
    "journal": 3,
    "checkpoint": 3,
    "history": 2,
    "notes": 2,
    "state_file": 6,
}
RABBIT_POINTS = {"publish": 10, "ack": 8}
KINDS = {"plain": 10, "read": 3, "write": 3, "slow": 2, "stop": 2, "new": 1}
PER_CYCLE = (2, 5)
# How long a point may take to be reached.
PATIENCE_S = 12.0
REST_S = 240.0


class Chats:
    """People who write: each chat one message after the other, whether or not the gateway lives."""

    def __init__(self, feed: Feed, dice: random.Random) -> None:
        self.sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
        self._feed = feed
        self._dice = dice
        self._number = 0
        self._waiting: dict[str, asyncio.Queue[str]] = {chat: asyncio.Queue() for chat in CHATS}

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write what is planned, for as long as the block runs."""
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(self._write(chat), name=f"chat {chat}") for chat in CHATS]
            yield
            for writer in writers:
                writer.cancel()

    def plan(self) -> None:
        """Give each chat a few more messages to write."""
        for waiting in self._waiting.values():
            for _ in range(self._dice.randint(*PER_CYCLE)):
                kind = self._dice.choices(list(KINDS), list(KINDS.values()))[0]
                for each in ("slow", "stop") if kind == "stop" else (kind,):
                    waiting.put_nowait(each)

    async def accepted(self) -> None:
        """Return when all that was planned is accepted."""
        for waiting in self._waiting.values():
            await waiting.join()

    async def _write(self, chat: str) -> None:
        while True:
            message = self._message(chat, await self._waiting[chat].get())
            self.sent[chat].append(message)
            await self._feed.put(chat, message)
            self._waiting[chat].task_done()
            await asyncio.sleep(self._dice.uniform(0, 0.6))

    def _message(self, chat: str, kind: str) -> Message:
        self._number += 1
        name = f"{chat}-{self._number:04d}"
        write = f'[[tool:write {{"path": "{name}.txt", "content": "x"}}]]'
        texts = {
            "plain": f"{name} hello",
            "read": f'{name} [[tool:ls {{"path": "."}}]]',
            "write": f"{name} {write}",
            "slow": f"{name} [[delay:1]]",
            "stop": "/stop",
            "new": "/new",
        }
        return Message(name, kind, texts[kind])


@dataclass
class Harm:
    """What was done to it."""

    deaths: Counter[str] = field(default_factory=Counter)
    # When a daemon was seen dead.
    kills: list[float] = field(default_factory=list)
    broker_kills: int = 0
    cuts: int = 0


class Chaos:
    """One run of the kit in a folder of its own."""

    def __init__(self, kind: str, *, cycles: int, seed: int, folder: Path) -> None:
        self.harm = Harm()
        self.workspace = folder / "workspace"
        self.log = folder / "daemon.log"
        self._kind = kind
        self._cycles = cycles
        self._dice = random.Random(seed)
        self._config: dict[str, Any] = {
            "model.name": "openai/stub",
            "memory.window": 12,
            # The many deaths are not the letters' fault here.
            "limits.attempts": 1000,
            "limits.background_calls_per_hour": 100_000,
            "limits.background_calls_per_day": 100_000,
        }

    async def run(self) -> Account:
        """Do all cycles, let it come to rest, and check."""
        async with ModelServer() as model:
            self._config["model.api_base"] = model.url
            if self._kind == "embedded":
                feed = OverHttp()
                async with feed.listening():
                    return await self._all(feed, model, None, None)
            with Broker() as broker:
                async with Proxy(broker.port) as proxy, Steady(broker.url) as steady:
                    self._config["broker.url"] = broker.url.replace(str(broker.port), str(proxy.port))
                    self._config["broker.partitions"] = 2
                    return await self._all(OverRabbit(steady), model, broker, proxy)

    async def _all(
        self, feed: OverHttp | OverRabbit, model: ModelServer, broker: Broker | None, proxy: Proxy | None
    ) -> Account:
        chats = Chats(feed, self._dice)
        async with chats.writing():
            for number in range(self._cycles):
                chats.plan()
                print(f"  cycle {number + 1}: {await self._cycle(feed, broker, proxy)}", flush=True)
            async with self._daemon(feed) as daemon:
                await chats.accepted()
                account = await self._rest(feed, chats, model)
                code = await daemon.stop()
                self._keep(daemon)
        if code != 0:
            account.illegal.append(f"the last daemon ended with {code}")
        _, verified = await command(self.workspace, "sessions", "verify", "--json")
        account.illegal += [str(row) for row in json.loads(verified)]
        return account

    def _daemon(self, feed: OverHttp | OverRabbit, point: str = "") -> Daemon:
        role = "all" if self._kind == "embedded" else "session"
        daemon = Daemon(self.workspace, role=role, config=self._config, kill_at=point)
        if isinstance(feed, OverHttp):
            feed.daemon = daemon
        return daemon

    async def _cycle(self, feed: OverHttp | OverRabbit, broker: Broker | None, proxy: Proxy | None) -> str:
        """Run one gateway to its death; say how it died."""
        point = self._point() if self._dice.random() < 0.6 else ""
        daemon = await self._daemon(feed, point).start()
        harm: asyncio.Task[str] = asyncio.create_task(self._harm(broker, proxy), name="harm")
        try:
            patience_s = PATIENCE_S if point else self._dice.uniform(0, PATIENCE_S * 0.7)
            with contextlib.suppress(TimeoutError):
                await daemon.died(patience_s)
            how = point if point and not daemon.alive else "SIGKILL at an instant"
            await daemon.kill()
            self.harm.kills.append(time.time())
            self.harm.deaths[how.partition(":")[0]] += 1
            return how + await harm
        finally:
            self._keep(daemon)
            with contextlib.suppress(ProcessLookupError):
                await daemon.kill()
            await asyncio.wait([harm])

    def _point(self) -> str:
        points = POINTS | (RABBIT_POINTS if self._kind == "rabbitmq" else {})
        name = self._dice.choice(list(points))
        return f"{name}.{self._dice.choice(('before', 'after'))}:{self._dice.randint(1, points[name])}"

    async def _harm(self, broker: Broker | None, proxy: Proxy | None) -> str:
        """Over RabbitMQ, now and then: kill the broker, or cut everybody's connections to it."""
        kind, instant_s = self._dice.random(), self._dice.uniform(0, PATIENCE_S * 0.7)
        if broker is None or proxy is None or kind > 0.55:
            return ""
        await asyncio.sleep(instant_s)
        if kind < 0.25:
            await asyncio.to_thread(broker.restart)
            self.harm.broker_kills += 1
            return ", broker killed"
        proxy.cut()
        self.harm.cuts += 1
        return ", connections cut"

    async def _rest(self, feed: Feed, chats: Chats, model: ModelServer) -> Account:
        """Return the account when nothing is lost any more, or when that was given time enough."""
        until = time.monotonic() + REST_S
        while True:
            account = self._account(feed, chats, model)
            if not account.lost or time.monotonic() > until:
                return account
            missing = {one.partition(" ")[0].rstrip(":") for one in account.lost}
            for chat, messages in chats.sent.items():
                for message in messages:
                    if message.id in missing:
                        await feed.remind(chat, message)
            await asyncio.sleep(0.5)

    def _account(self, feed: Feed, chats: Chats, model: ModelServer) -> Account:
        return check(
            self.workspace,
            sent=chats.sent,
            stem=lambda chat: f"{feed.channel}_{chat}",
            prefix=feed.prefix,
            replies=feed.replies,
            ordered=feed.ordered,
            asked=model.seen,
            kills=self.harm.kills,
        )

    def _keep(self, daemon: Daemon) -> None:
        with self.log.open("ab") as log:
            log.write(bytes(daemon.log))


def table(account: Account, harm: Harm) -> str:
    """Draw what was done and what was found."""
    per_message = account.model_calls / max(account.least_calls, 1)
    rows = {
        "messages": account.messages,
        "kills": len(harm.kills),
        "kills of the broker": harm.broker_kills,
        "cuts": harm.cuts,
        "stopped by /stop": account.stopped,
        "lost": len(account.lost),
        "reordered": len(account.reordered),
        "answered twice": len(account.twice),
        "mixed up": len(account.mixed),
        "same reply delivered again": account.repeated_replies,
        "model calls": f"{account.model_calls}, {per_message:.2f} for each that was needed",
        "model calls repeated without a kill": len(account.asked_again),
        "illegal transcript lines": len(account.illegal),
        "memory written twice or with a gap": len(account.memory),
    }
    return "\n".join(f"  {name:<36} {value}" for name, value in rows.items())


async def main() -> int:
    """Run the kit as the command line asks; 1 where a guarantee broke."""
    parser = argparse.ArgumentParser(prog="chaos", description="kills and cuts while messages flow")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--broker", choices=("embedded", "rabbitmq"), default="embedded")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"chaos: {options.cycles} cycles over {options.broker}, seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chat-gateway-chaos-"))
    began = time.monotonic()
    chaos = Chaos(options.broker, cycles=options.cycles, seed=options.seed, folder=folder)
    account = await chaos.run()
    print(table(account, chaos.harm))
    deaths = ", ".join(f"{name} {count}" for name, count in sorted(chaos.harm.deaths.items()))
    print(f"  died at: {deaths}\n  {time.monotonic() - began:.0f} s, seed {options.seed}")
    if account.broken:
        print("\n".join(["", *account.broken, f"workspace and logs stay in {folder}"]))
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    # The foreign client would complain of every connection that is broken here.
    for library in ("aio_pika", "aiormq", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    # A run that is told to end must end everything that it started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(asyncio.run(main()))
