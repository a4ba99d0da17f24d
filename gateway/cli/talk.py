"""Who a chat in this terminal talks to: a running daemon, or a gateway in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from channels.message import Attachment
from gateway.service.outcome import Outcome, ToldAway
from gateway.turns.event import Event
from gateway.turns.model_standing import ModelStanding


class Talk(Protocol):
    """One conversation partner."""

    async def ask(
        self,
        key: str,
        text: str,
        message_id: str,
        *,
        files: Sequence[Attachment] = (),
        within_s: float | None = None,
        away: ToldAway = None,
    ) -> Outcome | None:
        """Send a message and wait for how it ends; None when the time ran out first.

        ``files`` lie in ``media/`` already. ``away`` is told once why the message cannot be handed in just
        now; it is tried again.
        """
        ...

    def events(self, key: str) -> AsyncGenerator[Event]:
        """Yield what happens in the chat from now on."""
        ...

    async def stop(self, key: str) -> None:
        """Stop the turn that runs."""
        ...

    async def parked(self) -> list[dict[str, Any]]:
        """List the messages that were set aside, with the reason of each."""
        ...

    async def model(self) -> ModelStanding:
        """Say whether the model answers, as far as the partner knows."""
        ...
