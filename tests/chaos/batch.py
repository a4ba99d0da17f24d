"""One batch: a workspace of its own, so many kills while people write, then rest, and a look at all."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.queue.rabbitmq.topology import Names
from tests.chaos.chats import Chats
from tests.chaos.checker import check
from tests.chaos.daemon import Daemon
from tests.chaos.dice import Part
from tests.chaos.feed import OverHttp, OverRabbit, OverTelegram, Post
from tests.chaos.records import CHATS, Account, Records
from tests.chaos.rest import REST_S, Scene, left_in_broker, left_in_file
from tests.chaos.stub_model import StubModel
from tests.chaos.stub_telegram import ELSEWHERE, TOKEN, StubTelegram
from tests.chaos.torment import Torment
from tests.support.broker import Broker
from tests.support.foreign import Steady
from tests.support.harness import command
from tests.support.proxy import Proxy

PARTITIONS = 4
_FIRST_MESSAGES = 12
_MESSAGES_A_KILL = (0, 4)
_CONFIG = f"""\
workspace = {{workspace}}
[model]
name = "openai/stub"
[memory]
window = 12
[limits]
attempts = 100000  # the many deaths are not the letters' fault
background_calls_per_hour = 1000000
background_calls_per_day = 10000000
worker_timeout_s = 3  # one that stands still is to be seen within a batch
[log]
format = "json"
[broker]
url = {{url}}
name = {{name}}
partitions = {PARTITIONS}
[channels.telegram]
enabled = true
token = "{TOKEN}"
direct = "open"
stream = false  # a draft is no piece
poll_timeout_s = 5
"""
# Kills are counted apart; of the others the gateway itself speaks.
_NO_FAULTS = ("kill", "fenced", "delayed")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; ``workers``: of the one gateway, ``keep``: the folder of every batch."""

    kills: int
    rabbitmq: bool
    workers: int
    seed: int
    keep: bool


@dataclass
class Result:
    """What one batch came to; ``account`` says what held, ``took_s`` how long all took."""

    seed: int
    kills: int
    account: Account
    deaths: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


class Batch:
    """Runs once, in a folder of its own.

    Args:
        seed: decides what is written, what is harmed, and when.
        kills: how many.
        plan: who runs; workers need a broker.
        broker: killed, too; None: the queues are in each daemon's own file.
    """

    def __init__(self, folder: Path, *, seed: int, kills: int, plan: Plan, broker: Broker | None) -> None:
        self._folder, self._workspace = folder, folder / "workspace"
        self._seed, self._plan, self._broker = seed, plan, broker
        self._name = f"chaos-{seed}"
        self._dice = random.Random(seed)
        self._torment = Torment(kills, self._killed)
        self._chats: Chats | None = None

    async def run(self) -> Result:
        began, torment = time.monotonic(), self._torment
        self._folder.mkdir(parents=True)
        url = self._broker.url if self._broker else "embedded"
        words = {"workspace": str(self._workspace), "url": url, "name": self._name}
        text = _CONFIG.format(**{key: json.dumps(value) for key, value in words.items()})
        (self._folder / "chat-gateway.toml").write_text(text)
        async with AsyncExitStack() as stack:
            self._model = await stack.enter_async_context(StubModel())
            self._platform = await stack.enter_async_context(StubTelegram())
            victims = [await self._victim(name, part, stack) for name, part in self._parts()]
            post = await self._post(victims[0][0], stack)
            chats = self._chats = Chats(post, random.Random(self._dice.random()))
            chats.plan(_FIRST_MESSAGES)
            async with chats.writing():
                await self._harmed(victims)
                records = await self._rest([daemon for daemon, _ in victims], post, chats)
        account = check(records)
        (self._folder / "records.json").write_text(json.dumps(_document(records, account), default=sorted))
        faults = Counter(harm.kind for harm in records.harms if harm.kind not in _NO_FAULTS)
        return Result(self._seed, torment.count, account, torment.deaths, faults, time.monotonic() - began)

    def _killed(self) -> None:
        if self._chats is not None:
            self._chats.plan(self._dice.randint(*_MESSAGES_A_KILL))

    def _parts(self) -> list[tuple[str, Part]]:
        """Name the processes, and say what runs in each; the first serves HTTP."""
        if self._broker is None or self._plan.workers:
            return [("d0", "all")]
        return [("d0", "session"), ("a0", "channels")]

    async def _victim(self, name: str, part: Part, stack: AsyncExitStack) -> tuple[Daemon, Proxy | None]:
        proxy, url = None, ""
        if self._broker is not None:
            proxy = await stack.enter_async_context(Proxy(self._broker.port))
            url = self._broker.url.replace(str(self._broker.port), str(proxy.port))
        daemon = Daemon(
            name,
            folder=self._folder,
            model=self._model,
            broker_url=url,
            part=part,
            platform=None if part == "session" else self._platform,
            workers=self._plan.workers,
        )
        stack.push_async_callback(daemon.close)
        if self._plan.workers:
            self._model.who = daemon.crew.of_port
        return daemon, proxy

    async def _post(self, first: Daemon, stack: AsyncExitStack) -> Post:
        plain = [chat for chat in CHATS if chat not in ELSEWHERE]
        feeds: dict[str, Any] = dict.fromkeys(ELSEWHERE, OverTelegram(self._platform))
        if self._broker is None:
            over = OverHttp(first)
            await stack.enter_async_context(over.listening(plain))
            return Post(feeds | dict.fromkeys(plain, over), frozenset(ELSEWHERE))
        steady = await stack.enter_async_context(Steady(self._broker.url, name=self._name))
        return Post(feeds | dict.fromkeys(plain, OverRabbit(steady)), frozenset(CHATS))

    async def _harmed(self, victims: list[tuple[Daemon, Proxy | None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for daemon, proxy in victims:
                dice = random.Random(self._dice.random())
                if self._plan.workers and proxy is not None:
                    group.create_task(self._torment.crew(daemon, proxy, dice))
                else:
                    group.create_task(self._torment.daemon(daemon, proxy, dice))
            if self._broker is not None:
                dice = random.Random(self._dice.random())
                group.create_task(self._torment.broker(self._broker, dice))

    async def _rest(self, daemons: list[Daemon], post: Post, chats: Chats) -> Records:
        """Let everything be answered without further harm; return the records once all have ended."""
        ended, harms = self._torment.ended, self._torment.harms
        for daemon in daemons:
            await daemon.begin()
        for daemon in daemons:
            await daemon.ready()
            if not daemon.alive:
                ended.append(f"{daemon.life} did not start")
        try:
            await asyncio.wait_for(chats.accepted(), REST_S)
        except TimeoutError:
            ended.append("messages were not accepted at last")
        scene = Scene(
            self._workspace,
            post,
            self._platform,
            self._model,
            sent=chats.sent,
            harms=harms,
            daemons=self._plan.workers or 1,
        )
        await scene.at_rest(daemons[0].url)
        for daemon in daemons:
            if code := await daemon.stop():
                ended.append(f"{daemon.life} was told to end, and did so with {code}")
        harms += [replace(harm, how=post.named(harm.how)) for daemon in daemons for harm in daemon.told]
        records = await scene.records()
        if self._broker is not None:
            ended += await left_in_broker(self._broker.url, Names(self._name, PARTITIONS))
        else:
            ended += await asyncio.to_thread(left_in_file, self._workspace)
        records.ended = ended
        stub = {"model.name": "openai/stub"}
        _, verified = await command(self._workspace, "sessions", "verify", "--json", config=stub)
        records.illegal += [str(row) for row in json.loads(verified)]
        return records


def _document(records: Records, account: Account) -> dict[str, object]:
    return {"broken": account.broken, **asdict(account), **asdict(records)}
