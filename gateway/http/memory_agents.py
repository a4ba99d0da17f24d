"""``/v1/memory/agents``: which agents remember something of a chat, each in a memory of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gateway.app.wiring_session import SessionServices
from gateway.http.errors import json_response
from gateway.http.memory import Key, scope_of
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService
from session.context.scopes import Scope
from session.transcript.agent import AGENTS, is_name, parted, shown


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


def routes(chats: ChatService) -> APIRouter:
    """Build the route of agents."""
    router = APIRouter(prefix="/v1/memory")

    @router.get(
        "/agents",
        summary="List the agents and whether they have memory of a chat",
        response_model=AgentsOut,
        **needs("read"),
    )
    async def get_agents(key: Key) -> Response:
        services, here = await scope_of(chats, key)
        now = parted(here.name)[0]
        former = await asyncio.to_thread(_former, services)
        every = dict.fromkeys([now, *services.agents, *former])
        scopes = {each: await services.scope_with(key, shown(each)) for each in every}
        found = await asyncio.to_thread(_rows, services, scopes.items(), now)
        return json_response({"agents": found})

    return router


def _former(services: SessionServices) -> list[str]:
    """List whose folders are here, whether they are configured or were."""
    folders = (services.scopes.workspace / AGENTS).glob("*")
    return sorted(path.name for path in folders if is_name(path.name) and path.is_dir())


def _rows(services: SessionServices, scopes: Iterable[tuple[str, Scope]], now: str) -> list[dict[str, Any]]:
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
