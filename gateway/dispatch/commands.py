"""Commands that concern a running turn: acted on and answered at once, beside the lanes, and exactly once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

import structlog

from channels.message import Inbound, times
from durable import BoundedDict
from gateway.dispatch import messages, replies
from gateway.dispatch.approvals import Approvals
from gateway.dispatch.control_order import OWN
from gateway.dispatch.events import Spawn
from gateway.dispatch.lanes import Lanes
from gateway.dispatch.routing import Routing
from gateway.dispatch.subagents import Subagents
from gateway.errors import MailboxError
from gateway.queue.mailbox import Mailbox
from session.errors import SessionError
from session.store.store import Session, Store
from session.transcript.key import SessionKey, is_subagent
from session.turn import commands
from session.turn.commands import DECIDING, OUT_OF_LINE, Command
from session.turn.turn import Reply

log = structlog.get_logger("aside")


REMEMBERED_MAX = 1000
# With the answer of a ``/stop`` in the journal: the id of the message whose turn it ended.
STOPS = "stops"
Words = Callable[[Session], Awaitable[str]]


class Aside:
    """Answers beside the lanes, and remembers for the message's turn that it was done."""

    def __init__(
        self,
        *,
        store: Store,
        mailbox: Mailbox,
        clock: Callable[[], datetime],
        spawn: Spawn,
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._clock = clock
        self._spawn = spawn
        # Whether the reply is durable; bounded, since the message may never come to this daemon.
        self._answers: BoundedDict[tuple[str, str], asyncio.Future[bool]] = BoundedDict(REMEMBERED_MAX)
        self._past: deque[tuple[str, str]] = deque(maxlen=REMEMBERED_MAX)

    def is_past(self, key: str, message_id: str) -> bool:
        """Say whether the message's own turn has been: what comes out of line now comes too late."""
        return (key, message_id) in self._past

    async def is_answered(self, inbound: Inbound) -> bool:
        """Say whether the journal knows an answer; yes, too, where it cannot be read: its turn meets that."""
        try:
            async with self._store.open(SessionKey(inbound.key)) as session:
                return session.journal.known(inbound.id) is not None
        except SessionError as error:
            log.warning("aside.unanswered", key=inbound.key, id=inbound.id, error=str(error))
            return True

    def stopped_by(self, key: str, message_id: str) -> str | None:
        """Return the message whose turn a ``/stop`` ended; None where it is not known to have."""
        view = self._store.look_here(SessionKey(key))
        if view is None:
            return None
        known = view.journal.known(message_id)
        # A process that died between the end of the turn and the answer has left the end alone.
        return view.stopped_by(message_id) if known is None else str(known.extra.get(STOPS, ""))

    def answer(self, inbound: Inbound, words: Words, *, stops: str = "") -> None:
        """Answer ``inbound`` with ``words``, unless that is done or under way, or its turn has been.

        ``stops`` is the message whose turn it ended: one that comes again ends no other.
        """
        name = (inbound.key, inbound.id)
        if name in self._answers or name in self._past:
            return
        durable = self._answers[name] = asyncio.get_running_loop().create_future()
        self._spawn(self._put(inbound, words, durable, stops), "answer out of line")

    async def take(self, inbound: Inbound) -> bool:
        """Say, at the turn of the message, whether its reply is durable; it is past from then on."""
        name = (inbound.key, inbound.id)
        self._past.append(name)
        durable = self._answers.pop(name, None)
        return durable is not None and await durable

    async def _put(self, inbound: Inbound, words: Words, durable: asyncio.Future[bool], stops: str) -> None:
        """Answer now; where that fails, the message answers when its turn comes."""
        put, of = False, {STOPS: stops} if stops else {}
        try:
            async with self._store.open(SessionKey(inbound.key)) as session:
                # A message that came again, here or to another daemon, gets the words that it got before.
                known = session.journal.known(inbound.id)
                if known is None:
                    text = await words(session)
                    known = await session.journal.conclude(
                        inbound.id, "command", text=text, once=True, **times(inbound), **of
                    )
                if known.kind != "command":
                    return
                if known.text:
                    reply = Reply(known.text, seq=known.seq or 0)
                    await self._mailbox.put(replies.reply(inbound, reply, self._clock()))
                put = True
        except (MailboxError, SessionError) as error:
            # The message itself waits in its lane, and is answered there.
            log.warning("aside.unanswered", key=inbound.key, id=inbound.id, error=str(error))
        finally:
            if not durable.done():
                durable.set_result(put)


class Orders:
    """``/stop``, ``/status`` and the word that a turn waits for, as messages and as they come over control.

    Args:
        approvals: hears of the word, and of a ``/new`` that wants no more of the turn; None: no turn waits.
    """

    def __init__(
        self,
        lanes: Lanes,
        store: Store,
        mailbox: Mailbox,
        routing: Routing,
        approvals: Approvals | None,
        *,
        clock: Callable[[], datetime],
        spawn: Spawn,
        subagents: Subagents | None = None,
    ) -> None:
        self._spawn = spawn
        self._subagents = subagents
        self.aside = Aside(store=store, mailbox=mailbox, clock=clock, spawn=spawn)
        self._approvals = approvals
        self._lanes = lanes
        self._routing = routing

    def stop(self, key: str, asked_id: str = "", *, asked: Inbound | None = None, only: str = "") -> bool:
        """Stop the turn of ``key`` that runs here, and its subagents wherever they run.

        Args:
            key: the conversation.
            asked_id: the id of the ``/stop``; a turn that began behind it goes on.
            asked: the ``/stop`` itself, where it is known.
            only: nothing is done unless the turn that runs here is that of this message.

        Returns:
            False where no turn runs here that began before the asking.
        """
        if only and not self._runs(key, only):
            return False
        if self._subagents is not None and not is_subagent(key) and not self.aside.is_past(key, asked_id):
            self._spawn(self._end(self._subagents, key, asked_id), "end subagents")
        if self.aside.is_past(key, asked_id):
            return False
        # One that was answered comes again, as from a platform after a crash: what runs now came behind.
        stopped_before = self.aside.stopped_by(key, asked_id) if asked_id else None
        if stopped_before is not None and not self._runs(key, stopped_before):
            return False
        stopped = self._lanes.stop(key, asked_id)
        if stopped is None:
            return False
        if asked_id and not asked_id.startswith(OWN):
            like = (asked or stopped.inbound).model_copy(update={"id": asked_id})
            if asked is None:
                like = like.model_copy(update={"platform_id": None, "meta": {}})
            self.aside.answer(like, _stopped, stops=stopped.inbound.id)
        return True

    def _runs(self, key: str, message_id: str) -> bool:
        """Say whether the turn of ``key`` that runs here, or waits for its next try, is that of a message."""
        begun = self._lanes.begun(key)
        return begun is not None and begun.inbound.id == message_id

    def look(self, asked: Inbound) -> None:
        """Answer ``asked``, a ``/status``, where its chat has messages here; else its turn does that itself.

        Called with the message, and with its copy that comes over control and overtakes what waits.
        """
        if self._lanes.get(asked.key) is not None:
            self.aside.answer(asked, partial(self._status, asked))

    async def _status(self, asked: Inbound, session: Session) -> str:
        command = messages.command(asked)
        assert command is not None
        said = await self._routing.of(session).commands.run(session, command, messages.request(asked))
        assert isinstance(said, str)
        return said

    async def _end(self, subagents: Subagents, key: str, by: str) -> None:
        await subagents.end(key, by)

    def received(self, inbound: Inbound, command: Command, *, again: bool = False) -> None:
        """Act on a command that has come into its lane, whatever stands before it there.

        ``again``: another process may have acted on it.
        """
        name = command.name
        if name == "stop" and again:
            self._spawn(self._stop_again(inbound), "stop again")
        elif name == "stop":
            self.stop(inbound.key, inbound.id, asked=inbound)
        elif name == "status":
            self.look(inbound)
        elif name in DECIDING and self._approvals is not None:
            # Its message waits behind the very turn that waits for it.
            self.aside.answer(inbound, partial(self._approvals.words, inbound))
        elif name == "new" and self._approvals is not None:
            self._approvals.anew(inbound)

    async def _stop_again(self, inbound: Inbound) -> None:
        # Where it was answered, no turn but the one that it stopped then is ended.
        if not await self.aside.is_answered(inbound) or self.aside.stopped_by(inbound.key, inbound.id):
            self.stop(inbound.key, inbound.id, asked=inbound)

    async def answered(self, inbound: Inbound, command: Command) -> bool:
        """Say, at the turn of a command, whether its answer is out already."""
        return command.name in OUT_OF_LINE and await self.aside.take(inbound)


async def _stopped(_: Session) -> str:
    return commands.STOPPED
