"""Counts wrong tokens, by address and in all, and says who has to wait before another is looked at."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable

import structlog

import durable
from durable import BoundedDict

log = structlog.get_logger("http")

WINDOW_S = 60.0
MAX_OF_ADDRESS = 10
MAX_IN_ALL = 100
MAX_ADDRESSES = 10_000


class Guesses:
    """The wrong tokens of the last minute.

    An address with ten of them waits until the first is a minute old; once there are a hundred in all, one
    with any waits. An address without a wrong token never does, so that its right one is always taken.

    Args:
        clock: seconds, which only grow.
    """

    def __init__(self, clock: Callable[[], float] = durable.monotonic) -> None:
        self._clock = clock
        # The address that guessed longest ago is first.
        self._of: BoundedDict[str, deque[tuple[float, bytes]]] = BoundedDict(MAX_ADDRESSES)
        self._in_all: deque[float] = deque()

    def __len__(self) -> int:
        """Count the addresses that are remembered."""
        return len(self._of)

    def wait_s(self, address: str) -> float:
        """Say for how many seconds no token of this address is looked at; 0: it is."""
        now = self._clock()
        wrong = self._wrong(_network(address), now)
        if len(wrong) >= MAX_OF_ADDRESS:
            return wrong[0][0] + WINDOW_S - now
        if wrong and len(self._in_all) >= MAX_IN_ALL:
            return wrong[-1][0] + WINDOW_S - now
        return 0.0

    def note(self, address: str, *, once: bytes = b"") -> None:
        """Count a wrong token; one with the mark ``once`` counts a single time from its address."""
        now = self._clock()
        address = _network(address)
        wrong = self._wrong(address, now)
        if once and any(mark == once for _, mark in wrong):
            return
        wrong.append((now, once))
        self._in_all.append(now)
        self._of[address] = wrong
        if len(wrong) == MAX_OF_ADDRESS or len(self._in_all) == MAX_IN_ALL:
            log.warning("tokens.guessed", address=address, wrong=len(wrong), in_all=len(self._in_all))

    def _wrong(self, address: str, now: float) -> deque[tuple[float, bytes]]:
        """Return the wrong tokens of an address, after all that are too old were forgotten."""
        while self._in_all and self._in_all[0] <= now - WINDOW_S:
            self._in_all.popleft()
        wrong = self._of.get(address, deque())
        while wrong and wrong[0][0] <= now - WINDOW_S:
            wrong.popleft()
        if not wrong:
            self._of.pop(address, None)
        return wrong


def _network(address: str) -> str:
    """Return what counts as one address: of IPv6 the /64, all of which belong to one client."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, 64), strict=False))
