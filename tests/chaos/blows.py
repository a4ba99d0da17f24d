"""What is done to a gateway with workers: to itself, or to one of them, at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Literal

from tests.chaos.daemon import Daemon
from tests.chaos.kills import Done, Kills
from tests.chaos.records import Harm
from tests.support.proxy import Proxy, break_line

# By then the gateway has seen that one stands still, even on a busy machine, and has ended it.
_REPLACED_WITHIN_S = 60.0
# A worker that was just handed its chats has something to lose.
_SHORTEST_S, _LONGEST_S = 0.02, 5.0


How = Literal["kill", "freeze", "stuck", "cut"]


@dataclass(frozen=True, slots=True)
class Blow:
    """What is done next, ``after_s``: to the gateway itself, or to one of its workers, of which ``which``.

    ``freeze``: it stands still for ``fault_s`` before it is killed; ``stuck``: until its gateway ends it, as
    ``freeze`` for one that has not begun to work.
    ``cut``: all lose their connections to the broker, and live.
    """

    of: Literal["gateway", "worker"]
    how: How
    which: int
    after_s: float
    fault_s: float


def draw_blow(dice: random.Random) -> Blow:
    """Draw what is done next; the dice are asked for the same whatever it is."""
    of: Literal["gateway", "worker"] = "gateway" if dice.random() < 0.3 else "worker"
    hows: tuple[How, ...] = ("kill", "freeze", "stuck", "cut")
    how = dice.choices(hows, (70, 14, 6, 10))[0]
    which, after_s, fault_s = (
        dice.randrange(2**16),
        dice.uniform(_SHORTEST_S, _LONGEST_S),
        dice.uniform(0.05, 1.0),
    )
    return Blow(of, "freeze" if of == "gateway" and how == "stuck" else how, which, after_s, fault_s)


async def torment(daemon: Daemon, proxy: Proxy, dice: random.Random, kills: Kills, done: Done) -> None:
    """Harm a gateway and its workers, one at a time, until no kill is left."""
    while kills.take():
        blow = draw_blow(dice)
        await daemon.start()
        await daemon.ready()
        await asyncio.sleep(blow.after_s)
        if blow.how == "cut":
            now = time.time()
            done.harms += [Harm("cut", name, now, now) for name in (daemon.life, *daemon.crew.names())]
            break_line(proxy, "cut")
            await asyncio.sleep(blow.fault_s)
        pids = daemon.crew.living()
        if not daemon.alive:
            done.ended.append(f"{daemon.life} ended by itself with {await daemon.died()}")
        elif blow.of == "gateway" or not pids:
            await _end_gateway(daemon, blow, done)
        else:
            await _end_worker(daemon, pids[blow.which % len(pids)], blow, done)
        await kills.add()


async def _end_gateway(daemon: Daemon, blow: Blow, done: Done) -> None:
    if blow.how == "freeze":
        began = time.time()
        daemon.send(signal.SIGSTOP)
        await asyncio.sleep(blow.fault_s)
        done.harms.append(Harm("freeze", daemon.life, began, time.time()))
    sent = time.time()
    daemon.send(signal.SIGKILL)
    await daemon.died()
    done.harms.append(Harm("kill", daemon.life, sent, time.time(), "the gateway"))
    done.deaths["the gateway"] += 1


async def _end_worker(daemon: Daemon, pid: int, blow: Blow, done: Done) -> None:
    name, began = daemon.crew.name(pid), time.time()
    how = "a worker"
    if blow.how in ("freeze", "stuck"):
        _send(pid, signal.SIGSTOP)
        harm = Harm("freeze", name, began, float("inf"))
        done.harms.append(harm)
        # Its gateway waits two minutes for the first word of one that starts.
        if blow.how == "freeze" or not daemon.crew.has_started(pid):
            await asyncio.sleep(blow.fault_s)
        elif await _gone(pid, _REPLACED_WITHIN_S):
            how = "a worker that stood still, by its gateway"
        else:
            done.ended.append(f"{name} stood still, and its gateway did not end it")
        harm.ended = time.time()
    sent = time.time()
    _send(pid, signal.SIGKILL)
    await _gone(pid, _REPLACED_WITHIN_S)
    done.harms.append(Harm("kill", name, sent, time.time(), how))
    done.deaths[how] += 1


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _gone(pid: int, within_s: float) -> bool:
    """Wait until a process has ended; say whether it has in time."""
    try:
        ends = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(ends, ended.set)
    try:
        async with asyncio.timeout(within_s):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(ends)
        os.close(ends)
    return True
