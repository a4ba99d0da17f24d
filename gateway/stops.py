"""``/stop`` out of line: ends the running turn at once and answers before the letter's own turn comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import structlog

from channels.message import Inbound
from gateway import answers
from gateway.errors import MailboxError
from gateway.lanes import Lanes
from gateway.mailbox import Mailbox
from session import commands
from session.errors import SessionError
from session.key import SessionKey
from session.store import Store
from session.turn import Reply

log = structlog.get_logger("stops")

PAST_MAX = 1000
OWN = "stop:"  # ids of stops that no message asked for


class Stops:
    """Remembers which ``/stop`` letters were answered out of line, so that each is answered once."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        store: Store,
        mailbox: Mailbox,
        clock: Callable[[], datetime],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._lanes = lanes
        self._store = store
        self._mailbox = mailbox
        self._clock = clock
        self._spawn = spawn
        self._answers: dict[tuple[str, str], asyncio.Future[bool]] = {}  # whether the reply is durable
        self._past: deque[tuple[str, str]] = deque(maxlen=PAST_MAX)

    def stop(self, key: str, asked_id: str = "", *, asked: Inbound | None = None) -> bool:
        """Stop the turn of ``key`` that runs here; False where none does that began before the asking."""
        if (key, asked_id) in self._past:
            return False
        stopped = self._lanes.stop(key, asked_id)
        if stopped is None:
            return False
        if asked_id and not asked_id.startswith(OWN):
            durable = self._answers[key, asked_id] = asyncio.get_running_loop().create_future()
            like = (asked or stopped.inbound).model_copy(update={"id": asked_id})
            if asked is None:
                like = like.model_copy(update={"platform_id": None, "meta": {}})
            self._spawn(self._answer(like, durable), "answer stop")
        return True

    async def take(self, inbound: Inbound) -> bool:
        """Say, at the turn of a ``/stop`` letter, whether its reply is durable; it is past from then on."""
        name = (inbound.key, inbound.id)
        self._past.append(name)
        durable = self._answers.pop(name, None)
        return durable is not None and await durable

    async def _answer(self, inbound: Inbound, durable: asyncio.Future[bool]) -> None:
        """Answer now; where that fails, the letter answers when its turn comes."""
        put = False
        try:
            async with self._store.open(SessionKey(inbound.key)) as session:
                known = session.journal.known(inbound.id)  # of a letter that came again it is said already
                if known is None:
                    known = await session.journal.conclude(inbound.id, "command", text=commands.STOPPED)
                reply = Reply(known.text, seq=known.seq or 0)
                await self._mailbox.put(answers.reply(inbound, reply, self._clock()))
                put = True
        except (MailboxError, SessionError) as error:
            log.warning("stop.unanswered", key=inbound.key, error=str(error))
        finally:
            if not durable.done():
                durable.set_result(put)
