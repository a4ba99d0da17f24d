"""Takes letters as they come: each into its lane, or out of the way at once, whatever it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from channels.errors import Unreadable
from channels.message import Inbound, read_inbound
from durable import first_of
from gateway.errors import LetterLost
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs
from gateway.queue.retry import back_off_s, until_durable
from gateway.turns import edits, messages, routing
from gateway.turns.batching import Collecting
from gateway.turns.commands import Orders
from gateway.turns.events import Events, Spawn
from gateway.turns.jobs import is_shown, replace_waiting
from gateway.turns.lanes import Lane, Lanes
from gateway.turns.limits import Refusals
from gateway.turns.policy import UNANSWERED, Verdict, broken
from gateway.turns.replies import Notices
from gateway.turns.routing import ChatAgents
from gateway.turns.subagents import is_of_subagent

log = structlog.get_logger("worker")


class Arrivals:
    """Where letters begin: read, put into their lanes, refused where their chat has too many.

    Args:
        pending: how many letters of a chat may wait before it is told.
        redelivered: hears the box of each letter that may have come before.
    """

    def __init__(
        self,
        pending: int,
        *,
        lanes: Lanes,
        mailbox: Mailbox,
        events: Events,
        notices: Notices,
        orders: Orders,
        refusals: Refusals,
        collecting: Collecting,
        agents: ChatAgents,
        spawn: Spawn,
        redelivered: Callable[[str], None] = lambda box: None,
    ) -> None:
        self._redelivered = redelivered
        self._pending = pending
        self._agents = agents
        self._lanes = lanes
        self._mailbox = mailbox
        self._events = events
        self._notices = notices
        self._orders = orders
        self._refusals = refusals
        self._collecting = collecting
        self._spawn = spawn
        self._closing = asyncio.Event()

    def receive(self, letter: Letter) -> None:
        """Take one letter; nothing is raised, so that the next one is taken whatever this one holds."""
        try:
            self._receive(letter)
        except Unreadable as error:
            # It would come again and again, always the same: nobody can ever answer it.
            self._park(letter, error)
        except Exception as error:
            # One letter ends here: the loop serves all chats.
            log.exception("letter.broken", id=letter.id)
            self._set_aside(letter, error)

    def close(self) -> None:
        """Refuse and park no further letter: what is not gone yet comes again."""
        self._closing.set()
        self._refusals.close()

    def _receive(self, letter: Letter) -> None:
        if letter.suspect:
            self._redelivered(letter.box)
        inbound, ignored = read_inbound(letter.body)
        if ignored:
            log.warning("letter.fields_ignored", key=inbound.key, id=inbound.id, fields=ignored)
        typed, (inbound, agent) = inbound.text, self._agents.read(inbound)
        command = messages.command(inbound)
        lane = self._lanes.get(inbound.key)
        if self._is_too_many(lane, inbound):
            self._orders.received(inbound, command, again=letter.suspect)
            self._refuse(lane, inbound, letter)
            return
        entry = self._lanes.add(inbound, letter)
        if entry is None:
            return
        if agent:
            entry.agent, entry.typed = agent, typed if typed != inbound.text else ""
        lane = self._lanes.get(inbound.key)
        self._orders.received(inbound, command, again=letter.suspect)
        if inbound.kind == "edit" and lane is not None:
            edits.replace(lane, inbound)
        if lane is not None:
            replace_waiting(lane, inbound)
        self._collecting.arrived(inbound)
        if lane is not None and len(lane.entries) > 1:
            self._crowd(lane, inbound)
            if is_shown(inbound) and self._events.watched(inbound.key):
                self._spawn(self._events.tell("queued", inbound.key, inbound.id), "event queued")

    def _refuse(self, lane: Lane | None, inbound: Inbound, letter: Letter) -> None:
        """Let a letter end beside its lane; an edit, which is answered by nobody, in silence."""
        edit = inbound.kind == "edit"
        told = lane.flooded if lane is not None else self._refusals.tells(inbound.key)
        self._refusals.add(inbound, letter, tell=not (told or edit))
        if lane is not None and edit:
            edits.replace(lane, inbound)
        elif lane is not None:
            lane.flooded = True

    def _is_too_many(self, lane: Lane | None, inbound: Inbound) -> bool:
        """Say whether it is refused; one that waits already, moves the chat or is a subagent's never is.

        Nor is one that takes another out, which would be asked instead.
        """
        if is_of_subagent(inbound) or routing.moved_to(inbound) is not None:
            return False
        if lane is not None and (lane.find(inbound.id) is not None or edits.takes_out(lane, inbound)):
            return False
        return self._refusals.meets(inbound, len(lane.entries) - 1 if lane is not None else 0)

    def _set_aside(self, letter: Letter, error: Exception) -> None:
        """Park a letter that broke its reception; one that is in its lane already is parked at its turn."""
        waiting = (entry for lane in self._lanes for entry in lane.entries if entry.letter is letter)
        if (entry := next(waiting, None)) is not None:
            entry.verdict = Verdict("failed", UNANSWERED, type(error).__name__)
        else:
            self._park(letter, broken(error))

    def _park(self, letter: Letter, error: Unreadable) -> None:
        parking = park_unreadable(
            letter, error, mailbox=self._mailbox, notices=self._notices, closing=self._closing
        )
        self._spawn(parking, "park unreadable")

    def _crowd(self, lane: Lane, inbound: Inbound) -> None:
        waiting = len(lane.entries)
        if lane.crowded or waiting <= self._pending:
            return
        lane.crowded = True
        held = "1 message of this chat is" if waiting == 2 else f"{waiting - 1} messages of this chat are"
        text = f"{held} waiting. {self._collecting.said(inbound)}"
        self._spawn(self._notices.put(inbound, "busy", text), "notice busy")


# After so many errors that nobody foresaw the chat is told nothing: its address may be what breaks.
TELL_CRASHES_MAX = 2
# After so many the letter is left in its queue.
CRASHES_MAX = 5


async def park_unreadable(
    letter: Letter,
    error: Unreadable,
    *,
    mailbox: Mailbox,
    notices: Notices,
    closing: asyncio.Event,
    sleep: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep,
) -> None:
    """Tell the chat and park the letter, however long the broker is away.

    What fails in a way that nobody foresaw is tried again, at last without the notice. A letter that cannot
    be parked even then is not acknowledged: it comes again when its queue is opened the next time, and so
    does one that is not parked when ``closing`` is set.
    """
    crashes = 0

    async def pause(after_s: float) -> None:
        await first_of(closing.wait(), sleep(after_s))

    async def once() -> None:
        if closing.is_set() or letter.lost:
            return
        address = error.address
        if address is not None and crashes < TELL_CRASHES_MAX:
            await notices.put(address, "unreadable", f"This message cannot be read: {error}.")
        key = address.key if address else None
        await mailbox.park(letter, ParkedAs(key, f"unreadable: {error}", 0))
        log.warning("letter.parked", id=letter.id, reason="unreadable", error=str(error))

    while True:
        try:
            await until_durable(once, pause=pause)
        except LetterLost:
            # It comes again, and is parked then.
            return
        except Exception:
            # One letter ends here: nobody but this loop tries it again in this process.
            crashes += 1
            log.exception("parking.crashed", id=letter.id, tries=crashes)
        else:
            return
        if crashes >= CRASHES_MAX:
            log.error("letter.left", id=letter.id, tries=crashes)
            return
        await pause(back_off_s(crashes))
