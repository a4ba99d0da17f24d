"""When to wait, when to park and when to give up: decisions as functions of values."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import durable
from channels.errors import Unreadable
from gateway.queue.retry import back_off_s
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelAway,
    ModelError,
    ModelFailed,
    ModelRefused,
    SessionError,
    StoreError,
    TurnTimeout,
    loggable,
)
from session.models.model import Foresees, Model

# Causes that no waiting mends: somebody has to do something.
LASTING = frozenset({"credentials", "quota"})


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """Up, or why not in a word (``cause``), in words (``error``) and with the cure (``hint``).

    ``foreseen``: no request can succeed while this process lives, so that none need be made.
    ``changed_at``: when it went away or came back; None: it has stood like this from the start.
    """

    up: bool = True
    cause: str = ""
    error: str = ""
    hint: str = ""
    foreseen: bool = False
    changed_at: datetime | None = None

    def as_part(self, started_at: datetime) -> dict[str, Any]:
        """Return it as a part of ``/readyz`` and ``/v1/status``."""
        fields = asdict(self)
        since = (fields.pop("changed_at") or started_at).isoformat()
        return {"up": self.up, "since": since, "error": self.error} | ({} if self.up else fields)


def standing_of(model: Model | None, outage: Outage | None = None) -> ModelStanding:
    """Say how a model stands: by the outage that was met, else by what can be known without asking."""
    changed_at = outage.changed_at if outage is not None else None
    if outage is not None and outage.since is not None:
        return ModelStanding(False, outage.cause, outage.error, outage.hint, changed_at=changed_at)
    trouble = model.trouble() if isinstance(model, Foresees) else None
    if trouble is None:
        return ModelStanding(changed_at=changed_at)
    return ModelStanding(False, trouble.cause, str(trouble), trouble.hint, foreseen=True)


def of_part(part: Mapping[str, Any]) -> ModelStanding:
    """Read what a daemon shows; a part of an older one has no cause."""
    cause, error, hint = (str(part.get(name, "")) for name in ("cause", "error", "hint"))
    return ModelStanding(part.get("up") is not False, cause, error, hint, part.get("foreseen") is True)


# By then a chat knows that it waits for a model that is away.
TELL_WITHIN_S = 15.0
MAX_CAUSE_CHARS = 200
# A message that so many deaths met is suspected to be their cause.
SUSPECT_DEATHS = 2
_USER_INFO = re.compile(r"(?<=://)[^\s/@]*@")
# They take over a minute and a half.
FENCED_TRIES = 12
# A longer Retry-After binds its own lane, and holds up the others no longer than this: a limit on tokens lets
# smaller requests pass.
TRUSTED_S = 15.0
UNANSWERED = "This message could not be answered."
OUTAGE_SAID = (
    "The model was not available for {:g} h, so this message was not answered. The operator can see why."
)
TOO_LARGE_SAID = "The answer to this message is too large to be stored, so it was not sent."
ATTEMPTS_SAID = "The gateway gave up on this message after attempt {}. The operator can see why."


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a message is parked: the reason's class, the sentence for its chat, the cause for the operator."""

    reason: str
    said: str
    cause: str = ""

    @property
    def shown(self) -> str:
        """What the parked message carries: the class, and behind a colon the cause."""
        return f"{self.reason}: {self.cause}" if self.cause else self.reason


def broken(error: Exception) -> Unreadable:
    """Say of a message whose reading failed in a way that nobody foresaw why it is parked."""
    return Unreadable(f"reading it failed: {type(error).__name__}")


def park_verdict(error: SessionError) -> Verdict:
    """Say why a message is parked whose turn ended in ``error``."""
    match error:
        case ContextTooLong():
            reason = ContextTooLong.reason
        case ModelRefused():
            reason = "refused"
        case ModelFailed() | ModelAway():
            reason = "failed"
        case BadAnswer():
            reason = "bad_answer"
        case TurnTimeout():
            reason = "timeout"
        case _:
            reason = "failed"
    said = error.said if isinstance(error, ModelError | TurnTimeout) else UNANSWERED
    if isinstance(error, ModelAway):
        # Its own sentence promises an answer.
        said = ModelError.said
    return Verdict(reason, f"{said} The operator can see why.", cause_of(error))


def cause_of(error: SessionError) -> str:
    """Put the cause of a failure and its cure into one short line, without what may quote a message."""
    brief = isinstance(error, ModelError) and error.brief
    text = _USER_INFO.sub("", " ".join((brief or str(error)).split()))
    if len(text) > MAX_CAUSE_CHARS:
        text = text[: MAX_CAUSE_CHARS - 1] + "…"
    return f"{text}; {error.hint}" if error.hint else text


def wait_words(error: ModelAway | StoreError, *, named: bool = False) -> tuple[str, str]:
    """Name the notice for a chat whose message waits, and its sentence; ``named`` ones say why in a word."""
    if isinstance(error, ModelAway):
        return "model_away", error.said_with_cause if named else error.said
    return (
        "storage",
        "Your message is saved, but the gateway cannot write to its disk. It will be answered later.",
    )


@dataclass
class Outage:
    """State of a model that is away.

    ``since`` is loop time, in seconds; ``changed_at`` is when it last went away or came back, None: never.
    ``telling`` is set while the chats that wait are notified, and ``answers`` counts the messages that the
    model answered.
    """

    since: float | None = None
    changed_at: datetime | None = None
    error: str = ""
    hint: str = ""
    cause: str = ""
    telling: bool = False
    answers: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def met(self, error: ModelAway, now: float) -> None:
        """Note a failed call."""
        if self.since is None:
            self.since, self.changed_at = now, durable.now()
        self.error, self.hint, self.cause = loggable(error), error.hint, error.cause

    def ended(self) -> None:
        """Note a call that succeeded."""
        if self.since is not None:
            self.changed_at = durable.now()
            self.since, self.error, self.hint, self.cause = None, "", "", ""
            self.telling = False
            self.over.set()
            self.over = asyncio.Event()


@dataclass
class Pace:
    """When the next lane may ask a model that limits its rate; all times are loop time.

    A refusal holds all lanes for its Retry-After. Then one lane asks; the next one follows its answer, or,
    since an answer may take long, comes behind it by the wait of the last refusal.
    """

    next_at: float = 0.0
    _wait_s: float = 0.0
    _refusals: int = 0
    _refused_at: float = 0.0

    def refused(self, asked_at: float, now: float, after_s: float | None) -> None:
        """Note that a request made at ``asked_at`` met the rate limit."""
        if asked_at < self._refused_at:
            # It was under way when the limit showed, and tells nothing more.
            return
        self._refused_at = now
        self._refusals += 1
        self._wait_s = min(back_off_s(self._refusals, after_s=after_s), TRUSTED_S)
        self.next_at = now + self._wait_s

    def released(self, now: float) -> None:
        """Note that a lane may ask now."""
        self.next_at = now + self._wait_s

    def answered(self, now: float) -> None:
        """Note that a request was answered."""
        self._refusals = 0
        self.next_at = max(self._refused_at + self._wait_s, min(self.next_at, now))
