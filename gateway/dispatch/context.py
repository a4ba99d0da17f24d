"""What the steps of the pipeline share: one try of a message, and what a step may decide."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from gateway.dispatch.jobs import HandedOn
from gateway.dispatch.lanes import PendingMessage, RetryAfter
from gateway.dispatch.policy import Verdict
from session.models.model import Payer
from session.store.store import Session
from session.turn.commands import Command, Commands
from session.turn.turn import Reply, Turns

# What a step decides: an answer, a wait of the lane, why the message is parked, or its lane elsewhere.
Ending = Reply | RetryAfter | Verdict | HandedOn


class Answers(Protocol):
    """One agent as the steps see it."""

    @property
    def turns(self) -> Turns:
        """Runs its turns."""
        ...

    @property
    def subagent_turns(self) -> Turns:
        """Runs those of the subagents that it starts."""
        ...

    @property
    def commands(self) -> Commands:
        """Answers for its conversations."""
        ...

    @property
    def description(self) -> str:
        """What people are told of it; empty: nothing."""
        ...


@dataclass(slots=True)
class MessageContext:
    """One try of a message, and what the steps found out about it so far.

    Args:
        entry: the message with its delivery, in its lane; an edit may replace its text.
        session: its conversation, held open.
        command: the command that it is; None: it is a question.
        answers: the agent that answers; set by ``route``.
        payer: for whom its requests count; None: for nobody. Set by ``admit``.
        attempt: counts what runs inside it, as a crash may end it; set by ``guard``.
        alone: it runs alone, as two crashes met it.
        leave: undone behind the steps, whatever they end in.
    """

    entry: PendingMessage
    session: Session
    command: Command | None = None
    answers: Answers | None = None
    payer: Payer | None = None
    attempt: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    alone: bool = False
    leave: ExitStack = field(default_factory=ExitStack)


class Step(Protocol):
    """One step of the pipeline."""

    async def take(self, message: MessageContext) -> Ending | None:
        """Decide how the message ends; None: the next step is asked.

        Raises:
            MailboxError, SessionError: nothing was decided, and the message is tried again.
        """
        ...
