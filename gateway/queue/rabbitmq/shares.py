"""Which daemon takes which partition: evenly, and with few moves when one comes or goes. Pure.

Whoever knows the same daemons comes to the same answer, so that nobody has to decide for the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache

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
