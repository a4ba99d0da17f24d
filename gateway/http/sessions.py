"""``/v1/sessions``, ``/v1/chats``, ``/v1/search`` and ``/clear-session``: sessions by ULID, and all chats."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response
from gateway.http.memory import MAX_TEXT_CHARS, HitOut
from gateway.http.messages import Accepted, Answered, MessageIn, Wait, hand_in
from gateway.http.openapi import (
    MAX_LIMIT,
    PER_PAGE,
    Body,
    Cursor,
    Limit,
    Metrics,
    Open,
    Shape,
    check_right,
    needs,
)
from gateway.http.operation import LaneOut, lanes_of_all
from gateway.service.chat_list import ChatList
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.search import Search
from gateway.service.sessions import SessionService, Unknown
from session.store.listing import SessionRow
from session.transcript.pages import entries_page, records_page


class SessionRowOut(Shape):
    """A session in the list; ``message_count`` counts messages only."""

    id: str
    key: str
    name: str | None
    created_at: str | None
    last_message_at: str | None
    message_count: int
    model: str | None
    source: str
    cron_job_id: str | None
    active: bool
    agent: str
    metrics: Metrics


class SessionsOut(Shape):
    """A page of sessions, newest message first; ``next`` is the cursor of the next page."""

    sessions: list[SessionRowOut]
    next: str | None


class SessionOut(SessionRowOut):
    """A session with its details."""

    instructions: str | None
    summary: str | None
    ended_at: str | None
    previous_session: str | None


class TextBlock(Shape):
    """A text of a message."""

    type: Literal["text"]
    text: str


class ToolCallBlock(Shape):
    """A tool call; arguments that are not an object are in ``raw``."""

    type: Literal["toolCall"]
    id: str
    name: str
    arguments: dict[str, Any]


class MessageRecord(Shape):
    """A message; the last two fields belong to tool results."""

    recordType: Literal["message"]  # noqa: N815 - the format's own name, as those below
    schemaVersion: int  # noqa: N815
    seq: int
    role: str
    content: list[Annotated[TextBlock | ToolCallBlock, Field(discriminator="type")]]
    timestamp: str
    toolCallId: str = ""  # noqa: N815
    isError: bool = False  # noqa: N815


class CompactionRecord(Shape):
    """A summary that replaces all messages before ``firstKeptSeq``."""

    recordType: Literal["compaction"]  # noqa: N815
    schemaVersion: int  # noqa: N815
    seq: int
    firstKeptSeq: int  # noqa: N815
    summary: str
    tokensBefore: int  # noqa: N815
    readFiles: list[str]  # noqa: N815
    modifiedFiles: list[str]  # noqa: N815
    timestamp: str


class RecordsOut(Shape):
    """A page of records, oldest first; ``next`` is the ``after`` of the next page."""

    messages: list[Annotated[MessageRecord | CompactionRecord, Field(discriminator="recordType")]]
    next: int | None


class DeletedOut(Shape):
    """The deleted session."""

    id: str
    deleted: Literal[True]


class ErasedOut(Open):
    """What was removed of one chat or person, and what stays, in words."""

    name: str
    removed: list[dict[str, Any]]
    stays: list[str]


class ClearedOut(Shape):
    """The chats that had an active session; with ``everything`` also what was deleted of each."""

    cleared: list[str]
    erased: list[ErasedOut] = Field(default=[])


MAX_NAME_CHARS = 200
MAX_INSTRUCTIONS_CHARS = 100_000
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class PatchIn(Body):
    """The changes; null or an empty text removes a value, a missing field keeps it."""

    name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    instructions: str | None = Field(default=None, max_length=MAX_INSTRUCTIONS_CHARS)


class TextIn(Body):
    """A message for a session; a repeat with the same ``id`` is ignored."""

    text: str
    id: str | None = Field(default=None, min_length=1)


class ClearIn(Body):
    """A chat by its key, or by its chat id on all channels, or all chats of a person."""

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
        return self


def _add_reading(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.get(
        "/v1/sessions", summary="List the sessions, newest message first", **needs("read", SessionsOut)
    )
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        rows, following = await files.page(limit, cursor)
        return json_response({"sessions": [row.as_dict() for row in rows], "next": following})

    @router.get("/v1/sessions/{ulid}", summary="Show one session", **needs("read", SessionOut, 404))
    async def get_one(ulid: str) -> Response:
        return json_response(await files.shown(await row_of(files, ulid)))

    @router.get(
        "/v1/sessions/{ulid}/messages",
        summary="List the messages of a session, oldest first",
        **needs("read", RecordsOut, 404),
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
        **needs("write", SessionOut, 404),
    )
    async def patch(ulid: str, body: PatchIn) -> Response:
        changes = {name: getattr(body, name) or None for name in body.model_fields_set}
        return json_response(await files.patch(await row_of(files, ulid), changes))

    @router.delete(
        "/v1/sessions/{ulid}", summary="Delete a session for good", **needs("write", DeletedOut, 404)
    )
    async def delete(ulid: str) -> Response:
        return json_response(await files.delete(await row_of(files, ulid)))

    @router.post(
        "/v1/sessions/{ulid}/messages",
        status_code=202,
        summary="Send a message",
        **needs("write", Accepted, 404, 409, _200=Answered),
    )
    async def post_message(request: Request, ulid: str, body: TextIn, wait: Wait = None) -> Response:
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
        "/v1/sessions/{ulid}/resume", summary="Reopen a closed session", **needs("write", SessionOut, 404)
    )
    async def post_resume(ulid: str) -> Response:
        return json_response(await files.resume(await row_of(files, ulid)))

    @router.post(
        "/v1/sessions/{ulid}/close",
        summary="Close a session without opening another",
        **needs("write", SessionOut, 404),
    )
    async def post_close(ulid: str) -> Response:
        return json_response(await files.close(await row_of(files, ulid)))

    @router.post(
        "/clear-session",
        summary="Delete the active session of a chat without archiving it",
        **needs("write", ClearedOut, 404),
    )
    async def post_clear(request: Request, body: ClearIn) -> Response:
        if body.everything:
            check_right(request.scope, "admin")
        if body.person is not None:
            return json_response(await files.erase_person(body.person))
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
        raise Unknown(ulid)
    return row


Seq = Annotated[int | None, Query(ge=0, le=2**53)]


class AttachmentOut(Shape):
    """A file of a message; ``ref`` is its path in the workspace."""

    kind: str
    name: str
    mime: str
    size: int
    ref: str
    caption: str = ""


class CallOut(Shape):
    """A tool call, with its arguments as the model wrote them."""

    id: str
    name: str
    arguments: str


class SpentOut(Shape):
    """Usage of an answer, as in ``Metrics``; cached and unpriced tokens only if there are any."""

    prompt: int
    completion: int
    cost_usd: float | None
    cached: int = 0
    cache_written: int = 0
    unpriced: int = 0


class EntryOut(Shape):
    """An entry of a session; of the fields after ``text`` only those that it has.

    ``cut_from`` is the full length of a shortened text. ``first_kept`` of a summary is the first entry that
    the model still sees in full, ``since`` of an ``undo`` the first withdrawn one, ``edits`` of an ``edit``
    the changed message.
    """

    seq: int
    kind: Literal["user", "assistant", "tool", "system", "overlay", "compact", "undo", "edit"]
    at: str | None
    text: str
    cut_from: int = 0
    message_id: str = ""
    final: bool = False
    stopped: bool = False
    is_error: bool = False
    interrupted: bool = False
    sender: str = ""
    attachments: tuple[AttachmentOut, ...] = ()
    calls: tuple[CallOut, ...] = ()
    usage: SpentOut | None = None
    answers: tuple[str, ...] = ()
    call_id: str = ""
    name: str = ""
    first_kept: int = 0
    tokens_before: int = 0
    since: int = 0
    edits: str = ""
    deleted: bool = False


class EntriesOut(Shape):
    """Entries of a session, oldest first; pass ``previous`` as ``before``, ``next`` as ``after``."""

    entries: list[EntryOut]
    total: int
    previous: int | None
    next: int | None


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of sessions and chats."""
    _add_reading(router, chats)
    _add_changing(router, chats)
    _add_ending(router, chats)
    _add_entries(router, chats)
    _add_chats(router, chats)


def _add_entries(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.get(
        "/v1/sessions/{ulid}/entries",
        summary="List the entries of a session for display, from its end or its start",
        **needs("read", EntriesOut, 404),
    )
    async def get_entries(
        ulid: str,
        before: Seq = None,
        after: Seq = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = 100,
    ) -> Response:
        messages = await files.messages(await row_of(files, ulid))

        def read() -> dict[str, Any]:
            found, previous, following = entries_page(messages, before=before, after=after, limit=limit)
            return {"entries": found, "total": len(messages), "previous": previous, "next": following}

        return json_response(await asyncio.to_thread(read))


class ChatOut(Shape):
    """A chat with its active session, or else its most recent one."""

    key: str
    id: str
    name: str | None
    active: bool
    last_message_at: str | None
    message_count: int
    sessions: int
    source: str
    last_role: str
    last_text: str


class ChatsOut(Shape):
    """The chats; pass ``now`` as ``since`` next time. ``count`` is the number of all chats.

    ``next`` is the cursor of the next page; ``lanes`` and ``silent`` are those of ``/v1/lanes``.
    """

    chats: list[ChatOut]
    next: str | None
    count: int
    now: int
    lanes: list[LaneOut]
    silent: list[int]


class SessionsOfChat(Shape):
    """A page of a chat's sessions: the active one first, then by last message.

    ``next`` is the cursor of the next page.
    """

    sessions: list[SessionRowOut]
    next: str | None


class SearchOut(Shape):
    """The best hits of the chats searched so far; pass ``next`` as ``start`` to search the others."""

    hits: list[HitOut]
    searched: int
    chats: int
    next: int | None
    all: bool


def _add_chats(router: APIRouter, chats: ChatService) -> None:
    search = Search(chats)

    @router.get(
        "/v1/chats",
        summary="List the chats with their last message and current activity",
        **needs("read", ChatsOut),
    )
    async def get_chats(
        since: Annotated[
            int | None,
            Query(ge=0, le=2**53, description="only changes since `now` of the previous answer"),
        ] = None,
        limit: Annotated[int | None, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = None,
        cursor: Cursor = None,
    ) -> Response:
        listing = ChatList(chats).rows(since, limit, cursor)
        rows, lanes = await asyncio.gather(listing, lanes_of_all(chats))
        return json_response(rows | lanes)

    @router.get("/v1/chats/sessions", summary="List the sessions of a chat", **needs("read", SessionsOfChat))
    async def get_sessions(
        key: Annotated[str, Query(min_length=1, max_length=MAX_KEY_CHARS, description="channel:chat_id")],
        limit: Limit = PER_PAGE,
        cursor: Cursor = None,
    ) -> Response:
        rows, following = await SessionService(chats).page_of(key, limit, cursor)
        return json_response({"sessions": [row.as_dict() for row in rows], "next": following})

    @router.get(
        "/v1/search", summary="Search all chats, for up to one second per request", **needs("read", SearchOut)
    )
    async def get_search(
        q: Annotated[str, Query(min_length=1, max_length=MAX_TEXT_CHARS, description="a question or words")],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = 20,
        start: Annotated[
            int, Query(ge=0, le=2**31, description="where to continue: `next` of the previous answer")
        ] = 0,
    ) -> Response:
        return json_response(await search.search(q, limit=limit, start=start))
