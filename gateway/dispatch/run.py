"""Runs the command or the turn of a message: watched, paid for, and what becomes of it when it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from gateway.dispatch import jobs, messages
from gateway.dispatch.approvals import Approvals
from gateway.dispatch.batching import QueueModes, ask_apart
from gateway.dispatch.context import Ending, MessageContext
from gateway.dispatch.events import Events, Onlooker, Spawn
from gateway.dispatch.failures import Outages
from gateway.dispatch.lanes import SOON_S, RetryAfter
from gateway.dispatch.limits import Quota
from gateway.dispatch.policy import TOO_LARGE_SAID, Verdict, cause_of, park_verdict
from gateway.dispatch.routing import Routing
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
from session.models.model import Payer, Usage
from session.models.spending import Meter
from session.store.store import Session
from session.transcript.key import SUBAGENTS
from session.turn import commands
from session.turn.turn import Reply, Request, Turns

log = structlog.get_logger(__name__)


class Run:
    """The step that runs a command or a turn, once for each try of a message.

    Args:
        quota: counts what turns cost; None: nobody does.
        modes: let other messages into a turn.
        routing: answers ``/agent``.
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
        modes: QueueModes,
        routing: Routing,
        approvals: Approvals | None,
        turn_ended: Callable[[Session, Reply], None],
        spawn: Spawn,
    ) -> None:
        self._events = events
        self._quota = quota
        self._outages = outages
        self._modes = modes
        self._routing = routing
        self._approvals = approvals
        self._turn_ended = turn_ended
        self._spawn = spawn

    async def take(self, message: MessageContext) -> Ending:
        """Return the answer of the command or the turn, or why there is none."""
        request = await self._request(message)
        if isinstance(request, Reply):
            return request
        entry, session, payer, agent = message.entry, message.session, message.payer, message.answers
        inbound, is_subagents = entry.inbound, entry.inbound.channel == SUBAGENTS
        assert agent is not None
        turns = agent.subagent_turns if is_subagents else agent.turns
        self._outages.begins(entry, turns.model)
        if entry.away is not None and (verdict := self._outages.over(entry)) is not None:
            return verdict
        meter = (
            self._quota.spending.meter(payer) if self._quota is not None and payer is not None else Meter()
        )
        # The turn of a job that may have nothing to say is not shown.
        shown = inbound.source != "cron" or jobs.is_shown(inbound)
        try:
            async with message.attempt:
                if shown and self._events.watched(inbound.key):
                    platform_id = inbound.platform_id
                    await self._events.tell("started", inbound.key, inbound.id, platform_id=platform_id)
                try:
                    with Onlooker(self._events, inbound.key, inbound.id, self._spawn) as watcher:
                        reply = await turns.run(
                            session,
                            request,
                            watcher=watcher if shown else None,
                            stop=entry.stop,
                            careful=entry.disk_told,
                            meter=meter,
                            joins=self._modes.joins(message),
                        )
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
            return await self._broken_off(session, request, error, meter, turns)
        # It is a SessionError, but of the disk and not of the message: the lane waits.
        except StoreError:
            raise
        except SessionError as error:
            return await self._failed(message, error, meter, turns)
        # A turn that was stopped may have had no answer to any call.
        if not reply.silent or messages.is_quiet(reply):
            self._outages.model_answers(turns.model, entry)
        self._count(payer, meter, turns)
        if not is_subagents:
            self._turn_ended(session, reply)
        return reply

    async def _request(self, message: MessageContext) -> Request | Reply:
        """Return what the model is asked for a message, or the answer of a command that asks none."""
        entry, session = message.entry, message.session
        if message.command is None:
            return messages.request(
                entry.inbound,
                message.payer,
                queued_at=entry.queued_at,
                typed=entry.typed,
                begins=not len(session) and not session.metadata.get("previous_session"),
            )
        async with message.attempt:
            answer = await self._commanded(message, message.command)
        if isinstance(answer, str):
            return await messages.answer_command(session, entry.inbound, answer, entry.queued_at)
        return replace(answer, payer=message.payer)

    async def _commanded(self, message: MessageContext, command: commands.Command) -> str | Request:
        """Run a command whose turn it is; return its words, or what the model is asked for it."""
        inbound, session = message.entry.inbound, message.session
        assert message.answers is not None
        if command.name in commands.DECIDING and self._approvals is not None:
            return await self._approvals.words(inbound, session)
        if command.name == "agent":
            return await self._routing.said(session, inbound, command)
        request = messages.request(inbound)
        return await message.answers.commands.run(session, command, request, stop=message.entry.stop)

    async def _failed(
        self, message: MessageContext, error: SessionError, meter: Meter, turns: Turns
    ) -> RetryAfter | Verdict:
        """Say whether a message is tried again, and when, or why not; one of several is asked alone."""
        entry, session = message.entry, message.session
        again = await self._outages.wait(entry, session, error) if isinstance(error, ModelError) else None
        if again is not None:
            return again
        self._count(message.payer, meter, turns)
        verdict = self._outages.over(entry) if isinstance(error, ModelAway) else None
        if verdict is not None:
            return verdict
        unanswered = isinstance(error, ModelError) and kind_of(error) != "refused"
        if not unanswered and not isinstance(error, TurnTimeout):
            self._outages.model_answers(turns.model, entry, answered=False)
        # Of several messages one may be at fault: each is asked alone, where no tool acted for them.
        if await ask_apart(entry, session, turns.now()):
            entry.tries.counted = 0
            return RetryAfter(SOON_S)
        log.debug("model.said", error=str(error))
        verdict = park_verdict(error)
        log.warning("turn.failed", reason=verdict.reason, error=loggable(error), hint=error.hint)
        return verdict

    async def _broken_off(
        self, session: Session, request: Request, error: OverCap, meter: Meter, turns: Turns
    ) -> Reply:
        """End a turn whose next request would go over a cap, with what it had so far."""
        payer = request.payer
        assert self._quota is not None
        assert payer is not None
        begun = meter.usage != Usage()
        # Known first: after a crash the notice is sent again, and the model is not asked.
        reply = await self._quota.broken_off(session, payer, error, begun=begun)
        await turns.close(session, request)
        if begun:
            self._quota.record(payer, meter.usage, turns.model.name, answered=False)
        log.info("turn.broken_off", limit=error.name, begun=begun)
        return reply

    def _count(self, payer: Payer | None, meter: Meter, turns: Turns) -> None:
        if self._quota is not None and payer is not None:
            self._quota.record(payer, meter.usage, turns.model.name)
