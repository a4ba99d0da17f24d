"""What a daemon that takes inbound letters says of itself each second: where it stands. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat of a daemon.

    Args:
        daemon: its name among the daemons of this gateway, for as long as it takes letters.
        partitions: into how many it cuts the slots.
        number: of the beat, from 1.
        lines: the queues that it consumes, by partition, each with the number of this opening.
        behind: those of them where it stands behind their owner.
        alone: those that it owns and opens anew: their heirs leave, so that the letters come back to it.
        asks: it wants to hear the beats of the others now.
        gone: it is its last one.
        place: host and process id, for people.
    """

    daemon: str
    partitions: int
    number: int
    lines: Mapping[int, int] = field(default_factory=dict)
    behind: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    asks: bool = False
    gone: bool = False
    place: str = ""

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(
            {
                "v": VERSION,
                "daemon": self.daemon,
                "partitions": self.partitions,
                "number": self.number,
                "lines": {str(partition): opening for partition, opening in self.lines.items()},
                "behind": sorted(self.behind),
                "alone": sorted(self.alone),
                "asks": self.asks,
                "gone": self.gone,
                "place": self.place,
            }
        ).encode()


def read_beat(body: bytes) -> Beat | None:
    """Read a beat; None where it is none that this version knows."""
    try:
        said: Any = json.loads(body)
        if said["v"] != VERSION:
            return None
        daemon = str(said["daemon"])
        # By the digest of its name it gets its share: half of a character has none.
        daemon.encode()
        return Beat(
            daemon=daemon,
            partitions=int(said["partitions"]),
            number=int(said["number"]),
            lines={int(partition): int(opening) for partition, opening in said["lines"].items()},
            behind=frozenset(int(each) for each in said["behind"]),
            alone=frozenset(int(each) for each in said["alone"]),
            asks=bool(said["asks"]),
            gone=bool(said["gone"]),
            place=str(said["place"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
