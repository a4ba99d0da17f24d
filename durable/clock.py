"""Time, chance and ids, reached through this module alone, so that a simulation can replace them.

Timers of the event loop need no function here: a simulation brings a loop of its own.
"""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from ulid import LaxMonotonicPolicy, ULIDGenerator

T = TypeVar("T")


class World:
    """The real clock and the system's randomness; a simulation overrides every method."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970, UTC; the clock may jump."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back, in the resolution of the system's best one."""
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Hold up this thread."""
        time.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        """Return bytes that nobody can guess."""
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two, for spreading work; it need not be hard to guess."""
        return random.uniform(low, high)


_world = World()


def use_world(world: World) -> None:
    """Take time, chance and ids from ``world`` from now on."""
    global _world  # noqa: PLW0603 - there is one world for the whole process
    _world = world


def now() -> datetime:
    """Return the time, aware, in UTC."""
    return datetime.fromtimestamp(_world.wall_ns() / 1e9, UTC)


def wall_s() -> float:
    """Return seconds since 1970; the clock may jump."""
    return _world.wall_ns() / 1e9


def wall_ns() -> int:
    """Return nanoseconds since 1970; the clock may jump."""
    return _world.wall_ns()


def monotonic() -> float:
    """Return seconds of a clock that never goes back."""
    return _world.monotonic()


def pause(seconds: float) -> None:
    """Hold up this thread."""
    _world.pause(seconds)


def uniform(low: float = 0.0, high: float = 1.0) -> float:
    """Return a number between the two, to spread what would happen at once."""
    return _world.uniform(low, high)


def token_hex(count: int) -> str:
    """Return so many random bytes as lower-case hexadecimal digits."""
    return _world.random_bytes(count).hex()


def token_urlsafe(count: int) -> str:
    """Return so many random bytes as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(_world.random_bytes(count)).rstrip(b"=").decode()


def random_below(bound: int) -> int:
    """Return a number from 0 up to and without ``bound`` that nobody can guess."""
    return int.from_bytes(_world.random_bytes(16), "big") % bound


def choose(options: Sequence[T]) -> T:
    """Return one of the options, each as likely as the others, so that nobody can guess it."""
    return options[random_below(len(options))]


_ids = ULIDGenerator(
    clock=lambda: _world.wall_ns() // 1_000_000,
    randomness=lambda _: _world.random_bytes(10),
    policy=LaxMonotonicPolicy(),
)


def new_id(at: datetime | None = None) -> str:
    """Return a new ULID, of ``at`` (aware) or of now; those of one millisecond sort as they were made."""
    return str(_ids.generate(at))
