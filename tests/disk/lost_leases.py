"""A writer on machine a loses its lock at some step, b takes over, the writer goes on: what then holds."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from session.errors import Fenced
from session.store.store import Store
from session.transcript.transcript import parse
from tests.disk.mount import ROOT, why_not
from tests.session.nursery import DONE, FENCED, KEY, OPS, lines
from tests.session.store.test_fence import NEVER, Nursery, furnish

STEM = "telegram_1"
_DETACH = 2
# The clearing owns the key anew: it may come behind the other machine's.
_CLEARS = ("clear", "everything")


class Machines:
    """Mounts of one disk, each a machine's: ``machines["a"]`` is where it is mounted."""

    def __init__(self, folder: Path, names: str) -> None:
        self._folders = {name: folder / name for name in names}
        words = [sys.executable, "-m", "tests.disk.network", *map(str, self._folders.values())]
        self._process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._answer() != "mounted":
            raise AssertionError("the network's disk was not mounted")

    def __getitem__(self, name: str) -> Path:
        return self._folders[name]

    def say(self, line: str) -> str:
        """Tell the network something, as ``tests.disk.network`` has it; return what it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def look(self, name: str, folder: str) -> dict[str, bytes]:
        """Read all files below a folder as the server has them, those aside that are being written."""
        self.say(f"expire {name}")
        top = self[name] / folder
        paths = [path for path in top.rglob("*") if not any(".tmp" in part for part in path.parts)]
        return {str(path.relative_to(top)): path.read_bytes() for path in paths if path.is_file()}

    def close(self) -> None:
        """Take the mounts away; nobody may have a file of them open."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        finally:
            self._process.kill()
            for folder in self._folders.values():
                ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)


class Broken(AssertionError):
    """A promise did not hold."""


def store_of_b(workspace: Path) -> Store:
    return Store(workspace, zone=UTC, owner="b:1:x", clock=lambda: datetime(2026, 3, 1, 13, tzinfo=UTC))


async def lost_at(machines: Machines, nursery: Nursery, folder: str, op: str, at: int) -> str:
    """Let the writer of ``op`` lose its lock before step ``at``; return how it ended.

    Raises:
        Broken: somebody's promise does not hold.
    """
    furnish(machines["a"] / folder, op)
    if not nursery.run(op, machines["a"] / folder, at=at)["stopped"]:
        return "over"
    machines.say("lose a")
    store = store_of_b(machines["b"] / folder)
    try:
        async with store.open(KEY) as session:
            await session.append(lines("parent"))
            await session.journal.conclude("noted", "command", text="noted by parent")
            before = machines.look("c", folder)
            woken = nursery.wake()["status"]
            after = machines.look("c", folder)
            if woken not in (DONE, FENCED):
                raise Broken(f"it ended with {woken}")
            reclaimed = woken == DONE and before[_LOCK] != after[_LOCK]
            _check_unchanged(op, before, after, anew=reclaimed)
            try:
                await session.append(lines("later"))
            except Fenced:
                if not reclaimed:
                    raise Broken("the new owner was fenced off by an old one") from None
                return "behind the other"
        files = machines.look("c", folder)
        check_lines(files)
        said = ids(files)
        if not {"parent", "later"} <= set(said):
            raise Broken(f"what was promised is lost: {said}")
        if woken == DONE and op in ("append", "create", "repair", "torn") and "child" not in said:
            raise Broken("what the old owner was promised is lost")
        if op not in ("create", *_CLEARS) and "old" not in said:
            raise Broken(f"what stood before is lost: {said}")
        async with store.open(KEY) as session:
            wanted = ["noted"] + ["child"] * (woken == DONE and op in ("journal", "rewrite"))
            if any(session.journal.known(id_) is None for id_ in wanted):
                raise Broken("the journal lost an entry")
        return "done before" if woken == DONE else "fenced"
    finally:
        await store.aclose()


_LOCK = f"state/keys/{STEM}.lock"


def _check_unchanged(op: str, before: Mapping[str, bytes], after: Mapping[str, bytes], *, anew: bool) -> None:
    if anew and op in _CLEARS:
        return
    for name in {*before, *after}:
        if name != _LOCK and before.get(name) != after.get(name):
            raise Broken(f"the old owner changed {name}: {before.get(name)!r} {after.get(name)!r}")


def check_lines(files: Mapping[str, bytes], found: Mapping[str, bytes] | None = None) -> None:
    """Read transcripts and journals as strictly as any reader may; as they were ``found`` they may be torn.

    Raises:
        Broken: a line stands within another, or twice.
    """
    sessions: dict[str, list[tuple[object, object]]] = {}
    # What an ending left by half is a copy of the active session, which the next one takes away.
    for name, data in sorted(files.items(), reverse=True):
        if not name.endswith((".jsonl", ".log")):
            continue
        if not data.endswith(b"\n"):
            if data != (found or {}).get(name):
                raise Broken(f"{name} ends within a line")
            # Nobody wrote to it, or the first write had cut its tail.
            data = data[: data.rfind(b"\n") + 1]
        try:
            whole = [json.loads(raw) for raw in data.splitlines()][1:]
        except ValueError as error:
            raise Broken(f"{name} has a line that nobody can read: {error}") from error
        if name.endswith(".jsonl"):
            said = [(line["message_id"], line["role"]) for line in whole if line.get("message_id")]
            sessions.setdefault(parse(data, stem=STEM).session_id, said)
    counts = Counter(each for said in sessions.values() for each in said)
    if twice := [each for each, count in counts.items() if count > 1]:
        raise Broken(f"{twice} stand twice: {sorted(files)}")


def ids(files: Mapping[str, bytes]) -> list[str]:
    """Return the ids of all turns that stand there whole."""
    found = [
        json.loads(raw)
        for name, data in files.items()
        if name.endswith(".jsonl")
        for raw in data.splitlines(keepends=True)
        if raw.endswith(b"\n")
    ]
    return [line["message_id"] for line in found if line.get("role") == "user"]


async def every_step(
    machines: Machines, nursery: Nursery, op: str, *, every: int = 1, first: int = 0
) -> Counter[str]:
    """Lose the lock before each step of ``op`` in turn; return how it ended, and how often."""
    ends: Counter[str] = Counter()
    for at in range(first, NEVER, every):
        try:
            end = await lost_at(machines, nursery, f"{op}-{at}", op, at)
        except Broken as error:
            raise Broken(f"{op}, lost before step {at}: {error}") from error
        if end == "over":
            break
        ends[end] += 1
    return ends


async def interleaved(
    machines: Machines, nurseries: Mapping[str, Nursery], folder: str, dice: random.Random
) -> str:
    """Let writers on machines a and d be stopped anywhere, without their locks, b among them; wake them.

    Returns:
        What was done.

    Raises:
        Broken: somebody's promise does not hold.
    """
    ops = [dice.choice([op for op in OPS if op not in _CLEARS]) for _ in nurseries]
    furnish(machines["a"] / folder, ops[0])
    found = machines.look("c", folder)
    told, stopped, promised = [folder], [], ["old"] * (ops[0] != "create")
    for (name, nursery), op in zip(nurseries.items(), ops, strict=True):
        at, who = dice.randint(0, 45), f"of-{name}"
        known = dice.random() < 0.5
        if known:
            # It knows the names of what it will meet, as they are now.
            machines.look(name, folder)
        run = nursery.run(op, machines[name] / folder, at=at, owner=f"{name}:1:{folder}", who=who)
        told.append(f"{name} {op} {at}{' knowing' if known else ''}")
        machines.say(f"lose {name}")
        if run["stopped"]:
            stopped.append((nursery, op, who))
        elif run["status"] == DONE and OPS[op] is OPS["append"]:
            promised.append(who)
    dice.shuffle(stopped)
    try:
        promised += await _among(machines, folder, stopped, dice)
        files = machines.look("c", folder)
        check_lines(files, found)
    except Broken as error:
        raise Broken(f"{told}: {error}") from error
    if lost := [id_ for id_ in promised if id_ not in ids(files)]:
        raise Broken(f"{told}: {lost} were promised and are lost")
    return " | ".join(told)


async def _among(
    machines: Machines, folder: str, stopped: Sequence[tuple[Nursery, str, str]], dice: random.Random
) -> list[str]:
    """Write on machine b while the others wake; return what turns were promised."""
    promised: list[str] = []
    store = store_of_b(machines["b"] / folder)
    try:
        for number in range(len(stopped) + 1):
            if dice.random() < 0.7:
                # Another one took over, and b does not know that yet: nothing is promised.
                with contextlib.suppress(Fenced):
                    async with store.open(KEY) as session:
                        await session.append(lines(f"of-b-{number}"))
                        promised.append(f"of-b-{number}")
            before = machines.look("c", folder)
            if number == len(stopped):
                continue
            nursery, op, who = stopped[number]
            woken = nursery.wake()["status"]
            after = machines.look("c", folder)
            if woken not in (DONE, FENCED):
                raise Broken(f"{who} ended with {woken}")
            # Nobody took over from it: it goes on, as it may.
            ours = before.get(_LOCK, b"").find(f'"{who[3:]}:1:'.encode()) >= 0
            if not ours and before.get(_LOCK) == after.get(_LOCK):
                _check_unchanged(op, before, after, anew=False)
            if woken == DONE and OPS[op] is OPS["append"]:
                promised.append(who)
    finally:
        await store.aclose()
    return promised


async def main() -> int:
    """Lose the lock before each step of everything, then at random; 1 where a promise broke, 2: not run."""
    parser = argparse.ArgumentParser(prog="lost_leases")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", type=int, help="the round that is played, and no other")
    given = parser.parse_args()
    if why := why_not():
        print(f"leases of a network's disk: not run: {why}")
        return 2
    print(f"leases: {given.rounds} rounds, seed {given.seed}", flush=True)
    broken: list[str] = []
    nurseries = {"a": Nursery(), "d": Nursery()}
    with tempfile.TemporaryDirectory(prefix="chat-gateway-leases-") as folder:
        machines = Machines(Path(folder), "abcd")
        try:
            for op in OPS if given.only is None else ():
                try:
                    print(f"  {op}: {dict(await every_step(machines, nurseries['a'], op))}", flush=True)
                except Broken as error:
                    broken.append(str(error))
            for number in range(given.rounds) if given.only is None else [given.only]:
                try:
                    dice = random.Random(f"{given.seed} {number}")
                    told = await interleaved(machines, nurseries, f"round-{number}", dice)
                    print(f"  {told}", flush=True)
                except Broken as error:
                    print(f"  BROKEN {error}", flush=True)
                    broken.append(str(error))
        finally:
            for nursery in nurseries.values():
                nursery.close()
            machines.close()
    print("\n".join([f"{len(broken)} broken, seed {given.seed}", *broken]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
