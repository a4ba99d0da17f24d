"""One message for whose answer a client stays on the line: what its turn shows, how it ends, what it cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from channels.message import Inbound
from gateway.dispatch.events import Event
from gateway.service.chats import ChatService, Closing
from gateway.service.outcome import Outcome
from session.turn.turn import CUT_NOTE


class Completion:
    """Hands in a message and follows its turn.

    Args:
        chats: where to.
        message: what is asked.
        goes_on: whether the turn does so when the client leaves, since the same message may come again:
            its id is the client's, and no new one.
        reads: whether the client reads the answer while it is written.
    """

    def __init__(self, chats: ChatService, message: Inbound, *, goes_on: bool, reads: bool) -> None:
        self.message = message
        self._chats = chats
        self._goes_on = goes_on
        # Who waits for the whole has the time to be refused by a store that cannot be read, before anything
        # is kept: such a client asks again by itself, and each time it would be another message.
        self._shown = chats.follow(message, reads=reads, new=reads and not goes_on)
        self._begun = False
        self._ended = False

    async def begin(self) -> None:
        """Return once the message is durable. Raises as ``ChatService.accept``."""
        await anext(self._shown)

    async def events(self) -> AsyncGenerator[Event | Outcome | None]:
        """Yield what the turn shows, at last its outcome; None now and then where nothing is shown.

        Raises as ``ChatService.ask``.
        """
        async for shown in self._shown:
            if isinstance(shown, Outcome):
                self._ended = True
            elif shown is not None:
                self._begun = self._begun or shown.kind in ("started", "draft", "delta", "tool")
            yield shown

    async def outcome(self) -> Outcome:
        """Return how the message ended. Raises as ``ChatService.ask``."""
        async for shown in self.events():
            if isinstance(shown, Outcome):
                return shown
        raise Closing

    async def broken_off(self) -> None:
        """Stop the turn of a client that left; one that has not begun is answered all the same.

        So is one that answers other messages as well.
        """
        await self._shown.aclose()
        if self._begun and not self._ended and not self._goes_on:
            await self._chats.break_off(self.message)

    async def ended(self, text: str) -> tuple[str, Literal["stop", "length"]]:
        """Return an answer without the words for people that it was cut, and how it ended, in OpenAI's."""
        if await self._chats.record.was_cut(self.message.key, self.message.id):
            return text.rpartition(CUT_NOTE)[0] or text, "length"
        return text, "stop"

    async def usage(self) -> dict[str, int]:
        """Return the tokens of all calls of the turn, as OpenAI's API names them."""
        prompt, completion = await self._chats.record.usage(self.message.key, self.message.id)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
