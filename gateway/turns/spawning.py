"""Starts subagents and ends them: on record first, then in the queue or told over control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any, Final

import structlog

import durable
from channels.message import PROMISED, Inbound, Sender, now_text
from durable import whole_text
from gateway.queue.mailbox import INBOUND, Mailbox, Post
from gateway.queue.retry import until_durable
from gateway.turns.control_order import OWN, StopOrder
from gateway.turns.outcomes import ASKER
from session.disk.threads import start_thread
from session.errors import ToolError
from session.subagents.records import Call, Subagent, SubagentFiles
from session.tools import ToolPlace, capped
from session.transcript.agent import AGENT, parted
from session.transcript.key import SUBAGENTS, is_subagent, slot_of, split

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
        # On record first: a letter of which nothing is on record is refused.
        begun = await start_thread(begin, name="subagents")
        if begun.state == "waiting":
            await self.put(begun)
            log.info("subagent.begun", subagent=begun.key)
        return begun.key

    async def _origin(self, asked: Inbound) -> Mapping[str, Any]:
        """Return what the letter with the result shares with the message that asks for a subagent."""
        if asked.kind == "result":
            # On behalf of whom the subagent before worked, this one does.
            key = str(asked.meta.get(SUBAGENT) or "")
            found = await start_thread(lambda: self._files.find(asked.key, key), name="subagents")
            return found.origin if found is not None else {}
        return _origin(asked)

    async def put(self, subagent: Subagent) -> None:
        """Return when its letter is in the queue; the same letter again is the same subagent."""
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
    """Make the letter in which a subagent gets its task, from what is on record of it."""
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
    """Make the letter that brings the result, marked as nothing that a person wrote, to the parent."""
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
    """Say whether a letter is for a subagent, or claims to be."""
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
