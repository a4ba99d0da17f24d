"""Pressed buttons that still turn: each rests after a moment, or with words that its presser alone sees."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from channels.errors import ChannelError, SendNever
from channels.telegram.wire import Wire

log = structlog.get_logger(__name__)

_ANSWER: Final = "answerCallbackQuery"
# What Telegram shows above a chat, as it counts.
_MAX_UNITS: Final = 200


class OpenPresses:
    """The presses of this process that Telegram was not told an answer to; it takes one for each.

    Args:
        rests_after_s: how long words for the presser are waited for.
    """

    def __init__(self, wire: Wire, *, rests_after_s: float) -> None:
        self._wire = wire
        self._rests_after_s = rests_after_s
        self._open: dict[str, asyncio.Event] = {}

    def begin(self, query: str) -> None:
        """Note a press; ``wait`` is to follow."""
        self._open[query] = asyncio.Event()

    async def wait(self, query: str) -> None:
        """Let the button rest when nothing was said to its presser in time; nobody minds where that fails."""
        told = self._open.get(query)
        if told is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rests_after_s):
                await told.wait()
        if self._open.pop(query, None) is None:
            return
        try:
            await self._wire.call(_ANSWER, callback_query_id=query)
        except ChannelError as error:
            log.debug("press.unanswered", error=str(error))

    def dismiss(self, query: str) -> None:
        """Let the button rest now: nothing will be said."""
        if query in self._open:
            self._open[query].set()

    async def tell(self, query: str, text: str) -> bool:
        """Show words to the presser alone; False where that cannot be done any more, and nothing was shown.

        Raises:
            ChannelDown, SendLater, SendUnknown: as ``Channel.send``; a second try returns False.
        """
        if query not in self._open or len(text.encode("utf-16-le", "replace")) // 2 > _MAX_UNITS:
            return False
        # Whoever waits finds it answered.
        self._open.pop(query).set()
        try:
            await self._wire.call(_ANSWER, callback_query_id=query, text=text, show_alert=True)
        except SendNever as error:
            log.info("press.refused", error=str(error))
            return False
        return True
