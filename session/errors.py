"""The errors of the session package.

::

    SessionError
    ├── StoreError                 the disk refused; nothing half written, try again later
    │   ├── LineTooLong            over MAX_LINE_BYTES; nothing was written
    │   ├── Fenced                 the conversation was cleared or replaced; nothing was written
    │   ├── WorkspaceInUse         another process has the state database (exit 73)
    │   └── NewerFormat            a state file of a newer version (exit 78)
    ├── ModelError                 ``said`` is a sentence for the chat
    │   ├── ModelAway              an outage or a rate limit: wait, in order, and ask again
    │   ├── ModelRefused           this request will never be answered
    │   ├── ContextTooLong         the request does not fit the model's window
    │   │   ├── MessageTooLong     its newest message alone does not
    │   │   └── RequestTooLarge    it is larger than the provider's rate limit
    │   └── BadAnswer              garbage or nothing at all
    │       ├── EmptyAnswer        nothing at all, after a second try
    │       ├── CutCalls           calls that do not fit into an answer
    │       ├── ModelFailed        the server failed, or the answer broke off
    │       └── RoundsExhausted    tools without end
    ├── OtherAgent                 the session is of an agent that does not answer in its chat
    ├── NoAgent                    there is no agent of this name, nor was there one
    ├── NoSession                  the key has no ended session of this ULID
    ├── NotNow                     background work has to wait, until a time that it names
    ├── OverCap                    a request would go over a cap on what may be spent in a day
    ├── NotCompacted               no summary came of it; nothing was changed
    ├── ApprovalLost               the file of an approval is gone or damaged: its call is not run
    ├── TurnTimeout                the turn ran longer than limits.turn_timeout_s
    └── ToolError                  becomes an error result for the model, never ends a turn
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from durable import HintedError, NewerVersion

AwayCause = Literal["rate_limit", "unreachable", "credentials", "quota", "model"]
CompactionFailure = Literal[
    "little", "resting", "plain", "budget", "cost", "away", "slow", "refused", "answer"
]


class SessionError(HintedError):
    """Base of this package's errors."""


class OtherAgent(SessionError):
    """The session is that of an agent that does not answer in its chat."""


class NoAgent(SessionError):
    """There is no agent of this name, nor was there one."""


class StoreError(SessionError):
    """The disk refused. What was to be written is not there; the file must be read again."""


class LineTooLong(StoreError):
    """A line is over MAX_LINE_BYTES encoded; nothing was written."""


class Fenced(StoreError):
    """The conversation was cleared or replaced since it was opened; nothing was written. Open it again."""


class WorkspaceInUse(StoreError):
    """Another process has the state database; this one may only read it. Nothing was written."""


class NewerFormat(NewerVersion, StoreError):
    """A file in ``state/`` carries a version that this program does not know."""


class ModelError(SessionError):
    """Base of what a model call ends in. ``said`` is one sentence for the chat.

    ``brief`` says why for the operator: status, code, and the provider's words without what they quote.
    """

    said = "The model could not answer this message."
    brief = ""


def loggable(error: Exception) -> str:
    """Return what the log may say of an error: of a model's nothing that may quote a message."""
    return (isinstance(error, ModelError) and error.brief) or str(error)


class ModelAway(ModelError):
    """The model cannot be reached, limits the rate, or refuses key or account: an outage, not poison.

    ``after_s`` is the provider's Retry-After in seconds, where it sent one.
    """

    said = "The model is not available right now. Your message is saved and will be answered."

    def __init__(
        self, message: str, *, cause: AwayCause, after_s: float | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause
        self.after_s = after_s

    @property
    def said_with_cause(self) -> str:
        """The sentence for a chat that may know why."""
        return self.said.replace(" right now.", f" right now ({self.cause.replace('_', ' ')}).", 1)


class ModelRefused(ModelError):
    """The provider refused this request for good (content policy, invalid request)."""

    said = "The model rejected this message, so it was not answered."


class ContextTooLong(ModelError):
    """The request does not fit the model's context window; ``reason`` is what a letter is parked with."""

    reason = "too_long"
    said = (
        "This conversation is too long for the model. /compact summarises it to make room, /new starts a "
        "new one."
    )


class MessageTooLong(ContextTooLong):
    """The newest message alone does not fit the window, however little is sent with it."""

    said = "This message alone is too long for the model. Send it in parts, or as a file."


class RequestTooLarge(ContextTooLong):
    """The provider's rate limit is smaller than this request; ``after_s`` is its Retry-After, if any."""

    said = (
        "This message and the conversation so far exceed the model's rate limit. "
        "Send it in parts, or use /compact to make room."
    )

    def __init__(self, message: str, *, after_s: float | None = None) -> None:
        super().__init__(
            message, hint="raise the rate limit at the provider, or set model.context_window below it"
        )
        self.after_s = after_s


class BadAnswer(ModelError):
    """The model answered nothing usable; ``again``: another try may end better.

    ``cut``: its tokens were used up before the first word.
    """

    again, cut = True, False
    said = "The model gave no usable answer to this message."


class EmptyAnswer(BadAnswer):
    """An answer that ended by itself and holds nothing; ``usage`` is what it cost, a ``Usage`` or None."""

    again = False

    def __init__(self, message: str, *, usage: Any = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.usage = usage


class CutCalls(BadAnswer):
    """The answer was cut at its token limit twice in a row, in the middle of its tool calls."""

    again = False
    said = "The model reached its token limit twice in the middle of its tool calls, so there is no answer."


class ModelFailed(BadAnswer):
    """The model's server failed on this request, or its answer broke off; another try may succeed."""

    said = "The model failed while answering this message."


class RoundsExhausted(BadAnswer):
    """The model asked for tools in more rounds than ``model.max_tool_rounds``."""

    again = False
    said = "The model reached the limit of tool calls for one message without an answer."


class NoSession(SessionError):
    """The key has no ended session of this ULID that can be read; nothing was written."""


class NotNow(SessionError):
    """Background work has to wait, and is kept: ``reason`` in one word, ``until`` when to try again."""

    def __init__(self, message: str, *, reason: str, until: datetime, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.until = until


class OverCap(SessionError):
    """A request would go over a cap of ``[limits]`` on a day, and is not made.

    ``name`` is the key, ``about`` tells the cap from those on others, ``until`` is when it begins anew.
    """

    def __init__(self, name: str, *, about: str, until: datetime) -> None:
        hint = f"wait until {until.isoformat()}, or raise limits.{name}"
        super().__init__(f"limits.{name} leaves no room for this request", hint=hint)
        self.name = name
        self.about = about
        self.until = until


class NotCompacted(SessionError):
    """A conversation could not be summarised; nothing was changed. ``reason`` says why in one word.

    ``little`` (no summary could be shorter than what would leave), ``resting`` (a failure was a moment ago),
    ``plain`` (the model writes no summaries), ``budget`` (that of background calls is used up), ``cost`` (no
    more may be spent today), ``away``, ``slow``, ``refused`` or ``answer`` (it cannot be used).
    """

    def __init__(self, message: str, *, reason: CompactionFailure, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class ApprovalLost(SessionError):
    """The file of an approval is gone or damaged: nobody knows what was decided, and the call is not run."""


class TurnTimeout(SessionError):
    """The turn ran longer than ``limits.turn_timeout_s``."""

    said = "Answering this message took too long, so it was stopped."


class ToolError(SessionError):
    """A tool could not do what it was asked; the text goes back to the model as an error result."""
