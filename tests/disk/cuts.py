"""Cuts the power of a gateway's disk again and again while people write: ``python -m tests.disk.cuts``.

Each life of the gateway works on a disk that forgets, until the sync at which it is cut; then the daemon is
killed and the next one finds what was left. Now and then a daemon is killed alone, so that the next one
starts on what was written and not synced, and a cut comes in the middle of a start; or the disk refuses some
calls on the way. At the end everything may come to rest, and is looked at message by message.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.chats import message_of
from tests.chaos.checker import check
from tests.chaos.records import CHATS, Account, Harm, Message
from tests.chaos.rest import REST_S, Scene
from tests.chaos.stub_model import StubModel
from tests.disk.feed import People
from tests.disk.mount import Mount, why_not
from tests.support import harness, prepared
from tests.support.harness import Daemon, command

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
# The exit code of a run that shows nothing, for it or for anybody.
NOTHING_DONE = 2
LIFE_S = 30.0


class Cuts:
    def __init__(self, folder: Path, *, cuts: int, every: int, seed: int) -> None:
        self.folder = folder
        self.cuts = 0
        self.harms: list[Harm] = []
        self.sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
        self._wanted, self._every = cuts, every
        self._dice = random.Random(seed)
        self._mount = Mount(folder / "disk", folder / "saved")
        self.workspace = folder / "disk" / "workspace"
        self._numbers, self._lives = itertools.count(1), itertools.count(1)
        self._config: dict[str, Any] = {
            "model.name": "openai/stub",
            "memory.window": 12,
            "limits.attempts": 1000,
            "limits.background_calls_per_hour": 100_000,
            "limits.background_calls_per_day": 100_000,
        }

    async def run(self) -> Account:
        self._over = asyncio.Event()
        async with StubModel() as self._model, People() as self._people, asyncio.TaskGroup() as group:
            writers = [group.create_task(self._write(chat), name=chat) for chat in CHATS]
            for number in range(self._wanted):
                await self._life(number)
            return await self._rest(asyncio.gather(*writers))

    async def _write(self, chat: str) -> None:
        """Write one message after the other, accepted each, until the cuts are done."""
        while not self._over.is_set():
            kind = self._dice.choices(list(KINDS), list(KINDS.values()))[0]
            message = message_of(chat, kind, next(self._numbers), "x" * self._dice.randint(0, 1500))
            self.sent[chat].append(message)
            await self._people.put(message)
            await asyncio.sleep(self._dice.uniform(0, 0.2))

    def _daemon(self) -> tuple[str, Daemon]:
        life = f"life{next(self._lives)}"
        told = {"model.api_base": self._model.address(life)} | self._people.config(life)
        daemon = Daemon(self.workspace, config=self._config | told)
        self._people.listen_to(daemon)
        return life, daemon

    async def _life(self, number: int) -> None:
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
        began = time.monotonic()
        await self._mount.mount(*words)
        cut = asyncio.create_task(self._mount.cut(), name="cut")
        try:
            while not cut.done() and time.monotonic() - began < LIFE_S:
                # A daemon that is killed leaves on the disk what it wrote and did not sync.
                kill_after = self._dice.uniform(0.3, 3) if self._dice.random() < 0.3 else LIFE_S
                await self._until_cut(cut, kill_after, refuses=refuses)
        finally:
            place = await cut if cut.done() else ""
            if not place:
                cut.cancel()
                # Until it is over it reads what the end of the mount says.
                await asyncio.wait({cut})
        if place:
            self.cuts += 1
            await self._mount.remove()
        else:
            await self._mount.unmount()
        what = " ".join(map(str, words))
        print(f"  life {number + 1}: {what}: {place or 'not cut'}", flush=True)

    def _refusal(self, at: int) -> str:
        kind = self._dice.choice(REFUSALS)
        # There are more writes than syncs.
        last = 4 * at if kind.startswith("write") else at
        return kind.format(self._dice.randint(1, last), self._dice.choice((1, 1, 3, 20)))

    async def _until_cut(self, cut: asyncio.Task[str], kill_after_s: float, *, refuses: bool) -> None:
        life, daemon = self._daemon()
        began = time.time()
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
        self.harms += [Harm("refusing disk", life, began, time.time())] if refuses else []
        self.harms.append(Harm("kill", life, time.time(), time.time()))
        self._keep(daemon)
        await daemon.__aexit__()

    async def _rest(self, written: asyncio.Future[Any]) -> Account:
        await self._mount.mount()
        self._over.set()
        scene = Scene(
            self.workspace, self._people, self._people.platform, self._model, sent=self.sent, harms=self.harms
        )
        try:
            _, last = self._daemon()
            async with last as daemon:
                await asyncio.wait_for(written, REST_S)
                await scene.at_rest(daemon.url)
                code = await daemon.stop()
                self._keep(daemon)
            records = await scene.records()
            records.ended += [f"the last daemon ended with {code}"] if code else []
            records.ended += crashed((self.folder / "daemon.log").read_text())
            _, verified = await command(self.workspace, "sessions", "verify", "--json", config=self._config)
            found = json.loads(verified or "[]")
            records.illegal += map(str, found)
            account = check(records)
            if account.broken:
                shutil.copytree(self.workspace, self.folder / "workspace", dirs_exist_ok=True)
            return account
        finally:
            await self._mount.unmount()

    def _keep(self, daemon: Daemon) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            log.write(bytes(daemon.log) + b"-- dead\n")


def crashed(log: str) -> list[str]:
    """Find the turns that took a refusal of the disk for an error of their own, in what a gateway logged."""
    lines = [line for line in log.splitlines() if '"event":"turn.crashed"' in line]
    return [f"a turn crashed: {json.loads(line)['exception'][-300:]}" for line in lines]


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
    harms = Counter(harm.kind for harm in run.harms)
    print(f"  {account.messages} messages, {run.cuts} cuts, {harms['kill']} deaths")
    print(f"  {harms['refusing disk']} lives with refusals")
    print(f"  model calls {account.calls} of {account.least_calls} needed")
    print(f"  {time.monotonic() - began:.0f} s, {len(account.broken)} broken, seed {given.seed}")
    if account.broken:
        print("\n".join([*account.broken, f"workspace and logs stay in {folder}"]))
        return 1
    shutil.rmtree(folder)
    return 0 if run.cuts else NOTHING_DONE


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
