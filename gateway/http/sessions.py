"""``/v1/sessions``: conversations by ULID, active and ended; ``/clear-session`` deletes an active one."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response
from gateway.http.messages import Accepted, Answered, MessageIn, hand_in, has_surrogate
from gateway.http.paging import PER_PAGE, Cursor, Limit, bad_cursor
from gateway.http.session_shapes import ClearedOut, DeletedOut, RecordsOut, SessionOut, SessionsOut
from gateway.http.shape import check_right, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.pages import BadCursor
from gateway.service.sessions import SessionService, Unknown
from session.errors import OtherAgent
from session.kept.subject import Nobody
from session.store.listing import SessionRow
from session.transcript.pages import records_page

MAX_NAME_CHARS = 200
MAX_INSTRUCTIONS_CHARS = 100_000
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class PatchIn(BaseModel):
    """The changes; null or an empty text removes a value, a missing field keeps it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    instructions: str | None = Field(default=None, max_length=MAX_INSTRUCTIONS_CHARS)

    @model_validator(mode="after")
    def _is_text(self) -> PatchIn:
        _check(self.name, self.instructions)
        return self


class TextIn(BaseModel):
    """A message for a session; a repeat with the same ``id`` is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    id: str | None = Field(default=None, min_length=1)


class ClearIn(BaseModel):
    """A chat by its key, or by its chat id on all channels, or all chats of a person."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = Field(default=None, min_length=3, max_length=MAX_KEY_CHARS)
    chat_id: str | None = Field(default=None, alias="chatId", min_length=1, max_length=MAX_KEY_CHARS)
    person: str | None = Field(default=None, min_length=1, max_length=200, description="a person of [people]")
    everything: bool = Field(
        default=False, description="all data, including closed sessions, memory, facts and media"
    )

    @model_validator(mode="after")
    def _one_address(self) -> ClearIn:
        if [self.chat_id, self.key, self.person].count(None) != 2:
            raise ValueError("send one of chatId, key and person")
        if self.person is not None and not self.everything:
            raise ValueError("for a person, everything must be true")
        if self.key is not None and not all(self.key.partition(":")):
            raise ValueError("a key is channel:chat_id")
        _check(self.key, self.chat_id, self.person)
        return self


def _check(*texts: str | None) -> None:
    if any(has_surrogate(text) for text in texts if text):
        raise ValueError("a text contains half of a surrogate pair")


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of sessions."""
    router = APIRouter()
    _add_reading(router, chats)
    _add_changing(router, chats)
    _add_ending(router, chats)
    return router


def _add_reading(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.get(
        "/v1/sessions",
        summary="List the sessions, newest message first",
        response_model=SessionsOut,
        **needs("read"),
    )
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        try:
            rows, following = await files.page(limit, cursor)
        except BadCursor:
            raise bad_cursor() from None
        return json_response({"sessions": [row.as_dict() for row in rows], "next": following})

    @router.get(
        "/v1/sessions/{ulid}", summary="Show one session", response_model=SessionOut, **needs("read", 404)
    )
    async def get_one(ulid: str) -> Response:
        return json_response(await files.shown(await row_of(files, ulid)))

    @router.get(
        "/v1/sessions/{ulid}/messages",
        summary="List the messages of a session, oldest first",
        response_model=RecordsOut,
        **needs("read", 404),
    )
    async def get_messages(
        ulid: str,
        after: Annotated[int, Query(ge=0, le=2**53, description="last known seq")] = 0,
        limit: Limit = PER_PAGE,
    ) -> Response:
        messages = await files.messages(await row_of(files, ulid))
        found, following = await asyncio.to_thread(records_page, messages, after=after, limit=limit)
        return json_response({"messages": found, "next": following})


def _add_changing(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.patch(
        "/v1/sessions/{ulid}",
        summary="Set the name or the instructions of a session",
        response_model=SessionOut,
        **needs("write", 404),
    )
    async def patch(ulid: str, body: PatchIn) -> Response:
        changes = {name: getattr(body, name) or None for name in body.model_fields_set}
        return await _answer(files.patch(await row_of(files, ulid), changes))

    @router.delete(
        "/v1/sessions/{ulid}",
        summary="Delete a session for good",
        response_model=DeletedOut,
        **needs("write", 404),
    )
    async def delete(ulid: str) -> Response:
        return await _answer(files.delete(await row_of(files, ulid)))

    @router.post(
        "/v1/sessions/{ulid}/messages",
        status_code=202,
        summary="Send a message",
        response_model=Accepted,
        **needs("write", 404, 409, _200=Answered),
    )
    async def post_message(
        request: Request,
        ulid: str,
        body: TextIn,
        wait: Annotated[
            float | None, Query(ge=0, allow_inf_nan=False, description="seconds to wait for the answer")
        ] = None,
    ) -> Response:
        row = await row_of(files, ulid)
        if not row.active:
            path = f"/v1/sessions/{ulid}/resume"
            raise HttpError(409, f"session {ulid} is closed", hint=f"POST {path} reopens it")
        try:
            message = MessageIn(key=row.key, text=body.text, id=body.id)
        except ValueError as error:
            raise HttpError(400, f"this cannot be sent to {row.key}: {error}") from None
        return await hand_in(request, chats, message, wait)


def _add_ending(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.post(
        "/v1/sessions/{ulid}/resume",
        summary="Reopen a closed session",
        response_model=SessionOut,
        **needs("write", 404),
    )
    async def post_resume(ulid: str) -> Response:
        return await _answer(files.resume(await row_of(files, ulid)))

    @router.post(
        "/v1/sessions/{ulid}/close",
        summary="Close a session without opening another",
        response_model=SessionOut,
        **needs("write", 404),
    )
    async def post_close(ulid: str) -> Response:
        return await _answer(files.close(await row_of(files, ulid)))

    @router.post(
        "/clear-session",
        summary="Delete the active session of a chat without archiving it",
        response_model=ClearedOut,
        **needs("write", 404),
    )
    async def post_clear(request: Request, body: ClearIn) -> Response:
        if body.everything:
            check_right(request.scope, "admin")
        if body.person is not None:
            try:
                return json_response(await files.erase_person(body.person))
            except Nobody as error:
                raise HttpError(404, str(error), hint=error.hint) from None
        if body.everything:
            return json_response(await files.erase(key=body.key, chat_id=body.chat_id))
        return json_response({"cleared": await files.clear(key=body.key, chat_id=body.chat_id)})


async def row_of(files: SessionService, ulid: str) -> SessionRow:
    """Find a session by the ULID of a path."""
    if _ULID.fullmatch(ulid) is None:
        raise HttpError(
            400, "this is not a valid session id", hint="26 characters of 0-9 and A-Z without I, L, O and U"
        )
    row = await files.find(ulid)
    if row is None:
        raise _unknown(ulid)
    return row


def _unknown(ulid: str) -> HttpError:
    return HttpError(404, f"there is no session {ulid}", hint="GET /v1/sessions lists them")


async def _answer(work: Any, status: Literal[200] = 200) -> Response:
    try:
        return json_response(await work, status)
    except Unknown as error:
        raise _unknown(str(error)) from None
    except OtherAgent as error:
        raise HttpError(409, str(error), hint=error.hint) from None
