"""``/v1/memory``: what is remembered of a chat, its two texts to be edited, its facts to be corrected."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import Response

from gateway.app.wiring_session import SessionServices
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
    Query(max_length=64, description="the agent whose memory it is; default: the agent of the chat"),
]
FactId = Annotated[str, Path(min_length=1, max_length=64, description="from GET /v1/memory")]
File = Literal["MEMORY.md", "USER.md"]


class FactOut(Shape):
    """A fact: its confidence (0 to 1), its source, and the id of the fact that replaced it."""

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
    """Facts in order of storage, including replaced ones; ``next`` is the cursor of the next page."""

    facts: list[FactOut]
    next: str | None


class MemoryOut(FactsOut):
    """The memory of a chat; ``next`` continues at ``/v1/memory/facts``."""

    memory: str
    history: str


class FileOut(Shape):
    """A memory file; ``digest`` identifies its current text."""

    file: File
    text: str
    digest: str


class FilesOut(Shape):
    """The memory files that people can edit."""

    files: list[FileOut]


class FileIn(BaseModel):
    """A new text; ``was`` is the digest of the text it replaces: 409 if that has changed."""

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
            raise ValueError("a text contains half of a surrogate pair")
        return value


class EditedOut(Shape):
    """The change; ``former`` is the version of the replaced text, null if there was none."""

    file: File
    changed: bool
    former: str | None
    digest: str


class FactIn(BaseModel):
    """The new text of a fact."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1, max_length=MAX_FACT_CHARS)

    @field_validator("text")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if has_surrogate(value) or not value.strip():
            raise ValueError("this is not a valid text")
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
        summary="Show notes, history and facts of a chat",
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
        "/files", summary="Get MEMORY.md and USER.md for editing", response_model=FilesOut, **needs("read")
    )
    async def get_files(key: Key, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response({"files": await services.former.texts(scope)})

    @router.put(
        "/files",
        summary="Replace MEMORY.md or USER.md; the old text is kept as a version",
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
                f"{body.file} of {body.key} was changed since you read it",
                hint="GET /v1/memory/files?key= shows the current text",
            )
        return json_response(done)


def _add_facts(router: APIRouter, chats: ChatService) -> None:
    @router.get("/facts", summary="List the facts of a chat", response_model=FactsOut, **needs("read"))
    async def get_facts(
        key: Key, agent: AgentName = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response(await _facts(services, scope, limit, cursor))

    @router.patch(
        "/facts/{id}",
        summary="Correct a fact; the old text is kept as a version",
        response_model=FactOut,
        **needs("write", 404),
    )
    async def patch_fact(id: FactId, key: Key, body: FactIn, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        fact = await services.known_facts.edit(key, scope, id, body.text)
        if fact is None:
            raise _no_fact(key, id)
        return json_response(fact.as_dict())

    @router.delete(
        "/facts/{id}",
        summary="Delete a fact and its earlier versions for good",
        response_model=FactOut,
        **needs("write", 404),
    )
    async def delete_fact(id: FactId, key: Key, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        gone = await services.known_facts.forget(key, scope, id)
        if gone is None:
            raise _no_fact(key, id)
        return json_response(gone.as_dict())


async def _facts(services: SessionServices, scope: Scope, limit: int, cursor: str | None) -> dict[str, Any]:
    """Return a page of a scope's facts. An id stands for when a fact was stored."""
    facts = await services.known_facts.facts(scope)
    found, following = paged(
        facts, lambda fact: (fact.id, digest(fact.text, fact.created_at)), limit=limit, cursor=cursor
    )
    return {"facts": [fact.as_dict() for fact in found], "next": following}


async def scope_of(chats: ChatService, key: str, agent: str | None = None) -> tuple[SessionServices, Scope]:
    """Return what a chat may see, with an agent of this name; None: with the one that answers there.

    Raises:
        HttpError: 400, this is no key, or there is no such agent.
        MailboxDown: the gateway is still starting.
    """
    if "\0" in key or not all(key.partition(":")) or has_surrogate(key):
        raise HttpError(
            400, "this is not a chat key", hint="a key is channel:chat_id, such as telegram:12345678"
        )
    services = chats.application.services
    if services is None:
        raise MailboxDown("the gateway is still starting")
    if agent is None:
        return services, await services.circles.of_key(key)
    try:
        return services, await services.scope_with(key, agent)
    except NoAgent as error:
        raise HttpError(400, str(error), hint=error.hint) from None


def _no_fact(key: str, id_: str) -> HttpError:
    return HttpError(404, f"{key} has no fact {id_}", hint="GET /v1/memory?key= lists them")
