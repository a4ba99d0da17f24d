"""Turns that wait for a person: the chat is asked once, the lane waits without a place, the word wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial

import structlog

from channels.message import Inbound
from durable import first_of
from gateway.queue.mailbox import Mailbox
from gateway.turns import approval_words, outcomes, replies
from gateway.turns.aside import Aside
from gateway.turns.events import Spawn
from gateway.turns.lanes import Entry, Lanes, RetryAfter
from gateway.turns.notices import Notices
from session.approvals.answers import Answers
from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval
from session.disk.threads import start_thread
from session.errors import StoreError
from session.store.store import Session
from session.turn.commands import Commands

log = structlog.get_logger("approvals")

# A word may be taken by another daemon: this one looks at the file that both have.
LOOK_EVERY_S = 1.0
# Between the end of the time and the try that finds it over.
LATE_S = 0.05
_SPOKEN = frozenset({"message", "command", "action"})
NOT_YOURS_SAID = "Only people approved by the operator of this bot can decide this."


class Approvals:
    """Lets lanes wait for a person's word.

    Args:
        decides: whether the sender of a message may decide over what waits in its chat.
    """

    def __init__(
        self,
        files: ApprovalFiles,
        answers: Answers,
        *,
        lanes: Lanes,
        mailbox: Mailbox,
        notices: Notices,
        aside: Aside,
        chat_commands: Commands,
        clock: Callable[[], datetime],
        spawn: Spawn,
        decides: Callable[[Inbound], bool] = lambda _: True,
    ) -> None:
        self._files = files
        self._lanes = lanes
        self._mailbox = mailbox
        self._notices = notices
        self._aside = aside
        self._commands = chat_commands
        self._clock = clock
        self._spawn = spawn
        self._decides = decides
        self._waiting: dict[str, asyncio.Event] = {}
        self._looking = False
        self._closing = asyncio.Event()
        # Asked by this process: the same question is put again only by the next one.
        self._asked: set[str] = set()
        answers.heard = self.heard

    # -- a turn that waits -------------------------------------------------------------------------

    async def wait(self, entry: Entry, session: Session, approval: Approval) -> RetryAfter:
        """Ask the chat, once, and say what the lane waits for."""
        if self._begins_anew(entry):
            # A fresh conversation was asked for meanwhile: nobody waits for this one any more.
            entry.stop.pull()
            return RetryAfter(0.0)
        entry.asking = approval.call.tool
        if approval.id not in self._asked:
            await self._ask(entry.inbound, session, approval)
            self._asked.add(approval.id)
            log.info("approval.asked", approval=approval.id, tool=approval.call.tool)
        woken = self._waiting[approval.id] = asyncio.Event()
        if not self._looking:
            self._looking = True
            self._spawn(self._look(), "look for approvals")
        left_s = (approval.expires_at - self._files.now()).total_seconds()
        return RetryAfter(max(left_s, 0.0) + LATE_S, woken)

    async def _ask(self, inbound: Inbound, session: Session, approval: Approval) -> None:
        reason = approval_words.reason_of(approval)
        noted = session.journal.noted(inbound.id, reason)
        if noted is None:
            text = approval_words.asked(approval)
            noted = await session.journal.note(inbound.id, reason=reason, text=text)
        # After a crash it is put again under the same id, by which whoever delivers knows it.
        post = replies.prompt(
            inbound,
            reason,
            noted.text,
            self._clock(),
            seq=noted.seq,
            buttons=approval_words.buttons(approval),
        )
        await self._mailbox.put(post)
        await self._notices.show("notice", inbound, post, noted.text, noted.seq)

    def _begins_anew(self, entry: Entry) -> bool:
        lane = self._lanes.get(entry.inbound.key)
        commands = (outcomes.command(each.inbound) for each in (lane.entries if lane is not None else ()))
        return any(command is not None and command.name == "new" for command in commands)

    async def told(self, approval: Approval) -> None:
        """Say in the chat what was decided, in the place of the question where that can be.

        Raises:
            MailboxDown: not confirmed; call it again.
        """
        call = approval.call
        text = approval_words.resolved(approval)
        await self._mailbox.put(
            replies.resolved(
                call.chat, call.message_id, approval_words.reason_of(approval), text, self._clock()
            )
        )

    def heard(self, id_: str) -> None:
        """Wake the lane that waits for this approval, where it waits here."""
        woken = self._waiting.pop(id_, None)
        if woken is not None:
            woken.set()

    def close(self) -> None:
        """Look no more: what waits is asked for again by whoever gets its letter next."""
        self._closing.set()

    async def _look(self) -> None:
        """While something waits here, see what others decided about it."""
        try:
            while self._waiting and not self._closing.is_set():
                for id_ in await start_thread(partial(self._closed, list(self._waiting)), name="approval"):
                    self.heard(id_)
                await first_of(self._closing.wait(), timeout_s=LOOK_EVERY_S)
        finally:
            self._looking = False

    def _closed(self, ids: list[str]) -> list[str]:
        closed = []
        for id_ in ids:
            try:
                found = self._files.find(id_)
            except StoreError as error:
                # It is looked at again, and its turn meets the same disk.
                log.warning("approval.unreadable", approval=id_, error=str(error))
                continue
            if found is None or not found.open:
                closed.append(id_)
        return closed

    # -- a word ------------------------------------------------------------------------------------

    def press(self, asked: Inbound) -> None:
        """Take a person's word out of line: its letter waits behind the very turn that waits for it."""
        self._aside.answer(asked, lambda session: self.words(asked, session))

    async def words(self, asked: Inbound, session: Session) -> str:
        """Take the word in a message; return what to tell, empty where the question itself tells it."""
        command = outcomes.command(asked)
        assert command is not None
        # A job may run in this very chat, and a model may have made it: its word is nobody's.
        if asked.source != "interactive" or asked.kind not in _SPOKEN or not self._decides(asked):
            return NOT_YOURS_SAID
        said = await self._commands.run(session, command, outcomes.request(asked))
        assert isinstance(said, str)
        return outcomes.said(asked, said)

    def anew(self, asked: Inbound) -> None:
        """End a turn that waits for a person, since ``asked``, a ``/new``, wants none of it."""
        begun = self._lanes.begun(asked.key)
        if begun is not None and begun.asking:
            self._lanes.stop(asked.key, asked.id)
