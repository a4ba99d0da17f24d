"""Former texts of memory over HTTP: listed and put back, those of the chat alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.memory.notes import Notes
from tests.gateway.http_place import open_place

KEY = "web:ada"
UNKNOWN = "01KG9NB3H0Q5W4XZ2WM29XRYBN"


def written(workspace: Path, *texts: str) -> Notes:
    """MEMORY.md of the chat, written so many times."""
    notes = Notes(workspace / "memory/chats/web_ada")
    for text in texts:
        notes.write_memory(text)
    return notes


async def test_they_are_listed_and_put_back(tmp_path: Path) -> None:
    notes = written(tmp_path, "one\n", "two\n")
    async with open_place(tmp_path) as place:
        history = "/v1/memory/history"
        (row,) = (await place.http.get(history, params={"key": KEY})).json()["versions"]
        of_profile = (await place.http.get(history, params={"key": KEY, "file": "USER.md"})).json()
        of_bob = (await place.http.get(history, params={"key": "web:bob"})).json()
        order = {"key": KEY, "version": row["version"]}
        foreign = await place.http.post("/v1/memory/restore", json={**order, "key": "web:bob"})
        done = await place.http.post("/v1/memory/restore", json=order)
        again = await place.http.post("/v1/memory/restore", json=order)

    former = notes.versions.all()[-1]
    assert (row["file"], row["cause"], row["changed"]) == ("MEMORY.md", "consolidation", "+1 -1 lines")
    assert of_profile == of_bob == {"versions": []}
    assert foreign.status_code == 404
    assert done.json() == {**order_of(row["version"]), "changed": True, "former": former.id}
    assert again.json() == {**order_of(row["version"]), "changed": False, "former": None}
    assert (notes.memory(), former.read()) == (b"one\n", b"two\n")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"key": KEY, "version": UNKNOWN}, 404),
        ({"key": "web", "version": UNKNOWN}, 400),
        ({"key": "web:a\0b", "version": UNKNOWN}, 400),
        ({"key": KEY, "version": "../../MEMORY.md"}, 400),
        ({"key": KEY}, 400),
        ({"key": KEY, "version": UNKNOWN, "more": 1}, 400),
    ],
)
async def test_what_is_no_version_changes_nothing(tmp_path: Path, body: dict[str, str], status: int) -> None:
    notes = written(tmp_path, "one\n", "two\n")
    async with open_place(tmp_path) as place:
        answer = await place.http.post("/v1/memory/restore", json=body)
        wrong = await place.http.get("/v1/memory/history", params={"key": KEY, "file": "passwd"})

    assert (answer.status_code, wrong.status_code) == (status, 400)
    assert answer.json()["hint"]
    assert notes.memory() == b"two\n"


def order_of(version: str) -> dict[str, str]:
    return {"version": version, "file": "MEMORY.md"}
