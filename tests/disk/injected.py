"""Has system calls of a gateway fail, or kill it, without a mount: ``python -m tests.disk.injected``.

``strace -e inject`` answers a call of a chosen kind with EIO or ENOSPC, or kills the process as it makes it,
while people write to it over HTTP and a platform. Then a gateway starts without it, and what people were
promised is looked at.

It shows what the gateway makes of a disk that refuses, and of a death at a sync. It is no power cut: what was
written before a death stays in the kernel's hands and is read again, synced or not, so that a sync which is
missing is not noticed here. strace counts for each thread by itself: of calls that several threads make,
the nth of each is hit. It knows files by their whole names alone, so that of writes, new files and names
those are hit which ``_places`` can name beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from session.transcript.key import key_from_stem, mark_of
from tests.chaos.chats import message_of
from tests.chaos.checker import check
from tests.chaos.records import Account, Harm, Message
from tests.chaos.rest import REST_S, Scene
from tests.disk.cuts import NOTHING_DONE, crashed
from tests.disk.feed import People
from tests.support import harness, prepared
from tests.support.harness import Daemon

SYNCS = "fsync,fdatasync"
# Which calls, what comes of them, and up to which of a thread's calls it begins. All syncs are of the
# workspace; of the others most are not.
FAULTS = (
    (SYNCS, "error=EIO", 30),
    (SYNCS, "signal=SIGKILL", 30),
    ("write,pwrite64", "error=ENOSPC", 40),
    ("openat", "error=ENOSPC", 40),
    ("rename,linkat", "error=ENOSPC", 2),
)
KINDS = ("plain", "plain", "new", "plain", "resume", "plain")
CHATS = ("ann", "bob", "eve")
UP_S, LIFE_S = 240.0, 60.0


@cache
def why_not() -> str:
    """Say why nothing can be injected here; empty: it can be."""
    if shutil.which("strace") is None:
        return "strace is missing: deploy/system-packages.sh strace"
    words = ["strace", "-qq", "-f", "--seccomp-bpf", "-e", f"trace={SYNCS}"]
    words += ["-e", f"inject={SYNCS}:error=EIO", "true"]
    tried = subprocess.run(words, capture_output=True, check=False)
    told = tried.stderr.decode().strip().splitlines()
    return f"strace may not trace here: {told[-1] if told else tried.returncode}" if tried.returncode else ""


@dataclass(frozen=True)
class Fault:
    """Calls of these kinds, from the nth of a thread on so many: what comes of them."""

    calls: str
    what: str
    nth: int
    count: int = 1

    def __str__(self) -> str:
        return f"{self.what} at {self.calls} {self.nth}..{self.nth + self.count - 1}"

    def words(self, workspace: Path, people: People, log: Path) -> list[str]:
        """Say it to strace, which notes in ``log`` what it did."""
        when = f"{self.nth}..{self.nth + self.count - 1}"
        # As a grandchild: the gateway is the child of whoever starts it, and dies by its signals.
        words = ["strace", "-D", "-f", "-qq", "--seccomp-bpf", "-o", str(log), "-e", f"trace={self.calls}"]
        words += ["-e", f"inject={self.calls}:{self.what}:when={when}"]
        places = [] if self.calls == SYNCS else _places(workspace, [people.stem(chat) for chat in CHATS])
        return words + [word for place in places for word in ("-P", str(place))]


def _places(workspace: Path, stems: Sequence[str]) -> list[Path]:
    """Name the files and folders that the run comes to."""
    state, sessions = workspace / "state", workspace / "sessions"
    found = [
        state,
        sessions,
        *(state / f"gateway.db{more}" for more in ("", "-wal", "-journal")),
    ]
    found += [state / f"channels.db{more}" for more in ("", "-wal", "-journal")]
    for stem in stems:
        archive = sessions / "archive" / stem
        found += [sessions / f"{stem}.jsonl", archive, archive / ".ending.0.tmp"]
        found += [state / "keys" / f"{stem}.lock", sessions / f".{mark_of(key_from_stem(stem))}.0.tmp"]
    return found


@dataclass
class Round:
    """What came of one fault: ``hits`` calls were answered by strace, or killed."""

    account: Account
    hits: int


async def broken_by(fault: Fault, folder: Path) -> Round:
    """Let people write to a gateway that meets a fault, start it anew without, and look."""
    workspace, log = folder / "workspace", folder / "strace"
    numbers = itertools.count(1)
    sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
    for kind in KINDS:
        for chat in CHATS:
            sent[chat].append(message_of(chat, kind, next(numbers)))
    config = {"model.name": "echo", "limits.attempts": 1000}
    began = time.time()
    async with People() as people:
        words = fault.words(workspace, people, log)
        first = Daemon(workspace, config=config | people.config("first"), prefix=words)
        people.listen_to(first)
        await first.start(wait=False)
        writing = asyncio.gather(*(people.said(*messages) for messages in sent.values()))
        died = asyncio.create_task(first.died(600), name="died")
        # On a busy machine it takes long until it is there to be written to.
        up = asyncio.create_task(first.said("daemon.started", within_s=UP_S), name="up")
        await asyncio.wait({died, up}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        answered = asyncio.create_task(_answered(people, len(KINDS) * len(CHATS)), name="answered")
        await asyncio.wait({died, answered}, timeout=LIFE_S, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        first.signal(9)
        await died
        await first.__aexit__()
        harm = Harm("refusing disk", "first", began, time.time())
        second = Daemon(workspace, config=config | people.config("second"))
        people.listen_to(second)
        scene = Scene(workspace, people, people.platform, None, sent=sent, harms=[harm])
        async with second:
            await asyncio.wait_for(writing, REST_S)
            records = await scene.at_rest(second.url)
            if await second.stop() != 0:
                records.ended.append(f"the last daemon ended badly: {second.log.decode()[-500:]}")
    records.ended += crashed(first.log.decode(errors="replace"))
    told = log.read_text(errors="replace")
    hits = told.count("(INJECTED)") + ("killed by SIGKILL" in told and "signal" in fault.what)
    return Round(check(records), hits)


async def _answered(people: People, count: int) -> None:
    while len({reply.message for reply in people.replies if reply.kind == "reply"}) < count:
        await asyncio.sleep(0.1)


async def main() -> int:
    """Inject as the command line asks; 1 where a guarantee broke, 2 where no fault was met."""
    parser = argparse.ArgumentParser(prog="injected")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    if why := why_not():
        print(f"injected faults: not run: {why}")
        return NOTHING_DONE
    harness.FORKS = True
    dice, broken, hit = random.Random(given.seed), 0, 0
    print(f"calls that strace has fail: {given.rounds} rounds, seed {given.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        stack.callback(prepared.end_servers)
        for number in range(given.rounds):
            calls, what, last = FAULTS[number % len(FAULTS)]
            count = dice.choice((1, 1, 3, 30)) if "error" in what else 1
            fault = Fault(calls, what, dice.randint(1, last), count)
            folder = Path(tempfile.mkdtemp(prefix="chat-gateway-injected-"))
            found = await broken_by(fault, folder)
            told = found.account.broken or f"{found.account.messages} messages, nothing broken"
            print(f"  {number + 1}: {fault}, hit {found.hits} times: {told}", flush=True)
            broken, hit = broken + bool(found.account.broken), hit + bool(found.hits)
            if found.account.broken:
                print(f"  its workspace stays in {folder}", flush=True)
            else:
                shutil.rmtree(folder)
    print(f"  {hit} of {given.rounds} rounds met their fault, {broken} broken, seed {given.seed}")
    return 1 if broken else 0 if hit else NOTHING_DONE


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
