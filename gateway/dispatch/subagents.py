"""Subagents: started and ended here, their messages decided over, their results told to the parent.

A subagent has a store of its own, so that none of its lines is listed, searched, remembered or kept with
those of chats. How it ended is on record before its result is put, and is told once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from html import escape
from typing import Any, Final, TypeVar

import structlog

import durable
from channels.message import PROMISED, Inbound, Sender, now_text
from durable import BoundedDict, whole_text
from gateway.dispatch.control_order import OWN, StopOrder
from gateway.dispatch.lanes import PendingMessage
from gateway.dispatch.messages import ASKER
from gateway.dispatch.policy import Verdict
from gateway.errors import MailboxError
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post
from gateway.queue.retry import until_durable
from session.disk.threads import start_thread
from session.errors import NewerFormat, SessionError, ToolError
from session.memory.scope_resolver import PARENT
from session.store.store import Session, Store
from session.subagents import records
from session.subagents.records import Call, Subagent, SubagentFiles
from session.tools import ToolPlace, capped
from session.transcript.agent import AGENT, agent_in, parted
from session.transcript.key import SUBAGENTS, SessionKey, is_subagent, slot_of, split
from session.turn.turn import Reply

log = structlog.get_logger("subagents")


# The sender of a result: no platform has a person of this id.
SUBAGENT: Final = "subagent"
# What of a message's ``meta`` serves one answer alone.
_ONCE: Final = ("interaction", "application", PROMISED)
_MARK: Final = "subagent-result"
_RESULT = (
    f'<{_MARK} of="{{label}}" key="{{key}}">\n'
    "Report of the subagent that you started, not written by a person. Tell the person what matters.\n\n"
    f"{{text}}\n</{_MARK}>"
)

# The message whose turn runs for a key, by its id; None where it does not run here.
LetterOf = Callable[[str, str], Inbound | None]


class Spawning:
    """Starts subagents for the turns that run in this process, and ends them wherever they run.

    Args:
        files: what is on record of them.
        mailbox: the queue, through which a subagent's task goes as any message does.
        letter_of: finds the message whose turn asks for one.
    """

    def __init__(self, files: SubagentFiles, mailbox: Mailbox, letter_of: LetterOf) -> None:
        self._files = files
        self._mailbox = mailbox
        self._letter_of = letter_of

    async def spawn(self, place: ToolPlace, *, task: str, label: str) -> str:
        """Start a subagent for the call that runs at ``place``, and return its key; see ``Spawns``."""
        asked = self._letter_of(place.key, place.message_id)
        if asked is None or is_subagent(place.key):
            raise ToolError("a subagent cannot be started from here")
        call = Call(place.key, place.session_id, place.message_id, place.call_id)
        # Its task and its result are for the agent that asks.
        own = {"several": place.group, AGENT: parted(place.scope)[0]}
        origin = {**await self._origin(asked), **own}
        begin = partial(self._files.begin, call, task=task, label=label, origin=origin)
        # On record first: a message of which nothing is on record is refused.
        begun = await start_thread(begin, name="subagents")
        if begun.state == "waiting":
            await self.put(begun)
            log.info("subagent.begun", subagent=begun.key)
        return begun.key

    async def _origin(self, asked: Inbound) -> Mapping[str, Any]:
        """Return what the message with the result shares with the message that asks for a subagent."""
        if asked.kind == "result":
            # On behalf of whom the subagent before worked, this one does.
            key = str(asked.meta.get(SUBAGENT) or "")
            found = await start_thread(lambda: self._files.find(asked.key, key), name="subagents")
            return found.origin if found is not None else {}
        return _origin(asked)

    async def put(self, subagent: Subagent) -> None:
        """Return when its message is in the queue; the same message again is the same subagent."""
        letter = task_letter(subagent)
        await until_durable(
            lambda: self._mailbox.put(Post(INBOUND, letter.key, letter.id, letter.to_bytes()))
        )
        await start_thread(lambda: self._files.queued(subagent), name="subagents")

    async def end(self, key: str, by: str = "", *, results: bool = False) -> int:
        """End the subagents of a conversation, for good by the time this returns, and stop their turns.

        Args:
            key: the conversation.
            by: the id of the message that asks for it; asking again ends no later ones.
            results: drop the results that it was not told yet, too.

        Returns:
            How many there are.

        Raises:
            NewerFormat, StoreError: call it again.
        """
        if is_subagent(key):
            return 0
        end = partial(self._files.end, key, by, results=results)
        ended = await start_thread(end, name="subagents")
        for each in ended:
            log.info("subagent.ended", subagent=each.key)
            # Whoever does not hear it works on in vain: the record says that nobody waits.
            order = StopOrder(id=f"{OWN}{durable.new_id()}", key=each.key)
            await self._mailbox.tell("control", slot_of(each.key), order.to_bytes())
        return len(ended)

    async def live(self, key: str) -> list[Subagent]:
        """List the subagents of a conversation that work or wait for their turn, oldest first."""
        found = await start_thread(lambda: self._files.of(key), name="subagents")
        return [each for each in found if each.live]


def task_letter(subagent: Subagent) -> Inbound:
    """Make the message in which a subagent gets its task, from what is on record of it."""
    channel, chat_id = split(subagent.key)
    return Inbound(
        v=1,
        id=subagent.id,
        key=subagent.key,
        channel=channel,
        chat_id=chat_id,
        text=whole_text(subagent.task),
        sender=_sender(subagent.origin),
        received_at=now_text(subagent.created_at),
        # Where to look for what is on record of it.
        meta={"parent": subagent.parent},
    )


def result_letter(subagent: Subagent, text: str) -> Inbound:
    """Make the message that brings the result, marked as nothing that a person wrote, to the parent."""
    channel, chat_id = split(subagent.parent)
    if not channel:
        # A key without a colon, such as ``heartbeat``, is the terminal's.
        channel = "cli"
    origin = subagent.origin
    label = whole_text(subagent.label)
    quoted = capped(text.replace(f"</{_MARK}", f"&lt;/{_MARK}"))
    answer_to, job = origin.get("answer_to"), origin.get("cron_job_id")
    return Inbound(
        v=1,
        id=subagent.result_id,
        key=subagent.parent,
        channel=channel,
        chat_id=chat_id,
        text=_RESULT.format(label=escape(label), key=subagent.key, text=quoted),
        kind="result",
        sender=Sender(id=SUBAGENT, name=label),
        group=origin.get("group") is not False,
        answer_to=answer_to if isinstance(answer_to, str) else None,
        source="cron" if origin.get("source") == "cron" else "interactive",
        cron_job_id=job if isinstance(job, str) else None,
        received_at=now_text(),
        meta={**_mapping(origin.get("meta")), SUBAGENT: subagent.key, ASKER: _mapping(origin.get("sender"))},
    )


def billed(letter: Inbound, subagent: Subagent) -> Inbound:
    """Return who pays for the turn of a letter: who asked in the conversation that started the subagent."""
    paid = result_letter(subagent, "")
    return paid.model_copy(update={"id": letter.id, "sender": _sender(subagent.origin)})


def is_of_subagent(inbound: Inbound) -> bool:
    """Say whether a message is for a subagent, or claims to be."""
    return inbound.channel == SUBAGENTS


def _origin(asked: Inbound) -> dict[str, Any]:
    return {
        "sender": asked.sender.model_dump(exclude_defaults=True),
        "group": asked.group,
        "answer_to": asked.answer_to,
        "source": asked.source,
        "cron_job_id": asked.cron_job_id,
        "meta": {name: value for name, value in asked.meta.items() if name not in _ONCE},
    }


def _sender(origin: Mapping[str, Any]) -> Sender:
    known = _mapping(origin.get("sender"))
    return Sender(**{name: str(known.get(name, "")) for name in ("id", "name", "username")})


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


T = TypeVar("T")

UNKNOWN: Final = "refused: no subagent with this key and id was ever started here"
UNKNOWN_RESULT: Final = "A result arrived from a subagent that this chat did not start. It was ignored."
LATE: Final = "subagent_late"
LATE_SAID: Final = (
    "A subagent has finished, but the conversation that started it has ended. Its result is not used; "
    "ask again, or /resume that conversation and ask there."
)
STOPPED: Final = "it was stopped"
_FAILED: Final = {
    "attempts": "it was restarted several times and never finished",
    "bad_answer": "the language model gave no usable answer",
    "failed": "something went wrong; the operator can see it in the log",
    "outage": "the model was not available for too long",
    "refused": "the language model refused the task",
    "timeout": "it exceeded the time limit of an answer",
    "too_large": "its result was too large to be stored",
    "too_long": "its work became too long for the language model",
}
_FAILED_SAID: Final = "The subagent failed, and there is no result: {}."
_KNOWN_MAX: Final = 10_000
_SWEEP_S: Final = timedelta(days=1).total_seconds()


class Subagents:
    """Decides over messages to and of subagents.

    Args:
        files: what is on record of them.
        spawning: starts and ends them.
        store: the conversations of subagents alone.
        parents: those of everybody else.
        mailbox: the queue.
    """

    def __init__(
        self,
        files: SubagentFiles,
        spawning: Spawning,
        *,
        store: Store,
        parents: Store,
        mailbox: Mailbox,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        self.store = store
        self.end = spawning.end
        self._files = files
        self._spawning = spawning
        self._parents = parents
        self._mailbox = mailbox
        self._clock = clock
        # What is on record of the subagents whose messages, or results, are worked on here, by message id.
        self._known: BoundedDict[str, Subagent] = BoundedDict(_KNOWN_MAX)

    # -- a task ------------------------------------------------------------------------------------

    async def turned_away(self, entry: PendingMessage) -> bool:
        """Let go of the message of a subagent that nobody waits for, and set a forged one aside.

        Returns:
            Whether it is gone. Else the message says from here on what is on record.

        Raises:
            MailboxError, NewerFormat, StoreError: call it again.
        """
        inbound = entry.inbound
        found = await self._recorded(inbound)
        if found is None:
            # Anybody may put a letter: it could ask for the files of whomever it names.
            await self._mailbox.park(entry.letter, ParkedAs(inbound.key, UNKNOWN, 0))
            entry.settled = entry.letter
            log.warning("subagent.refused", key=inbound.key, id=inbound.id)
            return True
        if found.state not in ("told", "ended") and not await self._is_wanted(found):
            await self._do(partial(self._files.told, found))
            found = found.now("told", self._clock())
        if found.state in ("told", "ended"):
            await self._mailbox.settle(entry.letter)
            entry.settled = entry.letter
            await self._clean(found)
            log.info("subagent.dropped", key=inbound.key)
            return True
        entry.inbound = task_letter(found)
        self._known[found.id] = found
        if found.failure and entry.verdict is None:
            # It failed, and a crash came before its parent was told.
            entry.verdict = Verdict("failed", found.failure)
        return False

    async def opened(self, session: Session, inbound: Inbound) -> None:
        """Let the conversation of a subagent name its parent and agent, by which its scope is drawn.

        Raises:
            Fenced, StoreError: it does not.
        """
        known = self._known[inbound.id]
        said = {PARENT: known.parent, AGENT: agent_in(known.origin) or None}
        if any(session.metadata.get(name) != value for name, value in said.items()):
            await session.remember(said)

    async def result(self, inbound: Inbound, reply: Reply) -> Post | None:
        """Settle how a subagent ended, and make the message that tells its parent. None: nobody waits for it.

        Raises:
            NewerFormat, StoreError: call it again.
        """
        known = self._known.get(inbound.id) or await self._recorded(inbound)
        if known is None:
            return None
        answered = reply.kind == "reply" and not reply.silent
        failure = "" if answered else _failed(reply)
        found = await self._do(partial(self._files.answered, known, failure))
        if found is None:
            return None
        letter = result_letter(found, _FAILED_SAID.format(found.failure) if found.failure else reply.text)
        log.info("subagent.answered", subagent=found.key, failed=bool(found.failure))
        return Post(INBOUND, letter.key, letter.id, letter.to_bytes())

    # -- a result ----------------------------------------------------------------------------------

    async def met(self, session: Session, inbound: Inbound) -> Reply | Verdict | None:
        """Look at a result before it makes a turn.

        Returns:
            None where it does; a notice where its conversation has ended meanwhile, silence where a person
            ended it; why it is set aside where no subagent of this conversation has it.

        Raises:
            Fenced, NewerFormat, StoreError: nothing was decided.
        """
        found = await self._find(inbound.key, str(inbound.meta.get(SUBAGENT) or ""))
        if found is None or found.result_id != inbound.id:
            return Verdict("refused", UNKNOWN_RESULT)
        if found.state == "answered" and await self._goes_on(found, session.stem, session.session_id):
            self._known[inbound.id] = found
            return None
        log.info("subagent.result_dropped", subagent=found.key)
        if found.state != "answered":
            await session.journal.conclude(inbound.id, "silent", reason="subagent")
            return Reply(silent=True)
        # Nobody who ended it knows that something was still to come: a silence did, or the chat has moved.
        known = await session.journal.conclude(inbound.id, "notice", text=LATE_SAID, reason=LATE)
        return Reply(known.text, kind="notice", reason=LATE, seq=known.seq or 0)

    # -- both --------------------------------------------------------------------------------------

    def payer(self, inbound: Inbound) -> Inbound:
        """Return a message that says who pays for the turn of this one."""
        of_one = is_of_subagent(inbound) or inbound.kind == "result"
        known = self._known.get(inbound.id) if of_one else None
        return billed(inbound, known) if known is not None else inbound

    async def settled(self, inbound: Inbound) -> None:
        """Clean up behind a message that is gone; what fails is done at the next start."""
        known = self._known.pop(inbound.id, None)
        try:
            if is_of_subagent(inbound):
                found = await self._find(known.parent, known.key) if known is not None else None
                if found is not None and found.state in ("told", "ended"):
                    await self._clean(found)
            elif inbound.kind == "result":
                key = str(inbound.meta.get(SUBAGENT) or "")
                found = await self._find(inbound.key, key)
                if found is not None and found.result_id == inbound.id:
                    await self._do(partial(self._files.told, found))
                    await self._clean(found)
        except SessionError as error:
            log.warning("subagent.not_cleaned", id=inbound.id, error=str(error), hint=error.hint)

    # -- after a crash -----------------------------------------------------------------------------

    async def keep_clean(self, ready: Awaitable[object]) -> None:
        """Sweep once ``ready``, then daily."""
        await ready
        while True:
            try:
                await self.sweep()
            except (MailboxError, SessionError, OSError) as error:
                log.warning("subagents.not_swept", error=str(error), hint=getattr(error, "hint", ""))
            except Exception:
                # The chats do not wait for it, and the next one may go well.
                log.exception("subagents.sweep_crashed")
            await asyncio.sleep(_SWEEP_S)

    async def sweep(self) -> None:
        """Put the messages that a crash kept out of the queue, and clean up behind subagents that are over.

        Raises:
            MailboxError, NewerFormat, StoreError: the rest is done the next time.
        """
        # The files first: a conversation that begins meanwhile is then on record.
        left = await self._do(partial(records.stems_on_disk, self.store.layout))
        journals = await self.store.state.journals_of(SUBAGENTS)
        found = await self._do(lambda: list(self._files.everywhere()))
        now, kept = self._clock(), set[str]()
        for each in found:
            # One that cannot be looked at, as its parent cannot, holds up no other.
            try:
                over = await self._swept(each)
            except NewerFormat:
                raise
            except SessionError as error:
                log.warning("subagent.not_swept", subagent=each.key, error=str(error), hint=error.hint)
                over = False
            except (ValueError, TypeError):
                log.exception("subagent.sweep_crashed", subagent=each.key)
                over = False
            if not over and records.is_needed(each, now):
                kept.add(each.key)
        await self._do(partial(records.remove_all_but, self.store.layout, left, kept))
        await self.store.state.drop_journals(key for key in journals if key not in kept)
        await self._do(self._files.prune)

    async def _swept(self, subagent: Subagent) -> bool:
        """Put the message of one that waits for it; say whether its result was told."""
        if subagent.state == "waiting":
            await self._spawning.put(subagent)
        elif subagent.state == "answered" and await self._was_told(subagent):
            await self._do(partial(self._files.told, subagent))
            return True
        return False

    async def _recorded(self, inbound: Inbound) -> Subagent | None:
        """Return what is on record of the subagent whose message this is; None where it is nobody's."""
        parent = inbound.meta.get("parent")
        found = await self._find(parent, inbound.key) if isinstance(parent, str) else None
        return found if found is not None and found.id == inbound.id else None

    async def _was_told(self, subagent: Subagent) -> bool:
        view = await self._parents.look(SessionKey(subagent.parent))
        exchange = view.find(subagent.result_id)
        if exchange is not None:
            return exchange.final is not None
        return view.journal_state.known(subagent.result_id, self._clock()) is not None

    async def _is_wanted(self, subagent: Subagent) -> bool:
        """Say whether the conversation that started a subagent has not ended since."""
        view = await self._parents.look(SessionKey(subagent.parent))
        return await self._goes_on(subagent, view.stem, view.session_id)

    async def _goes_on(self, subagent: Subagent, stem: str, active: str) -> bool:
        layout = self._parents.layout
        return await self._do(partial(records.goes_on, layout, stem, active, subagent.session_id))

    async def _find(self, parent: str, key: str) -> Subagent | None:
        return await self._do(partial(self._files.find, parent, key))

    async def _clean(self, subagent: Subagent) -> None:
        await self._do(partial(records.remove_conversation, self.store.layout, subagent.key))
        await self.store.state.drop_journals([subagent.key])

    async def _do(self, job: Callable[[], T]) -> T:
        return await start_thread(job, name="subagents")


def _failed(reply: Reply) -> str:
    """Say in words why there is no result."""
    if reply.silent and reply.reason == "stopped":
        return STOPPED
    return _FAILED.get(reply.reason) or reply.text.rstrip(".") or "the reason is unknown"
