"""``POST /v1/chat/completions`` and ``GET /v1/models``: the same chats, for any client of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

import durable
from channels.base import File
from channels.media import FileRefused, MediaFolder
from channels.message import Attachment, Inbound
from gateway.config.agents import agents_of, settings_of
from gateway.errors import MailboxDown
from gateway.http.completion_shapes import NAME, CompletionIn, CompletionOut, ModelOut, ModelsOut
from gateway.http.completion_stream import CompletionStream
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.leaving import ClientLeft, while_there
from gateway.http.messages import check_words, has_surrogate
from gateway.http.shape import OpenAIErrorOut, caller_of, needs
from gateway.http.stateless import Stateless
from gateway.service.chats import ChatService, Closing, Conflict
from gateway.service.client_message import MAX_KEY_CHARS, NoAddress, inbound
from gateway.service.completion import Completion
from gateway.turns.agent_choice import AgentChoice
from session.transcript.agent import named, parted

OURS = "chat-gateway"
CHANNEL = "web"
# As the header X-Chat-Id: a call without a session.
STATELESS = "none"
MAX_KEY_HEADER_CHARS = 190
MAX_NAMED_IGNORED = 50
ChatHeader = Annotated[str | None, Header(max_length=MAX_KEY_CHARS)]


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of OpenAI's API."""
    router = APIRouter(prefix="/v1")
    _add_models(router, chats)
    _add_completions(router, chats)
    return router


def _add_models(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/models",
        summary="List the models",
        response_model=ModelsOut,
        **needs("read", form=OpenAIErrorOut),
    )
    async def get_models() -> Response:
        return json_response({"object": "list", "data": [_known(chats, name) for name in _names(chats)]})

    @router.get(
        "/models/{model:path}",
        summary="Show a model",
        response_model=ModelOut,
        **needs("read", 404, form=OpenAIErrorOut),
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
    """Return the agent that a request names by its model; empty: whoever answers there.

    Raises:
        HttpError: 404, there is none of this name; 403, the chat may not choose it.
    """
    choice = _choice(chats)
    if not choice.agents or model not in choice.names:
        _known(chats, model)
        return ""
    if refusal := choice.refusal(key, model):
        raise HttpError(403, refusal, hint=f"use {OURS}, or another model listed by GET /v1/models")
    return model


async def _answering(chats: ChatService, key: str, agent: str) -> str:
    """Return the name of the model that will answer in a chat."""
    settings, services = chats.application.settings, chats.application.services
    if not settings.agents or services is None:
        return settings.model.name
    name = named(agent) if agent else parted((await services.scope_resolver.of_next(key)).name)[0]
    return settings_of(settings, name).model.name


def _known(chats: ChatService, name: str) -> dict[str, Any]:
    """Describe what a client may name as its model.

    Raises:
        HttpError: 404, there is none of this name.
    """
    if name not in _names(chats):
        raise HttpError(404, f"there is no model {name[:200]}", hint="GET /v1/models lists them")
    created = round(chats.application.started_at.timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": OURS}


def _add_completions(router: APIRouter, chats: ChatService) -> None:
    terms = needs("write", 404, 409, 422, form=OpenAIErrorOut)
    terms["responses"][200] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}

    @router.post(
        "/chat/completions",
        summary="Create a chat completion (OpenAI-compatible); with `stream` as server-sent events",
        response_model=CompletionOut,
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
        message = _message(key, body.text, idempotency_key, agent, files)
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
    """Pass a request on to the model; nothing is stored."""
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
    """Keep the pictures that came with a message.

    Raises:
        HttpError: 413, one of them is too large; 503, the disk refused.
    """
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


def _message(key: str, text: str, message_id: str | None, agent: str, files: Sequence[Attachment]) -> Inbound:
    try:
        return inbound(key, text, message_id, agent=agent, files=files)
    except NoAddress as error:
        raise HttpError(400, str(error), hint=error.hint) from None


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
    """Wait for the answer as long as the client does."""
    id_ = completion.message.id
    try:
        with _refusals(id_):
            outcome = await while_there(request.receive, completion.outcome())
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
