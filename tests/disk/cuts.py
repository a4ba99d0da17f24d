"""Cuts the power of a gateway's disk again and again while people write: ``python -m tests.disk.cuts``.

Each life of the gateway works on a disk that forgets, until the sync at which it is cut; then the daemon is
killed and the next one finds what was left. Now and then a daemon is killed alone, so that the next one
starts on what was written and not synced, and a cut comes in the middle of a start; or the disk refuses some
calls on the way; or the next life has its queue and ledger elsewhere, and moves them. At the end everything
may come to rest, and is looked at message by message.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.records import Message
from tests.disk.account import Account, check, crashed
from tests.disk.feed import CHATS, People
from tests.disk.mount import Mount, why_not
from tests.support import harness, prepared
from tests.support.harness import Daemon, command
from tests.support.model_replies import Seen
from tests.support.model_server import ModelServer
from tests.support.place import archives, transcript

KINDS = {"plain": 12, "read": 3, "write": 2, "compact": 1, "new": 2, "resume": 2}
# What becomes of what is not synced: names, data, torn. The first ones are the worst that may come.
FATES = ((0, 0, False), (1, 0, False), (0, 1, False), (0.5, 0.5, False), (0.5, 0.5, True), (1, 0.5, True))
# What a disk may refuse besides: which calls, and how.
REFUSALS = (
    "write:{}:{}:ENOSPC",
    "make:{}:{}:ENOSPC",
    "rename:{}:{}:EIO",
    "sync:{}:{}:EIO",
    "append:{}:{}:EIO",
)
# Where queue and ledger may lie, on the same disk; nowhere: in the workspace.
LOCAL = ("", "local", "other")
REST_S = 120.0
# The exit code of a run that shows nothing, for it or for anybody.
NOTHING_DONE = 2
LIFE_S = 30.0


@dataclass
class Harm:
    """What was done."""

    cuts: int = 0
    kills: list[float] = field(default_factory=list)
    places: Counter[str] = field(default_factory=Counter)
    syncs: int = 0
    # From when to when a disk refused calls.
    refusals: list[tuple[float, float]] = field(default_factory=list)
    moves: int = 0

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """When something came between a deed and the note of it."""
        return [*((kill, kill) for kill in self.kills), *self.refusals]


class Cuts:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, *, cuts: int, every: int, seed: int) -> None:
        self.folder = folder
        self.harm = Harm()
        self.sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
        self._cuts = cuts
        self._every = every
        self._dice = random.Random(seed)
        self._mount = Mount(folder / "disk", folder / "saved")
        self.workspace = folder / "disk" / "workspace"
        self._local = LOCAL[0]
        self._numbers = itertools.count(1)
        self._config: dict[str, Any] = {
            "model.name": "openai/stub",
            "memory.window": 12,
            "limits.attempts": 1000,
            "limits.background_calls_per_hour": 100_000,
            "limits.background_calls_per_day": 100_000,
        }

    async def run(self) -> Account:
        """Do all cuts, let it come to rest, and check."""
        async with ModelServer() as model:
            self._config["model.api_base"] = model.url
            async with People() as people, self._writing(people):
                for number in range(self._cuts):
                    await self._life(people, number)
                account = await self._rest(people, model)
        return account

    @asynccontextmanager
    async def _writing(self, people: People) -> AsyncIterator[None]:
        """Let each chat write one message after the other, accepted each, until the cuts are done."""
        self._over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            self._writers = [group.create_task(self._write(people, chat), name=chat) for chat in CHATS]
            yield

    async def _write(self, people: People, chat: str) -> None:
        while not self._over.is_set():
            kind = self._dice.choices(list(KINDS), list(KINDS.values()))[0]
            name = f"{chat}-{next(self._numbers):05d}"
            text = {
                "plain": f"{name} hello {'x' * self._dice.randint(0, 1500)}",
                "read": f'{name} [[tool:ls {{"path": "."}}]]',
                "write": f'{name} [[tool:write {{"path": "{name}.txt", "content": "x"}}]]',
                "compact": "/compact",
                "new": "/new",
                "resume": "/resume",
            }[kind]
            message = Message(name, chat, "stop" if kind == "compact" else kind, text)
            self.sent[chat].append(message)
            await people.put(message)
            await asyncio.sleep(self._dice.uniform(0, 0.2))

    def _daemon(self, people: People) -> Daemon:
        daemon = Daemon(self.workspace, config=self._config | people.config())
        people.listen_to(daemon)
        return daemon

    async def _life(self, people: People, number: int) -> None:
        """Let daemons live until the cut."""
        names, data, torn = (
            FATES[number % len(FATES)] if number < 2 * len(FATES) else self._dice.choice(FATES)
        )
        # Some cuts fall into the start itself.
        at = self._dice.randint(1, 12) if self._dice.random() < 0.3 else self._dice.randint(1, self._every)
        words: list[object] = ["--cut-at", at, "--names", names, "--data", data, "--seed", number]
        words += ["--torn"] if torn else []
        words += ["--cut-before"] if self._dice.random() < 0.5 else []
        refuses = self._dice.random() < 0.25
        words += ["--refuse", self._refusal(at)] if refuses else []
        self._move()
        began, began_at = time.monotonic(), time.time()
        await self._mount.mount(*words)
        cut = asyncio.create_task(self._mount.cut(), name="cut")
        try:
            while not cut.done() and time.monotonic() - began < LIFE_S:
                # A daemon that is killed leaves on the disk what it wrote and did not sync.
                kill_after = self._dice.uniform(0.3, 3) if self._dice.random() < 0.3 else LIFE_S
                await self._until_cut(people, cut, kill_after, refuses=refuses)
        finally:
            place = await cut if cut.done() else ""
            if not place:
                cut.cancel()
                # Until it is over it reads what the end of the mount says.
                await asyncio.wait({cut})
            self.harm.refusals += [(began_at, time.time())] if refuses else []
        if place:
            self.harm.cuts += 1
            self.harm.places[_kind_of(place)] += 1
            await self._mount.remove()
        else:
            self.harm.syncs += await self._mount.unmount()
        what = " ".join(map(str, words))
        print(f"  life {number + 1}, {self._local or 'in place'}: {what}: {place or 'not cut'}", flush=True)

    def _refusal(self, at: int) -> str:
        kind = self._dice.choice(REFUSALS)
        # There are more writes than syncs.
        last = 4 * at if kind.startswith("write") else at
        return kind.format(self._dice.randint(1, last), self._dice.choice((1, 1, 3, 20)))

    def _move(self) -> None:
        """Have the next life begin by moving queue and ledger, now and then."""
        if self._dice.random() < 0.3:
            local = self._dice.choice([one for one in LOCAL if one != self._local])
            self._local, self.harm.moves = local, self.harm.moves + 1
            self._config["state.local_dir"] = str(self.folder / "disk" / local) if local else ""

    async def _until_cut(
        self, people: People, cut: asyncio.Task[str], kill_after_s: float, *, refuses: bool
    ) -> None:
        daemon = self._daemon(people)
        await daemon.start(wait=False)
        died = asyncio.create_task(daemon.died(600), name="died")
        await asyncio.wait({cut, died}, timeout=kill_after_s, return_when=asyncio.FIRST_COMPLETED)
        # A start whose disk refuses ends by itself, and is tried again.
        if died.done() and not cut.done() and not refuses:
            print(f"the daemon ended: {daemon.log.decode()[-1500:]}", flush=True)
            raise AssertionError("a daemon ended by itself")
        daemon.signal(9)
        # It may come to the cut as it dies; whoever waits for a disk without power dies with that alone.
        await asyncio.wait({cut, died}, return_when=asyncio.FIRST_COMPLETED)
        if cut.done():
            await self._mount.remove()
        await died
        self.harm.kills.append(time.time())
        self._keep(daemon)
        await daemon.__aexit__()

    async def _rest(self, people: People, model: ModelServer) -> Account:
        await self._mount.mount()
        self._over.set()
        try:
            async with self._daemon(people) as daemon:
                await asyncio.wait_for(asyncio.gather(*self._writers), REST_S)
                until, fewest = time.monotonic() + REST_S, math.inf
                while True:
                    account = self._account(people, model, await people.unsent())
                    # A platform takes a message a second of a chat, and a quick machine has many waiting.
                    if len(account.lost) < fewest:
                        until, fewest = time.monotonic() + REST_S, len(account.lost)
                    if not account.lost or time.monotonic() > until:
                        break
                    await people.remind(self.sent, account.lost)
                    await asyncio.sleep(0.3)
                code = await daemon.stop()
                self._keep(daemon)
            if code != 0:
                account.illegal.append(f"the last daemon ended with {code}")
            _, verified = await command(self.workspace, "sessions", "verify", "--json", config=self._config)
            account.illegal += crashed((self.folder / "daemon.log").read_text())
            # Lines of usage are not synced, by design: a cut may cost some, and tear one.
            found = [row for row in json.loads(verified or "[]") if "state/usage/" not in row["file"]]
            account.illegal += map(str, found)
            if account.broken:
                shutil.copytree(self.workspace, self.folder / "workspace", dirs_exist_ok=True)
            return account
        finally:
            await self._mount.unmount()

    def _account(self, people: People, model: ModelServer, unsent: Mapping[str, str]) -> Account:
        account = check(
            self.workspace,
            sent=self.sent,
            stem=people.stem,
            named=people.named,
            replies=people.replies,
            asked=model.seen,
            kills=self.harm.kills,
            refusals=self.harm.refusals,
            unsent=unsent,
        )
        account.twice += made_anew(people.seen_at, model.seen)
        account.illegal += [one for chat in CHATS for one in mingled(self.workspace, people.stem(chat))]
        account.twice += people.repeated(self.harm.pauses)
        return account

    def _keep(self, daemon: Daemon) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            log.write(bytes(daemon.log) + b"-- dead\n")


def made_anew(seen_at: Mapping[str, float], asked: list[Seen]) -> list[str]:
    """Find the messages whose answer a client had when the model was asked for it again."""
    found = []
    for seen in asked:
        words = seen.text.split()
        if "save_memory" in seen.tools or seen.is_summary or seen.aside or not words:
            continue
        late_s = seen.at - seen_at.get(words[0], seen.at)
        if late_s > 0:
            found.append(f"{words[0]} was asked {late_s:.2f} s after its reply was seen")
    return found


def mingled(workspace: Path, stem: str) -> list[str]:
    """Find lines of one turn inside another: those of each message stand together, from its question on.

    What a cut tore is no line until the next append cuts it off; the account says where it stays.
    """
    found = []
    for path in [*archives(workspace, stem), transcript(workspace, stem)]:
        if not path.exists():
            continue
        lines = [json.loads(raw) for raw in path.read_bytes().splitlines()[1:] if b"\0" not in raw]
        ids = [(line.get("message_id"), line["role"]) for line in lines if line.get("message_id")]
        begun: list[str] = []
        for id_, role in ids:
            if role == "user":
                begun.append(id_)
            elif not begun or begun[-1] != id_:
                found.append(f"{path.name}: {role} line of {id_} in the turn of {begun[-1:]}")
    return found


def _kind_of(place: str) -> str:
    """Name the kind of file of a cut's line."""
    path = place.partition(" ")[2].partition(" ")[2]
    name = path.rpartition("/")[2]
    return f"{path.rpartition('/')[0]}/*.{name.rpartition('.')[2]}" if "." in name else path


async def main() -> int:
    """Run as the command line asks; 1 where a guarantee broke, 2 where nothing was cut."""
    parser = argparse.ArgumentParser(prog="cuts")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument(
        "--every", type=int, default=120, help="the highest sync of a life at which it is cut"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    if why := why_not():
        print(f"cuts of the disk: not run: {why}")
        return NOTHING_DONE
    harness.FORKS = True
    print(f"disk: {given.cuts} cuts, seed {given.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chat-gateway-disk-"))
    began = time.monotonic()
    run = Cuts(folder, cuts=given.cuts, every=given.every, seed=given.seed)
    try:
        account = await run.run()
    finally:
        prepared.end_servers()
    print(f"  {account.messages} messages, {run.harm.cuts} cuts, {len(run.harm.kills)} deaths")
    print(f"  {len(run.harm.refusals)} lives with refusals, {run.harm.moves} moves of queue and ledger")
    print(f"  cut at: {dict(run.harm.places)}")
    print(f"  model calls {account.model_calls} of {account.least_calls} needed")
    print(f"  {time.monotonic() - began:.0f} s, {len(account.broken)} broken, seed {given.seed}")
    if account.broken:
        print("\n".join([*account.broken, f"workspace and logs stay in {folder}"]))
        return 1
    shutil.rmtree(folder)
    return 0 if run.harm.cuts else NOTHING_DONE


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
