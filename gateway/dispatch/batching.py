"""Queue modes: which messages of a chat one turn answers together, and which turn a new message stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from channels.message import PARTS, Inbound
from channels.tables import QueueMode
from gateway.dispatch import messages
from gateway.dispatch.context import MessageContext
from gateway.dispatch.deduplication import stored
from gateway.dispatch.lanes import Lanes, PendingMessage, RetryAfter
from gateway.dispatch.policy import SUSPECT_DEATHS
from session.store.store import Session
from session.transcript.key import SUBAGENTS
from session.turn.joining import split, stopped_before
from session.turn.turn import Request

# How many messages one turn answers at most: their texts must fit one request.
TOGETHER_MAX = 50
# A turn waits for further messages at most so many times ``collect_s``.
WAITS_MAX = 10
# The first part of an album or long text waits so long after the newest one for those that are named and have
# not come: their adapter may have died between two parts. A publisher that names none has this much time.
PARTS_S = 30.0
UNCOUNTED_PARTS_S = 1.0
# How those are answered that wait.
ANSWERED_SAID: Mapping[QueueMode, str] = {
    "followup": "All will be answered, one after the other.",
    "collect": "All will be answered; consecutive messages from one person are answered together.",
    "steer": "All will be answered; consecutive messages from one person are answered together.",
    "interrupt": "All will be answered; consecutive messages from one person are answered together.",
}


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What a message does that comes while others wait or run.

    Args:
        mode: where the channel says nothing else.
        channels: by the channel's name.
        collect_s: how long mode ``collect`` waits for another message, seconds.
    """

    mode: QueueMode = "followup"
    channels: Mapping[str, QueueMode] = field(default_factory=dict)
    collect_s: float = 0.5

    def of(self, channel: str) -> QueueMode:
        """Return the mode of a channel; what is put to a subagent beside its task enters no turn of it."""
        if channel == SUBAGENTS:
            return "followup"
        return self.channels.get(channel, self.mode)


class QueueModes:
    """Knows by mode and lane which messages one turn answers, and which turn a new message stops.

    What was decided stands in the transcript before a model sees it.
    """

    def __init__(self, rules: QueueRules, lanes: Lanes) -> None:
        self.rules = rules
        self.lanes = lanes

    def arrived(self, inbound: Inbound) -> None:
        """Stop the turn that runs where a new message of its chat and person interrupts it.

        What stands between them would be next, and its turn would answer what was stopped for another.
        A part of an album or long text ends the wait of the first one.
        """
        lane = self.lanes.get(inbound.key)
        if lane is not None and inbound.part_of is not None and _parts(lane.entries[0].inbound, inbound):
            lane.entries[0].woken.set()
        if self.rules.of(inbound.channel) != "interrupt":
            return
        entry = self.lanes.begun(inbound.key)
        if entry is None or entry.last or entry.stop.pulled:
            return
        if lane is not None and lane.running is None and _parts(entry.inbound, inbound):
            # It waits for this very part.
            return
        if all(_together(entry.inbound, other.inbound) for other in self.behind(entry, most=None)):
            self.lanes.stop(inbound.key, inbound.id, interrupted=True)

    def stands_in(self, entry: PendingMessage, session: Session) -> bool:
        """Say whether a deleted message has a turn all the same, which answers what was stopped for it.

        It has none where a message that waits will answer that.
        """
        undone = (line for line in map(session.line, session.records()) if line["kind"] == "undo")
        if any(line.get("message_id") == entry.inbound.id for line in undone):
            # Its turn began: what was stopped is withdrawn, and asked in its place.
            return True
        others = self.waiting(entry, session)
        return serves_stopped(entry.inbound, session) and next(others, None) is None

    def said(self, inbound: Inbound) -> str:
        """Say how the messages are answered that wait in a chat."""
        return ANSWERED_SAID[self.rules.of(inbound.channel)]

    def joins(self, message: MessageContext) -> Joining | None:
        """Return what lets waiting messages into a turn; None where its mode, or a death, lets in none."""
        entry = message.entry
        mode = self.rules.of(entry.inbound.channel)
        if mode == "followup" and entry.inbound.part_of is None:
            return None
        if entry.apart or message.alone or not _collects(entry.inbound):
            return None
        return Joining(self, entry, message.session, steer=mode == "steer")

    def waiting(self, entry: PendingMessage, session: Session) -> Iterator[PendingMessage]:
        """Yield the messages behind ``entry`` that may enter its turn, up to the first that may not."""
        id_ = entry.inbound.id
        for other in self.behind(entry):
            found = session.find(other.inbound.id)
            if found is not None and session.line(found.start).get("part_of") == id_:
                continue
            if stored(session, other.inbound) is not None:
                continue
            # What was asked already, or was there at two deaths, is asked alone.
            suspect = session.journal.attempts(other.inbound.id) >= SUSPECT_DEATHS
            if found is not None or suspect or other.apart or other.letter.lost:
                return
            if not _together(entry.inbound, other.inbound):
                return
            if self.rules.of(entry.inbound.channel) == "followup" and not _parts(
                entry.inbound, other.inbound
            ):
                return
            yield other

    def behind(self, entry: PendingMessage, most: int | None = TOGETHER_MAX) -> Iterator[PendingMessage]:
        """Yield what waits behind the head of a lane, deleted messages left out."""
        lane = self.lanes.get(entry.inbound.key)
        entries = lane.entries if lane is not None and lane.entries and lane.entries[0] is entry else ()
        return (other for other in islice(entries, 1, most) if not other.deleted)


class Batching:
    """The step in which a message waits for others that its turn will answer, too."""

    def __init__(self, modes: QueueModes) -> None:
        self._modes = modes

    async def take(self, message: MessageContext) -> RetryAfter | None:
        """Return how long the head of a lane still waits for messages to collect; None: it may begin."""
        entry, session = message.entry, message.session
        inbound = entry.inbound
        if not _collects(inbound) or entry.stop.pulled or entry.apart or session.find(inbound.id) is not None:
            return None
        if inbound.part_of is not None and (wait := self._parts_pause(entry, session)) is not None:
            return wait
        if self._modes.rules.of(inbound.channel) != "collect":
            return None
        last, count = entry, 1
        for other in self._modes.behind(entry):
            if not _together(inbound, other.inbound):
                # Nothing that comes behind it can be collected any more.
                return None
            last, count = other, count + 1
        until = min(last.since, entry.begun_at + (WAITS_MAX - 1) * self._modes.rules.collect_s)
        left_s = until + self._modes.rules.collect_s - asyncio.get_running_loop().time()
        return RetryAfter(left_s) if left_s > 0 and count < TOGETHER_MAX else None

    def _parts_pause(self, entry: PendingMessage, session: Session) -> RetryAfter | None:
        """Say how long a message waits for the other parts of its album or long text; None: it may begin."""
        inbound = entry.inbound
        lane = self._modes.lanes.get(inbound.key)
        if lane is None:
            return None
        # Set before the parts are counted, so that none is missed that comes meanwhile.
        entry.woken = asyncio.Event()
        told = inbound.meta.get(PARTS)
        ids = [id_ for id_ in told if isinstance(id_, str)] if isinstance(told, list) else []
        known = (lane.find(id_) or session.find(id_) or session.journal.known(id_) for id_ in ids)
        if ids and all(each is not None for each in known):
            return None
        last = max(each.since for each in lane.entries if each.inbound.part_of == inbound.part_of)
        left_s = last + (PARTS_S if ids else UNCOUNTED_PARTS_S) - asyncio.get_running_loop().time()
        return RetryAfter(left_s, entry.woken) if left_s > 0 else None


class Joining:
    """The messages that enter one try of a turn (``Joins``): at its beginning, with ``steer`` all along."""

    def __init__(self, modes: QueueModes, entry: PendingMessage, session: Session, *, steer: bool) -> None:
        self._modes = modes
        self._entry, self._session = entry, session
        self._steer = steer
        self._begun = False
        self._taken: set[str] = set()

    def take(self) -> Sequence[Request]:
        """Return those that enter now, oldest first, each once."""
        if self._begun and not self._steer:
            return ()
        self._begun = True
        others = self._modes.waiting(self._entry, self._session)
        found = [other for other in others if other.inbound.id not in self._taken]
        self._taken.update(other.inbound.id for other in found)
        return [messages.request(other.inbound, queued_at=other.queued_at) for other in found]


async def ask_apart(entry: PendingMessage, session: Session, now: str) -> bool:
    """Have each message of a turn that failed, or died, asked alone; False where it is one message's.

    Raises:
        Fenced, StoreError: nothing was written.
    """
    if not await split(session, entry.inbound.id, now):
        return False
    entry.apart = True
    return True


def serves_stopped(inbound: Inbound, session: Session) -> bool:
    """Say whether the turn before was stopped for this message: its answer serves both."""
    before = stopped_before(session, len(session))
    exchange = session.find(before) if before is not None else None
    if exchange is None or not _collects(inbound):
        return False
    sender = session.line(exchange.start).get("sender")
    return (sender.get("id", "") if isinstance(sender, dict) else "") == inbound.sender.id


def _collects(inbound: Inbound) -> bool:
    """Say whether a message may be answered with others: what a person wrote, and no command."""
    return inbound.kind == "message" and inbound.source == "interactive" and messages.command(inbound) is None


def _parts(one: Inbound, other: Inbound) -> bool:
    return one.part_of is not None and one.part_of == other.part_of


def _together(one: Inbound, other: Inbound) -> bool:
    """Say whether one answer may serve both: messages of one person whose answers go to one place.

    What a turn may do and spend, and what it sees, is decided by who asks.
    """
    return (
        _collects(one)
        and _collects(other)
        and one.sender.id == other.sender.id
        and one.answer_to == other.answer_to
        and one.group == other.group
    )
