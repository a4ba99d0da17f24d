"""How many tokens a request has: what the provider counted last, and an estimate of what has come since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durable import BoundedDict
from session.models.model import Message, ToolSpec, Usage
from session.models.tokens import CHARS_PER_TOKEN, estimate_messages, estimate_tools

CACHED = 1_000


@dataclass(frozen=True, slots=True)
class CountBasis:
    """What must still be the same for a provider's count to say something about the next request.

    Args:
        session_id: the session whose history was sent.
        model: the model that counted.
        history_start: index of the message with which the history begins; consolidation moves it.
        record: index of the newest record that takes messages out of the history (overlay, compact, undo);
            -1 without one.
    """

    session_id: str
    model: str
    history_start: int
    record: int


@dataclass(frozen=True, slots=True)
class Counted:
    """A request that was answered: the provider's count of it, and what it was estimated at."""

    tokens: int
    local: int
    basis: CountBasis


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens of a request: ``tokens`` as far as is known, ``local`` without any provider's help."""

    tokens: int
    local: int
    basis: CountBasis

    def counted(self, usage: Usage | None) -> Counted | None:
        """Keep what the provider counted for this request; None where it counted nothing."""
        if usage is None or usage.prompt <= 0:
            return None
        return Counted(usage.prompt, self.local, self.basis)


def estimate_request(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    basis: CountBasis,
    last: Counted | None,
    chars_per_token: float = CHARS_PER_TOKEN,
) -> Estimate:
    """Estimate a request that is about to be made.

    The last count is trusted only where its basis is still the same and nothing was taken away since: then it
    stands for what was sent before, and only what is more now is estimated. Otherwise all is estimated.
    """
    local = estimate_messages(messages, chars_per_token=chars_per_token)
    local += estimate_tools(tools, chars_per_token=chars_per_token)
    if last is None or last.basis != basis or local < last.local:
        return Estimate(local, local, basis)
    return Estimate(last.tokens + local - last.local, local, basis)


class Counts:
    """The last count of each session, as long as the process lives; the first request is estimated whole."""

    def __init__(self, *, most: int = CACHED) -> None:
        self._counts: BoundedDict[str, Counted] = BoundedDict(most)

    def get(self, session_id: str) -> Counted | None:
        """Return the last count of a session."""
        return self._counts.get(session_id)

    def note(self, counted: Counted | None) -> None:
        """Keep a count; the sessions that were longest without one are forgotten."""
        if counted is None:
            return
        self._counts[counted.basis.session_id] = counted

    def forget(self, session_id: str) -> None:
        """Trust no count of a session any more."""
        self._counts.pop(session_id, None)
