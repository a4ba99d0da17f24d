"""How a turn ends: with a reply, or by the switch that stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

from session.models.model import Usage
from session.transcript.attachments import Attachment

# Why a message has no reply of its own: the answer of another one serves it.
TOGETHER: Final = "together"


@dataclass(frozen=True, slots=True)
class Reply:
    """How a message ended.

    ``kind`` is ``reply`` or ``notice``, ``reason`` that of a notice. ``silent``: nothing is sent. ``seq`` is
    its number among the key's replies, ``files`` go out with it, and ``usage`` sums up all requests of the
    turn that was run for it. ``sends_files``: a tool of its turn sent some.
    """

    text: str = ""
    kind: str = "reply"
    reason: str = ""
    silent: bool = False
    repeated: bool = False
    seq: int = 0
    files: Sequence[Attachment] = ()
    usage: Usage | None = None
    sends_files: bool = False


class Watcher(Protocol):
    """Who looks on while a turn runs; every call returns at once."""

    def reads(self) -> bool:
        """Say whether somebody reads the text while it is written."""
        ...

    def delta(self, text: str) -> None:
        """See the next piece of the answer's text."""
        ...

    def tool(self, name: str) -> None:
        """See that a tool begins to run."""
        ...


class TurnStopped(Exception):
    """The switch was pulled; what the turn had is stored."""


@dataclass(eq=False, slots=True)
class StopSwitch:
    """Ends the block it guards once pulled, in the way ``asyncio.timeout`` does when time runs out.

    ``by`` is the message that asked for it, where one did; ``interrupted``: that one stopped the turn, and is
    answered together with it.
    """

    pulled: bool = False
    interrupted: bool = False
    by: str = ""
    _task: asyncio.Task[Any] | None = None
    _cancelling: int = 0
    _sent: bool = False

    def pull(self, by: str = "", *, interrupted: bool = False) -> None:
        """End the guarded block, since the message ``by`` asked for it; one entered later does not begin."""
        self.pulled, self.by, self.interrupted = True, by, interrupted
        # A second cancellation would interrupt what the turn still has to store.
        if self._task is not None and not self._sent:
            self._sent = True
            self._task.cancel()

    async def __aenter__(self) -> StopSwitch:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        if self.pulled:
            raise TurnStopped
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        # A drain may have cancelled the task besides: then it ends as cancelled, and its turn is resumed.
        if self._sent and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TurnStopped from error
