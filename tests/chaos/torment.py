"""Does to the daemons and the broker what the dice say, and writes down what was done when."""

from __future__ import annotations

import asyncio
import random
import signal
import time

from tests.chaos.blows import torment
from tests.chaos.daemon import Daemon
from tests.chaos.dice import BrokerHarm, Life, draw
from tests.chaos.kills import Done, Kills
from tests.chaos.records import Harm
from tests.support.broker import Broker
from tests.support.proxy import LINES, Proxy, break_line

_ALARM_S = 2.0
# A point is passed at an instant that nobody sees; its death is seen within this.
_SEEN_WITHIN_S = 0.5


class Torment:
    """One batch's harms; ``deaths`` counts them by place, ``ended`` names processes that nobody killed."""

    def __init__(self, kills: Kills) -> None:
        self.done = Done()
        self.harms, self.deaths, self.ended = self.done.harms, self.done.deaths, self.done.ended
        self._kills = kills

    async def crew(self, gateway: Daemon, proxy: Proxy, dice: random.Random) -> None:
        """Let a gateway and its workers live and die until no kill is left."""
        await torment(gateway, proxy, dice, self._kills, self.done)

    async def daemon(self, victim: Daemon, proxy: Proxy | None, dice: random.Random, *, others: bool) -> None:
        """Let one daemon live and die until no kill is left."""
        while self._kills.take():
            life = draw(dice, rabbit=proxy is not None, others=others, part=victim.part)
            await victim.start(life.point)
            await self._live(victim, proxy, life)
            await self._kills.add()

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
                victim.send(signal.SIGKILL)
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

    async def broker(self, broker: Broker, plan: list[BrokerHarm]) -> None:
        """Harm the broker whenever so many kills are done."""
        for each in plan:
            await self._kills.reach(each.after_kills)
            harm = Harm(each.kind, "", time.time(), float("inf"))
            self.harms.append(harm)
            if each.kind == "broker killed":
                await asyncio.to_thread(broker.restart)
                self.deaths["broker"] += 1
            else:
                await asyncio.to_thread(broker.alarm, True)
                await asyncio.sleep(_ALARM_S)
                await asyncio.to_thread(broker.alarm, False)
            harm.ended = time.time()


def _switch(victim: Daemon, life: Life, *, on: bool) -> None:
    if life.fault == "freeze":
        victim.send(signal.SIGSTOP if on else signal.SIGCONT)
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
