"""``/v1/memory``: notes, facts and profile of a chat, their versions, and a search."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field, field_validator
from starlette.responses import Response

from gateway.app.wiring_session import SessionServices
from gateway.config.agents import settings_of
from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response
from gateway.http.openapi import MAX_LIMIT, PER_PAGE, Body, Cursor, Limit, Open, Shape, has_surrogate, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.pages import digest, page
from session.context.scopes import Scope
from session.memory.fact_store import Fact
from session.memory.memory_commands import Restored
from session.memory.notes import Notes
from session.recall.finding import MAX_NEIGHBOURS
from session.transcript.agent import AGENTS, is_name, parted, shown

MAX_FACT_CHARS = 2_000
Key = Annotated[str, Query(min_length=3, max_length=MAX_KEY_CHARS, description="channel:chat_id")]
AgentName = Annotated[
    str | None,
    Query(max_length=64, description="the agent whose memory it is; default: the agent of the chat"),
]
FactId = Annotated[str, Path(min_length=1, max_length=64, description="from GET /v1/memory")]
File = Literal["MEMORY.md", "USER.md"]


class FactsOut(Shape):
    """Facts in order of storage, including replaced ones; ``next`` is the cursor of the next page."""

    facts: list[Fact]
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


class FileIn(Body):
    """A new text; ``was`` is the digest of the text it replaces: 409 if that has changed."""

    key: str = Field(min_length=3, max_length=MAX_KEY_CHARS)
    file: File
    text: str
    was: str | None = Field(default=None, max_length=64)
    agent: str | None = Field(default=None, max_length=64)


class EditedOut(Shape):
    """The change; ``former`` is the version of the replaced text, null if there was none."""

    file: File
    changed: bool
    former: str | None
    digest: str


class FactIn(Body):
    """The new text of a fact."""

    text: str = Field(min_length=1, max_length=MAX_FACT_CHARS)

    @field_validator("text")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("this is not a valid text")
        return value


def _add_texts(router: APIRouter, chats: ChatService) -> None:
    @router.get("/v1/memory", summary="Show notes, history and facts of a chat", **needs("read", MemoryOut))
    async def get(key: Key, agent: AgentName = None, limit: Limit = PER_PAGE) -> Response:
        services, scope = await scope_of(chats, key, agent)
        facts = await _facts(services, scope, limit, None)

        def read() -> dict[str, Any]:
            notes = Notes(scope.memory)
            memory, history = (data.decode("utf-8", "replace") for data in (notes.memory(), notes.history()))
            return {"memory": memory, "history": history}

        return json_response(await asyncio.to_thread(read) | facts)

    @router.get(
        "/v1/memory/files", summary="Get MEMORY.md and USER.md for editing", **needs("read", FilesOut)
    )
    async def get_files(key: Key, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response({"files": await services.memory_history.texts(scope)})

    @router.put(
        "/v1/memory/files",
        summary="Replace MEMORY.md or USER.md; the old text is kept as a version",
        **needs("write", EditedOut, 409),
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
        done = await services.memory_history.edit(body.key, scope, body.file, body.text, was=body.was)
        if done is None:
            raise HttpError(
                409,
                f"{body.file} of {body.key} was changed since you read it",
                hint="GET /v1/memory/files?key= shows the current text",
            )
        return json_response(done)


def _add_facts(router: APIRouter, chats: ChatService) -> None:
    @router.get("/v1/memory/facts", summary="List the facts of a chat", **needs("read", FactsOut))
    async def get_facts(
        key: Key, agent: AgentName = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response(await _facts(services, scope, limit, cursor))

    @router.patch(
        "/v1/memory/facts/{id}",
        summary="Correct a fact; the old text is kept as a version",
        **needs("write", Fact, 404),
    )
    async def patch_fact(id: FactId, key: Key, body: FactIn, agent: AgentName = None) -> Response:
        services, scope = await scope_of(chats, key, agent)
        fact = await services.known_facts.edit(key, scope, id, body.text)
        if fact is None:
            raise _no_fact(key, id)
        return json_response(fact.as_dict())

    @router.delete(
        "/v1/memory/facts/{id}",
        summary="Delete a fact and its earlier versions for good",
        **needs("write", Fact, 404),
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
    found, following = page(
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
        return services, await services.scope_resolver.of_key(key)
    return services, await services.scope_with(key, agent)


def _no_fact(key: str, id_: str) -> HttpError:
    return HttpError(404, f"{key} has no fact {id_}", hint="GET /v1/memory?key= lists them")


class AgentOut(Shape):
    """An agent: whether it is configured, answers in the chat, and has memory of it."""

    name: str
    description: str
    configured: bool
    answers: bool
    remembers: bool


class AgentsOut(Shape):
    """The agents, the one of the chat first; only that one if no other is configured."""

    agents: list[AgentOut]


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of memory."""
    _add_texts(router, chats)
    _add_facts(router, chats)
    _add_agents(router, chats)
    _add_versions(router, chats)
    _add_search(router, chats)


def _add_agents(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/v1/memory/agents",
        summary="List the agents and whether they have memory of a chat",
        **needs("read", AgentsOut),
    )
    async def get_agents(key: Key) -> Response:
        services, here = await scope_of(chats, key)
        now = parted(here.name)[0]
        former = await asyncio.to_thread(_agent_folders, services)
        every = dict.fromkeys([now, *services.agents, *former])
        scopes = {each: await services.scope_with(key, shown(each)) for each in every}
        found = await asyncio.to_thread(_agent_rows, services, scopes.items(), now)
        return json_response({"agents": found})


def _agent_folders(services: SessionServices) -> list[str]:
    """List whose folders are here, whether they are configured or were."""
    folders = (services.scopes.workspace / AGENTS).glob("*")
    return sorted(path.name for path in folders if is_name(path.name) and path.is_dir())


def _agent_rows(
    services: SessionServices, scopes: Iterable[tuple[str, Scope]], now: str
) -> list[dict[str, Any]]:
    rows = []
    for name, scope in scopes:
        agent = services.agents.get(name)
        remembers = scope.memory.is_dir() and any(path.is_file() for path in scope.memory.iterdir())
        if agent is None and name != now and not remembers:
            continue
        rows.append(
            {
                "name": shown(name),
                "description": agent.description if agent is not None else "",
                "configured": agent is not None,
                "answers": name == now,
                "remembers": remembers,
            }
        )
    return rows


class RestoreIn(Body):
    """A version of a chat's memory, from its history."""

    key: str = Field(min_length=3, max_length=MAX_KEY_CHARS)
    version: str = Field(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$")
    agent: str | None = Field(default=None, max_length=64)


class VersionOut(Shape):
    """An earlier text of ``file``, replaced at ``at`` by ``cause``."""

    version: str
    file: str
    at: str
    cause: str
    bytes: int
    changed: str


class VersionsOut(Shape):
    """Versions, newest first."""

    versions: list[VersionOut]


def _add_versions(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/v1/memory/history",
        summary="List earlier versions of memory, newest first",
        **needs("read", VersionsOut),
    )
    async def get_history(
        key: Key,
        file: Annotated[
            Literal["MEMORY.md", "USER.md", "facts.jsonl"] | None, Query(description="only this file")
        ] = None,
        agent: AgentName = None,
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response({"versions": await services.memory_history.history(key, scope, file=file or "")})

    @router.post("/v1/memory/restore", summary="Restore an earlier version", **needs("write", Restored, 404))
    async def post_restore(body: RestoreIn) -> Response:
        services, scope = await scope_of(chats, body.key, body.agent)
        done = await services.memory_history.restore(body.key, scope, body.version)
        if done is None:
            raise HttpError(
                404,
                f"{body.key} has no version {body.version}",
                hint="GET /v1/memory/history?key= lists them",
            )
        return json_response(done.as_dict())


MAX_TEXT_CHARS = 10_000


class HitOut(Open):
    """Something that was found; [recall](memory.md#recall) says what the fields mean."""

    kind: Literal["message", "history", "memory", "fact"]
    key: str | None
    session_id: str | None
    message_id: str | None
    seq: int | None
    at: str | None
    speaker: str | None
    text: str
    score: float


class HitsOut(Shape):
    """Hits, best first; ``all`` is false while the index is still being built."""

    hits: list[HitOut]
    all: bool


def _add_search(router: APIRouter, chats: ChatService) -> None:
    @router.get("/v1/memory/search", summary="Search a chat, best match first", **needs("read", HitsOut))
    async def get_search(
        key: Annotated[str, Query(min_length=1, max_length=MAX_KEY_CHARS, description="channel:chat_id")],
        q: Annotated[str, Query(min_length=1, max_length=MAX_TEXT_CHARS, description="a question or words")],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = 10,
        neighbours: Annotated[
            int, Query(ge=0, le=MAX_NEIGHBOURS, description="number of messages before and after each")
        ] = 0,
        agent: AgentName = None,
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        found = await services.recall.search(scope, key, q, limit=limit, neighbours=neighbours)
        hits = [hit.as_dict(neighbours=bool(neighbours)) for hit in found.hits]
        return json_response({"hits": hits, "all": found.all})
