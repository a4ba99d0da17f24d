"""The lines that a turn writes into its transcript, and the tool calls that are read from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from session.context.request import Request
from session.models.model import Answer, ToolCall
from session.store.store import Session
from session.transcript.attachments import stored
from session.transcript.line import make_line


class TurnLines:
    """Builds the lines of one turn: each bears the id of its request and the time at which it is built."""

    def __init__(self, request: Request, now: Callable[[], str]) -> None:
        self._request = request
        self._now = now

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


class TurnWriter:
    """Appends the lines of one turn; the question, while it is not on disk, goes with the first of them.

    It is an object of its own, so that whatever stores a line need not hold the turn.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # The line of the question, until it is on disk.
        self.user: dict[str, Any] | None = None

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
