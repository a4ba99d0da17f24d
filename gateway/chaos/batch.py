"""One batch: a workspace of its own, so many kills while people write, then rest, and a look at all."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gateway.chaos.broker import Broker
from gateway.chaos.chats import Chats
from gateway.chaos.checker import check
from gateway.chaos.daemon import Daemon, command
from gateway.chaos.dice import draw_for_broker
from gateway.chaos.feed import Feed, OverHttp, OverRabbit
from gateway.chaos.foreign import Steady
from gateway.chaos.forks import ForkServer
from gateway.chaos.proxy import Proxy
from gateway.chaos.queues import Place, letters_left, removed
from gateway.chaos.records import CHATS, Account, Parked, Records, rows
from gateway.chaos.stub_model import StubModel
from gateway.chaos.torment import Kills, Torment
from gateway.chaos.transcripts import read_chat, read_memory

REST_S = 180.0
_FIRST_MESSAGES = 12
_MESSAGES_A_KILL = (0, 4)
_CONFIG = """\
workspace = {workspace}
[model]
name = "openai/stub"
[memory]
window = 12
[limits]
attempts = 100000  # the many deaths are not the letters' fault
background_calls_per_hour = 1000000
background_calls_per_day = 10000000
[log]
format = "json"
[broker]
url = {url}
name = {name}
partitions = 4
"""


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
        daemons: how many run side by side; more than one need a broker.
        place: where the queues lie; None: in each daemon's own, the embedded one.
        broker: the node at that place where it may be killed, too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        kills: int,
        daemons: int,
        forks: ForkServer,
        model: StubModel,
        place: Place | None,
        broker: Broker | None,
    ) -> None:
        self._folder, self._workspace = folder, folder / "workspace"
        self._seed, self._count = seed, daemons
        self._forks, self._model = forks, model
        self._place, self._broker = place, broker
        self._dice = random.Random(seed)
        self._kills = Kills(kills, self._killed)
        self._torment = Torment(self._kills)
        self._chats: Chats | None = None

    async def run(self) -> Result:
        """Do it; return what came of it."""
        began = time.monotonic()
        self._folder.mkdir(parents=True)
        url, name = (self._place.url, self._place.name) if self._place else ("", "chat")
        words = {"workspace": str(self._workspace), "url": url or "embedded", "name": name}
        text = _CONFIG.format(**{key: json.dumps(value) for key, value in words.items()})
        (self._folder / "chat-gateway.toml").write_text(text)
        async with AsyncExitStack() as stack:
            victims = [await self._victim(number, stack) for number in range(self._count)]
            feed = await self._feed(victims[0][0], stack)
            chats = self._chats = Chats(feed, random.Random(self._dice.random()))
            chats.plan(_FIRST_MESSAGES)
            async with chats.writing():
                await self._harmed(victims)
                records = await self._rest([daemon for daemon, _ in victims], feed, chats)
        if self._place is not None:
            left = await letters_left(self._place)
            records.ended += [f"{count} letters stay in {queue}" for queue, count in left.items()]
            await removed(self._place)
        account = check(records)
        (self._folder / "records.json").write_text(json.dumps(_document(records, account), default=str))
        faults = Counter(harm.kind for harm in records.harms if harm.kind not in ("kill", "fenced"))
        return Result(
            self._seed, self._kills.count, account, self._torment.deaths, faults, time.monotonic() - began
        )

    def _killed(self) -> None:
        if self._chats is not None:
            self._chats.plan(self._dice.randint(*_MESSAGES_A_KILL))

    async def _victim(self, number: int, stack: AsyncExitStack) -> tuple[Daemon, Proxy | None]:
        proxy = (
            await stack.enter_async_context(Proxy(self._place.port, host=self._place.host))
            if self._place
            else None
        )
        url = self._place.by_way_of(proxy.port) if self._place is not None and proxy is not None else ""
        daemon = Daemon(
            f"d{number}", forks=self._forks, folder=self._folder, model=self._model, broker_url=url
        )
        stack.push_async_callback(daemon.close)
        return daemon, proxy

    async def _feed(self, first: Daemon, stack: AsyncExitStack) -> Feed:
        if self._place is None:
            over = OverHttp(first)
            await stack.enter_async_context(over.listening(CHATS))
            return over
        return OverRabbit(await stack.enter_async_context(Steady(self._place.url, name=self._place.name)))

    async def _harmed(self, victims: list[tuple[Daemon, Proxy | None]]) -> None:
        async with asyncio.TaskGroup() as group:
            others = len(victims) > 1
            for daemon, proxy in victims:
                dice = random.Random(self._dice.random())
                group.create_task(
                    self._torment.daemon(daemon, proxy, dice, others=others), name=f"torment {daemon.name}"
                )
            if self._broker is not None:
                plan = draw_for_broker(random.Random(self._dice.random()), self._kills.left)
                group.create_task(self._torment.broker(self._broker, plan), name="torment the broker")

    async def _rest(self, daemons: list[Daemon], feed: Feed, chats: Chats) -> Records:
        """Let everything be answered without further harm; return the records once nothing is missing.

        What is missing for REST_S stays missing.
        """
        for daemon in daemons:
            await daemon.start()
        for daemon in daemons:
            if not await daemon.ready():
                self._torment.ended.append(f"{daemon.life} did not start")
        until = time.monotonic() + REST_S
        with_all = asyncio.ensure_future(chats.accepted())
        await asyncio.wait((with_all,), timeout=REST_S)
        if not with_all.done():
            with_all.cancel()
            self._torment.ended.append("messages were not accepted at last")
        while True:
            records = await self._records(daemons[0], feed, chats)
            missing = _missing(check(records), records)
            if not missing or time.monotonic() > until:
                break
            for message in [one for one in records.messages if one.id in missing]:
                await feed.remind(message)
            await asyncio.sleep(0.5)
        for daemon in daemons:
            if code := await daemon.stop():
                self._torment.ended.append(f"{daemon.life} was told to end, and did so with {code}")
        records = await self._records(None, feed, chats, parked=records.parked)
        records.harms += [harm for daemon in daemons for harm in daemon.fenced]
        records.calls = self._model.taken()
        _, verified = await command(self._forks, self._folder, "sessions", "verify", "--json")
        records.illegal += [str(row) for row in json.loads(verified)]
        return records

    async def _records(
        self, daemon: Daemon | None, feed: Feed, chats: Chats, *, parked: list[Parked] | None = None
    ) -> Records:
        """Write down what there is by now."""
        records = Records(
            sent=chats.sent, replies=list(feed.replies), ordered=feed.ordered, daemons=self._count
        )
        records.harms, records.ended = list(self._torment.harms), self._torment.ended
        for chat in CHATS:
            stem = f"{feed.channel}_{chat}"
            records.lines[chat] = await asyncio.to_thread(
                read_chat, self._workspace, stem, feed.prefix, records.illegal
            )
        records.published = {one: times for one, times in feed.published.items() if times > 1}
        records.calls = list(self._model.calls)
        records.notes = read_memory(self._workspace)
        records.parked = parked if parked is not None else await self._parked(daemon, feed.prefix)
        return records

    async def _parked(self, daemon: Daemon | None, prefix: str) -> list[Parked]:
        if daemon is None:
            return []
        found: list[Parked] = []
        async with httpx.AsyncClient(timeout=60) as client:
            where = ""
            while True:
                answer = await client.get(
                    f"{daemon.url}/v1/parked", params={"cursor": where} if where else {}
                )
                page = answer.raise_for_status().json()
                found += [Parked(row["id"].removeprefix(prefix), row["reason"]) for row in page["parked"]]
                if not (where := page["next"]):
                    return found


def _missing(account: Account, records: Records) -> set[str]:
    """Return the messages that are not yet told or parked."""
    loss, *_, poison = account.guarantees
    named = {one.partition(" ")[0] for one in [*loss.broken, *poison.broken]}
    return named & {message.id for message in records.messages}


def _document(records: Records, account: Account) -> dict[str, object]:
    return {
        "broken": account.broken,
        "repeats": rows(account.repeats),
        "sent": {chat: rows(messages) for chat, messages in records.sent.items()},
        "harms": rows(records.harms),
        "calls": [{**row, "named": sorted(row["named"])} for row in rows(records.calls)],
        "replies": rows(records.replies),
        "published": records.published,
        "parked": rows(records.parked),
    }


@asynccontextmanager
async def template() -> AsyncIterator[ForkServer]:
    """What victims are forked from, until the block ends."""
    forks = ForkServer("gateway.chaos.victim", apart=True)
    try:
        yield forks
    finally:
        await asyncio.to_thread(forks.close)
