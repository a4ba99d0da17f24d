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
from session.transcript.records import page as page_of_records

MAX_NAME_CHARS = 200
MAX_INSTRUCTIONS_CHARS = 100_000
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class PatchIn(BaseModel):
    """What to change; null or an empty text takes it away, what is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    instructions: str | None = Field(default=None, max_length=MAX_INSTRUCTIONS_CHARS)

    @model_validator(mode="after")
    def _is_text(self) -> PatchIn:
        _check(self.name, self.instructions)
        return self


class TextIn(BaseModel):
    """A message for a session; ``id`` makes a repeat the same message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    id: str | None = Field(default=None, min_length=1)


class ClearIn(BaseModel):
    """A conversation by its key, or by its bare chat id on every channel; or all that is a person's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = Field(default=None, min_length=3, max_length=MAX_KEY_CHARS)
    chat_id: str | None = Field(default=None, alias="chatId", min_length=1, max_length=MAX_KEY_CHARS)
    person: str | None = Field(default=None, min_length=1, max_length=200, description="of [people]")
    everything: bool = Field(default=False, description="all that is kept, from every place")

    @model_validator(mode="after")
    def _one_address(self) -> ClearIn:
        if [self.chat_id, self.key, self.person].count(None) != 2:
            raise ValueError("give chatId, key or person, one of the three")
        if self.person is not None and not self.everything:
            raise ValueError("of a person only everything can be cleared")
        if self.key is not None and not all(self.key.partition(":")):
            raise ValueError("a key is channel:chat_id")
        _check(self.key, self.chat_id, self.person)
        return self


def _check(*texts: str | None) -> None:
    if any(has_surrogate(text) for text in texts if text):
        raise ValueError("half of a surrogate pair is no text")


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
        summary="List its messages, oldest first",
        response_model=RecordsOut,
        **needs("read", 404),
    )
    async def get_messages(
        ulid: str,
        after: Annotated[int, Query(ge=0, le=2**53, description="the last seq that is known")] = 0,
        limit: Limit = PER_PAGE,
    ) -> Response:
        messages = await files.messages(await row_of(files, ulid))
        found, following = await asyncio.to_thread(page_of_records, messages, after=after, limit=limit)
        return json_response({"messages": found, "next": following})


def _add_changing(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.patch(
        "/v1/sessions/{ulid}",
        summary="Give a session a name, or instructions of its own",
        response_model=SessionOut,
        **needs("write", 404),
    )
    async def patch(ulid: str, body: PatchIn) -> Response:
        changes = {name: getattr(body, name) or None for name in body.model_fields_set}
        return await _answer(files.patch(await row_of(files, ulid), changes))

    @router.delete(
        "/v1/sessions/{ulid}",
        summary="Remove a session for good",
        response_model=DeletedOut,
        **needs("write", 404),
    )
    async def delete(ulid: str) -> Response:
        return await _answer(files.delete(await row_of(files, ulid)))

    @router.post(
        "/v1/sessions/{ulid}/messages",
        status_code=202,
        summary="Hand in a message",
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
            raise HttpError(409, f"session {ulid} has ended", hint=f"POST {path} opens it again (resume)")
        try:
            message = MessageIn(key=row.key, text=body.text, id=body.id)
        except ValueError as error:
            raise HttpError(400, f"this cannot be sent to {row.key}: {error}") from None
        return await hand_in(request, chats, message, wait)


def _add_ending(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.post(
        "/v1/sessions/{ulid}/resume",
        summary="Open an ended session again",
        response_model=SessionOut,
        **needs("write", 404),
    )
    async def post_resume(ulid: str) -> Response:
        return await _answer(files.resume(await row_of(files, ulid)))

    @router.post(
        "/v1/sessions/{ulid}/close",
        summary="End a session without opening another",
        response_model=SessionOut,
        **needs("write", 404),
    )
    async def post_close(ulid: str) -> Response:
        return await _answer(files.close(await row_of(files, ulid)))

    @router.post(
        "/clear-session",
        summary="Delete the active transcript of a chat, without a trace but ids",
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
        raise HttpError(400, "this is no ULID", hint="26 characters of 0-9 and A-Z without I, L, O and U")
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
