"""One batch: a workspace of its own, so many kills while people write, then rest, and a look at all."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.chaos.chats import Chats
from tests.chaos.checker import check
from tests.chaos.daemon import Daemon, command
from tests.chaos.dice import Part, draw_for_broker
from tests.chaos.feed import Feed, OverHttp, OverRabbit, parked
from tests.chaos.foreign import Steady
from tests.chaos.kills import Kills
from tests.chaos.over_telegram import OverTelegram
from tests.chaos.post import Post
from tests.chaos.queues import Place, left_behind, removed
from tests.chaos.records import CHATS, Account, Parked, Records, rows
from tests.chaos.stub_model import StubModel
from tests.chaos.stub_telegram import TOKEN, StubTelegram
from tests.chaos.torment import Torment
from tests.chaos.transcripts import read_chat, read_memory
from tests.support.broker import Broker
from tests.support.forks import ForkServer
from tests.support.proxy import Proxy

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
worker_timeout_s = 3  # one that stands still is to be seen within a batch
[log]
format = "json"
[broker]
url = {url}
name = {name}
partitions = 4
"""
_PLATFORM = f"""\
[channels.telegram]
enabled = true
token = "{TOKEN}"
direct = "open"
stream = false  # a draft is no piece
poll_timeout_s = 5
"""
# They write over the platform, where there is one.
_OVER_THE_PLATFORM = CHATS[-2:]
# Kills are counted apart; of the others the gateway itself speaks.
_NO_FAULTS = ("kill", "fenced", "delayed", "moved")


@dataclass(frozen=True, slots=True)
class Team:
    """Who runs: daemons side by side, adapters or none, and the workers of the one daemon."""

    daemons: int
    platform: bool
    workers: int

    def adapters(self, *, apart: bool) -> int:
        """Return how many processes run adapters alone, where roles are apart."""
        return min(self.daemons, 2) if self.platform and apart and not self.workers else 0


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
        team: who runs; more than one daemon need a broker.
        place: where the queues lie; None: in each daemon's own, the embedded one.
        broker: the node at that place where it may be killed, too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        kills: int,
        team: Team,
        forks: ForkServer,
        model: StubModel,
        place: Place | None,
        broker: Broker | None,
    ) -> None:
        self._folder, self._workspace = folder, folder / "workspace"
        self._seed, self._team = seed, team
        self._platform = StubTelegram() if team.platform else None
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
        text += _PLATFORM if self._platform is not None else ""
        (self._folder / "chat-gateway.toml").write_text(text)
        async with AsyncExitStack() as stack:
            if self._platform is not None:
                await stack.enter_async_context(self._platform)
            victims = [await self._victim(name, part, stack) for name, part in self._parts()]
            post = await self._post(victims[0][0], stack)
            long = _OVER_THE_PLATFORM if self._platform is not None else ()
            chats = self._chats = Chats(post, random.Random(self._dice.random()), long=long)
            chats.plan(_FIRST_MESSAGES)
            async with chats.writing():
                await self._harmed(victims)
                records = await self._rest([daemon for daemon, _ in victims], post, chats)
        records.ended += await left_behind(self._place, self._workspace / "state")
        if self._place is not None:
            await removed(self._place)
        account = check(records)
        (self._folder / "records.json").write_text(json.dumps(_document(records, account), default=str))
        faults = Counter(harm.kind for harm in records.harms if harm.kind not in _NO_FAULTS)
        return Result(
            self._seed, self._kills.count, account, self._torment.deaths, faults, time.monotonic() - began
        )

    def _killed(self) -> None:
        if self._chats is not None:
            self._chats.plan(self._dice.randint(*_MESSAGES_A_KILL))

    def _parts(self) -> list[tuple[str, Part]]:
        """Name the processes, and say what runs in each; the first serves HTTP."""
        both: Part = (
            "all" if self._platform is not None and (self._team.workers or not self._place) else "session"
        )
        found: list[tuple[str, Part]] = [(f"d{number}", both) for number in range(self._team.daemons)]
        adapters = self._team.adapters(apart=self._place is not None)
        return [*found, *((f"a{number}", "channels") for number in range(adapters))]

    async def _victim(self, name: str, part: Part, stack: AsyncExitStack) -> tuple[Daemon, Proxy | None]:
        proxy = (
            await stack.enter_async_context(Proxy(self._place.port, host=self._place.host))
            if self._place
            else None
        )
        url = self._place.by_way_of(proxy.port) if self._place is not None and proxy is not None else ""
        daemon = Daemon(
            name,
            forks=self._forks,
            folder=self._folder,
            model=self._model,
            broker_url=url,
            part=part,
            platform=None if part == "session" else self._platform,
            workers=self._team.workers,
        )
        stack.push_async_callback(daemon.close)
        self._model.who = daemon.crew.of_port if self._team.workers else lambda life, port: life
        return daemon, proxy

    async def _post(self, first: Daemon, stack: AsyncExitStack) -> Post:
        elsewhere = _OVER_THE_PLATFORM if self._platform is not None else ()
        plain = [chat for chat in CHATS if chat not in elsewhere]
        feeds: dict[str, Feed] = {}
        if self._platform is not None:
            feeds |= dict.fromkeys(elsewhere, OverTelegram(self._platform))
        if self._place is None:
            over = OverHttp(first)
            await stack.enter_async_context(over.listening(plain))
            return Post(feeds | dict.fromkeys(plain, over), frozenset(elsewhere))
        steady = await stack.enter_async_context(Steady(self._place.url, name=self._place.name))
        return Post(feeds | dict.fromkeys(plain, OverRabbit(steady)), frozenset(CHATS))

    async def _harmed(self, victims: list[tuple[Daemon, Proxy | None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for daemon, proxy in victims:
                others = sum(other.part == daemon.part for other, _ in victims) > 1
                dice = random.Random(self._dice.random())
                if self._team.workers and proxy is not None:
                    group.create_task(self._torment.crew(daemon, proxy, dice), name="torment the crew")
                    continue
                group.create_task(
                    self._torment.daemon(daemon, proxy, dice, others=others), name=f"torment {daemon.name}"
                )
            if self._broker is not None:
                plan = draw_for_broker(random.Random(self._dice.random()), self._kills.left)
                group.create_task(self._torment.broker(self._broker, plan), name="torment the broker")

    async def _rest(self, daemons: list[Daemon], post: Post, chats: Chats) -> Records:
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
            letters = await parked(daemons[0].url, post.named, REST_S)
            records = await self._records(post, chats, letters)
            missing = awaited(check(records), records)
            if not missing or time.monotonic() > until:
                break
            for message in [one for one in records.messages if one.id in missing]:
                await post.remind(message)
            await asyncio.sleep(0.5)
        for daemon in daemons:
            if code := await daemon.stop():
                self._torment.ended.append(f"{daemon.life} was told to end, and did so with {code}")
        records = await self._records(post, chats, letters)
        for daemon in daemons:
            again = [replace(harm, how=post.named(harm.how)) for harm in daemon.begun_again]
            records.harms += [*again, *daemon.moved, *daemon.ended_workers]
        records.calls = self._model.taken()
        _, verified = await command(self._forks, self._folder, "sessions", "verify", "--json")
        records.illegal += [str(row) for row in json.loads(verified)]
        return records

    async def _records(self, post: Post, chats: Chats, letters: list[Parked]) -> Records:
        """Write down what there is by now."""
        records = Records(
            sent=chats.sent,
            replies=list(post.replies),
            ordered=post.ordered,
            daemons=self._team.workers or self._team.daemons,
        )
        records.harms, records.ended = list(self._torment.harms), self._torment.ended
        for chat in CHATS:
            records.lines[chat] = await asyncio.to_thread(
                read_chat, self._workspace, post.stem(chat), post.named, records.illegal
            )
        records.published = {one: times for one, times in post.published.items() if times > 1}
        if self._platform is not None:
            records.updates = list(self._platform.updates.values())
            records.sent_pieces = list(self._platform.sent)
        records.calls, records.asides = list(self._model.calls), list(self._model.asides)
        records.notes = read_memory(self._workspace)
        records.parked = [letter for letter in letters if letter.inbound]
        records.unsent = [letter for letter in letters if not letter.inbound]
        return records


def awaited(account: Account, records: Records) -> set[str]:
    """Return the messages that are not yet told as they are stored, or parked."""
    loss, _, effect, *_, poison = account.guarantees
    # Of a reply in several pieces the last ones may still wait for the platform's rate.
    named = {re.split("[ :]", one, maxsplit=1)[0] for one in [*loss.broken, *effect.broken, *poison.broken]}
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
        "parked": rows([*records.parked, *records.unsent]),
        "updates": rows(records.updates),
        "pieces": rows(records.sent_pieces),
    }


@asynccontextmanager
async def template() -> AsyncIterator[ForkServer]:
    """What victims are forked from, until the block ends."""
    forks = ForkServer("tests.chaos.victim", apart=True)
    try:
        yield forks
    finally:
        await asyncio.to_thread(forks.close)
