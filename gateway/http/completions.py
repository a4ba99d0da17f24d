"""OpenAI's API: ``POST /v1/chat/completions`` and ``GET /v1/models``, in chats or without a session."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, Final, Literal

import structlog
from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import durable
from channels.base import File
from channels.media import FileRefused, MediaFolder
from channels.message import Attachment
from gateway.config.agents import agents_of, settings_of
from gateway.dispatch.events import Event
from gateway.dispatch.limits import Quota
from gateway.dispatch.routing import AgentChoice
from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, encoded, error_body, json_response, unavailable
from gateway.http.events import EventStream
from gateway.http.messages import ClientLeft, cancel_on_disconnect, check_words
from gateway.http.openapi import OpenAIErrorOut, Shape, caller_of, has_surrogate, needs
from gateway.service.chats import HEARTBEAT_S, ChatService, Closing, Conflict
from gateway.service.client_message import MAX_KEY_CHARS, inbound
from gateway.service.completion import Completion
from gateway.service.outcome import Outcome
from session.errors import BadAnswer, ContextTooLong, ModelAway, ModelRefused, OverCap, SessionError
from session.models.model import Answer, Model, Payer, Prompt
from session.transcript.agent import named, parted

MAX_USER_CHARS = 512
_PROMPTS = frozenset({"system", "developer"})
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class ContentPart(BaseModel):
    """A part of a message's content; of the last message, texts and images as data URLs are used."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None
    image_url: Any = None

    @property
    def picture(self) -> tuple[str, bytes]:
        """The type and the bytes of a picture."""
        url = self.image_url.get("url") if isinstance(self.image_url, dict) else self.image_url
        head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
        mime, *marks = head.lower().removeprefix("data:").split(";")
        if not head.startswith("data:image/") or not comma or "base64" not in marks:
            raise ValueError("messages: image_url: send the image as a data URL: data:image/png;base64,…")
        try:
            return mime, base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError("messages: the data URL of an image is not base64") from None


class ChatMessage(BaseModel):
    """A message of the client's history."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    # A body may hold a million elements: to describe the fault of each would hold up the loop for seconds.
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None


class CompletionIn(BaseModel):
    """A request of an OpenAI client: the last user message is asked in the chat ``web:<user>``.

    The gateway keeps the conversation and uses its own tools, temperature and limits. Such fields of a
    request have no effect; ``ignored`` lists them. Fields that would change the answer's form are refused.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(max_length=MAX_USER_CHARS)
    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    user: str | None = Field(default=None, max_length=MAX_USER_CHARS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: Any = None
    tool_choice: Any = None
    function_call: Any = None
    response_format: Any = None

    def check(self) -> None:
        """Check that a chat can answer it.

        Raises:
            ValueError: it asks for what no chat honours, or for nothing.
        """
        for name, choice in (("tool_choice", self.tool_choice), ("function_call", self.function_call)):
            if choice not in (None, "auto", "none"):
                raise ValueError(f'{name}: the gateway runs its own tools and cannot force one; send "auto"')
        form = self.response_format
        if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
            raise ValueError(
                "response_format: only text is supported; leave it out and ask for the format in the message"
            )
        if self.n not in (None, 1):
            raise ValueError("n: only one answer is supported; leave it out and repeat the request")
        last = next((each.role for each in reversed(self.messages) if each.role not in _PROMPTS), "user")
        if last != "user":
            raise ValueError(
                f"messages: the last one has the role {last[:40]!r}; end with a message with role user"
            )
        if not self.text.strip() and not self.pictures:
            raise ValueError("messages: no message with role user has a text")
        if has_surrogate(self.text) or has_surrogate(self.user or ""):
            raise ValueError("a text contains half of a surrogate pair")

    @property
    def text(self) -> str:
        """What is asked: the text of the last message with the role user."""
        content = self._content
        if isinstance(content, str):
            return content
        for part in content:
            if part.type not in ("text", "image_url"):
                raise ValueError(
                    f"messages: a part of type {part.type[:40]!r} is not supported; send text and images"
                )
        return "\n".join(part.text for part in content if part.text and part.type == "text")

    @property
    def pictures(self) -> list[tuple[str, bytes]]:
        """The pictures that go along, each with its type."""
        content = self._content
        return (
            [] if isinstance(content, str) else [part.picture for part in content if part.type == "image_url"]
        )

    @property
    def _content(self) -> str | list[ContentPart]:
        last = next((each for each in reversed(self.messages) if each.role == "user"), None)
        return (last.content if last is not None else None) or ""

    @property
    def ignored(self) -> list[str]:
        """What the request has and the gateway does not read: fields, and two kinds of messages."""
        roles = [each.role for each in self.messages]
        names = ["system"] if _PROMPTS.intersection(roles) else []
        names += ["history"] if sum(role not in _PROMPTS for role in roles) > 1 else []
        own = {"tools": self.tools, "tool_choice": self.tool_choice, "function_call": self.function_call}
        fields = own | (self.model_extra or {})
        return names + [
            name for name, value in fields.items() if value not in (None, [], {}) and NAME.fullmatch(name)
        ]


class UsageOut(Shape):
    """Tokens of all model calls of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class MessageOut(Shape):
    """The answer; ``files`` are local paths of its files, on the machine of the gateway.

    A stateless call may request tools: ``tool_calls`` then has them, and ``content`` may be null.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    files: list[str] = Field(default=[])
    tool_calls: list[dict[str, Any]] = Field(default=[])


class ChoiceOut(Shape):
    """The answer; there is always exactly one."""

    index: Literal[0]
    message: MessageOut
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: None = None


class CompletionOut(Shape):
    """An answer in the format of OpenAI's API."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceOut]
    usage: UsageOut


class ModelOut(Shape):
    """A name that clients can use as ``model``."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsOut(Shape):
    """All models."""

    object: Literal["list"]
    data: list[ModelOut]


log = structlog.get_logger("http")

# A person has to see it, since the answer waits for a word about it.
_SHOWN_NOTICES: Final = frozenset({"approval"})
_CHUNK: Final = "chat.completion.chunk"
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


class CompletionStream(EventStream):
    """Streams one completion; its client must keep reading, and whoever leaves may stop the turn."""

    def __init__(self, completion: Completion, model: str, *, usage: bool) -> None:
        super().__init__(self._frames(), headers={"X-Accel-Buffering": "no"})
        self._completion = completion
        self._usage = usage
        self._whole = False
        self._head = {
            "id": f"chatcmpl-{completion.message.id}",
            "created": round(durable.wall_s()),
            "model": model,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answer is whole, the client leaves, or it is too slow."""
        await super().__call__(scope, receive, send)
        if not self._whole:
            await self._completion.broken_off()

    async def _frames(self) -> AsyncGenerator[bytes]:
        written = Written()
        yield _chunk(self._head, {"role": "assistant", "content": ""})
        try:
            async with aclosing(self._completion.events()) as shown:
                async for each in shown:
                    if each is None:
                        yield b": still here\n\n"
                    elif isinstance(each, Outcome) and each.kind == "notice":
                        hint = "this message got no answer; send it again"
                        yield _frame(error_body(422, each.text, hint))
                        self._whole = True
                        return
                    elif isinstance(each, Outcome):
                        answer, finish = await self._completion.ended(each.text)
                        if text := written.whole(answer):
                            yield _chunk(self._head, {"content": text})
                        files = {"files": each.files.split("\n")} if each.files else {}
                        yield _chunk(self._head, files, finish)
                    elif text := _piece(each, written):
                        yield _chunk(self._head, {"content": text})
            if self._usage:
                yield _usage_chunk(self._head, await self._completion.usage())
            yield b"data: [DONE]\n\n"
        except Diverged:
            yield _frame(error_body(503, "the answer was interrupted and restarted in the chat", _AGAIN))
        except Closing:
            yield _frame(error_body(503, "the gateway is shutting down", _AGAIN))
        except SessionError as error:
            # The status is out: without this the stream would break off, and say nothing of why.
            log.warning("request.failed", error=str(error), hint=error.hint)
            yield _frame(error_body(503, f"the answer could not be stored: {error}", _KEPT))
        self._whole = True


def _piece(shown: Event, written: Written) -> str:
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


def _chunk(head: Mapping[str, Any], delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _frame({**head, "object": _CHUNK, "choices": [choice]})


def _usage_chunk(head: Mapping[str, Any], usage: Mapping[str, int]) -> bytes:
    return _frame({**head, "object": _CHUNK, "choices": [], "usage": usage})


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
            answer = await cancel_on_disconnect(request.receive, self.ask())
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
        return EventStream(frames, headers={"X-Accel-Buffering": "no"})

    async def _frames(
        self, first: str | None, pieces: asyncio.Queue[str | None], asking: asyncio.Future[Answer]
    ) -> AsyncGenerator[bytes]:
        piece = first
        try:
            yield _chunk(self._head, {"role": "assistant", "content": ""})
            while piece is not None:
                yield _chunk(self._head, {"content": piece}) if piece else b": still here\n\n"
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
                yield _chunk(self._head, {"tool_calls": [{"index": number, **call}]})
            yield _chunk(self._head, {}, answer.finish)
            if self._usage:
                yield _usage_chunk(self._head, _usage_of(answer))
            yield b"data: [DONE]\n\n"
        finally:
            asking.cancel()


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


OURS = "chat-gateway"
CHANNEL = "web"
# As the header X-Chat-Id: a call without a session.
STATELESS = "none"
MAX_KEY_HEADER_CHARS = 190
MAX_NAMED_IGNORED = 50
ChatHeader = Annotated[str | None, Header(max_length=MAX_KEY_CHARS)]


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of OpenAI's API."""
    _add_models(router, chats)
    _add_completions(router, chats)


def _add_models(router: APIRouter, chats: ChatService) -> None:
    @router.get("/v1/models", summary="List the models", **needs("read", ModelsOut, form=OpenAIErrorOut))
    async def get_models() -> Response:
        return json_response({"object": "list", "data": [_known(chats, name) for name in _names(chats)]})

    @router.get(
        "/v1/models/{model:path}", summary="Show a model", **needs("read", ModelOut, 404, form=OpenAIErrorOut)
    )
    async def get_model(model: str) -> Response:
        return json_response(_known(chats, model))


def _choice(chats: ChatService) -> AgentChoice:
    settings = chats.application.settings
    return AgentChoice(tuple(settings.agents), agents_of(settings))


def _names(chats: ChatService) -> list[str]:
    """List what stands for whoever answers in a chat, then the agents that a chat may choose."""
    settings = chats.application.settings
    agents = _choice(chats).offered(CHANNEL) if settings.agents else []
    return list(dict.fromkeys((OURS, settings.model.name, *agents)))


def _agent(chats: ChatService, key: str, model: str) -> str:
    """Return the agent that a request names by its model; empty: whoever answers there."""
    choice = _choice(chats)
    if not choice.agents or model not in choice.names:
        _known(chats, model)
        return ""
    if refusal := choice.refusal(key, model):
        raise HttpError(403, refusal, hint=f"use {OURS}, or another model listed by GET /v1/models")
    return model


async def _answering(chats: ChatService, key: str, agent: str) -> str:
    settings, services = chats.application.settings, chats.application.services
    if not settings.agents or services is None:
        return settings.model.name
    name = named(agent) if agent else parted((await services.scope_resolver.of_next(key)).name)[0]
    return settings_of(settings, name).model.name


def _known(chats: ChatService, name: str) -> dict[str, Any]:
    """Describe what a client may name as its model; raises HttpError 404."""
    if name not in _names(chats):
        raise HttpError(404, f"there is no model {name[:200]}", hint="GET /v1/models lists them")
    created = round(chats.application.started_at.timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": OURS}


def _add_completions(router: APIRouter, chats: ChatService) -> None:
    terms = needs("write", CompletionOut, 404, 409, 422, form=OpenAIErrorOut)
    terms["responses"][200] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}

    @router.post(
        "/v1/chat/completions",
        summary="Create a chat completion (OpenAI-compatible); with `stream` as server-sent events",
        **terms,
    )
    async def post_completion(
        request: Request,
        body: CompletionIn,
        x_chat_id: ChatHeader = None,
        x_openwebui_chat_id: ChatHeader = None,
        idempotency_key: Annotated[
            str | None,
            Header(min_length=1, max_length=MAX_KEY_HEADER_CHARS, description="the message's id"),
        ] = None,
    ) -> Response:
        if x_chat_id == STATELESS:
            return await _without_session(request, chats, body)
        try:
            body.check()
        except ValueError as error:
            raise HttpError(400, str(error), hint="GET /openapi.json describes every route") from None
        check_words(request.scope, body.text)
        own = caller_of(request.scope).name
        named = body.user or x_chat_id or x_openwebui_chat_id
        key = f"{CHANNEL}:{named or f'openai-{own}'.removesuffix('-')}"
        agent = _agent(chats, key, body.model)
        files = await _kept(chats, body.pictures)
        message = inbound(key, body.text, idempotency_key, agent=agent, files=files)
        completion = Completion(chats, message, goes_on=idempotency_key is not None, reads=bool(body.stream))
        model = await _answering(chats, key, agent)
        if body.stream:
            options = body.stream_options
            with _refusals(message.id):
                await completion.begin()
            response: Response = CompletionStream(
                completion, model, usage=bool(options and options.include_usage)
            )
        else:
            response = await _whole(request, completion, model)
        if ignored := body.ignored[:MAX_NAMED_IGNORED]:
            response.headers["X-Ignored"] = ", ".join(ignored)
        return response


async def _without_session(request: Request, chats: ChatService, body: CompletionIn) -> Response:
    if body.n not in (None, 1):
        raise HttpError(400, "n: only one answer is supported", hint="repeat the request for another one")
    if has_surrogate(json.dumps([each.model_dump() for each in body.messages], ensure_ascii=False)):
        raise HttpError(400, "a text contains half of a surrogate pair")
    key = f"{CHANNEL}:{f'openai-{caller_of(request.scope).name}'.removesuffix('-')}"
    agent = _agent(chats, key, body.model)
    call = Stateless(chats, body, key, named(agent) if agent else "")
    response = await (call.stream() if body.stream else call.whole(request))
    if ignored := [name for name in call.ignored if NAME.fullmatch(name)][:MAX_NAMED_IGNORED]:
        response.headers["X-Ignored"] = ", ".join(ignored)
    return response


async def _kept(chats: ChatService, pictures: Sequence[tuple[str, bytes]]) -> list[Attachment]:
    """Keep the pictures that came with a message; raises HttpError 413 or 503."""
    media = chats.application.settings.media
    kept: list[Attachment] = []
    for mime, data in pictures:
        folder = await asyncio.to_thread(
            MediaFolder, chats.application.settings.workspace, media.max_mb, media.timeout_s
        )

        async def pieces(data: bytes = data) -> AsyncIterator[bytes]:
            yield data

        saved = await folder.save(File("photo", f"picture.{mime.rpartition('/')[2]}", mime, None, pieces))
        if isinstance(saved, FileRefused):
            if saved.cause == "large":
                raise HttpError(413, f"an image is over {media.max_mb} MiB", hint="raise media.max_mb")
            raise unavailable("an image could not be saved", "check the disk: chat-gateway doctor")
        kept.append(saved)
    return kept


@contextmanager
def _refusals(id_: str) -> Iterator[None]:
    """Answer what keeps a message from being taken in, or waited for, by its status."""
    try:
        yield
    except Conflict:
        raise HttpError(
            409, f"the id {id_} belongs to another message", hint="use a new Idempotency-Key"
        ) from None
    except (Closing, MailboxDown) as error:
        cure = "send the request again with the same Idempotency-Key"
        raise unavailable(str(error) or "the gateway is shutting down", cure) from None


async def _whole(request: Request, completion: Completion, model: str) -> Response:
    id_ = completion.message.id
    try:
        with _refusals(id_):
            outcome = await cancel_on_disconnect(request.receive, completion.outcome())
    except ClientLeft:
        await completion.broken_off()
        raise unavailable("the client disconnected", "try again") from None
    if outcome.kind == "notice":
        raise HttpError(422, outcome.text, hint="this message got no answer; send it again")
    text, finish = await completion.ended(outcome.text)
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if outcome.files:
        said["files"] = outcome.files.split("\n")
    return json_response(
        {
            "id": f"chatcmpl-{id_}",
            "object": "chat.completion",
            "created": round(durable.wall_s()),
            "model": model,
            "choices": [{"index": 0, "message": said, "finish_reason": finish}],
            "usage": await completion.usage(),
        }
    )
