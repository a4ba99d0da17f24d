"""Runs the command or the turn of a message: watched, paid for, and what becomes of it when it fails."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from gateway.turns import jobs, messages
from gateway.turns.approvals import Approvals
from gateway.turns.batching import Collecting
from gateway.turns.completion import SOON_S
from gateway.turns.context import Ending, MessageContext
from gateway.turns.crash_guard import Attempt
from gateway.turns.events import Events
from gateway.turns.failures import Outages
from gateway.turns.lanes import RetryAfter
from gateway.turns.limits import Quota
from gateway.turns.policy import TOO_LARGE_SAID, Verdict, cause_of, park_verdict
from gateway.turns.routing import Answers, ChatAgents
from gateway.turns.subagents import is_of_subagent
from session.approvals.gate import AwaitsApproval
from session.errors import (
    LineTooLong,
    ModelAway,
    ModelError,
    OverCap,
    SessionError,
    StoreError,
    TurnTimeout,
    loggable,
)
from session.models.failure import kind_of
from session.models.model import Meter, Payer, Usage
from session.store.store import Session
from session.turn import commands
from session.turn.turn import Reply, Request, Turns

log = structlog.get_logger(__name__)


class Run:
    """The step that runs a command or a turn, one for each attempt at a message.

    Args:
        quota: counts what turns cost; None: nobody does.
        agents: answer ``/agent``.
        approvals: hold a turn that has to wait for a person; None: none ever does.
        turn_ended: hears of each that was answered, subagents' left out.
        spawn: runs something beside the lanes.
    """

    def __init__(
        self,
        *,
        events: Events,
        quota: Quota | None,
        outages: Outages,
        collecting: Collecting,
        agents: ChatAgents,
        approvals: Approvals | None,
        turn_ended: Callable[[Session, Reply], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._events = events
        self._quota = quota
        self._outages = outages
        self._collecting = collecting
        self._agents = agents
        self._approvals = approvals
        self._turn_ended = turn_ended
        self._spawn = spawn

    async def take(self, message: MessageContext) -> Ending:
        """Return the answer of the command or the turn, or why there is none."""
        entry, session, attempt, answers = message.entry, message.session, message.attempt, message.answers
        assert attempt is not None
        assert answers is not None
        if message.command is not None:
            async with attempt:
                answer = await self._commanded(message, message.command, answers)
            if isinstance(answer, str):
                return await messages.answer_command(session, message.inbound, answer, entry.queued_at)
            return await self._turn(attempt, answer, answers, message.payer)
        request = messages.request(
            message.inbound,
            message.payer,
            queued_at=entry.queued_at,
            typed=entry.typed,
            begins=not len(session) and not session.metadata.get("previous_session"),
        )
        return await self._turn(attempt, request, answers, message.payer)

    async def _commanded(
        self, message: MessageContext, command: commands.Command, answers: Answers
    ) -> str | Request:
        """Run a command whose turn it is; return its words, or what the model is asked for it."""
        inbound, session = message.inbound, message.session
        if command.name in commands.DECIDING and self._approvals is not None:
            return await self._approvals.words(inbound, session)
        if command.name == "agent":
            return await self._agents.said(session, inbound, command)
        request = messages.request(inbound)
        return await answers.commands.run(session, command, request, stop=message.entry.stop)

    async def _turn(
        self, attempt: Attempt, request: Request, agent: Answers, payer: Payer | None
    ) -> Reply | RetryAfter | Verdict:
        """Run the turn of an agent, for which ``payer`` pays; a ``Verdict`` says why it is parked."""
        entry, session = attempt.entry, attempt.session
        inbound = entry.inbound
        turns = agent.subagent_turns if is_of_subagent(inbound) else agent.turns
        self._outages.begins(entry, turns.model)
        if (verdict := self._outages.over(entry)) is not None:
            return verdict
        if request.payer is not payer:
            request = replace(request, payer=payer)
        meter = self._quota.meter(payer) if self._quota is not None and payer is not None else Meter()
        try:
            async with attempt:
                try:
                    reply = await self._run(attempt, request, meter, turns)
                finally:
                    entry.figures.add(meter)
        except AwaitsApproval as asks:
            # One that goes on after a crash may come to its question without a call.
            if meter.calls:
                self._outages.model_answers(turns.model, entry)
            assert self._approvals is not None
            return await self._approvals.wait(entry, session, asks.approval)
        except LineTooLong as error:
            self._count(payer, meter, turns)
            return Verdict("too_large", TOO_LARGE_SAID, cause_of(error))
        except OverCap as error:
            return await self._broken_off(attempt, request, error, meter, turns)
        # It is a SessionError, but of the disk and not of the letter: the lane waits.
        except StoreError:
            raise
        except SessionError as error:
            again = await self._outages.wait(entry, session, error) if isinstance(error, ModelError) else None
            if again is not None:
                return again
            self._count(payer, meter, turns)
            return await self._failed(attempt, error, turns)
        # A turn that was stopped may have had no answer to any call.
        if not reply.silent or messages.is_quiet(reply):
            self._outages.model_answers(turns.model, entry)
        self._count(payer, meter, turns)
        if not is_of_subagent(inbound):
            self._turn_ended(session, reply)
        return reply

    async def _failed(self, attempt: Attempt, error: SessionError, turns: Turns) -> RetryAfter | Verdict:
        """Say why no further try will answer a message; one of several in a turn is asked alone."""
        entry, session = attempt.entry, attempt.session
        verdict = self._outages.over(entry) if isinstance(error, ModelAway) else None
        if verdict is None:
            unanswered = isinstance(error, ModelError) and kind_of(error) != "refused"
            if not unanswered and not isinstance(error, TurnTimeout):
                self._outages.model_answers(turns.model, entry, answered=False)
            # Of several messages one may be at fault: each is asked alone, where no tool acted for them.
            if await self._collecting.part(entry, session, turns.now()):
                entry.tries.counted = 0
                return RetryAfter(SOON_S)
            verdict = park_verdict(error)
            log.debug("model.said", error=str(error))
            log.warning("turn.failed", reason=verdict.reason, error=loggable(error), hint=error.hint)
        return verdict

    async def _run(self, attempt: Attempt, request: Request, meter: Meter, turns: Turns) -> Reply:
        entry, inbound = attempt.entry, attempt.entry.inbound
        shown = jobs.is_shown(inbound)
        if shown and self._events.watched(inbound.key):
            platform_id = inbound.platform_id
            await self._events.tell("started", inbound.key, inbound.id, platform_id=platform_id)
        with self._events.onlooker(inbound.key, inbound.id, self._spawn) as watcher:
            return await turns.run(
                attempt.session,
                request,
                watcher=watcher if shown else None,
                stop=entry.stop,
                careful=entry.disk_told,
                meter=meter,
                joins=self._collecting.joins(attempt),
            )

    async def _broken_off(
        self, attempt: Attempt, request: Request, error: OverCap, meter: Meter, turns: Turns
    ) -> Reply:
        """End a turn whose next request would go over a cap, with what it had so far."""
        payer = request.payer
        assert self._quota is not None
        assert payer is not None
        begun = meter.usage != Usage()
        # Known first: after a crash the notice is sent again, and the model is not asked.
        reply = await self._quota.broken_off(attempt.session, payer, error, begun=begun)
        await turns.close(attempt.session, request)
        if begun:
            self._quota.record(payer, meter.usage, turns.model.name, answered=False)
        log.info("turn.broken_off", limit=error.name, begun=begun)
        return reply

    def _count(self, payer: Payer | None, meter: Meter, turns: Turns) -> None:
        if self._quota is not None and payer is not None:
            self._quota.record(payer, meter.usage, turns.model.name)
