"""Which daemon takes which partition: evenly, and with few moves when one comes or goes. Pure.

Whoever knows the same daemons comes to the same answer, so that nobody has to decide for the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache


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
    each, left_over = divmod(partitions, len(daemons))
    pairs = [(partition, daemon) for partition in range(partitions) for daemon in daemons]
    given: dict[int, str] = {}
    load = dict.fromkeys(daemons, 0)
    for partition, daemon in sorted(pairs, key=_rank):
        if partition in given or load[daemon] > each or (load[daemon] == each and not left_over):
            continue
        left_over -= load[daemon] == each
        load[daemon] += 1
        given[partition] = daemon
    return tuple(given[partition] for partition in range(partitions))


@lru_cache(maxsize=64)
def _heirs(partitions: int, daemons: tuple[str, ...]) -> tuple[str, ...]:
    if len(daemons) < 2:
        return ("",) * partitions
    without = {
        daemon: _owners(partitions, tuple(each for each in daemons if each != daemon)) for daemon in daemons
    }
    return tuple(without[daemon][partition] for partition, daemon in enumerate(_owners(partitions, daemons)))


def _rank(pair: tuple[int, str]) -> bytes:
    partition, daemon = pair
    return hashlib.blake2b(f"{partition}/{daemon}".encode(), digest_size=8).digest()
