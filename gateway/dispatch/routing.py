"""Decides who answers a message: the agent of its chat, changed by ``/agent``, a command or a binding.

A session is one agent's from its first line to its last. So a chat that goes to another agent ends its
session as ``/new`` does, and a message whose turn began goes on with the agent that it began with. A group
that has a new id goes on under the new key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from channels.cron.jobs_file import CronFile
from channels.errors import ChannelError
from channels.message import Inbound
from gateway.dispatch import jobs, messages
from gateway.dispatch.context import Answers, Ending, MessageContext
from gateway.dispatch.lanes import RetryAfter
from gateway.dispatch.replies import Notices
from gateway.dispatch.subagents import Subagents
from session.background import moving
from session.background.adoption import is_busy
from session.background.job_files import move_jobs
from session.context.scopes import Agents
from session.disk.threads import start_thread
from session.store import rollover
from session.store.store import Session, Store, View
from session.transcript.agent import AGENT, DEFAULT, agent_in, named, shown
from session.transcript.key import SUBAGENTS, SessionKey, split
from session.turn import commands
from session.turn.commands import Command
from session.turn.turn import Reply

log = structlog.get_logger("moves")

NO_SUCH = "There is no agent {}. {}Agents: {}."
FIXED = "The operator has assigned {} to this chat, so it cannot be changed."
CLOSED = "{} cannot be chosen in a chat; the operator can assign it."


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agents that are configured, the default one left out, and what binds chats to them."""

    agents: Sequence[str]
    rules: Agents

    @property
    def names(self) -> list[str]:
        """All of them, as people write them."""
        return [DEFAULT, *self.agents]

    def refusal(self, key: str, name: str, *, by_command: bool = False) -> str:
        """Say why an agent may not be chosen in a conversation; empty where it may.

        ``by_command``: by one that is bound to it, which leads to agents that are closed otherwise.
        """
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, 1, 0.5)
            return NO_SUCH.format(name, f"Did you mean {near[0]}? " if near else "", ", ".join(self.names))
        bound = self.rules.bound(key)
        if bound is not None and bound.fixed and bound.agent != named(name):
            return FIXED.format(shown(bound.agent))
        is_bound = bound is not None and bound.agent == named(name)
        return CLOSED.format(name) if name in self.rules.closed and not (by_command or is_bound) else ""

    def offered(self, channel: str) -> list[str]:
        """List the names that the chats of a channel may choose, or some of them have already."""
        bound = {each.agent for each in self.rules.bindings if each.value.partition(":")[0] == channel}
        return [name for name in self.names if name not in self.rules.closed or named(name) in bound]


MOVED_TO = "moved_to"
# Between two looks whether a turn under the new key has ended.
BUSY_S = 1.0


def moved_to(inbound: Inbound) -> SessionKey | None:
    """Return the new key where a message, which came under the old one, says that its chat has moved."""
    to = inbound.meta.get(MOVED_TO)
    if inbound.kind != "action" or not isinstance(to, str) or to == inbound.key:
        return None
    channel, chat_id = split(to)
    return SessionKey(to) if channel == inbound.channel and chat_id else None


async def move_chat(store: Store, session: Session, inbound: Inbound, to: SessionKey) -> Reply | RetryAfter:
    """Move everything of the conversation; done again after a crash it goes on where it was.

    It waits for the end of a turn that another agent has begun under the new key.

    Raises:
        Fenced, StoreError: try again.
    """
    # The journal notes it last: what a crash cuts short is done again from the beginning.
    if session.journal.known(inbound.id) is None:
        if not await _keeps_apart(store, session, inbound, to):
            return RetryAfter(BUSY_S)
        stems = await moving.move(store, session.key, to)
        await start_thread(
            lambda: move_jobs(store.layout.workspace / "state", session.key, to), name="move jobs"
        )
        await start_thread(lambda: _move_schedules(store, session.key, to), name="move schedules")
        await session.journal.conclude(inbound.id, "silent", reason="moved", to=to)
        log.info("conversation.moved", to=to, files=stems)
    return Reply(silent=True)


async def _keeps_apart(store: Store, old: Session, inbound: Inbound, to: SessionKey) -> bool:
    """Let the chat keep its agent, and end what another one began under the new key: lines never mix.

    Returns:
        False where that one is still answering.
    """
    async with store.open(to) as new:
        chosen, agent = old.journal.agent, agent_in(old.metadata)
        if len(old) and len(new) and agent != agent_in(new.metadata):
            if is_busy(new):
                return False
            await new.change(partial(rollover.turn_to, agent=agent, by=inbound.id))
        if chosen is not None:
            await new.journal.choose(inbound.id, chosen)
    return True


def _move_schedules(store: Store, old: SessionKey, new: SessionKey) -> None:
    """Have the jobs of the chat ask and answer under its new key."""
    try:
        CronFile(store.layout.workspace).move_chat(old, new)
    except ChannelError as error:
        # The conversation moves all the same; ``doctor`` names the fault of the file.
        log.warning("schedules.unmoved", to=new, error=str(error), hint=error.hint)


REASON = "agent"
NOT_BY_JOB = "A scheduled job cannot change the agent."
ANSWERS = "{} answers here{}. Each agent keeps its own conversations."
HERE = "{} answers here{}."
OTHERS = "Others: {}."
CHOOSE = "To change it: /agent NAME."
TURNED = "The configuration has changed: {} answers here from now on. A new conversation begins."
AGENT_GONE = "{} no longer exists. {} answers here from now on. A new conversation begins."


@dataclass(frozen=True, slots=True)
class AgentSet:
    """All agents by name, the default one under the empty text; who is bound to whom, and which commands."""

    every: Mapping[str, Answers]
    rules: Agents = field(default_factory=Agents)
    bound: Mapping[str, str] = field(default_factory=dict)


class Routing:
    """The step that finds the conversation and the agent that a message is for.

    Args:
        agents: which there are.
        store: the conversations.
        notices: how a chat is told that it has another agent.
        subagents: those of chats; None: there are none.
    """

    def __init__(
        self,
        agents: AgentSet,
        *,
        store: Store,
        notices: Notices,
        subagents: Subagents | None,
    ) -> None:
        self._every = agents.every
        self._rules, self._bound = agents.rules, agents.bound
        self._choice = AgentChoice(tuple(filter(None, agents.every)), agents.rules)
        self._store = store
        self._notices = notices
        self._subagents = subagents

    def of(self, session: View) -> Answers:
        """Return who has a session; for an agent that is no longer configured the default one answers."""
        return self._every.get(agent_in(session.metadata)) or self._every[""]

    def read(self, inbound: Inbound) -> tuple[Inbound, str]:
        """Read a command that is bound to an agent: the message it holds, and that agent; else what came.

        Without a message it is ``/agent`` with that name. A message may name an agent by itself, too.
        """
        if (
            inbound.kind not in ("message", "command")
            or inbound.channel == SUBAGENTS
            or inbound.forwarded_from
        ):
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

    async def take(self, message: MessageContext) -> Ending | None:
        """Return the end of what is for nobody here, or goes elsewhere; note who answers anything else.

        A result of a subagent is for the session that started it, and a turn that began goes on as it began.

        Raises:
            Fenced, StoreError, MailboxDown: call it again; what a crash cut short is finished.
        """
        session, inbound = message.session, message.entry.inbound
        if inbound.kind == "action" and (moved := moved_to(inbound)) is not None:
            return await move_chat(self._store, session, inbound, moved)
        if inbound.kind == "result" and self._subagents is not None:
            met = await self._subagents.met(session, inbound)
            if met is not None:
                return met
        its_own = jobs.agent_of(inbound) if inbound.source == "cron" else None
        if its_own is not None and its_own not in self._every:
            return jobs.gone(inbound)
        mine = agent_in(session.metadata)
        began = inbound.kind == "result" or inbound.channel == SUBAGENTS
        if (len(self._every) > 1 or mine) and not began and session.find(inbound.id) is None:
            ending = await self._choose(message, mine, its_own)
            if ending is not None:
                return ending
            mine = agent_in(session.metadata)
        # For an agent that is no longer configured the default one answers.
        message.answers = self._every.get(mine) or self._every[""]
        return None

    async def _choose(self, message: MessageContext, mine: str, its_own: str | None) -> Ending | None:
        """Give the session to the agent that is wanted; a session of another agent ends before it.

        A job that an agent has is asked of no other one: it is handed on.
        """
        entry, session = message.entry, message.session
        inbound = entry.inbound
        if entry.agent:
            # A bound command leads to whom it is bound; a message that names an agent goes by /agent's rules.
            if refusal := self._refusal(inbound, entry.agent, by_command=not inbound.agent):
                return await messages.answer_command(session, inbound, refusal)
            chosen = named(entry.agent)
            # Each message of such a client names its agent: what is so anyway is not chosen again.
            if not inbound.agent or self._rules.of(inbound.key, session.journal.agent) != chosen:
                await session.journal.choose(inbound.id, chosen)
        wanted = await self._wanted(inbound, session)
        if its_own is not None and its_own != wanted:
            if not jobs.is_own(inbound):
                return await jobs.hand_on(session, inbound)
            wanted = its_own
        if wanted != mine:
            await self._turn_to(session, wanted, inbound.id)
        if await self._finish(session, inbound.id) and not entry.agent and not _chooses(inbound):
            await self._tell(session, inbound, wanted)
        return None

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
            if self._subagents is not None:
                await self._subagents.end(session.key, by, results=True)
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
        said = AGENT_GONE.format(before, shown(agent)) if gone else TURNED.format(shown(agent))
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
