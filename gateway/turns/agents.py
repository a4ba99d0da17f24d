"""Who answers a letter: decided once for each try of it, and changed by ``/agent``, a command or a binding.

A session is one agent's from its first line to its last. So a chat that goes to another agent ends its
session as ``/new`` does, and a letter whose turn began goes on with the agent that it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from channels.message import Inbound
from gateway.turns import job_agents
from gateway.turns.agent_choice import AgentChoice
from gateway.turns.job_agents import HandedOn
from gateway.turns.lanes import Entry
from gateway.turns.notices import Notices
from gateway.turns.policy import Verdict
from gateway.turns.spawning import is_of_subagent
from session.context.scopes import Agents
from session.store import rollover
from session.store.store import Session, Store, View
from session.transcript.agent import AGENT, agent_in, named, shown
from session.transcript.key import SessionKey
from session.turn import commands
from session.turn.commands import Command, Commands, EndSubagents
from session.turn.turn import Turns

log = structlog.get_logger("agents")

REASON = "agent"
NOT_BY_JOB = "A scheduled job cannot change the agent."
ANSWERS = "{} answers here{}. Each agent keeps its own conversations."
HERE = "{} answers here{}."
OTHERS = "Others: {}."
CHOOSE = "To change it: /agent NAME."
TURNED = "The configuration has changed: {} answers here from now on. A new conversation begins."
GONE = "{} no longer exists. {} answers here from now on. A new conversation begins."


class Answers(Protocol):
    """One agent as the turns see it."""

    @property
    def turns(self) -> Turns:
        """Runs its turns."""
        ...

    @property
    def subagent_turns(self) -> Turns:
        """Runs those of the subagents that it starts."""
        ...

    @property
    def commands(self) -> Commands:
        """Answers for its conversations."""
        ...

    @property
    def description(self) -> str:
        """What people are told of it; empty: nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """One that is what it was built from; see ``Answers``."""

    turns: Turns
    commands: Commands
    subagent_turns: Turns
    description: str = ""


@dataclass(frozen=True, slots=True)
class AgentSet:
    """All agents by name, the default one under the empty text; who is bound to whom, and which commands."""

    every: Mapping[str, Answers]
    rules: Agents = field(default_factory=Agents)
    bound: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that no agent is asked: what to answer instead."""

    text: str


class ChatAgents:
    """Decides who answers in which chat.

    Args:
        agents: which there are.
        store: the conversations.
        notices: how a chat is told that it has another agent.
        end_subagents: ends those of a chat; None: there are none.
    """

    def __init__(
        self,
        agents: AgentSet,
        *,
        store: Store,
        notices: Notices,
        end_subagents: EndSubagents | None,
    ) -> None:
        self.every = self._every = agents.every
        self._rules, self._bound = agents.rules, agents.bound
        self._choice = AgentChoice(tuple(filter(None, agents.every)), agents.rules)
        self._store = store
        self._notices = notices
        self._end_subagents = end_subagents

    def of(self, session: View) -> Answers:
        """Return who has a session; for an agent that is no longer configured the default one answers."""
        return self._every.get(agent_in(session.metadata)) or self._every[""]

    def read(self, inbound: Inbound) -> tuple[Inbound, str]:
        """Read a command that is bound to an agent: the message it holds, and that agent; else what came.

        Without a message it is ``/agent`` with that name. A message may name an agent by itself, too.
        """
        if inbound.kind not in ("message", "command") or is_of_subagent(inbound) or inbound.forwarded_from:
            return inbound, ""
        command = commands.parse(inbound.text)
        if inbound.agent and command is None:
            return inbound.model_copy(update={"kind": "command"}), inbound.agent
        if not self._bound:
            return inbound, ""
        agent = self._bound.get(command.name) if command is not None else None
        if command is None or agent is None:
            return inbound, ""
        if commands.parse(command.rest) is not None:
            # Who may give the one may perhaps not give the other.
            return inbound, ""
        if command.rest:
            # It is no message that another turn may take in.
            return inbound.model_copy(update={"text": command.rest, "kind": "command"}), agent
        return inbound.model_copy(update={"text": f"/agent {agent}"}), ""

    async def before(self, entry: Entry, session: Session) -> Answers | Refused | HandedOn | Verdict:
        """Return who answers a letter that has not ended; a session of another agent ends before it.

        A result of a subagent is for the session that started it, and a turn that began goes on as it began.
        A job that an agent has is asked of no other one: it is handed on, or set aside (``Verdict``).

        Raises:
            Fenced, StoreError, MailboxDown: call it again; what a crash cut short is finished.
        """
        mine, inbound = agent_in(session.metadata), entry.inbound
        its_own = job_agents.agent_of(inbound)
        if its_own is not None and its_own not in self._every:
            return job_agents.gone(inbound)
        if len(self._every) == 1 and not mine:
            return self._every[""]
        if inbound.kind == "result" or is_of_subagent(inbound) or session.find(inbound.id) is not None:
            return self.of(session)
        if entry.agent:
            # A bound command leads to whom it is bound; a message that names an agent goes by /agent's rules.
            if refusal := self._refusal(inbound, entry.agent, by_command=not inbound.agent):
                return Refused(refusal)
            chosen = named(entry.agent)
            # Each message of such a client names its agent: what is so anyway is not chosen again.
            if not inbound.agent or self._rules.of(inbound.key, session.journal.agent) != chosen:
                await session.journal.choose(inbound.id, chosen)
        wanted = await self._wanted(inbound, session)
        if its_own is not None and its_own != wanted:
            if not job_agents.is_own(inbound):
                return await job_agents.hand_on(session, inbound)
            wanted = its_own
        if wanted != mine:
            await self._turn_to(session, wanted, inbound.id)
        if await self._finish(session, inbound.id) and not entry.agent and not _chooses(inbound):
            await self._tell(session, inbound, wanted)
        return self.of(session)

    async def said(self, session: Session, inbound: Inbound, command: Command) -> str:
        """Answer ``/agent``: who answers here, or who does from now on; doing it twice does no harm.

        Raises:
            Fenced, StoreError: call it again.
        """
        name = command.rest.strip().lower()
        if not name:
            return self._shown(session)
        if refusal := self._refusal(inbound, name):
            return refusal
        # What was chosen is known first: a crash behind it ends in the same.
        await session.journal.choose(inbound.id, named(name))
        if named(name) != agent_in(session.metadata):
            await self._turn_to(session, named(name), inbound.id)
        await self._finish(session, inbound.id)
        log.info("agent.chosen", agent=name)
        return ANSWERS.format(name, self._about(named(name)))

    async def _wanted(self, inbound: Inbound, session: Session) -> str:
        key = self._rules.decided_in(inbound.key, inbound.answer_to or "")
        if key == inbound.key:
            return self._rules.of(key, session.journal.agent)
        view = await self._store.look(SessionKey(key))
        return self._rules.of(key, view.journal_state.agent)

    async def _turn_to(self, session: Session, agent: str, by: str) -> None:
        if len(session):
            if self._end_subagents is not None:
                await self._end_subagents(session.key, by, results=True)
            turned = await session.change(partial(rollover.turn_to, agent=agent, by=by))
            log.info("session.turned", agent=shown(agent), ended=turned)
        if agent_in(session.metadata) != agent:
            await session.remember({AGENT: agent or None})

    async def _finish(self, session: Session, by: str) -> bool:
        """Do what follows the end of another agent's session, for the message that it ended before."""
        if session.metadata.get("turned_by") != by or len(session):
            return False
        await self._every[""].commands.ended(session)
        return True

    async def _tell(self, session: Session, inbound: Inbound, agent: str) -> None:
        if inbound.source == "cron":
            return
        before = session.journal.agent
        gone = before and before not in self._every
        said = GONE.format(before, shown(agent)) if gone else TURNED.format(shown(agent))
        await self._notices.tell(session, inbound, REASON, said)

    def _refusal(self, inbound: Inbound, name: str, *, by_command: bool = False) -> str:
        if inbound.source == "cron":
            return NOT_BY_JOB
        return self._choice.refusal(inbound.key, name, by_command=by_command)

    def _shown(self, session: Session) -> str:
        agent = agent_in(session.metadata)
        bound = self._rules.bound(session.key)
        here = HERE.format(shown(agent), self._about(agent))
        others = [each for each in self._every if each != agent and each not in self._rules.closed]
        if not others or (bound is not None and bound.fixed):
            return here
        named = "; ".join(f"{shown(each)}{self._about(each)}" for each in others)
        return " ".join([here, OTHERS.format(named), CHOOSE])

    def _about(self, agent: str) -> str:
        known = self._every.get(agent)
        return f" ({known.description})" if known is not None and known.description else ""


def _chooses(inbound: Inbound) -> bool:
    command = commands.parse(inbound.text)
    return command is not None and command.name == "agent"
