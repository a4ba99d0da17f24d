"""A gateway for a million chats a day, simulated from measured costs: the plan of ``docs/scale.md``.

Letters arrive as in the busiest minutes of a day. A key falls in its partition as in the product, a partition
belongs to one worker, a worker has one core and ``concurrent_turns`` slots, a key runs one turn at a time.
What a turn costs is what the benchmark ``litellm`` measured on this machine.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from bench.row import Row, quantile, read
from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of

CHATS, EACH = 1_000_000, 10
# The busiest hour of a day beside its mean.
PEAK = 3.0
PARTITIONS = 256
# Seconds that a model takes for an answer: mean, and the deviation of its logarithm.
MODEL_S, SPREAD = 4.0, 0.6
# Of all letters so many are of a few busy groups.
GROUPS, OF_GROUPS = 1_000, 0.1
# A core that is busier has no room for a burst or for a daemon that is gone.
BUSY = 0.65
SECONDS = 240
# Of a turn's CPU, what is spent before the model is asked.
BEFORE = 0.4
# Room above the mean number of turns under way.
ROOM = 1.5


@dataclass
class Plan:
    """What the arithmetic says."""

    letters_per_s: float
    cpu_s: float
    workers: int
    under_way: float

    @property
    def slots(self) -> int:
        """Turns at once that a worker must be allowed."""
        return math.ceil(self.under_way / self.workers * ROOM)

    @property
    def busy(self) -> float:
        """The part of its time that a worker's core is busy."""
        return self.letters_per_s * self.cpu_s / self.workers


def planned(cpu_s: float) -> Plan:
    """Count the workers for the peak, and the turns under way there by Little's law."""
    letters_per_s = CHATS * EACH / 86_400 * PEAK
    workers = math.ceil(letters_per_s * cpu_s / BUSY)
    return Plan(letters_per_s, cpu_s, workers, letters_per_s * (MODEL_S + cpu_s))


@dataclass
class Worker:
    """One core with its slots."""

    free_at: float = 0.0
    busy_s: float = 0.0
    running: int = 0
    most: int = 0
    ready: deque[tuple[float, str]] = field(default_factory=deque)

    def work(self, now: float, cost_s: float) -> float:
        """Do so much work when the core is free; return when it is done."""
        self.free_at = max(self.free_at, now) + cost_s
        self.busy_s += cost_s
        return self.free_at


@dataclass
class Outcome:
    """What the simulated minutes showed."""

    added_s: list[float]
    busiest: float
    most_slots: int


class Simulation:
    """Discrete events: letters arrive, turns ask and end."""

    def __init__(self, plan: Plan, *, workers: int, slots: int, seed: int = 1) -> None:
        self._plan, self._slots = plan, slots
        self._dice = random.Random(seed)
        self._workers = [Worker() for _ in range(workers)]
        self._waiting: dict[str, int] = {}
        self._events: list[tuple[float, int, str, str]] = []
        self._number = count()
        self._added: list[float] = []

    def run(self) -> Outcome:
        """Run to the end of the minutes; what is under way then is left out."""
        self._push(self._dice.expovariate(self._plan.letters_per_s), "arrives", "")
        while self._events and self._events[0][0] < SECONDS:
            now, _, what, key = heapq.heappop(self._events)
            if what == "arrives":
                self._push(now + self._dice.expovariate(self._plan.letters_per_s), "arrives", "")
                self._arrived(now, self._key())
            elif what == "answered":
                self._push(self._of(key).work(now, self._plan.cpu_s * (1 - BEFORE)), "ended", key)
            else:
                self._ended(now, key)
        return Outcome(
            self._added,
            max(worker.busy_s for worker in self._workers) / SECONDS,
            max(worker.most for worker in self._workers),
        )

    def _push(self, at: float, what: str, key: str) -> None:
        heapq.heappush(self._events, (at, next(self._number), what, key))

    def _key(self) -> str:
        busy = self._dice.random() < OF_GROUPS
        return f"group:{self._dice.randrange(GROUPS)}" if busy else f"chat:{self._dice.randrange(CHATS)}"

    def _of(self, key: str) -> Worker:
        partition = partition_of(slot_of(key), PARTITIONS)
        return self._workers[partition % len(self._workers)]

    def _arrived(self, now: float, key: str) -> None:
        self._waiting[key] = self._waiting.get(key, 0) + 1
        if self._waiting[key] == 1:
            self._ready(now, key)

    def _ready(self, now: float, key: str) -> None:
        worker = self._of(key)
        worker.ready.append((now, key))
        self._start(now, worker)

    def _start(self, now: float, worker: Worker) -> None:
        while worker.ready and worker.running < self._slots:
            since, key = worker.ready.popleft()
            worker.running += 1
            worker.most = max(worker.most, worker.running)
            asked = worker.work(now, self._plan.cpu_s * BEFORE)
            self._added.append(asked - since)
            mean = math.log(MODEL_S) - SPREAD**2 / 2
            self._push(asked + self._dice.lognormvariate(mean, SPREAD), "answered", key)

    def _ended(self, now: float, key: str) -> None:
        worker = self._of(key)
        worker.running -= 1
        self._waiting[key] -= 1
        if self._waiting[key]:
            self._ready(now, key)
        else:
            del self._waiting[key]
        self._start(now, worker)


def run() -> list[Row]:
    """Simulate the plan, the plan with the default of slots, and one that lost a fifth of its workers."""
    cpu_s = 1 / next(row.ours for row in read("litellm") if row.name == "turns through LiteLLM")
    plan = planned(cpu_s)
    whole = Simulation(plan, workers=plan.workers, slots=plan.slots).run()
    fewer = Simulation(plan, workers=max(1, plan.workers * 4 // 5), slots=plan.slots * 5 // 4).run()
    narrow = Simulation(plan, workers=plan.workers, slots=64).run()
    what = (
        f"{CHATS:,} chats, {EACH} messages each a day, {PEAK:g} times the mean: {plan.letters_per_s:.0f} "
        f"letters/s, {cpu_s * 1e3:.1f} ms of CPU each, a model of {MODEL_S:g} s: {plan.workers} workers, "
        f"concurrent_turns {plan.slots}"
    )
    return [
        _added("added before the model is asked, p99", whole, 0.5, what),
        Row(
            "the busiest worker's core",
            whole.busiest * 100,
            plan.busy * 100,
            "%",
            "the mean",
            whole.busiest / plan.busy,
            at_most=1.35,
        ),
        Row(
            "most turns at once in a worker",
            whole.most_slots,
            plan.under_way / plan.workers,
            "turns",
            "the mean",
            whole.most_slots * plan.workers / plan.under_way,
            at_most=ROOM,
        ),
        _added("… with a fifth of the workers gone", fewer, 2.0, "told only where missed"),
        Row(
            "… with concurrent_turns 64",
            quantile(narrow.added_s, 0.99),
            0.5,
            "s",
            "limit",
            quantile(narrow.added_s, 0.99) / 0.5,
            notes={"what": "told only: what breaks first when nothing but workers is added"},
        ),
    ]


def _added(name: str, outcome: Outcome, limit_s: float, what: str) -> Row:
    p99_s = quantile(outcome.added_s, 0.99)
    return Row(name, p99_s, limit_s, "s", "limit", p99_s / limit_s, at_most=1, notes={"what": what})
