"""Draws from a seed what happens to the daemons, their workers and the broker, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Part = Literal["session", "channels", "all"]
# Each with the highest number of the passage at which one dies there.
_POINTS = {
    "append": 3,
    "commit": 6,
    "rename": 4,
    "ask": 3,
    "tool": 2,
    "settle": 3,
    "journal": 2,
    "checkpoint": 2,
    "history": 1,
    "notes": 1,
    "state_file": 3,
}
_RABBIT_POINTS = {"publish": 6, "ack": 5}
_ADAPTER_POINTS = {"poll": 4, "accept": 3, "trying": 3, "send": 3, "sent": 3}
# Of what a process that runs adapters alone goes through.
_OF_ADAPTERS = ("commit", "rename", "settle", "publish", "ack")
# In a hundred lives, beside their end.
_FAULTS = {"freeze": 7, "clock": 8, "slow disk": 6, "full disk": 4, "failing disk": 4}
_RABBIT_FAULTS = {"cut": 10, "deaf": 2, "mute": 2, "silence": 2, "delay": 3, "throttle": 3}
_ADAPTER_FAULTS = {"platform cut": 8}
_SHORTEST_S, _LONGEST_S = 0.002, 1.2
_LONGEST_TO_A_POINT_S = 0.8
# A platform takes three messages of a chat in three seconds, and a lease is looked for once a second.
_ADAPTER_TIMES = 6.0
_CLOCK_S = 3600.0


@dataclass(frozen=True, slots=True)
class Life:
    """What one life is drawn to be.

    ``point``: where it kills itself; empty: only at ``lasts_s`` behind its start (``unready``) or behind its
    being ready, which ends it in any case. ``fault``: what else happens, ``fault_at_s`` later, for
    ``fault_s``; ``amount``: by how many seconds a clock jumps or a sync is slower.
    """

    point: str
    lasts_s: float
    unready: bool
    fault: str
    fault_at_s: float
    fault_s: float
    amount: float


def draw(dice: random.Random, *, rabbit: bool, part: Part = "session") -> Life:
    """Draw a life of a process that runs conversations, adapters, or both."""
    points = _points(rabbit=rabbit, part=part)
    faults = _FAULTS | (_RABBIT_FAULTS if rabbit else {}) | ({} if part == "session" else _ADAPTER_FAULTS)
    times = _ADAPTER_TIMES if part == "channels" else 1.0
    name = dice.choice(list(points))
    point = f"{name}.{dice.choice(('before', 'after'))}:{dice.randint(1, points[name])}"
    at_point, unready = dice.random() < 0.55, dice.random() < 0.15
    lasts_s = times * _SHORTEST_S * (_LONGEST_S / _SHORTEST_S) ** dice.random()
    fault = dice.choices([*faults, ""], [*faults.values(), 100 - sum(faults.values())])[0]
    at_s, fault_s = dice.uniform(0, 0.3), dice.uniform(0.05, 1.0)
    clock_s, sync_s = dice.uniform(-_CLOCK_S, _CLOCK_S), dice.uniform(0.01, 0.2)
    if fault:
        lasts_s += at_s
    lasts_s = times * _LONGEST_TO_A_POINT_S if at_point else lasts_s
    return Life(
        point if at_point else "",
        lasts_s,
        unready and not at_point and not fault,
        fault,
        at_s,
        fault_s,
        clock_s if fault == "clock" else sync_s,
    )


def _points(*, rabbit: bool, part: Part) -> dict[str, int]:
    points = _POINTS | (_RABBIT_POINTS if rabbit else {})
    if part == "session":
        return points
    kept = points if part == "all" else {name: most for name, most in points.items() if name in _OF_ADAPTERS}
    return kept | _ADAPTER_POINTS


def draw_for_broker(dice: random.Random, kills: int) -> list[tuple[str, int]]:
    """Draw when the broker is killed, or says that its memory is full: after which of so many kills."""
    found, at = [], 0
    while (at := at + dice.randint(30, 90)) < kills:
        found.append(("broker killed" if dice.random() < 0.7 else "memory alarm", at))
    return found


@dataclass(frozen=True, slots=True)
class Blow:
    """What is done next to a gateway with workers, ``after_s``: to itself, or to one of them.

    ``freeze``: it stands still for ``fault_s`` before it is killed; ``stuck``: until its gateway ends it, as
    ``freeze`` for one that has not begun to work.
    ``cut``: all lose their connections to the broker, and live.
    """

    of: Literal["gateway", "worker"]
    how: str
    which: int
    after_s: float
    fault_s: float


def draw_blow(dice: random.Random) -> Blow:
    """Draw what is done next; the dice are asked for the same whatever it is."""
    of: Literal["gateway", "worker"] = "gateway" if dice.random() < 0.3 else "worker"
    how = dice.choices(("kill", "freeze", "stuck", "cut"), (70, 14, 6, 10))[0]
    how = "freeze" if of == "gateway" and how == "stuck" else how
    # A worker that was just handed its chats has something to lose.
    return Blow(of, how, dice.randrange(2**16), dice.uniform(0.02, 5.0), dice.uniform(0.05, 1.0))
