"""The routes of who runs the gateway: pairing, configuration, doctor, memory by hand, runs of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from channels.pairing import Pairing
from gateway.config.redact import shown_settings
from session.memory.notes import Notes
from tests.gateway.http_place import Place, open_place

KEY = "web:ada"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, model={"api_key": "sk-secret-of-a-model"}) as place:
        yield place


async def test_pairing(place: Place) -> None:
    """Who asks is listed, let in by the code, and let out again; an unknown code or person is 404."""
    pairing = Pairing(place.application.settings.state)
    code = pairing.ask("telegram", "7", kind="person", name="Ada", message_id="telegram:1:1")

    waiting = (await place.http.get("/v1/pairing")).json()["pairing"]
    wrong = await place.http.post("/v1/pairing/ABCDEFGH/approve")
    approved = await place.http.post(f"/v1/pairing/{code}/approve")
    revoked = await place.http.delete("/v1/pairing/telegram:7")
    nobody = await place.http.delete("/v1/pairing/telegram:7")

    assert [(row["code"], row["who"], row["state"]) for row in waiting] == [(code, "telegram:7", "pending")]
    assert (wrong.status_code, nobody.status_code) == (404, 404)
    assert approved.json()["state"] == "approved"
    assert [row["who"] for row in revoked.json()["revoked"]] == ["telegram:7"]
    assert (await place.http.get("/v1/pairing")).json()["pairing"] == []


async def test_configuration_without_secrets(place: Place) -> None:
    """The configuration is that of ``config show``; no secret is in it."""
    answer = await place.http.get("/v1/config")

    assert answer.json() == orjson.loads(orjson.dumps(shown_settings(place.application.settings)))
    assert "sk-secret" not in answer.text


async def test_memory_is_edited_by_hand(place: Place) -> None:
    """A text is written where it says what its editor saw; what stood there becomes a version."""
    key = {"key": "web:ada"}
    empty = (await place.http.get("/v1/memory/files", params=key)).json()["files"]
    digests = {file["file"]: file["digest"] for file in empty}
    body = {**key, "file": "MEMORY.md", "text": "# Ada\nlikes tea\n", "was": digests["MEMORY.md"]}

    first = await place.http.put("/v1/memory/files", json=body)
    late = await place.http.put("/v1/memory/files", json={**body, "text": "another"})
    second = await place.http.put("/v1/memory/files", json={**key, "file": "MEMORY.md", "text": "coffee"})
    again = await place.http.put("/v1/memory/files", json={**key, "file": "MEMORY.md", "text": "coffee"})
    large = await place.http.put(
        "/v1/memory/files", json={**key, "file": "USER.md", "text": "x" * (8 * 1024 + 1)}
    )
    shown = (await place.http.get("/v1/memory", params=key)).json()["memory"]
    versions = (await place.http.get("/v1/memory/history", params=key)).json()["versions"]
    of_profile = await place.http.get("/v1/memory/history", params={**key, "file": "USER.md"})
    order = {**key, "version": second.json()["former"]}
    restored = [(await place.http.post("/v1/memory/restore", json=order)).json() for _ in range(2)]

    assert of_profile.json() == {"versions": []}
    assert [each["changed"] for each in restored] == [True, False]
    assert first.json()["changed"] is True
    assert first.json()["former"] is None
    assert (late.status_code, large.status_code) == (409, 413)
    assert shown == "coffee"
    assert again.json()["changed"] is False
    assert [(row["version"], row["cause"]) for row in versions] == [(second.json()["former"], "edit")]


UNKNOWN = "01KG9NB3H0Q5W4XZ2WM29XRYBN"


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
async def test_what_is_no_version_changes_nothing(
    place: Place, tmp_path: Path, body: dict[str, str], status: int
) -> None:
    notes = Notes(tmp_path / "memory/chats/web_ada")
    for text in ("one\n", "two\n"):
        notes.write_memory(text)
    answer = await place.http.post("/v1/memory/restore", json=body)
    wrong = await place.http.get("/v1/memory/history", params={"key": KEY, "file": "passwd"})

    assert (answer.status_code, wrong.status_code) == (status, 400)
    assert answer.json()["hint"]
    assert notes.memory() == b"two\n"
