"""Memory of each agent of a chat over HTTP: shown, edited and put back, and never another one's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from session.memory.notes import Notes
from tests.gateway.http.test_http_paging import fact
from tests.gateway.http_place import Place, open_place

KEY = "web:ada"
AGENTS: dict[str, Any] = {"coder": {"description": "writes code", "memory": {"max_kb": 1}}, "clerk": {}}
HOMES = {"default": "", "coder": "agents/coder/", "gone": "agents/gone/"}


def planted(workspace: Path) -> None:
    for agent, home in HOMES.items():
        folder = workspace / home / "memory/chats/web_ada"
        folder.mkdir(parents=True)
        Notes(folder).write_memory(f"first of {agent}\n")
        Notes(folder).write_memory(f"notes of {agent}\n")
        (folder / "facts.jsonl").write_text(json.dumps({**fact(1), "text": f"fact of {agent}"}) + "\n")


async def seen(place: Place, agent: str | None) -> list[Any]:
    """What each route of memory tells of an agent's."""
    query = {"key": KEY, **({"agent": agent} if agent else {})}

    async def get(path: str, **more: str) -> Any:
        answer = await place.http.get(path, params={**query, **more})
        return answer.json() if answer.status_code == 200 else answer.status_code

    return [
        await get("/v1/memory"),
        await get("/v1/memory/facts"),
        await get("/v1/memory/files"),
        await get("/v1/memory/history"),
        await get("/v1/memory/search", q="fact notes"),
    ]


async def test_each_agent_is_shown_alone(tmp_path: Path) -> None:
    """By its name; without one the one that answers; former ones too; one that never was is refused."""
    planted(tmp_path)
    async with open_place(tmp_path, agents=AGENTS, bindings=[{"agent": "coder", "chat": KEY}]) as place:
        by_agent = {agent: str(await seen(place, agent)) for agent in HOMES}
        plain = str(await seen(place, None))
        agents = (await place.http.get("/v1/memory/agents", params={"key": KEY})).json()["agents"]
        never = await seen(place, "nobody")
        odd = await seen(place, "../coder")

    for agent, told in by_agent.items():
        for other in HOMES:
            assert (f"fact of {other}" in told, f"notes of {other}" in told) == (other == agent,) * 2
    assert plain == by_agent["coder"]
    assert [tuple(row.values()) for row in agents] == [
        ("coder", "writes code", True, True, True),
        ("default", "", True, False, True),
        ("clerk", "", True, False, False),
        ("gone", "", False, False, True),
    ]
    assert never == odd == [400] * 5


async def test_each_agent_is_edited_alone(tmp_path: Path) -> None:
    """Notes, facts and versions change for the agent that is named, within its own limits."""
    planted(tmp_path)
    async with open_place(tmp_path, agents=AGENTS) as place:
        order = {"key": KEY, "agent": "coder"}
        query = {"params": order}
        put = {**order, "file": "MEMORY.md", "text": "written\n"}
        edited = await place.http.put("/v1/memory/files", json=put)
        too_long = await place.http.put("/v1/memory/files", json={**put, "text": "x" * 2000})
        path = f"/v1/memory/facts/{fact(1)['id']}"
        patched = await place.http.patch(path, json={"text": "mine"}, **query)
        versions = (await place.http.get("/v1/memory/history", **query)).json()["versions"]
        first = next(row["version"] for row in reversed(versions) if row["file"] == "MEMORY.md")
        restored = await place.http.post("/v1/memory/restore", json={**order, "version": first})
        foreign = await place.http.post("/v1/memory/restore", json={"key": KEY, "version": first})
        deleted = await place.http.delete(path, **query)
        others = {agent: str(await seen(place, agent)) for agent in ("default", "gone")}
        left = (await seen(place, "coder"))[0]

    assert [each.status_code for each in (edited, patched, restored, deleted)] == [200] * 4
    assert (too_long.status_code, foreign.status_code) == (413, 404)
    assert "over 1 KiB" in too_long.json()["error"]
    assert (left["memory"], left["facts"]) == ("first of coder\n", [])
    for agent, told in others.items():
        assert f"fact of {agent}" in told
        assert f"notes of {agent}" in told
