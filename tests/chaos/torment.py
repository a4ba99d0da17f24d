"""Does to the daemons and the broker what the dice say, and writes down what was done when."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from tests.chaos.daemon import Daemon
from tests.chaos.dice import Blow, Life, draw, draw_blow, draw_for_broker
from tests.chaos.records import Harm
from tests.support.broker import Broker
from tests.support.proxy import LINES, Proxy, break_line

_ALARM_S = 2.0
# A point is passed at an instant that nobody sees; its death is seen within this.
_SEEN_WITHIN_S = 0.5
# By then the gateway has seen that one stands still, even on a busy machine, and has ended it.
_REPLACED_WITHIN_S = 60.0


class Torment:
    """One batch's harms; ``deaths`` counts them by place, ``ended`` names what went on where it should not.

    Args:
        kills: how many there shall be, of all processes together.
        killed: called after each.
    """

    def __init__(self, kills: int, killed: Callable[[], None]) -> None:
        self.harms: list[Harm] = []
        self.deaths: Counter[str] = Counter()
        self.ended: list[str] = []
        self.count = 0
        self._wanted = self._left = kills
        self._killed = killed
        self._changed = asyncio.Condition()

    def _take(self) -> bool:
        self._left -= 1
        return self._left >= 0

    async def _add(self) -> None:
        self.count += 1
        self._killed()
        async with self._changed:
            self._changed.notify_all()

    async def daemon(self, victim: Daemon, proxy: Proxy | None, dice: random.Random) -> None:
        """Let one daemon live and die until no kill is left."""
        while self._take():
            life = draw(dice, rabbit=proxy is not None, part=victim.part)
            await victim.begin(life.point)
            await self._live(victim, proxy, life)
            await self._add()

    async def _live(self, victim: Daemon, proxy: Proxy | None, life: Life) -> None:
        if not life.unready:
            await victim.ready()
            await victim.receives()
        fault = asyncio.create_task(self._fault(victim, proxy, life), name=f"fault of {victim.life}")
        dying = asyncio.ensure_future(victim.died())
        try:
            await asyncio.wait((dying,), timeout=life.lasts_s)
            how, sent = life.point.partition(":")[0], time.time() - _SEEN_WITHIN_S
            if not dying.done():
                how, sent = "at an instant", time.time()
                victim.signal(signal.SIGKILL)
            code = await dying
        finally:
            fault.cancel()
            await asyncio.wait((fault,))
        self.harms.append(Harm("kill", victim.life, sent, time.time(), how))
        if code != -signal.SIGKILL:
            how = "by itself"
            if life.fault not in ("full disk", "failing disk"):
                self.ended.append(f"{victim.life} ended by itself with {code}")
        self.deaths["while it starts" if life.unready else how] += 1

    async def _fault(self, victim: Daemon, proxy: Proxy | None, life: Life) -> None:
        if not life.fault:
            return
        await asyncio.sleep(life.fault_at_s)
        harm = Harm(life.fault, victim.life, time.time(), time.time(), f"{life.amount:.2f} s")
        self.harms.append(harm)
        try:
            _switch(victim, life, on=True)
            if proxy is not None:
                break_line(proxy, life.fault)
            await asyncio.sleep(life.fault_s)
            # A clock that has jumped stays where it is.
            if life.fault != "clock":
                _switch(victim, life, on=False)
        finally:
            if proxy is not None and life.fault in LINES:
                await proxy.resume()
            harm.ended = time.time()

    async def broker(self, broker: Broker, dice: random.Random) -> None:
        for kind, after_kills in draw_for_broker(dice, self._wanted):
            async with self._changed:
                await self._changed.wait_for(lambda after=after_kills: self.count >= after)
            harm = Harm(kind, "", time.time(), float("inf"))
            self.harms.append(harm)
            if kind == "broker killed":
                await asyncio.to_thread(broker.restart)
                self.deaths["broker"] += 1
            else:
                await asyncio.to_thread(broker.alarm, True)
                await asyncio.sleep(_ALARM_S)
                await asyncio.to_thread(broker.alarm, False)
            harm.ended = time.time()

    async def crew(self, daemon: Daemon, proxy: Proxy, dice: random.Random) -> None:
        """Harm a gateway and its workers, one at a time, until no kill is left."""
        while self._take():
            blow = draw_blow(dice)
            await daemon.begin()
            await daemon.ready()
            await asyncio.sleep(blow.after_s)
            if blow.how == "cut":
                now = time.time()
                self.harms += [Harm("cut", name, now, now) for name in (daemon.life, *daemon.crew.names())]
                break_line(proxy, "cut")
                await asyncio.sleep(blow.fault_s)
            pids = daemon.crew.living()
            if not daemon.alive:
                self.ended.append(f"{daemon.life} ended by itself with {await daemon.died()}")
            elif blow.of == "gateway" or not pids:
                await self._end_gateway(daemon, blow)
            else:
                await self._end_worker(daemon, pids[blow.which % len(pids)], blow)
            await self._add()

    async def _end_gateway(self, daemon: Daemon, blow: Blow) -> None:
        if blow.how == "freeze":
            began = time.time()
            daemon.signal(signal.SIGSTOP)
            await asyncio.sleep(blow.fault_s)
            self.harms.append(Harm("freeze", daemon.life, began, time.time()))
        sent = time.time()
        await daemon.kill()
        self.harms.append(Harm("kill", daemon.life, sent, time.time(), "the gateway"))
        self.deaths["the gateway"] += 1

    async def _end_worker(self, daemon: Daemon, pid: int, blow: Blow) -> None:
        name, how = daemon.crew.name(pid), "a worker"
        if blow.how in ("freeze", "stuck"):
            harm = Harm("freeze", name, time.time(), float("inf"))
            _send(pid, signal.SIGSTOP)
            self.harms.append(harm)
            # Its gateway waits two minutes for the first word of one that starts.
            if blow.how == "freeze" or not daemon.crew.has_started(pid):
                await asyncio.sleep(blow.fault_s)
            elif await _gone(pid, _REPLACED_WITHIN_S):
                how = "a worker that stood still, by its gateway"
            else:
                self.ended.append(f"{name} stood still, and its gateway did not end it")
            harm.ended = time.time()
        sent = time.time()
        _send(pid, signal.SIGKILL)
        await _gone(pid, _REPLACED_WITHIN_S)
        self.harms.append(Harm("kill", name, sent, time.time(), how))
        self.deaths[how] += 1


def _switch(victim: Daemon, life: Life, *, on: bool) -> None:
    if life.fault == "freeze":
        victim.signal(signal.SIGSTOP if on else signal.SIGCONT)
    elif life.fault == "platform cut" and victim.platform is not None and on:
        victim.platform.cut(victim.life)
    elif life.fault == "full disk":
        victim.fill_disk(on)
    elif life.fault == "clock":
        victim.switches.set(clock_s=life.amount)
    elif life.fault == "slow disk":
        victim.switches.set(sync_s=life.amount if on else 0.0)
    elif life.fault == "failing disk":
        victim.switches.set(fails=on)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _gone(pid: int, within_s: float) -> bool:
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
