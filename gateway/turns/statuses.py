"""``/status`` out of line: answered at once, however long the turn before it still runs."""

from __future__ import annotations

from functools import partial

from channels.message import Inbound
from gateway.turns import outcomes
from gateway.turns.agents import ChatAgents
from gateway.turns.aside import Aside
from gateway.turns.lanes import Lanes
from session.store.store import Session


class Statuses:
    """Answers where the lane of the chat is: that daemon alone knows what waits in it."""

    def __init__(self, *, lanes: Lanes, aside: Aside, agents: ChatAgents) -> None:
        self._lanes = lanes
        self._aside = aside
        self._agents = agents

    def look(self, asked: Inbound) -> None:
        """Answer ``asked``, a ``/status``, where its chat has letters here; else its letter does that itself.

        Called with the letter, and with its copy that comes over control and overtakes what waits.
        """
        if self._lanes.get(asked.key) is not None:
            self._aside.answer(asked, partial(self._words, asked))

    async def _words(self, asked: Inbound, session: Session) -> str:
        command = outcomes.command(asked)
        assert command is not None
        said = await self._agents.of(session).commands.run(session, command, outcomes.request(asked))
        assert isinstance(said, str)
        return said
