"""Turns that wait for a person: the chat is asked once, the lane waits without a place, the word wakes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog

from channels.message import Button, Inbound
from durable import first_of
from gateway.dispatch import messages, replies
from gateway.dispatch.events import Spawn
from gateway.dispatch.lanes import Lanes, PendingMessage, RetryAfter
from gateway.dispatch.replies import Notices
from gateway.dispatch.routing import AgentSet
from gateway.queue.mailbox import Mailbox
from session.approvals.answers import Answers
from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval
from session.disk.threads import start_thread
from session.errors import StoreError
from session.store.store import Session
from session.turn.commands import Commands

log = structlog.get_logger("approvals")

REASON: Final = "approval"
ASKED_SAID: Final = """\
**Approval needed:** the assistant wants to use the tool `{tool}`.

```json
{arguments}
```
Folder: `{folder}`
Asked by: {who}

`/approve {id}` allows it once, `/deny {id}` denies it. Without an answer within {time} it is not run."""
_RESOLVED: Final = {
    "allowed": "Allowed by {who}: `{tool}`",
    "denied": "Denied by {who}: `{tool}` is not run.",
    "expired": "Nobody decided in time: `{tool}` is not run.",
    "cancelled": "Stopped before anybody decided: `{tool}` is not run.",
}
# What would end the block that it stands in.
_MARKS: Final = frozenset("`")


def reason_of(approval: Approval) -> str:
    """Return the reason of the notice that asks."""
    return f"{REASON}.{approval.id}"


def question_of(approval: Approval) -> str:
    """Say what is to be run, in full."""
    call = approval.call
    return ASKED_SAID.format(
        tool=_word(call.tool),
        arguments=shown_arguments(call.arguments),
        folder=_word(call.folder),
        who=_name(call.asked_by) or "somebody in this chat",
        id=approval.id,
        time=_time(approval.timeout_s),
    )


def buttons_of(approval: Approval) -> list[Button]:
    """Return the buttons_of below it; a value is the command that would be typed."""
    return [
        Button(label="Allow", value=f"/approve {approval.id}"),
        Button(label="Deny", value=f"/deny {approval.id}"),
    ]


def decision_of(approval: Approval) -> str:
    """Say what was decided, and by whom."""
    words = _RESOLVED.get(approval.state, _RESOLVED["allowed"])
    return words.format(who=_name(approval.decided_by) or "a person", tool=_word(approval.call.tool))


def shown_arguments(arguments: str) -> str:
    """Write arguments as JSON that reads the same everywhere.

    Letters stay as they are. What is invisible, turns the direction of writing or ends a block of code is
    written as ``\\uXXXX``, which is the same JSON.
    """
    try:
        text = json.dumps(json.loads(arguments or "{}"), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = json.dumps(arguments)
    return "".join(_sure(character) for character in text)


def _sure(character: str) -> str:
    if character == "\n" or (character.isprintable() and character not in _MARKS):
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _word(text: str) -> str:
    return "".join(each for each in text if each.isprintable() and each not in _MARKS) or "?"


def _name(text: str) -> str:
    """Take out of a person's name what would format it, or make a line of ours of it."""
    return "".join(each for each in text if each.isprintable() and each not in "`*_~[]|<>")[:200]


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:g} seconds"


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
        chat_commands: Commands,
        clock: Callable[[], datetime],
        spawn: Spawn,
        decides: Callable[[Inbound], bool] = lambda _: True,
    ) -> None:
        self._files = files
        self._lanes = lanes
        self._mailbox = mailbox
        self._notices = notices
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

    @classmethod
    def of(cls, agents: AgentSet, **services: Any) -> Approvals | None:
        """Build it for the turns of all agents; None where no tool call ever waits for a person."""
        chat_commands, gate = agents.every[""].commands, agents.every[""].turns.gate
        if gate is None or chat_commands.answers is None:
            return None
        approvals = cls(gate.files, chat_commands.answers, chat_commands=chat_commands, **services)
        for each in agents.every.values():
            if each.turns.gate is not None:
                each.turns.gate.told = approvals.told
        return approvals

    # -- a turn that waits -------------------------------------------------------------------------

    async def wait(self, entry: PendingMessage, session: Session, approval: Approval) -> RetryAfter:
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
        reason = reason_of(approval)
        noted = session.journal.noted(inbound.id, reason)
        if noted is None:
            text = question_of(approval)
            noted = await session.journal.note(inbound.id, reason=reason, text=text)
        # After a crash it is put again under the same id, by which whoever delivers knows it.
        post = replies.prompt(
            inbound,
            reason,
            noted.text,
            self._clock(),
            seq=noted.seq,
            buttons=buttons_of(approval),
        )
        await self._mailbox.put(post)
        await self._notices.show("notice", inbound, post, noted.text, noted.seq)

    def _begins_anew(self, entry: PendingMessage) -> bool:
        lane = self._lanes.get(entry.inbound.key)
        commands = (messages.command(each.inbound) for each in (lane.entries if lane is not None else ()))
        return any(command is not None and command.name == "new" for command in commands)

    async def told(self, approval: Approval) -> None:
        """Say in the chat what was decided, in the place of the question where that can be.

        Raises:
            MailboxDown: not confirmed; call it again.
        """
        call = approval.call
        text = decision_of(approval)
        await self._mailbox.put(
            replies.resolved(call.chat, call.message_id, reason_of(approval), text, self._clock())
        )

    def heard(self, id_: str) -> None:
        """Wake the lane that waits for this approval, where it waits here."""
        woken = self._waiting.pop(id_, None)
        if woken is not None:
            woken.set()

    def close(self) -> None:
        """Look no more: what waits is asked for again by the process that gets its message next."""
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

    async def words(self, asked: Inbound, session: Session) -> str:
        """Take the word in a message; return what to tell, empty where the question itself tells it."""
        command = messages.command(asked)
        assert command is not None
        # A job may run in this very chat, and a model may have made it: its word is nobody's.
        if asked.source != "interactive" or asked.kind not in _SPOKEN or not self._decides(asked):
            return NOT_YOURS_SAID
        said = await self._commands.run(session, command, messages.request(asked))
        assert isinstance(said, str)
        return messages.said(asked, said)

    def anew(self, asked: Inbound) -> None:
        """End a turn that waits for a person, since ``asked``, a ``/new``, wants none of it."""
        begun = self._lanes.begun(asked.key)
        if begun is not None and begun.asking:
            self._lanes.stop(asked.key, asked.id)
