"""What the page reads: the list of chats, a conversation line by line, its files, and a search over all."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response
from gateway.service.chat_list import ChatList
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.search import Search
from gateway.service.sessions import SessionService
from session.transcript.attachments import open_beneath, sniffed
from session.transcript.entries import page as page_of_entries

MAX_LIMIT = 1000
MAX_TEXT_CHARS = 10_000
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
# Whatever somebody sent is data here: it runs no script and is no page, even when it is opened by itself.
_CONFINED = "default-src 'none'; sandbox"

Seq = Annotated[int | None, Query(ge=0, le=2**53)]


class LaneOut(BaseModel):
    """What runs in a chat, and how much waits behind it."""

    key: str
    id: str | None
    asking: str
    waiting: int
    running_s: float | None


class ChatOut(BaseModel):
    """A chat, with the session that is active, else the one that spoke last."""

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


class ChatsOut(BaseModel):
    """The chats; ``now`` is the ``since`` of the next look."""

    chats: list[ChatOut]
    count: int
    now: int
    lanes: list[LaneOut]


class MetricsOut(BaseModel):
    """What a session took so far."""

    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    turns: int


class OneOut(BaseModel):
    """A session of a chat, as ``GET /v1/sessions`` lists it."""

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
    metrics: MetricsOut


class OfChatOut(BaseModel):
    """The sessions of a chat, the active one first, then the one that spoke last."""

    sessions: list[OneOut]


class FileOut(BaseModel):
    """A file that came with a message; ``ref`` is where it lies in the workspace."""

    kind: str
    name: str
    mime: str
    size: int
    ref: str
    caption: str | None = None


class CallOut(BaseModel):
    """A tool call; the arguments as the model wrote them."""

    id: str
    name: str
    arguments: str


class SpentOut(BaseModel):
    """What an answer took."""

    prompt: int
    completion: int
    cost_usd: float


class EntryOut(BaseModel):
    """A line of a conversation; of the fields behind ``text`` those that the line has."""

    seq: int
    kind: Literal["user", "assistant", "tool", "system", "overlay", "compact", "undo", "edit"]
    at: str | None
    text: str
    cut_from: int | None = None
    message_id: str | None = None
    final: bool | None = None
    stopped: bool | None = None
    is_error: bool | None = None
    interrupted: bool | None = None
    sender: str | None = None
    attachments: list[FileOut] | None = None
    calls: list[CallOut] | None = None
    usage: SpentOut | None = None
    answers: list[str] | None = None
    call_id: str | None = None
    name: str | None = None
    first_kept: int | None = None
    tokens_before: int | None = None
    since: int | None = None
    edits: str | None = None
    deleted: bool | None = None


class EntriesOut(BaseModel):
    """Lines of a session, oldest first; ``previous`` is the next ``before``, ``next`` the next ``after``."""

    entries: list[EntryOut]
    total: int
    previous: int | None
    next: int | None


class HitOut(BaseModel):
    """What was found, as ``GET /v1/memory/search`` has it."""

    kind: str
    key: str
    session_id: str | None
    message_id: str | None
    seq: int | None
    at: str | None
    speaker: str | None
    text: str
    score: float


class SearchOut(BaseModel):
    """The best hits of the chats that were searched; ``next`` is the ``start`` for those that were not."""

    hits: list[HitOut]
    searched: int
    chats: int
    next: int | None
    all: bool


def routes(chats: ChatService) -> APIRouter:
    """Build the routes that the page reads by."""
    router = APIRouter()
    _add_lists(router, chats)
    _add_conversation(router, chats)
    return router


def _add_lists(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/v1/chats", response_model=ChatsOut, summary="List the chats with their last word and what runs"
    )
    async def get_chats(
        since: Annotated[
            int | None, Query(ge=0, le=2**53, description="only what changed since then: the last now")
        ] = None,
    ) -> Response:
        return json_response(await ChatList(chats).rows(since))

    @router.get("/v1/chats/sessions", response_model=OfChatOut, summary="List the sessions of one chat")
    async def get_sessions(
        key: Annotated[str, Query(min_length=1, max_length=MAX_KEY_CHARS, description="channel:chat_id")],
    ) -> Response:
        return json_response({"sessions": await ChatList(chats).sessions(key)})

    @router.get("/v1/search", response_model=SearchOut, summary="Find what was said in all chats")
    async def get_search(
        q: Annotated[str, Query(min_length=1, max_length=MAX_TEXT_CHARS, description="a question, or words")],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="how many at most")] = 20,
        start: Annotated[
            int, Query(ge=0, le=2**31, description="begin with this chat: the last next")
        ] = 0,
    ) -> Response:
        return json_response(await Search(chats).search(q, limit=limit, start=start))


def _add_conversation(router: APIRouter, chats: ChatService) -> None:
    files = SessionService(chats)

    @router.get(
        "/v1/sessions/{ulid}/entries",
        response_model=EntriesOut,
        response_model_exclude_none=True,
        summary="List the lines of a session as a person reads them, from its end or its beginning",
    )
    async def get_entries(
        ulid: str,
        before: Seq = None,
        after: Seq = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="how many at most")] = 100,
    ) -> Response:
        if _ULID.fullmatch(ulid) is None:
            raise HttpError(400, "this is no ULID", hint="26 characters of 0-9 and A-Z without I, L, O and U")
        row = await files.find(ulid)
        if row is None:
            raise HttpError(404, f"there is no session {ulid}", hint="GET /v1/sessions lists them")
        messages = await files.messages(row)

        def read() -> dict[str, Any]:
            found, previous, following = page_of_entries(messages, before=before, after=after, limit=limit)
            return {"entries": found, "total": len(messages), "previous": previous, "next": following}

        return json_response(await asyncio.to_thread(read))

    @router.get("/v1/media/{name:path}", summary="Fetch a file that came with a message")
    async def get_media(
        name: Annotated[str, Path(max_length=1000, description="its ref, without media/")],
    ) -> Response:
        folder = chats.application.settings.workspace / "media"

        def read() -> bytes | None:
            try:
                with os.fdopen(open_beneath(folder, name), "rb") as file:
                    return file.read()
            except (OSError, ValueError):
                return None

        data = await asyncio.to_thread(read)
        if data is None:
            raise HttpError(404, "there is no such file", hint="the ref of an attachment names one")
        return Response(data, headers=_headers(name, data))


def _headers(name: str, data: bytes) -> dict[str, str]:
    """Show a picture; have everything else saved, whatever it says that it is."""
    mime = sniffed(data)
    shown = mime.startswith("image/")
    saved = quote(PurePosixPath(name).name, safe="")
    return {
        "Content-Type": mime if shown else "application/octet-stream",
        "Content-Disposition": f"{'inline' if shown else 'attachment'}; filename*=UTF-8''{saved}",
        "Content-Security-Policy": _CONFINED,
        "Cache-Control": "private, max-age=3600",
    }
