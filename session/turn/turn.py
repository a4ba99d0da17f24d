"""The work on one letter: user line, context, ask the model, run tools and repeat, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from pathlib import Path

import durable
from durable import is_blank
from session.approvals.gate import Gate
from session.compaction.compactions import Compactions
from session.context.embeddings import Embeddings
from session.context.links import sends_files
from session.context.request import QUIET, Asking, Request, TurnContext, TurnLimits, is_quiet
from session.errors import (
    ContextTooLong,
    CutCalls,
    EmptyAnswer,
    ModelError,
    ModelRefused,
    RoundsExhausted,
    TurnTimeout,
)
from session.models.model import Answer, Model, Prompt, Warms
from session.models.spending import Meter
from session.store.store import Exchange, Session
from session.tools import Toolbox
from session.transcript import transcript
from session.transcript.history import SummaryRole, text_of
from session.transcript.index import usage_of
from session.turn.joining import Joins, served, stopped_before, together
from session.turn.reply import TOGETHER, Reply, StopSwitch, TurnStopped, Watcher
from session.turn.tool_calls import INTERRUPTED, STOPPED, ToolCalls, TurnLines, TurnWriter
from session.turn.turn_compaction import TurnCompaction

__all__ = [
    "INTERRUPTED",
    "STOPPED",
    "TOGETHER",
    "Reply",
    "Request",
    "StopSwitch",
    "TurnContext",
    "TurnLimits",
    "TurnStopped",
    "Turns",
    "Watcher",
]

# A model that answers within this time has its user line stored together with the answer: one sync less.
QUICK_S = 0.02
# What stands behind an answer that was cut, for the person; programs are told by its ``finish_reason``.
CUT_NOTE, CUT_CURE = "\n\n(The answer was cut off at ", '. Say "go on" to have the rest.)'


@dataclass(kw_only=True, eq=False)
class Turns:
    """Runs turns: one model, one set of tools, many sessions."""

    model: Model
    toolbox: Toolbox
    limits: TurnLimits
    zone: tzinfo
    clock: Callable[[], datetime]
    turn_context: Callable[[Session, Request], Awaitable[TurnContext]]
    workspace: Path | None = None
    compactions: Compactions | None = None
    embeddings: Embeddings | None = None
    gate: Gate | None = None

    def __post_init__(self) -> None:
        self._warms = self.model if isinstance(self.model, Warms) else None

    def now(self) -> str:
        """Return the timestamp of a line that is written now."""
        return transcript.stamp(self.clock(), self.zone)

    def note_summary_role(self, role: SummaryRole) -> None:
        """Send the summaries of all later turns as messages of ``role``: the model refused the other one."""
        self.limits = replace(self.limits, summary_role=role)

    async def ready(self, stop: StopSwitch) -> None:
        """Return when the model can be asked at once, its library loaded, or when ``stop`` was pulled."""
        if self._warms is not None:
            # Whoever was stopped here is told so by the turn that follows, which then does not begin.
            with suppress(TurnStopped):
                async with stop:
                    await self._warms.warm()

    async def run(
        self,
        session: Session,
        request: Request,
        *,
        stop: StopSwitch,
        watcher: Watcher | None = None,
        careful: bool = False,
        meter: Meter | None = None,
        joins: Joins | None = None,
    ) -> Reply:
        """Answer ``request``; its final line is durable once ``session.ahead`` says so.

        A turn that a crash left half done goes on after its last stored line. A ``careful`` one stores
        the question before the model is asked, since the disk refused lately. ``meter`` counts what the
        turn cost, stored requests of an earlier try included, also where it fails. ``joins`` are the messages
        that may enter the turn; one that did so in an earlier try belongs to it without.

        Raises:
            ModelAway, StoreError: nothing is wrong with the message; run it again later.
            AwaitsApproval: a person has to decide first; run it again then.
            OverCap: ``meter`` refused a request; ``close`` ends what is stored of the turn.
            ModelError, TurnTimeout: it will never be answered.
        """
        first = joins.take() if joins is not None else ()
        is_one = not first and session.find(request.id) is None
        context = await self.turn_context(session, request if is_one else together(session, request, first))
        turn = _Turn(self, session, request, context, watcher=watcher, meter=meter or Meter())
        turn.joins, turn.joining = joins, first
        try:
            async with stop:
                if self._warms is not None:
                    # The seconds in which the library is imported do not count: the message cannot help them.
                    await self._warms.warm()
                async with asyncio.timeout(self.limits.turn_timeout_s):
                    text = await turn.run(careful=careful)
        except TurnStopped:
            if (stored := turn.stored_answer()) is None:
                await turn.close_stopped(stop)
                return Reply(silent=True, reason=TOGETHER if stop.interrupted else "stopped")
            # It was stopped between the answer, which is on disk and so is told, and the end of the turn.
            text = stored
        except TimeoutError:
            if (stored := turn.stored_answer()) is None:
                raise TurnTimeout(f"the turn ran over {self.limits.turn_timeout_s:g} s") from None
            # It ran out as late as that.
            text = stored
        if turn.compaction is not None:
            turn.compaction.ended()
        return Reply(
            text=text,
            silent=turn.quiet,
            reason=QUIET if turn.quiet else "",
            seq=session.seq_of(request.id),
            usage=turn.meter.usage,
            sends_files=turn.sends_files,
        )

    async def close(self, session: Session, request: Request) -> None:
        """Close a turn that ends without an answer by a line that says so; twice does no harm."""
        exchange = session.find(request.id)
        if exchange is not None and exchange.tail and exchange.final is None:
            ids = [str(line["message_id"]) for line in served(session, request.id)]
            line = TurnLines(request, self.now).stopped("", answers=ids if len(ids) > 1 else None)
            await session.append([line])


class _Turn:
    def __init__(
        self,
        turns: Turns,
        session: Session,
        request: Request,
        context: TurnContext,
        *,
        watcher: Watcher | None,
        meter: Meter,
    ) -> None:
        self._turns = turns
        self._session, self._request = session, request
        self._watcher = watcher
        self._lines = TurnLines(request, turns.now)
        self._writer = TurnWriter(session)
        self._partial, self._began = list[str](), 0.0
        # An answer that is being stored as the time runs out may reach the disk: then it is the reply.
        self._answer: str | None = None
        # Of the answer: whether it is one of a job that is not to be told, and whether a tool sent files.
        self.quiet = self.sends_files = False
        self._context = context
        self._asking = Asking(
            session,
            request,
            context,
            model=turns.model,
            toolbox=turns.toolbox,
            limits=turns.limits,
            workspace=turns.workspace,
            embeddings=turns.embeddings,
            meter=meter,
        )
        self._calls = ToolCalls(
            session,
            request,
            turns.toolbox,
            context.tools,
            self._asking,
            turns.gate,
            self._lines,
            self._writer.store,
            watcher,
        )
        self._counted = False
        # Answers in a row whose calls were cut.
        self._cuts = 0
        self.meter = meter
        self.joins: Joins | None = None
        # Messages that enter the turn before its first request; all that the answer serves, where several.
        self.joining: Sequence[Request] = ()
        self._answers: list[str] = []
        self.compaction: TurnCompaction | None = None
        if turns.compactions is not None and not turns.model.plain:
            self.compaction = TurnCompaction(turns.compactions, session, self._asking, meter)

    async def run(self, *, careful: bool) -> str:
        exchange = self._session.find(self._request.id)
        if exchange is not None and exchange.tail:
            await self._resume(exchange)
        else:
            self._counted = True
            self._writer.user = self._lines.user()
            if careful:
                await self._writer.store()
        while True:
            if self.joins is not None:
                await self._join(self.joins)
            answer = await self._ask()
            if not answer.tool_calls:
                return await self._finish(answer)
            if self._calls.rounds >= self._turns.limits.max_tool_rounds:
                raise RoundsExhausted(
                    f"the model asked for tools in more than {self._calls.rounds} rounds",
                    hint="raise model.max_tool_rounds, or use a stronger model",
                )
            if answer.finish == "length":
                await self._leave_cut(answer)
                continue
            self._cuts = 0
            # The calls are on disk before a tool runs: after a crash they tell what may have been done.
            asks = self._calls.asked_for(answer.tool_calls)
            await self._writer.store(self._lines.assistant(answer, asks=asks or None))
            await self._calls.run(answer.tool_calls)

    async def close_stopped(self, stop: StopSwitch) -> None:
        """Append what the turn had, and the line that says it was stopped, and by which message."""
        exchange = self._session.find(self._request.id)
        self._writer.user = None
        if exchange is None or not exchange.tail:
            lines = [self._lines.user()]
        elif exchange.final is not None:
            return
        else:
            self._count_stored(exchange)
            lines = await self._calls.stop(exchange)
        self._note_served()
        partial, answers = "".join(self._partial), self._answers or None
        line = self._lines.stopped(partial, by=stop.by, answers=answers, interrupted=stop.interrupted)
        await self._writer.store(*lines, line)

    def stored_answer(self) -> str | None:
        """Return the answer that reached the disk although its turn was told to end; None without one."""
        exchange = self._session.find(self._request.id)
        is_last = exchange is not None and exchange.final == len(self._session) - 1
        return self._answer if is_last else None

    # -- other messages that the answer serves, too ------------------------------------------------

    async def _join(self, joins: Joins) -> None:
        """Take in the messages that came meanwhile: each is on disk before the model sees it."""
        taken, self.joining = self.joining or joins.take(), ()
        pending = self._writer.user is not None
        if taken or (pending and stopped_before(self._session, len(self._session)) is not None):
            await self._writer.store(*(self._lines.user(part) for part in taken))
            self._note_served()

    def _note_served(self) -> None:
        """Find in the transcript whom the answer serves, and what they ask together."""
        lines = served(self._session, self._request.id)
        if len(lines) > 1:
            self._answers = [str(line["message_id"]) for line in lines]
            self._asking.text = text_of(lines)

    # -- the model ---------------------------------------------------------------------------------

    async def _ask(self) -> Answer:
        """Ask; where the model refuses the request, change what can be changed about it and ask again."""
        while True:
            self._partial.clear()
            try:
                if self.compaction is not None:
                    prompt = await self.compaction.prompt(self._writer.user, self._writer.store)
                else:
                    prompt = await self._asking.prompt(self._writer.user)
                if self.meter.reserves:
                    tokens = self.compaction.tokens if self.compaction is not None else 0
                    async with self.meter.request(self._turns.model, prompt, tokens=tokens):
                        answer = await self._send(prompt)
                else:
                    answer = await self._send(prompt)
            except (ModelRefused, ContextTooLong) as error:
                # What people have seen of an answer cannot be taken back by asking anew.
                if self._partial or not await self._changed(error):
                    raise
            else:
                if self.compaction is not None:
                    self.compaction.answered(answer.usage)
                if self._asking.summary_role != self._turns.limits.summary_role:
                    self._turns.note_summary_role(self._asking.summary_role)
                return answer

    async def _changed(self, error: ModelError) -> bool:
        """Change the request that was refused: each way once; False where none is left."""
        album = self._asking.album
        if album.shown and not album.named_only:
            album.named_only = True
            return True
        if isinstance(error, ContextTooLong):
            return self.compaction is not None and await self.compaction.too_long(self._writer.store)
        return self._asking.summary_as_user()

    async def _send(self, prompt: Prompt) -> Answer:
        """Ask, and store the question beside it when the answer takes longer than ``QUICK_S`` seconds."""
        # A stream costs several times a whole answer: it is asked for where somebody reads along.
        watcher, writer = self._watcher, self._writer
        streams = self._turns.limits.streams or (watcher is not None and watcher.reads())
        storing: list[asyncio.Future[None]] = []
        timer: asyncio.TimerHandle | None = None
        if writer.user is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(QUICK_S, lambda: storing.append(asyncio.ensure_future(writer.store())))
        try:
            self._began = durable.monotonic()
            self.meter.calls += 1
            try:
                answer = await self._turns.model.ask(prompt, self._delta if streams else None)
            finally:
                self.meter.model_s += durable.monotonic() - self._began
            self.meter.count(answer.usage)
        finally:
            if timer is not None:
                timer.cancel()
            # An append that has begun cannot be called back, and the answer's line must follow it.
            for store in storing:
                await store
        return answer

    def _delta(self, text: str) -> None:
        if not self._partial:
            self.meter.first_s = durable.monotonic() - self._began
        self._partial.append(text)
        if self._watcher is not None:
            self._watcher.delta(text)

    async def _leave_cut(self, answer: Answer) -> None:
        """Store calls that were cut with what is to be done instead; twice in a row ends the turn."""
        self._cuts += 1
        if self._cuts > 1:
            raise CutCalls(
                "two answers in a row were cut in the middle of their tool calls",
                hint="raise model.max_output_tokens",
            )
        results = self._calls.cut(answer.tool_calls, _tokens_of(answer))
        await self._writer.store(self._lines.assistant(answer, cut=True), *results)

    async def _finish(self, answer: Answer) -> str:
        if is_blank(answer.text):
            raise EmptyAnswer("the model answered nothing")
        quiet = is_quiet(self._request, answer.text)
        if answer.finish == "length":
            # An open code block would take in what is said behind it.
            fence = "\n```" if answer.text.count("```") % 2 else ""
            answer = replace(answer, text=f"{answer.text}{fence}{CUT_NOTE}{_tokens_of(answer)}{CUT_CURE}")
        used = list(dict.fromkeys(self._calls.used)) or None
        self._answer = answer.text
        self.quiet, self.sends_files = quiet, sends_files(used)
        fields = {"answers": self._answers or None, "tools_used": used, "unsent": self.quiet or None}
        fields["cut"] = True if answer.finish == "length" else None
        await self._writer.store(self._lines.assistant(answer, final=True, **fields), ahead=True)
        return answer.text

    # -- going on ----------------------------------------------------------------------------------

    async def _resume(self, exchange: Exchange) -> None:
        """Go on after the last stored line: settle the calls that have no result yet."""
        self._note_served()
        self._count_stored(exchange)
        await self._calls.settle(exchange)

    def _count_stored(self, exchange: Exchange) -> None:
        """Count once what earlier tries did and cost, as their lines tell."""
        if self._counted:
            return
        self._counted = True
        for line in self._session.lines(exchange.start, exchange.stop):
            if line.get("role") == "assistant" and line.get("tool_calls"):
                self._calls.count(line)
                self.meter.count(usage_of(line))


def _tokens_of(answer: Answer) -> str:
    tokens = answer.usage.completion if answer.usage is not None else 0
    return f"{tokens} tokens" if tokens else "its limit of tokens"
