"""The embedded mailbox under kill -9: no put that returned is lost, no settle is half done."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import StateInUse
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND
from tests.contracts.posts import BOB, WEB, collect, ids, post
from tests.gateway.embedded_place import opened
from tests.support import forked


def start_victim(state: Path, run: int, *named: str) -> forked.Process:
    command = [sys.executable, "-m", "tests.gateway.embedded_victim", str(state), str(run), *named]
    return forked.start(command, stdout=subprocess.PIPE, text=True)


class Account:
    """What the victims said was done, against what the file holds."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.settled: set[str] = set()

    def note(self, line: str) -> None:
        verb, _, id_ = line.strip().partition(" ")
        {"put": self.put, "settled": self.settled}[verb].add(id_)

    async def check(self, state: Path) -> None:
        """Every put is there, as a letter or as its reply and never both; settled is settled; order holds."""
        async with opened(state) as mailbox, mailbox.take(INBOUND) as inbound, mailbox.take(WEB) as replies:
            depths = await mailbox.depths()
            waiting = await collect(inbound, depths[INBOUND].count)
            answered = await collect(replies, depths[WEB].count if WEB in depths else 0)
        letters = ids(waiting)
        done = [id_.removesuffix("#reply") for id_ in ids(answered)]
        assert not set(letters) & set(done)
        assert self.put <= set(letters) | set(done)
        assert self.settled <= set(done)
        assert all(letter.suspect for letter in waiting)
        for line in (letters, done):
            assert len(line) == len(set(line))
            by_key: dict[str, list[tuple[int, int]]] = {}
            for id_ in line:
                key, run, number = id_.split("|")
                by_key.setdefault(key, []).append((int(run), int(number)))
            assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_kill_at_any_instant(tmp_path: Path) -> None:
    """Killed twelve times while puts and settles run, it loses no put and halves no settle."""
    account, chance = Account(), random.Random(7)
    for run in range(12):
        victim = start_victim(tmp_path, run)
        assert victim.stdout is not None
        for _ in range(chance.randrange(1, 400)):
            account.note(victim.stdout.readline())
        victim.send_signal(signal.SIGKILL)
        for line in victim.stdout:
            if line.endswith("\n"):
                account.note(line)
        victim.wait()
        await account.check(tmp_path)
    assert len(account.settled) > 100


@pytest.mark.parametrize("step", ["begun", "written", "committed"])
async def test_kill_at_each_step_of_a_commit(tmp_path: Path, step: str) -> None:
    """Killed at the named step of its 1st, 2nd and 20th commit, it loses no put and halves no settle."""
    account = Account()
    for run, count in enumerate((1, 2, 20)):
        victim = start_victim(tmp_path, run, step, str(count))
        assert victim.stdout is not None
        for line in victim.stdout:
            account.note(line)
        assert victim.wait() == -signal.SIGKILL
        await account.check(tmp_path)


async def test_lock_frees_at_once_after_a_kill(tmp_path: Path) -> None:
    """While another process holds the folder its pid is named; the moment it is killed the folder is free."""
    victim = start_victim(tmp_path, 0)
    assert victim.stdout is not None
    victim.stdout.readline()

    with pytest.raises(StateInUse, match=f"pid {victim.pid}"):
        await EmbeddedMailbox(tmp_path).serve()

    victim.kill()
    victim.stdout.close()
    victim.wait()
    async with opened(tmp_path) as mailbox:
        await mailbox.put(post(BOB, 1))


async def test_without_its_lock_file_the_queue_still_has_one_writer(tmp_path: Path) -> None:
    """Who removes the lock file by hand still cannot start a second writer."""
    victim = start_victim(tmp_path, 0)
    assert victim.stdout is not None
    victim.stdout.readline()
    (tmp_path / "lock").unlink()

    with pytest.raises(StateInUse):
        await EmbeddedMailbox(tmp_path).serve()

    victim.kill()
    victim.stdout.close()
    victim.wait()
