"""When to wait, when to park and when to give up: decisions as functions of values."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

from channels.errors import Unreadable
from gateway.queue.retry import MAX_BACK_OFF_S
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelAway,
    ModelError,
    ModelRefused,
    SessionError,
    StoreError,
    TurnTimeout,
)

# By then a chat knows that it waits for a model that is away.
TELL_WITHIN_S = 15.0
MAX_CAUSE_CHARS = 200
_USER_INFO = re.compile(r"(?<=://)[^\s/@]*@")
# Over a minute and a half: a daemon that lost its letters hears of it within seconds.
FENCED_TRIES = 12
UNANSWERED = "This message could not be answered."
OUTAGE_SAID = (
    "The language model was away for {:g} hours. This message is set aside, and the operator can see it."
)
TOO_LARGE_SAID = "The answer to this message is too large to be kept. It is set aside."
ATTEMPTS_SAID = (
    "This message was begun {} times and never came to an end. It is set aside, and the operator can see it."
)


def fenced_off_s(tries: int) -> float:
    """Return the wait after a try that was fenced, in seconds: 0.05, 0.1, 0.2 … 60."""
    return min(0.05 * 2.0 ** min(max(tries - 1, 0), 11), MAX_BACK_OFF_S)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a letter is parked: the reason's class, the sentence for its chat, the cause for the operator."""

    reason: str
    said: str
    cause: str = ""

    @property
    def shown(self) -> str:
        """What the parked letter carries: the class, and behind a colon the cause."""
        return f"{self.reason}: {self.cause}" if self.cause else self.reason


def broken(error: Exception) -> Unreadable:
    """Say of a letter whose reading failed in a way that nobody foresaw why it is parked."""
    return Unreadable(f"reading it failed: {type(error).__name__}")


def park_verdict(error: SessionError) -> Verdict:
    """Say why a letter is parked whose turn ended in ``error``."""
    match error:
        case ContextTooLong():
            reason = ContextTooLong.reason
        case ModelRefused():
            reason = "refused"
        case BadAnswer():
            reason = "bad_answer"
        case TurnTimeout():
            reason = "timeout"
        case _:
            reason = "failed"
    said = error.said if isinstance(error, ModelError | TurnTimeout) else UNANSWERED
    return Verdict(reason, f"{said} It is set aside, and the operator can see it.", cause_of(error))


def cause_of(error: SessionError) -> str:
    """Put the cause of a failure and its cure into one short line, without what may quote a message."""
    brief = isinstance(error, ModelError) and error.brief
    text = _USER_INFO.sub("", " ".join((brief or str(error)).split()))
    if len(text) > MAX_CAUSE_CHARS:
        text = text[: MAX_CAUSE_CHARS - 1] + "…"
    return f"{text}; {error.hint}" if error.hint else text


def wait_words(error: ModelAway | StoreError, *, named: bool = False) -> tuple[str, str]:
    """Name the notice for a chat whose letter waits, and its sentence; ``named`` ones say why in a word."""
    if isinstance(error, ModelAway):
        return "model_away", error.said_with_cause if named else error.said
    return "storage", "Your message is kept, but the disk takes no new lines right now. It will be answered."


@dataclass
class Outage:
    """What a daemon knows about its model being away; a success wakes all lanes that wait for it.

    ``since`` is loop time, in seconds.
    """

    since: float | None = None
    error: str = ""
    hint: str = ""
    cause: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def met(self, error: ModelAway, now: float) -> bool:
        """Note a failed call; say whether it is the first one."""
        first = self.since is None
        if first:
            self.since = now
        self.error, self.hint, self.cause = str(error), error.hint, error.cause
        return first

    def ended(self) -> None:
        """Note a call that succeeded."""
        if self.since is not None:
            self.since, self.error, self.hint, self.cause = None, "", "", ""
            self.over.set()
            self.over = asyncio.Event()
