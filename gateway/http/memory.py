"""``/v1/memory``: what is remembered of a chat, its two texts to be edited, its facts to be corrected."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import Response

from gateway.app.sessions import SessionServices
from gateway.config.agents import settings_of
from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.messages import has_surrogate
from gateway.http.paging import PER_PAGE, Cursor, Limit, paged
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.pages import digest
from session.context.scopes import Scope
from session.errors import NoAgent, NotNow
from session.memory.notes import Notes
from session.transcript.agent import parted

MAX_FACT_CHARS = 2_000
Key = Annotated[str, Query(min_length=3, max_length=MAX_KEY_CHARS, description="channel:chat_id")]
AgentName = Annotated[
    str | None,
    Query(max_length=64, description="whose memory; without it of whoever answers in the chat"),
]
FactId = Annotated[str, Path(min_length=1, max_length=64, description="as GET /v1/memory lists it")]
File = Literal["MEMORY.md", "USER.md"]


class FactOut(Shape):
    """A fact: how sure it is (0 to 1), where it comes from, and the id of the one that holds instead."""

    id: str
    text: str
    category: str
    confidence: float
    key: str
    message_id: str | None
    created_at: str
    replaced_by: str | None
    source: str | None


class FactsOut(Shape):
    """Facts in the order of their storing, former ones among them; ``next`` is the cursor of those behind."""

    facts: list[FactOut]
    next: str | None


class MemoryOut(FactsOut):
    """What is remembered of a chat; ``next`` goes on at ``/v1/memory/facts``."""

    memory: str
    history: str


class FileOut(Shape):
    """A text of a chat's memory; ``digest`` names what it says now."""

    file: File
    text: str
    digest: str


class FilesOut(Shape):
    """The texts that people may edit."""

    files: list[FileOut]


class FileIn(BaseModel):
    """A new text; ``was`` is the digest of the one that it was made from: where another stands, 409."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=3, max_length=MAX_KEY_CHARS)
    file: File
    text: str
    was: str | None = Field(default=None, max_length=64)
    agent: str | None = Field(default=None, max_length=64)

    @field_validator("text")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if has_surrogate(value):
            raise ValueError("half of a surrogate pair is no text")
        return value


class EditedOut(Shape):
    """What was done; ``former`` is the version of what stood there, null where nothing did."""

    file: File
    changed: bool
    former: str | None
    digest: str


class FactIn(BaseModel):
    """What a fact says from now on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1, max_length=MAX_FACT_CHARS)

    @field_validator("text")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if has_surrogate(value) or not value.strip():
            raise ValueError("this is no text")
        return value


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of memory."""
    router = APIRouter(prefix="/v1/memory")
    _add_texts(router, chats)
    _add_facts(router, chats)
    return router


def _add_texts(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "",
        summary="Show the notes, the history and the facts of a chat",
        response_model=MemoryOut,
        **needs("read"),
    )
    async def get(key: Key, agent: AgentName = None, limit: Limit = PER_PAGE) -> Response:
        services, scope = await scope_of(chats, key, agent)
        facts = await _facts(services, scope, limit, None)

        def read() -> dict[str, Any]:
            notes = Notes(scope.memory)
            memory, history = (data.decode("utf-8", "replace") for data in (notes.memory(), notes.history()))
            return {"memory": memory, "history": history}

        return json_response(await asyncio.to_thread(read) | facts)

    @router.get(
        "/files", summary="Show MEMORY.md and USER.md, to be edited", response_model=FilesOut, **needs("read")
    )
    async def get_files(key: Key, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response({"files": await services.former.texts(scope)})

    @router.put(
        "/files",
        summary="Write MEMORY.md or USER.md; what stood there becomes a version",
        response_model=EditedOut,
        **needs("write", 409),
    )
    async def put_file(body: FileIn) -> Response:
        services, scope = await scope_of(chats, body.key, body.agent)
        bounds = settings_of(chats.application.settings, parted(scope.name)[0]).memory
        limit, most = (
            ("memory.max_kb", bounds.max_kb)
            if body.file == "MEMORY.md"
            else ("memory.profile_max_kb", bounds.profile_max_kb)
        )
        if len(body.text.encode()) > most * 1024:
            raise HttpError(413, f"the text is over {most} KiB", hint=f"shorten it, or raise {limit}")
        try:
            done = await services.former.edit(body.key, scope, body.file, body.text, was=body.was)
        except NotNow as error:
            raise unavailable(str(error), error.hint) from error
        if done is None:
            raise HttpError(
                409,
                f"{body.file} of {body.key} has changed since it was read",
                hint="GET /v1/memory/files?key= shows what it says now",
            )
        return json_response(done)


def _add_facts(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/facts", summary="List the facts of a chat, page by page", response_model=FactsOut, **needs("read")
    )
    async def get_facts(
        key: Key, agent: AgentName = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response(await _facts(services, scope, limit, cursor))

    @router.patch(
        "/facts/{id}",
        summary="Correct a fact; its former words become a version",
        response_model=FactOut,
        **needs("write", 404),
    )
    async def patch_fact(id: FactId, key: Key, body: FactIn, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        fact = await services.facts.known.edit(key, scope, id, body.text)
        if fact is None:
            raise _no_fact(key, id)
        return json_response(fact.as_dict())

    @router.delete(
        "/facts/{id}",
        summary="Take a fact out for good, with its former ones",
        response_model=FactOut,
        **needs("write", 404),
    )
    async def delete_fact(id: FactId, key: Key, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        gone = await services.facts.known.forget(key, scope, id)
        if gone is None:
            raise _no_fact(key, id)
        return json_response(gone.as_dict())


async def _facts(services: SessionServices, scope: Scope, limit: int, cursor: str | None) -> dict[str, Any]:
    """Return a page of a scope's facts. An id stands for when a fact was stored."""
    facts = await services.facts.known.facts(scope)
    found, following = paged(
        facts, lambda fact: (fact.id, digest(fact.text, fact.created_at)), limit=limit, cursor=cursor
    )
    return {"facts": [fact.as_dict() for fact in found], "next": following}


async def scope_of(chats: ChatService, key: str, agent: str | None = None) -> tuple[SessionServices, Scope]:
    """Return what a chat may see, with an agent of this name; None: with the one that answers there.

    Raises:
        HttpError: 400, this is no key, or there is no such agent.
        MailboxDown: the session side is not open yet.
    """
    if "\0" in key or not all(key.partition(":")) or has_surrogate(key):
        raise HttpError(400, "this is no key", hint="a key is channel:chat_id: give telegram:12345678")
    services = chats.application.services
    if services is None:
        raise MailboxDown("the session side is not open yet")
    if agent is None:
        return services, await services.circles.of_key(key)
    try:
        return services, await services.scope_with(key, agent)
    except NoAgent as error:
        raise HttpError(400, str(error), hint=error.hint) from None


def _no_fact(key: str, id_: str) -> HttpError:
    return HttpError(404, f"{key} has no fact {id_}", hint="GET /v1/memory?key= lists them")
