"""The work on one letter: user line, context, ask the model, run tools and repeat, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Protocol

from session import transcript
from session.attachments import Attachment, stored
from session.bounded import Bounded
from session.bounds import Bounds
from session.embeddings import Embeddings
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelError,
    ModelRefused,
    RoundsExhausted,
    TurnTimeout,
)
from session.index import usage_of
from session.models import Answer, Meter, Model, ToolCall, Usage, Warms
from session.request import Asking, Limits, Request, Surroundings
from session.store import Exchange, Session
from session.switch import StopSwitch, TurnStopped
from session.tools import Toolbox

__all__ = [
    "INTERRUPTED",
    "Limits",
    "Reply",
    "Request",
    "StopSwitch",
    "Surroundings",
    "TurnStopped",
    "Turns",
    "Watcher",
]

QUICK_S = 0.02  # a model that answers within this time has its user line stored together with the answer
INTERRUPTED = "outcome unknown: interrupted"
STOPPED = "not run: the turn was stopped"


@dataclass(frozen=True, slots=True)
class Reply:
    """How a letter ended. ``silent``: nothing is sent; ``seq``: its place among the key's replies."""

    text: str = ""
    kind: str = "reply"  # reply | notice
    reason: str = ""  # of a notice
    silent: bool = False
    repeated: bool = False
    seq: int = 0
    files: Sequence[Attachment] = ()  # that go out with it
    usage: Usage | None = None  # of the turn that was run for it, all requests together


class Watcher(Protocol):
    """Who looks on while a turn runs; every call returns at once."""

    def delta(self, text: str) -> None:
        """See the next piece of the answer's text."""
        ...

    def tool(self, name: str) -> None:
        """See that a tool begins to run."""
        ...


class Turns:
    """Runs turns: one model, one set of tools, many sessions."""

    def __init__(
        self,
        *,
        model: Model,
        toolbox: Toolbox,
        limits: Limits,
        zone: tzinfo,
        clock: Callable[[], datetime],
        surroundings: Callable[[Session, Request], Awaitable[Surroundings]],
        workspace: Path | None = None,
        bounds: Bounds | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        self.workspace = workspace
        self.bounds = bounds
        self.embeddings = embeddings
        self.model = model
        self._warms = model if isinstance(model, Warms) else None
        self.toolbox = toolbox
        self.limits = limits
        self.zone = zone
        self.clock = clock
        self.surroundings = surroundings

    def now(self) -> str:
        """Return the timestamp of a line that is written now."""
        return transcript.stamp(self.clock(), self.zone)

    async def run(
        self,
        session: Session,
        request: Request,
        *,
        stop: StopSwitch,
        watcher: Watcher | None = None,
        careful: bool = False,
        meter: Meter | None = None,
    ) -> Reply:
        """Answer ``request``; on return its final line survives a power cut.

        A turn that a crash left half done goes on after its last stored line. A ``careful`` one stores
        the question before the model is asked, since the disk refused lately. ``meter`` counts what the
        turn cost, stored requests of an earlier try included, also where it fails.

        Raises:
            ModelAway, StoreError: nothing is wrong with the letter; run it again later.
            ModelError, TurnTimeout: it will never be answered.
        """
        around = await self.surroundings(session, request)
        turn = _Turn(self, session, request, around, watcher=watcher, meter=meter or Meter())
        try:
            async with stop:
                if self._warms is not None:
                    await self._warms.warm()  # before the time counts: it is no fault of the letter's
                async with asyncio.timeout(self.limits.turn_timeout_s):
                    text = await turn.run(careful=careful)
        except TurnStopped:
            await turn.close_stopped()
            return Reply(silent=True, reason="stopped")
        except TimeoutError:
            stored = turn.stored_answer()
            if stored is None:
                raise TurnTimeout(f"the turn ran over {self.limits.turn_timeout_s:g} s") from None
            text = stored
        if turn.bounded is not None:
            turn.bounded.ended()
        return Reply(text=text, seq=session.seq_of(request.id), usage=turn.meter.usage)


class _Turn:
    def __init__(
        self,
        house: Turns,
        session: Session,
        request: Request,
        around: Surroundings,
        *,
        watcher: Watcher | None,
        meter: Meter,
    ) -> None:
        self._house = house
        self._session = session
        self._request = request
        self._watcher = watcher
        self._user: dict[str, Any] | None = None
        self._partial: list[str] = []
        self._rounds = 0
        self._tools_used: list[str] = []
        self._answer: str | None = None  # on its way to the disk
        self._around = around
        self._asking = Asking(
            session,
            request,
            around,
            model=house.model,
            toolbox=house.toolbox,
            limits=house.limits,
            workspace=house.workspace,
            embeddings=house.embeddings,
            meter=meter,
        )
        self.meter = meter
        self.bounded: Bounded | None = None
        if house.bounds is not None and not house.model.plain:
            self.bounded = Bounded(house.bounds, session, self._asking, meter)

    async def run(self, *, careful: bool) -> str:
        exchange = self._session.find(self._request.id)
        if exchange is not None and exchange.tail:
            await self._resume(exchange)
        else:
            self._user = self._user_line()
            if careful:
                await self._store()
        while True:
            answer = await self._ask()
            self._count(answer.usage)
            if not answer.tool_calls:
                return await self._finish(answer)
            if self._rounds >= self._house.limits.max_tool_rounds:
                raise RoundsExhausted(
                    f"the model asked for tools in more than {self._rounds} rounds",
                    hint="raise model.max_tool_rounds, or use a stronger model",
                )
            await self._store(self._assistant(answer))
            await self._run_calls(answer.tool_calls)

    async def close_stopped(self) -> None:
        """Append what the turn had, and the line that says it was stopped."""
        exchange = self._session.find(self._request.id)
        self._user = None
        if exchange is None or not exchange.tail:
            lines = [self._user_line()]
        elif exchange.final is not None:
            return
        else:
            calls = self._open_calls(exchange)
            said = [INTERRUPTED, *[STOPPED] * len(calls)]  # the first may run still in its thread, and end
            lines = [self._result(call, text, is_error=True) for call, text in zip(calls, said, strict=False)]
        lines.append(self._line("assistant", "".join(self._partial), stopped=True, final=True))
        await self._store(*lines)

    def stored_answer(self) -> str | None:
        """Return the answer that reached the disk although its turn was told to end; None without one."""
        exchange = self._session.find(self._request.id)
        is_last = exchange is not None and exchange.final == len(self._session) - 1
        return self._answer if is_last else None

    # -- stored lines ------------------------------------------------------------------------------

    def _line(self, role: str, content: str | None, **fields: Any) -> dict[str, Any]:
        at = self._house.now()
        return transcript.make_line(role, content, at, message_id=self._request.id, **fields)

    def _user_line(self) -> dict[str, Any]:
        request = self._request
        sender = dict(request.sender) or None
        return self._line(
            "user",
            request.text,
            platform_id=request.platform_id,
            sender=sender,
            group=request.group or None,
            attachments=stored(request.attachments),
            typed=request.typed or None,
        )

    def _assistant(self, answer: Answer, **fields: Any) -> dict[str, Any]:
        usage = answer.usage and {
            "prompt": answer.usage.prompt,
            "completion": answer.usage.completion,
            "cost_usd": answer.usage.cost_usd,
        }
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
        content = answer.text if answer.text or not calls else None
        return self._line(
            "assistant", content, tool_calls=calls or None, **dict(answer.extra), usage=usage, **fields
        )

    def _result(self, call: ToolCall, text: str, *, is_error: bool) -> dict[str, Any]:
        return self._line("tool", text, tool_call_id=call.id, name=call.name, is_error=is_error or None)

    async def _store(self, *lines: dict[str, Any]) -> None:
        user, self._user = self._user, None
        if user is None and not lines:
            return
        try:
            await self._session.append([user, *lines] if user else lines)
        except Exception:
            self._user = user
            raise

    # -- the model ---------------------------------------------------------------------------------

    async def _ask(self) -> Answer:
        """Ask; where the model refuses the request, change what can be changed about it and ask again."""
        while True:
            try:
                answer = await self._ask_once()
            except (ModelRefused, ContextTooLong) as error:
                if self._partial or not await self._changed(error):
                    raise
            else:
                if self.bounded is not None:
                    self.bounded.answered(answer.usage)
                if self._asking.summary_role != self._house.limits.summary_role:
                    self._house.limits = replace(self._house.limits, summary_role=self._asking.summary_role)
                return answer

    async def _changed(self, error: ModelError) -> bool:
        """Change the request that was refused: each way once; False where none is left."""
        album = self._asking.album
        if album.shown and not album.named_only:
            album.named_only = True
            return True
        if isinstance(error, ContextTooLong):
            return self.bounded is not None and await self.bounded.too_long(self._store)
        return self._asking.summary_as_user()

    async def _ask_once(self) -> Answer:
        """Ask, and store the question beside it when the answer takes longer than ``QUICK_S`` seconds."""
        self._partial.clear()
        if self.bounded is not None:
            prompt = await self.bounded.prompt(self._user, self._store)
        else:
            prompt = await self._asking.prompt(self._user)
        if self._user is None:
            return await self._house.model.ask(prompt, self._delta)
        storing: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        timer = loop.call_later(QUICK_S, lambda: storing.append(asyncio.ensure_future(self._store())))
        try:
            return await self._house.model.ask(prompt, self._delta)
        finally:
            timer.cancel()
            for store in storing:
                await store

    def _count(self, usage: Usage | None) -> None:
        if usage is not None:
            self.meter.add(usage.prompt, usage.completion, usage.cost_usd)

    def _delta(self, text: str) -> None:
        self._partial.append(text)
        if self._watcher is not None:
            self._watcher.delta(text)

    async def _finish(self, answer: Answer) -> str:
        if not answer.text.strip():
            raise BadAnswer("the model answered nothing")
        used = list(dict.fromkeys(self._tools_used)) or None
        self._answer = answer.text
        await self._store(self._assistant(answer, final=True, tools_used=used))
        return answer.text

    # -- tools -------------------------------------------------------------------------------------

    async def _run_calls(self, calls: Collection[ToolCall]) -> None:
        self._rounds += 1
        for call in calls:
            self._tools_used.append(call.name)
            if self._watcher is not None:
                self._watcher.tool(call.name)
            result = await self._house.toolbox.run(call, self._asking.place(), self._around.tools)
            await self._store(self._result(call, result.text, is_error=result.is_error))

    async def _resume(self, exchange: Exchange) -> None:
        """Go on after the last stored line: settle the calls that have no result yet."""
        for line in self._session.lines(exchange.start, exchange.stop):
            if line.get("role") == "assistant" and line.get("tool_calls"):
                self._rounds += 1
                self._tools_used += [call.name for call in calls_of(line)]
                spent = usage_of(line)
                self.meter.add(spent.prompt_tokens, spent.completion_tokens, spent.cost_usd)
        for call in self._open_calls(exchange):
            tool = self._house.toolbox.get(call.name)
            if tool is not None and not tool.repeatable:
                await self._store(self._result(call, INTERRUPTED, is_error=True))
            else:
                result = await self._house.toolbox.run(call, self._asking.place(), self._around.tools)
                await self._store(self._result(call, result.text, is_error=result.is_error))

    def _open_calls(self, exchange: Exchange) -> list[ToolCall]:
        waiting: dict[str, ToolCall] = {}
        for line in self._session.lines(exchange.start, exchange.stop):
            if line.get("role") == "assistant":
                waiting = {call.id: call for call in calls_of(line)}
            elif line.get("role") == "tool":
                waiting.pop(str(line.get("tool_call_id")), None)
        return list(waiting.values())


def calls_of(line: Mapping[str, Any]) -> list[ToolCall]:
    """Read the tool calls of a stored assistant line."""
    calls = []
    for call in line.get("tool_calls") or []:
        function = call.get("function") or {}
        calls.append(ToolCall(str(call.get("id")), str(function.get("name")), str(function.get("arguments"))))
    return calls
