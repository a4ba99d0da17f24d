"""A completion without a session: it goes to the model as given, and nothing is stored or queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import durable
from gateway.http.completion_shapes import CompletionIn
from gateway.http.errors import HttpError, encoded, json_response, unavailable
from gateway.http.leaving import ClientLeft, while_there
from gateway.http.openai_errors import error_body
from gateway.service.chats import HEARTBEAT_S, ChatService
from gateway.turns.limits import Quota
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelAway,
    ModelRefused,
    OverCap,
    SessionError,
)
from session.models.model import Answer, Model, Payer, Prompt

# What goes on to the model; everything else is named in X-Ignored. A field of LiteLLM's own, such as
# api_base, would send the gateway's key elsewhere.
PASSED: Final = frozenset(
    {"temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "tools"}
    | {"tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"}
    | {"max_tokens", "max_completion_tokens"}
)
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_READ: Final = frozenset({"model", "messages", "user", "stream", "stream_options", "n"})


class Stateless:
    """One call without a session.

    Args:
        chats: whose daemon asks the model.
        body: what is asked, passed on as it came.
        key: the chat for whose account it counts, which stays as it is.
        agent: whose model is asked; empty: the default.
    """

    def __init__(self, chats: ChatService, body: CompletionIn, key: str, agent: str) -> None:
        services = chats.application.services
        if services is None:
            raise unavailable("no model runs in this process", "ask a process with role session")
        self.model: Model = services.agents[agent].turns.model
        self._quota: Quota | None = services.quota
        self._payer = Payer(key, key, id=f"stateless:{durable.new_id()}")
        self.given = body.model_dump(exclude_unset=True)
        passed = {name: self.given[name] for name in PASSED if self.given.get(name) is not None}
        limits = [passed.pop(name) for name in _LIMITS if name in passed]
        if any(type(limit) is not int or limit < 1 for limit in limits):
            raise HttpError(
                400, "max_tokens is not a number above 0", hint="leave it out to use the gateway's"
            )
        self._prompt = Prompt(
            messages=self.given["messages"], max_tokens=min(limits, default=None), parameters=passed
        )
        self.ignored = [name for name in self.given if name not in PASSED | _READ]
        self._usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head = {
            "id": f"chatcmpl-{durable.new_id()}",
            "created": round(durable.wall_s()),
            "model": self.model.name,
        }

    async def ask(self, on_delta: Any = None) -> Answer:
        """Ask within the caps; what it cost counts as a turn's.

        Raises:
            HttpError: why there is no answer.
        """
        meter = self._quota.spending.meter(self._payer) if self._quota is not None else None
        try:
            if meter is None or self._quota is None:
                return await self.model.ask(self._prompt, on_delta)
            if refused := await self._quota.refused(self._payer):
                raise HttpError(429, refused, hint="wait, or raise the limit in [limits]")
            with self._quota.running(self._payer):
                async with meter.request(self.model, self._prompt):
                    answer = await self.model.ask(self._prompt, on_delta)
                    meter.count(answer.usage)
                self._quota.record(self._payer, meter.usage, self.model.name)
            return answer
        except SessionError as error:
            raise _refusal(error) from error

    async def whole(self, request: Request) -> Response:
        """Answer once the model has; who leaves ends the request."""
        try:
            answer = await while_there(request.receive, self.ask())
        except ClientLeft:
            raise unavailable("the client disconnected", "try again") from None
        said = {"role": "assistant", "content": answer.text or None, **_beside(answer)}
        choice = {"index": 0, "message": said, "finish_reason": answer.finish, "logprobs": None}
        whole = {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage_of(answer)}
        return json_response(whole)

    async def stream(self) -> Response:
        """Answer piece by piece; a refusal before the first piece has its status."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        asking = asyncio.ensure_future(self.ask(pieces.put_nowait))
        asking.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                first = await pieces.get()
        except TimeoutError:
            first = ""
        except asyncio.CancelledError:
            asking.cancel()
            raise
        if first is None:
            # Where it failed, this raises.
            asking.result()
        frames = self._frames(first, pieces, asking)
        return StreamingResponse(frames, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _frames(
        self, first: str | None, pieces: asyncio.Queue[str | None], asking: asyncio.Future[Answer]
    ) -> AsyncGenerator[bytes]:
        piece = first
        try:
            yield self._chunk({"role": "assistant", "content": ""})
            while piece is not None:
                yield self._chunk({"content": piece}) if piece else b": still here\n\n"
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        piece = await pieces.get()
                except TimeoutError:
                    piece = ""
            try:
                answer = asking.result()
            except HttpError as error:
                yield _frame(error_body(error.status, error.error, error.hint))
                return
            beside = _beside(answer)
            for number, call in enumerate(beside.get("tool_calls", ())):
                yield self._chunk({"tool_calls": [{"index": number, **call}]})
            yield self._chunk({}, answer.finish)
            if self._usage:
                chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
                yield _frame({**chunk, "usage": _usage_of(answer)})
            yield b"data: [DONE]\n\n"
        finally:
            asking.cancel()

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _frame({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


def _beside(answer: Answer) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.tool_calls
    ]
    thoughts = answer.extra.get("reasoning_content")
    return ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thoughts} if thoughts else {})


def _usage_of(answer: Answer) -> dict[str, int]:
    prompt, completion = (answer.usage.prompt, answer.usage.completion) if answer.usage else (0, 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _refusal(error: SessionError) -> HttpError:
    """Say why there is no answer, in the words of the provider: who asks made the request."""
    match error:
        case ModelAway(cause="rate_limit"):
            return HttpError(429, str(error), hint=error.hint)
        case OverCap():
            return HttpError(429, str(error), hint=error.hint)
        case ModelRefused() | ContextTooLong():
            return HttpError(400, str(error), hint=error.hint or "change the request")
        case BadAnswer():
            return HttpError(502, str(error), hint=error.hint or "try again")
        case _:
            return unavailable(str(error), error.hint or "try again")


def _frame(content: dict[str, Any]) -> bytes:
    return b"data: " + encoded(content) + b"\n\n"
