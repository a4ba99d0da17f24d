"""An answer as OpenAI's API streams it: chunks as server-sent events, then ``[DONE]``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import durable
from gateway.http.errors import encoded
from gateway.http.leaving import ClientLeft, while_there
from gateway.http.openai_errors import error_body
from gateway.service.chats import SLOW_S, Closing
from gateway.service.completion import Completion
from gateway.service.outcome import Outcome
from gateway.turns.events import Event
from session.errors import SessionError

log = structlog.get_logger("http")

# A person has to see it, since the answer waits for a word about it.
_SHOWN_NOTICES: Final = frozenset({"approval"})
_AGAIN: Final = "send the request again with the same Idempotency-Key"
_KEPT: Final = "the message is saved and will be answered once the disk works"


class Diverged(Exception):
    """The answer was begun anew, and does not go on as what was sent of it does."""


class Written:
    """What a client was sent of the text that is being written, so that it ends as the answer does.

    Each method returns what to send next. A text before a tool call is one of its own, with a gap behind it.
    What was sent cannot be taken back: an answer begun anew goes on behind it, or raises ``Diverged``.
    """

    def __init__(self) -> None:
        # The text of an answer that was begun anew, until it is as long as what was sent.
        self._anew: str | None = None
        # Joined only where it is compared: a copy for each piece would hold the loop up for seconds.
        self._pieces: list[str] = []
        self._gap = ""

    def more(self, text: str) -> str:
        """Take the next piece."""
        if self._anew is not None:
            self._anew += text
            return self._overtaken(self._anew)
        if text:
            self._pieces.append(text)
        return self._with_gap(text)

    def whole(self, text: str) -> str:
        """Take the whole text so far, or the answer; what was sent of it is not sent again."""
        sent = "".join(self._pieces)
        # Thoughts without a tag at their start are known as such only in the end.
        if sent.strip().endswith(text.strip()) and text.strip():
            return ""
        if not text.startswith(sent):
            raise Diverged
        self._pieces, self._anew = [text] if text else [], None
        return self._with_gap(text[len(sent) :])

    def anew(self) -> None:
        """Take the text from its start again: its turn was begun anew."""
        if self._pieces:
            self._anew = ""

    def _overtaken(self, text: str) -> str:
        sent = "".join(self._pieces)
        if text.startswith(sent):
            self._pieces, self._anew = [text], None
            return self._with_gap(text[len(sent) :])
        if not sent.startswith(text):
            raise Diverged
        return ""

    def other(self) -> None:
        """Begin another text."""
        self._anew = None
        if self._pieces:
            self._pieces, self._gap = [], "\n\n"

    def _with_gap(self, text: str) -> str:
        if not text:
            return ""
        gap, self._gap = self._gap, ""
        return gap + text


class CompletionStream(Response):
    """Streams one completion; its client must keep reading, and whoever leaves may stop the turn."""

    media_type = "text/event-stream"

    def __init__(self, completion: Completion, model: str, *, usage: bool) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._completion = completion
        self._usage = usage
        self._head = {
            "id": f"chatcmpl-{completion.message.id}",
            "object": "chat.completion.chunk",
            "created": round(durable.wall_s()),
            "model": model,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answer is whole, the client leaves, or it is too slow."""
        try:
            await while_there(receive, self._send(send))
        except ClientLeft:
            await self._completion.broken_off()
        except TimeoutError:
            log.info("events.client_cut", after_s=SLOW_S)
            await self._completion.broken_off()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        # It goes out with what comes first: on its own it is one more write before the first word.
        role = self._chunk({"role": "assistant", "content": ""})
        async with aclosing(self._frames()) as frames:
            async for frame in frames:
                async with asyncio.timeout(SLOW_S):
                    await send({"type": "http.response.body", "body": role + frame, "more_body": True})
                role = b""
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes]:
        written = Written()
        try:
            async with aclosing(self._completion.events()) as shown:
                async for each in shown:
                    if each is None:
                        yield b": still here\n\n"
                    elif isinstance(each, Outcome) and each.kind == "notice":
                        hint = "this message got no answer; send it again"
                        yield _frame(error_body(422, each.text, hint))
                        return
                    elif isinstance(each, Outcome):
                        answer, finish = await self._completion.ended(each.text)
                        if text := written.whole(answer):
                            yield self._chunk({"content": text})
                        files = {"files": each.files.split("\n")} if each.files else {}
                        yield self._chunk(files, finish)
                    elif text := _piece(each, written):
                        yield self._chunk({"content": text})
            if self._usage:
                yield _frame({**self._head, "choices": [], "usage": await self._completion.usage()})
        except Diverged:
            yield _frame(error_body(503, "the answer was interrupted and restarted in the chat", _AGAIN))
            return
        except Closing:
            yield _frame(error_body(503, "the gateway is shutting down", _AGAIN))
            return
        except SessionError as error:
            # The status is out: without this the stream would break off, and say nothing of why.
            log.warning("request.failed", error=str(error), hint=error.hint)
            yield _frame(error_body(503, f"the answer could not be stored: {error}", _KEPT))
            return
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _frame({**self._head, "choices": [choice]})


def _piece(shown: Event, written: Written) -> str:
    """Return what is to be sent for something that a turn shows."""
    match shown.kind:
        case "delta":
            return written.more(shown.text)
        case "draft":
            return written.whole(shown.text)
        case "started":
            written.anew()
        case "tool":
            written.other()
        case "notice" if shown.reason.partition(".")[0] in _SHOWN_NOTICES:
            written.other()
            told = written.more(shown.text)
            written.other()
            return told
    return ""


def _frame(content: dict[str, Any]) -> bytes:
    return b"data: " + encoded(content) + b"\n\n"
