"""What is asked of the gateway itself while a turn runs: acted on and answered out of line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from channels.message import Inbound
from gateway.queue.mailbox import Mailbox
from gateway.turns import outcomes
from gateway.turns.agents import ChatAgents
from gateway.turns.approvals import Approvals
from gateway.turns.aside import Aside
from gateway.turns.control_order import OWN
from gateway.turns.events import Spawn
from gateway.turns.lanes import Lanes
from gateway.turns.subagents import Subagents
from session.store.store import Session, Store
from session.transcript.key import is_subagent
from session.turn import commands
from session.turn.commands import DECIDING, OUT_OF_LINE, Command


class Orders:
    """``/stop``, ``/status`` and the word that a turn waits for, as letters and as they come over control.

    ``approvals`` hears of the word, and of a ``/new`` that wants no more of the turn.
    """

    def __init__(
        self,
        lanes: Lanes,
        store: Store,
        mailbox: Mailbox,
        agents: ChatAgents,
        *,
        clock: Callable[[], datetime],
        spawn: Spawn,
        subagents: Subagents | None = None,
    ) -> None:
        self._spawn = spawn
        self._subagents = subagents
        self.aside = Aside(store=store, mailbox=mailbox, clock=clock, spawn=spawn)
        self.approvals: Approvals | None = None
        self._lanes = lanes
        self._agents = agents

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
        command = outcomes.command(asked)
        assert command is not None
        said = await self._agents.of(session).commands.run(session, command, outcomes.request(asked))
        assert isinstance(said, str)
        return said

    async def _end(self, subagents: Subagents, key: str, by: str) -> None:
        await subagents.end(key, by)

    def received(self, inbound: Inbound, command: Command | None, *, again: bool = False) -> None:
        """Act on a letter that has come into its lane, whatever stands before it there.

        ``again``: another process may have acted on it.
        """
        name = command.name if command is not None else ""
        if name == "stop" and again:
            self._spawn(self._stop_again(inbound), "stop again")
        elif name == "stop":
            self.stop(inbound.key, inbound.id, asked=inbound)
        elif name == "status":
            self.look(inbound)
        elif name in DECIDING and self.approvals is not None:
            self.approvals.press(inbound)
        elif name == "new" and self.approvals is not None:
            self.approvals.anew(inbound)

    async def _stop_again(self, inbound: Inbound) -> None:
        # Where it was answered, no turn but the one that it stopped then is ended.
        if not await self.aside.is_answered(inbound) or self.aside.stopped_by(inbound.key, inbound.id):
            self.stop(inbound.key, inbound.id, asked=inbound)

    async def answered(self, inbound: Inbound, command: Command | None) -> bool:
        """Say, at the turn of a letter, whether its answer is out already."""
        return command is not None and command.name in OUT_OF_LINE and await self.aside.take(inbound)


async def _stopped(_: Session) -> str:
    return commands.STOPPED
