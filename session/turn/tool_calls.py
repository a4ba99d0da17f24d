"""The lines that a turn writes, and its tool calls: a person asked where need be, each run once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from session.approvals.gate import DENIED_SAID, Gate, Refused
from session.approvals.record import Call
from session.approvals.rules import policy_name
from session.context.request import Asking, Request
from session.errors import ToolError
from session.models.model import Answer, ToolCall
from session.store.store import Exchange, Session
from session.tools import Tool, Toolbox, arguments_of
from session.transcript.attachments import stored
from session.transcript.line import make_line
from session.turn.joining import served
from session.turn.reply import Watcher


@dataclass(eq=False, slots=True)
class TurnLines:
    """Builds the lines of one turn: each bears the id of its request and the time at which it is built."""

    _request: Request
    _now: Callable[[], str]

    def user(self, part: Request | None = None) -> dict[str, Any]:
        """Build the line of the question, or that of another message which enters the turn."""
        request = part or self._request
        return self._line(
            "user",
            request.text,
            message_id=request.id,
            part_of=self._request.id if part is not None else None,
            platform_id=request.platform_id,
            sender=dict(request.sender) or None,
            group=True if request.chat == "group" else None,
            attachments=stored(request.attachments),
            quoted=dict(request.quoted) or None,
            forwarded_from=request.forwarded_from or None,
            typed=request.typed or None,
            received_at=request.received_at or None,
            queued_at=request.queued_at or None,
            traceparent=request.traceparent or None,
        )

    def assistant(self, answer: Answer, **fields: Any) -> dict[str, Any]:
        """Build the line of what the model answered, text or calls, with what it cost."""
        usage = answer.usage and answer.usage.fields()
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
        content = answer.text if answer.text or not calls else None
        return self._line(
            "assistant", content, tool_calls=calls or None, **dict(answer.extra), usage=usage, **fields
        )

    def stopped(
        self, text: str, *, by: str = "", answers: list[str] | None = None, interrupted: bool = False
    ) -> dict[str, Any]:
        """Build the line that closes a turn, which the message ``by`` stopped, with the text so far.

        ``answers`` are the ids of all messages whose turn it was; ``interrupted``: the next one stopped it.
        """
        return self._line(
            "assistant",
            text,
            stopped=True,
            final=True,
            stopped_by=by or None,
            answers=answers,
            interrupted=interrupted or None,
        )

    def result(self, call: ToolCall, text: str, *, is_error: bool) -> dict[str, Any]:
        """Build the line of a call's result."""
        return self._line("tool", text, tool_call_id=call.id, name=call.name, is_error=is_error or None)

    def _line(self, role: str, content: str | None, **fields: Any) -> dict[str, Any]:
        return make_line(role, content, self._now(), **{"message_id": self._request.id, **fields})


@dataclass(eq=False, slots=True)
class TurnWriter:
    """Appends the lines of one turn; the question, while it is not on disk, goes with the first of them.

    It is an object of its own, so that nothing that stores a line has to hold the turn. ``user`` is the line
    of the question, until it is on disk.
    """

    _session: Session
    user: dict[str, Any] | None = None

    async def store(self, *lines: dict[str, Any], ahead: bool = False) -> None:
        """Append the lines, none where only the question has to be on disk; see ``Session.append``.

        ``ahead``: as ``Session.append_ahead``.
        """
        user, self.user = self.user, None
        if user is None and not lines:
            return
        try:
            append = self._session.append_ahead if ahead else self._session.append
            await append([user, *lines] if user else lines)
        except Exception:
            # The question is not on disk: the next append has to bring it.
            self.user = user
            raise


def calls_of(line: Mapping[str, Any]) -> list[ToolCall]:
    """Read the tool calls of a stored assistant line; what is none there is none in a request either."""
    written = line.get("tool_calls")
    calls = []
    for call in written if isinstance(written, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            name, arguments = str(function.get("name")), str(function.get("arguments"))
            calls.append(ToolCall(str(call.get("id")), name, arguments))
    return calls


INTERRUPTED = "outcome unknown: interrupted"
STOPPED = "not run: the turn was stopped"
CUT = (
    "not run: the answer was cut off at {} before the call was complete (model.max_output_tokens). "
    "Do it in smaller pieces: write less in one call, or make several calls one after the other."
)

Store = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(eq=False, slots=True)
class ToolCalls:
    """Runs what the model asks for.

    ``rounds`` and ``used`` count what the turn did so far, tries before a crash included. ``_allowed`` are
    the names of the tools on offer; without a ``_gate`` everything may run.
    """

    _session: Session
    _request: Request
    _toolbox: Toolbox
    _allowed: Collection[str]
    _asking: Asking
    _gate: Gate | None
    _lines: TurnLines
    _store: Store
    _watcher: Watcher | None
    rounds: int = 0
    used: list[str] = field(default_factory=list)

    def asked_for(self, calls: Sequence[ToolCall]) -> list[str]:
        """Return the ids of the calls that wait for a person; their line tells, whatever crashes."""
        return [call.id for call in calls if self._decision(call) == "ask"]

    async def run(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls of a stored line, one after the other.

        Raises:
            AwaitsApproval: one of them waits for a person; ``settle`` goes on with it.
        """
        self.rounds += 1
        asked = self.asked_for(calls)
        for call in calls:
            self.used.append(call.name)
            if self._watcher is not None:
                self._watcher.tool(call.name)
            await self._run(call, ask=call.id in asked)

    def count(self, line: dict[str, Any]) -> None:
        """Count the calls of a line that an earlier try stored."""
        self.rounds += 1
        if not line.get("cut"):
            self.used += [call.name for call in calls_of(line)]

    async def settle(self, exchange: Exchange) -> None:
        """Give the calls that have no result theirs: what may have been done is not done again.

        Raises:
            AwaitsApproval: as ``run``.
        """
        asked, calls = self.open(exchange)
        # Calls run one after the other: what stands behind one that surely did not begin did not, either.
        untouched = False
        for call in calls:
            if self._was_cut(exchange):
                await self._put(call, CUT.format("its limit of tokens"))
            elif call.id in asked or untouched or self._toolbox.may_repeat(call.name):
                untouched = await self._run(call, ask=call.id in asked) or untouched
            else:
                # A tool may have acted before the crash: only one that may act twice is run again.
                await self._put(call, INTERRUPTED)

    def _was_cut(self, exchange: Exchange) -> bool:
        lines = self._session.lines(exchange.start, exchange.stop)
        return any(line.get("cut") for line in lines if line.get("role") == "assistant")

    def cut(self, calls: Sequence[ToolCall], tokens: str) -> list[dict[str, Any]]:
        """Return the results of the calls of an answer that was cut, none of which is run."""
        self.rounds += 1
        return [self._lines.result(call, CUT.format(tokens), is_error=True) for call in calls]

    async def stop(self, exchange: Exchange) -> list[dict[str, Any]]:
        """Return the results of the open calls of a turn that is stopped."""
        _, calls = self.open(exchange)
        waited: set[str] = set()
        if self._gate is not None:
            waited = await self._gate.cancel(self._request.key, self._request.id)
        # The first call may still run in its thread, and end: nobody knows its outcome.
        said = [INTERRUPTED if n == 0 and call.id not in waited else STOPPED for n, call in enumerate(calls)]
        return [self._lines.result(call, text, is_error=True) for call, text in zip(calls, said, strict=True)]

    def open(self, exchange: Exchange) -> tuple[set[str], list[ToolCall]]:
        """Return the calls without a result, in order, and the ids of those that wait for a person."""
        asked: set[str] = set()
        waiting: dict[str, ToolCall] = {}
        for line in self._session.lines(exchange.start, exchange.stop):
            if line.get("role") == "assistant":
                waiting = {call.id: call for call in calls_of(line)}
                named = line.get("asks")
                asked = {str(each) for each in named} if isinstance(named, list) else set()
            elif line.get("role") == "tool":
                waiting.pop(str(line.get("tool_call_id")), None)
        return asked, list(waiting.values())

    async def _run(self, call: ToolCall, *, ask: bool) -> bool:
        """Give a call its result; return whether it had surely not begun in an earlier try."""
        tool = self._toolbox.get(call.name)
        decision = self._decision(call)
        if self._gate is None or decision is None or (decision == "allow" and not ask):
            await self._act(call)
            return False
        if decision == "deny":
            await self._refuse(call, tool)
            return False
        asked = self._call(call, tool)
        try:
            way = await self._gate.enter(asked, self._asking.place())
        except Refused as refused:
            await self._put(call, str(refused))
            return True
        if way == "begun" and not self._toolbox.may_repeat(call.name):
            await self._put(call, INTERRUPTED)
        else:
            await self._act(call)
        await self._gate.leave(asked)
        return way == "new"

    async def _act(self, call: ToolCall) -> None:
        result = await self._toolbox.run(call, self._asking.place(), self._allowed)
        await self._store(self._lines.result(call, result.text, is_error=result.is_error))

    async def _refuse(self, call: ToolCall, tool: Tool | None) -> None:
        await self._put(call, DENIED_SAID.format(tool=policy_name(tool) if tool is not None else call.name))

    async def _put(self, call: ToolCall, text: str) -> None:
        await self._store(self._lines.result(call, text, is_error=True))

    # -- what the policy says ----------------------------------------------------------------------

    def _decision(self, call: ToolCall) -> str | None:
        """Say what the policy says of a call; None where it cannot run at all, as its result tells."""
        tool, place = self._toolbox.get(call.name), self._asking.place()
        if tool is None or self._gate is None:
            return None
        offered = any(spec.name == call.name for spec in self._toolbox.specs(self._allowed, place))
        decision = self._gate.decide(policy_name(tool), place, self._people())
        if decision != "ask" or not offered:
            return decision if offered or decision == "deny" else None
        try:
            arguments_of(call, tool.spec)
        except ToolError:
            # Nobody is asked about what fails anyway.
            return None
        return decision

    def _people(self) -> list[str]:
        """Return the ids of all whose messages the turn answers."""
        return list(dict.fromkeys(str(sender.get("id", "")) for sender in self._senders()))

    def _senders(self) -> list[Mapping[str, Any]]:
        stored = (line.get("sender") for line in served(self._session, self._request.id))
        request = self._request
        return [request.asker or request.sender, *(each for each in stored if isinstance(each, dict))]

    def _call(self, call: ToolCall, tool: Tool | None) -> Call:
        request, place = self._request, self._asking.place()
        return Call(
            key=str(request.key),
            chat=request.answer_to or str(request.key),
            message_id=request.id,
            number=self.rounds,
            call_id=call.id,
            tool=policy_name(tool) if tool is not None else call.name,
            arguments=call.arguments,
            folder=str(place.folder),
            asked_by=", ".join(dict.fromkeys(filter(None, map(named, self._senders())))),
        )


def named(sender: Mapping[str, Any]) -> str:
    """Return how people are named: by name and id."""
    name, id_ = str(sender.get("name") or sender.get("username") or ""), str(sender.get("id") or "")
    return f"{name} ({id_})" if name and id_ else name or id_
