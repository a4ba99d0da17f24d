"""What the steps of the pipeline share: one try of a message, and what a step may decide."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from channels.message import Inbound
from gateway.turns.crash_guard import Attempt
from gateway.turns.jobs import HandedOn
from gateway.turns.lanes import Entry, RetryAfter
from gateway.turns.policy import Verdict
from gateway.turns.routing import Answers
from session.models.model import Payer
from session.store.store import Session
from session.turn import commands
from session.turn.turn import Reply

# What a step decides: an answer, a wait of the lane, why the message is parked, or its lane elsewhere.
Ending = Reply | RetryAfter | Verdict | HandedOn


@dataclass(slots=True)
class MessageContext:
    """One try of a message, and what the steps found out about it so far.

    Args:
        entry: the message with its delivery, in its lane.
        session: its conversation, held open.
        command: the command that it is; None: it is a question.
        answers: the agent that answers; set by ``route``.
        payer: for whom its requests count; None: for nobody. Set by ``admit``.
        attempt: its place among the messages that a crash may have met; set by ``guard``.
        leave: undone behind the steps, whatever they end in.
    """

    entry: Entry
    session: Session
    command: commands.Command | None = None
    answers: Answers | None = None
    payer: Payer | None = None
    attempt: Attempt | None = None
    leave: ExitStack = field(default_factory=ExitStack)

    @property
    def inbound(self) -> Inbound:
        """The message; an edit replaces it."""
        return self.entry.inbound


class Step(Protocol):
    """One step of the pipeline."""

    async def take(self, message: MessageContext) -> Ending | None:
        """Decide how the message ends; None: the next step is asked.

        Raises:
            MailboxError, SessionError: nothing was decided, and the message is tried again.
        """
        ...
