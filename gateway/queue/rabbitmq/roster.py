"""Which daemons live, by the beats that were heard, and where this one stands in each line. Pure.

With a single active consumer the broker gives a queue to whoever stands first in its line. So only two stand
there: its owner, and behind it the heir, to whom it goes at once when the owner dies. Whoever else has it,
since it came first, serves it until the owner has entered the line, and then makes way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gateway.queue.rabbitmq.beat import Beat

# A daemon that was not heard for so many beats of the listener's own is gone.
GONE_BEATS = 3
# A partition moves when the same daemons were heard for so many beats: of ten that start at once each would
# otherwise be handed what is the next one's a moment later.
SETTLED_BEATS = 3
# An owner may be so many beats late to enter the line before its heir serves the queue.
LATE_BEATS = 3
Step = Literal["enter", "leave", "stay"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where this daemon stands in the line of a partition: which opening of which owner it is behind."""

    behind: tuple[str, int] | None = None


class Roster:
    """The daemons of one gateway as one of them, ``me``, hears them.

    Time is counted in beats of its own that came back: while it hears nothing it takes nobody for dead.
    """

    def __init__(self, me: str, partitions: int) -> None:
        self.me, self.partitions = me, partitions
        self.beats: dict[str, Beat] = {}
        self.ticks = 0
        self._changed_at = 0
        self._heard_at: dict[str, int] = {}
        self._empty_since: dict[int, int] = {}
        # Each beat has all partitions looked through: what they share is worked out when that changes.
        self._owners: Sequence[str] | None = None
        self._heirs: Sequence[str] | None = None

    @property
    def daemons(self) -> Collection[str]:
        """Those among whom the partitions are shared out, this one always."""
        same = {name for name, beat in self.beats.items() if beat.partitions == self.partitions}
        return same | {self.me}

    def hear(self, beat: Beat, *, ticks: bool = False) -> bool:
        """Take in a beat; return whether another set of daemons lives now.

        ``ticks``: it is one of this daemon's own, and the time of a beat has passed since the last that did.
        """
        before = set(self.beats)
        if ticks:
            self._tick()
        if beat.gone:
            self._forget(beat.daemon)
        else:
            known = self.beats.get(beat.daemon)
            if known is None or known.partitions != beat.partitions:
                self._owners = self._heirs = None
            self.beats[beat.daemon] = beat
            self._heard_at[beat.daemon] = self.ticks
        changed = before != set(self.beats)
        if changed:
            self._changed_at = self.ticks
        return changed

    def owner(self, partition: int) -> str:
        """Name the daemon that is to have a partition."""
        if self._owners is None:
            self._owners = owners(self.partitions, self.daemons)
        return self._owners[partition]

    def heir(self, partition: int) -> str:
        """Name the daemon that has it next; empty where there is one daemon alone."""
        if self._heirs is None:
            self._heirs = heirs(self.partitions, self.daemons)
        return self._heirs[partition]

    def behind_owner(self, partition: int) -> tuple[str, int] | None:
        """Return owner and opening behind which one stands that enters now; None: it is not in the line."""
        owner = self.owner(partition)
        opening = self._lines(owner).get(partition)
        return (owner, opening) if opening is not None else None

    def step(self, partition: int, standing: Standing | None) -> Step:
        """Say what to do about a partition, in whose line this daemon has ``standing`` (None: none)."""
        if self.owner(partition) == self.me:
            return "enter" if standing is None else "stay"
        ahead = self.behind_owner(partition)
        welcome = self.heir(partition) == self.me and not self._wants_alone(partition)
        if standing is None:
            return "enter" if welcome and (ahead is not None or self._is_deserted(partition)) else "stay"
        # Until its owner is in the line, whoever has it serves it.
        if ahead is None:
            return "stay"
        return "stay" if welcome and standing.behind == ahead else "leave"

    def in_front(self, partition: int) -> Sequence[str]:
        """Name the others that may stand before the owner in the line."""
        return [
            name
            for name, beat in self.beats.items()
            if name not in (self.me, self.owner(partition))
            and partition in beat.lines
            and partition not in beat.behind
        ]

    def in_line(self, partition: int) -> int:
        """Count the others that are known to stand in the line."""
        return sum(partition in beat.lines for name, beat in self.beats.items() if name != self.me)

    @property
    def settled(self) -> bool:
        """Whether the daemons have been the same for long enough that partitions may move."""
        return self.ticks - self._changed_at >= SETTLED_BEATS

    def has(self, partition: int) -> bool:
        """Say whether this daemon owns it, is in its line, and nobody else may work on its letters."""
        owns = self.owner(partition) == self.me and partition in self._lines(self.me)
        return owns and not self.in_front(partition)

    def _lines(self, daemon: str) -> Mapping[int, int]:
        beat = self.beats.get(daemon)
        return beat.lines if beat is not None else {}

    def _wants_alone(self, partition: int) -> bool:
        owner = self.beats.get(self.owner(partition))
        return owner is not None and partition in owner.alone

    def _is_deserted(self, partition: int) -> bool:
        return self.ticks - self._empty_since.get(partition, self.ticks) >= LATE_BEATS

    def _note_empty(self) -> None:
        taken = {partition for beat in self.beats.values() for partition in beat.lines}
        for partition in range(self.partitions):
            if partition in taken:
                self._empty_since.pop(partition, None)
            else:
                self._empty_since.setdefault(partition, self.ticks)

    def _tick(self) -> None:
        self.ticks += 1
        for name in [name for name, at in self._heard_at.items() if self.ticks - at >= GONE_BEATS]:
            self._forget(name)
        self._note_empty()

    def _forget(self, daemon: str) -> None:
        if daemon != self.me:
            self._owners = self._heirs = None
            self.beats.pop(daemon, None)
            self._heard_at.pop(daemon, None)


# The digest by which it is ranked, a partition and a daemon.
_Pair = tuple[bytes, int, str]


def owners(partitions: int, daemons: Collection[str]) -> Sequence[str]:
    """Return the daemon of each partition; none has two more than another.

    Pairs of partition and daemon are ranked by a digest of both, and taken from the best on while the daemon
    has room: of those that a change does not concern most stay where they are.

    Raises:
        ValueError: there is no daemon.
    """
    return _owners(partitions, tuple(sorted(daemons)))


def heirs(partitions: int, daemons: Collection[str]) -> Sequence[str]:
    """Return for each partition whose it becomes when its daemon dies; empty where that is the only one."""
    return _heirs(partitions, tuple(sorted(daemons)))


@lru_cache(maxsize=256)
def _owners(partitions: int, daemons: tuple[str, ...]) -> tuple[str, ...]:
    if not daemons:
        raise ValueError("no daemon to share the partitions out to")
    return _given_out(partitions, _ranked(partitions, daemons), daemons)


@lru_cache(maxsize=64)
def _heirs(partitions: int, daemons: tuple[str, ...]) -> tuple[str, ...]:
    if len(daemons) < 2:
        return ("",) * partitions
    # Ranked once: with dozens of daemons each would stand still for seconds whenever one comes or goes.
    ranked = _ranked(partitions, daemons)
    without = {
        daemon: _given_out(partitions, ranked, [each for each in daemons if each != daemon])
        for daemon in daemons
    }
    return tuple(without[daemon][partition] for partition, daemon in enumerate(_owners(partitions, daemons)))


def _given_out(partitions: int, ranked: Sequence[_Pair], daemons: Sequence[str]) -> tuple[str, ...]:
    """Give each partition to the best of these daemons that has room; pairs of others are passed over."""
    each, left_over = divmod(partitions, len(daemons))
    room = dict.fromkeys(daemons, each)
    given: dict[int, str] = {}
    for _, partition, daemon in ranked:
        if partition in given or (left := room.get(daemon)) is None:
            continue
        if left > 0:
            room[daemon] = left - 1
        elif left == 0 and left_over:
            left_over -= 1
            room[daemon] = -1
        else:
            continue
        given[partition] = daemon
        if len(given) == partitions:
            break
    return tuple(given[partition] for partition in range(partitions))


def _ranked(partitions: int, daemons: Sequence[str]) -> Sequence[_Pair]:
    return sorted(pair for daemon in daemons for pair in _ranks(partitions, daemon))


@lru_cache(maxsize=128)
def _ranks(partitions: int, daemon: str) -> Sequence[_Pair]:
    return [
        (hashlib.blake2b(f"{partition}/{daemon}".encode(), digest_size=8).digest(), partition, daemon)
        for partition in range(partitions)
    ]
