"""Listings come in pages: each row once, whatever goes or comes meanwhile; a foreign cursor is refused."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

from gateway.queue.mailbox import INBOUND, Post
from session.memory.notes import Notes
from tests.gateway.http_place import Place, open_place
from tests.support.until import until

COUNT = 7


def fact(number: int) -> dict[str, Any]:
    return {
        "id": f"01KG9NB3H0Q5W4XZ2WM29XRY{number:02}",
        "text": f"Ada has {number} ferrets",
        "category": "home",
        "confidence": 0.9,
        "key": "web:ada",
        "message_id": None,
        "created_at": "2027-01-01T00:00:00+00:00",
        "replaced_by": None,
    }


async def filled(place: Place, workspace: Path) -> None:
    """Let there be so many parked letters, jobs and facts."""
    folder = workspace / "memory/chats/web_ada"
    folder.mkdir(parents=True)
    (folder / "facts.jsonl").write_text("".join(json.dumps(fact(at)) + "\n" for at in range(COUNT)))
    for at in range(COUNT):
        await place.application.mailbox.put(Post(INBOUND, "web:ada", f"bad{at}", b"{"))
        job = {"every": f"{at + 2}h", "message": f"job {at}"}
        assert (await place.http.post("/v1/cron", json=job)).status_code == 201

    async def parked() -> bool:
        return len(await place.application.mailbox.parked()) == COUNT

    await until(parked)


async def walked(place: Place, path: str, field: str, **params: str) -> list[list[str]]:
    """Return the ids of each page of two."""
    pages, query = [], {"limit": "2", **params}
    while True:
        found = (await place.http.get(path, params=query)).json()
        pages.append([row["id"] for row in found[field]])
        if found["next"] is None:
            return pages
        query["cursor"] = found["next"]


async def test_each_row_is_on_one_page(tmp_path: Path) -> None:
    """Parked letters, jobs, facts and sessions, in their order; a cursor of one listing opens no other."""
    async with open_place(tmp_path) as place:
        await filled(place, tmp_path)
        parked = await walked(place, "/v1/parked", "parked")
        jobs = await walked(place, "/v1/cron", "jobs")
        facts = await walked(place, "/v1/memory/facts", "facts", key="web:ada")
        whole = (await place.http.get("/v1/memory", params={"key": "web:ada", "limit": 3})).json()
        goes_on = await place.http.get(
            "/v1/memory/facts", params={"key": "web:ada", "limit": 9, "cursor": whole["next"]}
        )
        for at in range(2 * COUNT - 1):
            await place.post("/new" if at % 2 else "hello", chat="eve", wait=30)
        of_chat = await walked(place, "/v1/chats/sessions", "sessions", key="web:eve")
        of_all = [row["id"] for row in (await place.http.get("/v1/sessions")).json()["sessions"]]
        all_jobs = [row["id"] for row in (await place.http.get("/v1/cron")).json()["jobs"]]
        count = (await place.http.get("/v1/parked", params={"limit": 1})).json()["count"]
        foreign = (await place.http.get("/v1/cron", params={"limit": 1})).json()["next"]
        bad = [
            await place.http.get(path, params={"cursor": cursor, "key": "web:ada"})
            for path in (
                "/v1/parked",
                "/v1/cron",
                "/v1/memory/facts",
                "/v1/pairing",
                "/v1/approvals",
                "/v1/chats",
                "/v1/chats/sessions",
            )
            for cursor in ("x", "", "W10", "ü", "bnVsbA")
        ]
        crossed = await place.http.get("/v1/parked", params={"cursor": foreign})

    for pages in (parked, jobs, facts, of_chat):
        assert [len(each) for each in pages] == [2, 2, 2, 1]
    assert sorted(chain(*parked)) == [f"bad{at}" for at in range(COUNT)]
    assert list(chain(*jobs)) == all_jobs
    assert list(chain(*of_chat)) == of_all
    assert list(chain(*facts)) == [fact(at)["id"] for at in range(COUNT)]
    assert [row["id"] for row in whole["facts"]] == [fact(at)["id"] for at in range(3)]
    assert [row["id"] for row in goes_on.json()["facts"]] == [fact(at)["id"] for at in range(3, COUNT)]
    assert count == COUNT
    assert {answer.status_code for answer in (*bad, crossed)} == {400}
    assert crossed.json() == {"error": "the cursor is not valid", "hint": "start without one"}


async def test_what_goes_meanwhile_hides_no_other(tmp_path: Path) -> None:
    """The row that the cursor names is dropped, and so is one before it: the next page is as it was to be."""
    async with open_place(tmp_path) as place:
        await filled(place, tmp_path)
        path, query = "/v1/memory/facts", {"key": "web:ada", "limit": "3"}
        first = (await place.http.get(path, params=query)).json()
        for at in (0, 2):
            gone = await place.http.delete(f"/v1/memory/facts/{fact(at)['id']}", params={"key": "web:ada"})
            assert gone.status_code == 200
        behind = (await place.http.get(path, params={**query, "cursor": first["next"]})).json()

    assert [row["id"] for row in behind["facts"]] == [fact(at)["id"] for at in range(3, 6)]


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
