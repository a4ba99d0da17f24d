"""Traces one message through all that records it: queue, lanes, files, send log, approvals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gateway.config.settings import Settings
from gateway.dispatch.lanes import Lanes, PendingMessage
from gateway.errors import GatewayError, MailboxError
from gateway.outbound.send_log import SentChunk, SentMessage, sent_for
from gateway.queue.mailbox import INBOUND, Mailbox, Parked, Waiting
from gateway.service.standing_of import standing_of
from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval
from session.disk.layout import Layout
from session.disk.threads import start_thread
from session.models.usage_rows import of_turn
from session.store import trace as traces
from session.store.state import StoreState
from session.store.trace import SEND_LOG, Step, in_order
from session.subagents.records import Subagent, SubagentFiles
from session.transcript.key import is_subagent, split

_SEARCHED = ("the records of subagents and approvals", "the send log")
_DECIDED = {"allowed": "allowed", "started": "allowed", "ended": "allowed", "denied": "denied"}


class NotTraced(GatewayError):
    """Nothing tells of a message of this id."""


class TracedTwice(GatewayError):
    """Several chats have a message of this id."""


@dataclass(slots=True)
class _Queue:
    """What the queue tells. ``unseen`` says why something of it could not be looked at."""

    letters: list[Waiting] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


class Tracer:
    """Traces messages of one workspace.

    Args:
        mailbox: the queue, where it is open.
        lanes: those of this process, where it has some.
        unasked: why there is no mailbox.
    """

    def __init__(
        self, settings: Settings, *, mailbox: Mailbox | None, lanes: Lanes | None = None, unasked: str = ""
    ) -> None:
        self._settings = settings
        self._mailbox = mailbox
        self._lanes = lanes
        self._unasked = unasked
        self._layout = Layout(settings.workspace)

    async def trace(self, message_id: str, key: str | None = None) -> dict[str, Any]:
        """Tell the life of a message in order of time.

        Returns:
            ``id``, ``key``, ``state`` and ``words`` of where it stands now, ``steps``, and in ``unknown``
            what nothing tells.

        Raises:
            NotTraced: nothing tells of it; its text says what was searched.
            TracedTwice: several chats have such a message; name the key.
            NewerFormat, NewerState, StoreError, SendLogDown: a file cannot be read.
        """
        state = StoreState(self._settings.state)
        try:
            return await self._trace(message_id, key, state)
        finally:
            await state.aclose()

    async def _trace(self, message_id: str, key: str | None, state: StoreState) -> dict[str, Any]:
        queue = await self._queue(message_id)
        of = key or "every chat"
        keys = {key} if key else await self._keys(message_id, queue, state)
        key = _one_of(keys, message_id)
        chats = [each for each in (*(keys - {key}), key) if each]
        journals = await state.journals(chats)
        found = await start_thread(
            lambda: _Files(self._settings, key or "", message_id, journals), name="trace"
        )
        found.steps += await _spent(found.subagents, state)
        entry = self._entry(key, message_id)
        letters = [each for each in queue.letters if _is_of(each.key, key)]
        parked = [each for each in queue.parked if each.key is None or _is_of(each.key, key)]
        steps = in_order([*found.steps, *_waits(letters, entry), *map(_set_aside, parked)])
        if not steps and entry is None:
            looked = () if queue.unseen else ("the queue and the parked messages",)
            files = f"transcripts, archives and journal of {of}"
            where = "; ".join([files, *_SEARCHED, *looked, *queue.unseen])
            raise NotTraced(f"no trace of message {message_id}; searched: {where}", hint=_cure(message_id))
        standing, words, unknown = standing_of(
            key or "", message_id, steps, entry=entry, letters=letters, parked=parked, sent=found.sent
        )
        return {
            "id": message_id,
            "key": key,
            "state": standing,
            "words": words,
            "steps": [each.as_dict() for each in steps],
            "unknown": [*unknown, *queue.unseen],
        }

    async def _queue(self, message_id: str) -> _Queue:
        found = _Queue()
        if self._mailbox is None:
            found.unseen.append(f"whether it waits in the queue: {self._unasked}")
            return found
        try:
            letters = await self._mailbox.waiting(message_id)
            mine = (message_id, f"{message_id}#")
            parked = await self._mailbox.parked()
            found.parked = [each for each in parked if each.id == mine[0] or each.id.startswith(mine[1])]
        except MailboxError as error:
            found.unseen.append(f"whether it waits in the queue: {error}")
            return found
        if letters is None:
            found.unseen.append("whether it waits in RabbitMQ, which cannot list the messages of a queue")
        found.letters = list(letters or ())
        return found

    async def _keys(self, message_id: str, queue: _Queue, state: StoreState) -> set[str | None]:
        """Find whose message it is."""
        keys: set[str | None] = {
            each.key for each in queue.letters if each.box == INBOUND and each.id == message_id
        }
        keys |= {str(each.key) for each in queue.parked if each.box == INBOUND and each.id == message_id}
        keys |= {lane.key for lane in self._lanes or () if lane.find(message_id) is not None}
        keys |= await start_thread(lambda: _keys_on_disk(self._settings, message_id), name="trace")
        keys |= await state.keys_naming(message_id)
        return keys

    def _entry(self, key: str | None, message_id: str) -> PendingMessage | None:
        lane = self._lanes.get(key) if self._lanes is not None and key is not None else None
        return lane.find(message_id) if lane is not None else None


def _one_of(keys: Collection[str | None], message_id: str) -> str | None:
    """Return whose message it is; a job's run that its chat handed on is the job's own.

    Raises:
        TracedTwice: several chats have such a message.
    """
    own = message_id.rpartition("@")[0]
    if len(keys) == 2 and own in keys and split(own)[0] == "cron":
        return own
    if len(keys) > 1:
        named = ", ".join(sorted(map(str, keys)))
        raise TracedTwice(f"several chats have a message {message_id}: {named}", hint="choose one with --key")
    return next(iter(keys), None)


def is_in_lane(found: Mapping[str, Any]) -> bool:
    """Say whether whoever told a life has the message in its own line."""
    # Once a turn has begun, its transcript tells when the message was queued, and no step is of the lane.
    return found["state"] in ("running", "asking") or any(step["source"] == "lane" for step in found["steps"])


def joined(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the daemon says that has the message in its line; else what the first one says."""
    return next(filter(is_in_lane, found), found[0])


class _Files:
    """What the files of a workspace tell; built in a thread.

    ``journals``: those of the chats that know of the message.
    """

    def __init__(
        self, settings: Settings, key: str, message_id: str, journals: Mapping[str, Sequence[dict[str, Any]]]
    ) -> None:
        state = settings.state
        steps: list[Step] = []
        for each, journal in journals.items():
            steps += traces.of_message(_layout(settings, each), each, message_id, journal)
        steps += _due(message_id)
        steps += _of_approvals(ApprovalFiles(state), key, message_id)
        self.subagents = list[Subagent]()
        for subagent in SubagentFiles(state).everywhere():
            steps += _of_subagent(subagent, key, message_id)
            ids = ((subagent.parent, subagent.message_id), (subagent.key, subagent.id))
            if (key, message_id) in ids:
                self.subagents.append(subagent)
        self.sent = [each for each in sent_for(state, message_id) if not key or _is_of(each.key, key)]
        self.steps = [*steps, *(step for each in self.sent for step in _sent(each))]


def _layout(settings: Settings, key: str) -> Layout:
    # Subagents have a store of their own.
    return Layout(settings.state / "subagents" if is_subagent(key) else settings.workspace)


def _keys_on_disk(settings: Settings, message_id: str) -> set[str]:
    homes = (settings.workspace, settings.state / "subagents")
    found = {key for home in homes for key in traces.keys_with(Layout(home), message_id)}
    # The conversation of one that is over is gone; its record tells for two days.
    ended = (each for each in SubagentFiles(settings.state).everywhere() if each.id == message_id)
    return found | {each.key for each in ended}


def _is_of(found: str, key: str | None) -> bool:
    """Say whether what was found is of this key's message; a job's answer goes to another chat."""
    return key is None or found == key or split(key)[0] == "cron"


def _cure(message_id: str) -> str:
    return f"take the id from the log, or from `sessions show`; {message_id!r} may be older than the records"


# -- steps -----------------------------------------------------------------------------------------


def _due(message_id: str) -> Iterator[Step]:
    """Read from the id of a job's run when it was due."""
    if message_id.startswith("cron:") and (slot := message_id.rpartition("@")[2]):
        try:
            at = datetime.fromisoformat(slot)
        except ValueError:
            return
        yield Step(at if at.tzinfo else at.replace(tzinfo=UTC), "due", "the job was due", "id")


def _waits(letters: Iterable[Waiting], entry: PendingMessage | None) -> Iterator[Step]:
    for each in letters:
        if each.box == INBOUND:
            words = "put into the queue" + (", not taken yet" if entry is None else "")
            yield Step(each.put_at, "put", words, "queue", {"box": each.box})
        else:
            yield Step(
                each.put_at,
                "put",
                f"{_what(each.id)} put into the queue, not taken yet",
                "queue",
                {"box": each.box},
            )
    if entry is not None:
        yield Step(
            entry.queued_at, "queued", "taken from the queue; waiting for its turn in the chat", "lane"
        )


def _set_aside(parked: Parked) -> Step:
    what = "parked" if parked.box == INBOUND else f"{_what(parked.id)} parked"
    fields = {"reason": parked.reason, "attempts": parked.attempts, "box": parked.box}
    return Step(parked.parked_at, "parked", what, "parked messages", fields)


def _what(out_id: str) -> str:
    """Name what went out by its id: the reply, or a notice with its reason."""
    kind = out_id.partition("#")[2]
    return "reply" if kind in ("", "reply") else kind.replace(".", " ", 1)


def _sent(message: SentMessage) -> Iterator[Step]:
    what, channel = _what(message.id), split(message.key)[0]
    fields = {"channel": channel, "letter": message.id}
    if message.queued_at is not None:
        yield Step(message.queued_at, "put", f"{what} put into the queue", SEND_LOG, fields)
    for chunk in message.chunks:
        yield _sent_chunk(chunk, what, fields | {"piece": chunk.number})
    if message.done_at is not None:
        words = f"{channel} accepted the whole {what}"
        yield Step(message.done_at, "delivered", words, SEND_LOG, fields)


def _sent_chunk(chunk: SentChunk, what: str, fields: dict[str, Any]) -> Step:
    channel = fields["channel"]
    if chunk.platform_id:
        # The send that was accepted counts, too, but not the edit of a preview.
        more = chunk.unknown - 1
        words = f"{channel} accepted part {chunk.number} of the {what}"
        if more > 0:
            words += f"; {more} earlier {'attempt was' if more == 1 else 'attempts were'} never confirmed"
        return Step(chunk.at, "sent", words, SEND_LOG, fields | {"platform_id": chunk.platform_id})
    if chunk.unknown:
        words = f"part {chunk.number} of the {what} was sent to {channel}, which never confirmed it"
        return Step(chunk.at, "sending", words, SEND_LOG, fields | {"sends": chunk.unknown})
    words = f"{channel} did not accept part {chunk.number} of the {what}"
    return Step(chunk.at, "not sent", words, SEND_LOG, fields)


def _of_approvals(files: ApprovalFiles, key: str, message_id: str) -> Iterator[Step]:
    for each in files.all():
        call = each.call
        if (call.key, call.message_id) == (key, message_id):
            yield from _asked(each)
        elif each.decided_via == message_id and key in (call.chat, call.key):
            fields = {"tool": call.tool, "approval": each.id, "of": call.message_id}
            yield Step(
                each.decided_at, "decided", f"decided the approval of {call.tool}", "approvals", fields
            )


def _asked(approval: Approval) -> Iterator[Step]:
    tool = approval.call.tool
    fields = {"tool": tool, "approval": approval.id}
    yield Step(approval.asked_at, "asked", f"approval of {tool} requested", "approvals", fields)
    if approval.decided_at is not None:
        word = _DECIDED.get(approval.state, approval.state)
        words = f"approval of {tool} decided: {word}"
        yield Step(approval.decided_at, "decided", words, "approvals", fields | {"by": approval.decided_by})
    elif approval.ended_at is not None:
        yield Step(
            approval.ended_at, approval.state, f"approval request for {tool} closed", "approvals", fields
        )


def _of_subagent(each: Subagent, key: str, message_id: str) -> Iterator[Step]:
    if (each.parent, each.message_id) == (key, message_id):
        yield from _started(each, "subagent started")
    elif (each.key, each.id) == (key, message_id):
        yield from _started(each, "started as a subagent")
    elif each.result_id == message_id and each.parent == key:
        yield from _started(each, "the subagent that produced this result was started")


def _started(each: Subagent, words: str) -> Iterator[Step]:
    fields = {"subagent": each.key, "letter": each.id, "parent": each.parent}
    yield Step(each.created_at, "subagent", words, "subagents", fields)
    if each.changed_at is not None and each.changed_at != each.created_at:
        over = {"state": each.state}
        yield Step(each.changed_at, "subagent", f"the subagent is {each.state}", "subagents", fields | over)


async def _spent(subagents: Iterable[Subagent], state: StoreState) -> list[Step]:
    """Tell what their turns cost, which is billed to the chat: their conversations go once they are done."""
    steps = list[Step]()
    for each in subagents:
        for row in await of_turn(state, each.parent, each.id, each.created_at):
            fields = {"subagent": each.key, "model": row.model, **row.usage.fields()}
            steps.append(Step(row.at, "spent", "all model calls of the subagent", "usage", fields))
    return steps
