"""What a chat in this terminal sees of a conversation besides the answers it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import aclosing

from gateway.cli.talk import Talk
from gateway.errors import GatewayError
from gateway.turns.event import Event


async def look_on(talk: Talk, key: str, see: Callable[[Event], None]) -> None:
    """Show what happens; where it cannot be seen, the answers come all the same."""
    with contextlib.suppress(GatewayError):
        async with aclosing(talk.events(key)) as events:
            async for event in events:
                see(event)


def names(event: Event, message_id: str) -> bool:
    """Say whether an event is about our message, whose Inbound id has its channel in front."""
    return event.in_reply_to is not None and event.in_reply_to.partition(":")[2] == message_id
