"""``POST /v1/chat/completions`` and ``GET /v1/models``: the same chats, for any client of OpenAI's API."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from channels.message import Inbound
from gateway.errors import MailboxDown
from gateway.http.completion_shapes import CompletionIn, CompletionOut, ModelOut, ModelsOut
from gateway.http.completion_stream import CompletionStream
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.leaving import ClientLeft, while_there
from gateway.http.messages import check_words
from gateway.http.shape import OpenAIErrorOut, caller_of, needs
from gateway.service.chats import ChatService, Closing, Conflict
from gateway.service.client_message import MAX_KEY_CHARS, NoAddress, inbound
from gateway.service.completion import Completion

OURS = "chat-gateway"
MAX_KEY_HEADER_CHARS = 190
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
        summary="List what a client may name as its model",
        response_model=ModelsOut,
        **needs("read", form=OpenAIErrorOut),
    )
    async def get_models() -> Response:
        return json_response({"object": "list", "data": [_known(chats, name) for name in _names(chats)]})

    @router.get(
        "/models/{model:path}",
        summary="Show one of them",
        response_model=ModelOut,
        **needs("read", 404, form=OpenAIErrorOut),
    )
    async def get_model(model: str) -> Response:
        return json_response(_known(chats, model))


def _names(chats: ChatService) -> list[str]:
    return list(dict.fromkeys((OURS, chats.application.settings.model.name)))


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
        summary="Ask in a chat, as with OpenAI's API; with stream as server-sent events",
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
        _known(chats, body.model)
        check_words(request.scope, body.text)
        own = caller_of(request.scope).name
        chat = body.user or x_chat_id or x_openwebui_chat_id or f"openai-{own}".removesuffix("-")
        message = _message(chat, body.text, idempotency_key)
        completion = Completion(chats, message, goes_on=idempotency_key is not None)
        model = chats.application.settings.model.name
        if body.stream:
            options = body.stream_options
            await completion.begin()
            return CompletionStream(completion, model, usage=bool(options and options.include_usage))
        return await _whole(request, completion, model)


def _message(chat: str, text: str, message_id: str | None) -> Inbound:
    try:
        return inbound(f"web:{chat}", text, message_id)
    except NoAddress as error:
        raise HttpError(400, str(error), hint=error.hint) from None


async def _whole(request: Request, completion: Completion, model: str) -> Response:
    """Wait for the answer as long as the client does."""
    id_ = completion.message.id
    try:
        outcome = await while_there(request.receive, completion.outcome())
    except ClientLeft:
        await completion.broken_off()
        raise unavailable("the client left", "ask again") from None
    except Conflict:
        raise HttpError(409, f"the id {id_} stands for another text", hint="take a new key") from None
    except (Closing, MailboxDown) as error:
        cure = "send it again with the same Idempotency-Key"
        raise unavailable(str(error) or "the gateway ends", cure) from None
    if outcome.kind == "notice":
        raise HttpError(422, outcome.text, hint="there is no answer to this message; ask again")
    said: dict[str, Any] = {"role": "assistant", "content": outcome.text}
    if outcome.files:
        said["files"] = outcome.files.split("\n")
    return json_response(
        {
            "id": f"chatcmpl-{id_}",
            "object": "chat.completion",
            "created": round(time.time()),
            "model": model,
            "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
            "usage": await completion.usage(),
        }
    )
