"""Which daemons live, by the beats that were heard, and where this one stands in each line. Pure.

With a single active consumer the broker gives a queue to whoever stands first in its line. So only two stand
there: its owner, and behind it the heir, to whom it goes at once when the owner dies. Whoever else has it,
since it came first, serves it until the owner has entered the line, and then makes way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.queue.rabbitmq.beat import Beat
from gateway.queue.rabbitmq.shares import heirs, owners

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
