"""Who looks on while a gateway works, to count or to trace: told of each step when it is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from channels.message import Inbound
from session.models.model import ModelCall, Usage
from session.models.spending import Meter
from session.tools import ToolRun

NOTHING = Usage()
log = structlog.get_logger("observer")


@dataclass(slots=True)
class TurnFigures:
    """What the turn of a letter took in this process, over all its tries.

    Args:
        tries: how often it was begun here.
        model_s: seconds in which a model was waited for.
        first_s: until the first piece of text, of the last request that had any.
        calls: requests to models.
        usage: tokens and dollars of the turn, of tries before a crash, too.
    """

    tries: int = 0
    model_s: float = 0.0
    first_s: float | None = None
    calls: int = 0
    usage: Usage = NOTHING

    def add(self, meter: Meter) -> None:
        """Add a try that has ended; its meter counts what earlier ones cost as well."""
        self.tries += 1
        self.model_s += meter.model_s
        self.calls += meter.calls
        self.first_s = meter.first_s if meter.first_s is not None else self.first_s
        usage = meter.usage
        if usage.prompt or usage.completion or usage.cost_usd:
            self.usage = usage


# Not frozen, since that would treble what it costs each message.
@dataclass(slots=True)
class TurnEnded:
    """A letter that has ended: ``result`` is ``reply``, ``notice``, ``silent`` or ``parked``.

    ``reason`` is the class of what went wrong, empty where nothing did. ``waited_s`` is the time from its
    acceptance to its first try, ``took_s`` from there to its end, ``put_s`` the part of that in which its
    reply was put. ``headers`` are those of its letter.
    """

    inbound: Inbound
    result: str
    reason: str
    waited_s: float | None
    took_s: float
    figures: TurnFigures
    put_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlatformCall:
    """One call that sends to a platform: ``accepted``, ``limited``, ``refused``, ``down`` or ``unknown``."""

    channel: str
    key: str
    id: str
    piece: int
    result: str
    began_ns: int
    took_s: float


@dataclass(frozen=True, slots=True)
class LetterSent:
    """An outbound letter that has ended: ``delivered`` or ``parked``.

    ``waited_s`` is the time from its making to the first work on it, ``took_s`` from there to its end.
    """

    channel: str
    key: str
    id: str
    result: str
    pieces: int
    waited_s: float | None
    took_s: float


class Observer:
    """Hears of everything and does nothing; every call returns at once and raises nothing."""

    def received(self, inbound: Inbound) -> dict[str, str]:
        """Hear that a message is about to be put; return the headers that it gets."""
        return {}

    def working(self, inbound: Inbound, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Hear that a letter is worked on; return the headers of what is put meanwhile."""
        return headers

    def model_called(self, call: ModelCall) -> None:
        """Hear of a request to a model."""

    def tool_ran(self, run: ToolRun) -> None:
        """Hear of a tool that has run."""

    def turn_ended(self, ended: TurnEnded) -> None:
        """Hear of a letter that has ended."""

    def redelivered(self, box: str) -> None:
        """Hear of a letter that may have come before."""

    def called(self, call: PlatformCall) -> None:
        """Hear of a call to a platform."""

    def letter_sent(self, sent: LetterSent) -> None:
        """Hear of an outbound letter that has ended."""

    def close(self) -> None:
        """Hear that nothing follows; what is held back goes out."""


class Observers(Observer):
    """Tells several; what one of them fails with is logged, and harms no letter."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def received(self, inbound: Inbound) -> dict[str, str]:
        """As ``Observer``; the headers of all."""
        headers: dict[str, str] = {}
        for each in self._observers:
            with _harmless("received"):
                headers |= each.received(inbound)
        return headers

    def working(self, inbound: Inbound, headers: Mapping[str, str]) -> Mapping[str, str]:
        """As ``Observer``; each sees what the one before returned."""
        for each in self._observers:
            with _harmless("working"):
                headers = each.working(inbound, headers)
        return headers

    def model_called(self, call: ModelCall) -> None:
        """As ``Observer``."""
        self._tell("model_called", call)

    def tool_ran(self, run: ToolRun) -> None:
        """As ``Observer``."""
        self._tell("tool_ran", run)

    def turn_ended(self, ended: TurnEnded) -> None:
        """As ``Observer``."""
        self._tell("turn_ended", ended)

    def redelivered(self, box: str) -> None:
        """As ``Observer``."""
        self._tell("redelivered", box)

    def called(self, call: PlatformCall) -> None:
        """As ``Observer``."""
        self._tell("called", call)

    def letter_sent(self, sent: LetterSent) -> None:
        """As ``Observer``."""
        self._tell("letter_sent", sent)

    def close(self) -> None:
        """As ``Observer``."""
        for each in self._observers:
            with _harmless("close"):
                each.close()

    def _tell(self, heard: str, what: Any) -> None:
        for each in self._observers:
            with _harmless(heard):
                getattr(each, heard)(what)


@contextlib.contextmanager
def _harmless(heard: str) -> Iterator[None]:
    """Log what an observer fails with: it must not end a turn, nor keep a message from being taken."""
    try:
        yield
    except Exception:
        log.exception("observer.crashed", heard=heard)
