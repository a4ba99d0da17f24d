"""The routes of who runs the gateway: pairing, configuration, doctor, memory by hand, runs of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from channels.pairing import Pairing
from gateway.config.shown import shown_settings
from session.memory.facts import Drawn, Fact
from tests.gateway.http_place import Place, open_place


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


async def test_doctor(place: Place) -> None:
    """The findings are those of ``doctor``; the queue, which this daemon holds, is found in use by it."""
    answer = (await place.http.get("/v1/doctor")).json()

    assert answer["complete"] is True
    levels = {check["name"]: check["level"] for check in answer["checks"]}
    assert {"configuration", "workspace", "broker", "model", "transcripts"} <= set(levels)
    assert levels["workspace"] == "ok"


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

    assert first.json()["changed"] is True
    assert first.json()["former"] is None
    assert (late.status_code, large.status_code) == (409, 413)
    assert shown == "coffee"
    assert again.json()["changed"] is False
    assert [(row["version"], row["cause"]) for row in versions] == [(second.json()["former"], "edit")]


async def test_a_fact_is_corrected_and_taken_out(place: Place) -> None:
    """A corrected fact keeps its id, its former words become a version; one that is taken out is gone."""
    services = place.application.services
    assert services is not None
    scope = await services.circles.of_key("web:ada")
    fact = Fact("01M82KPX05XQGTJVXRK6MR9B2D", "likes tee", "preference", 0.9, "web:ada", None, "2027-01-01")
    services.facts.known.file(scope).add([Drawn(fact)])
    url, key = f"/v1/memory/facts/{fact.id}", {"key": "web:ada"}

    edited = await place.http.patch(url, params=key, json={"text": "likes  tea"})
    listed = (await place.http.get("/v1/memory", params=key)).json()["facts"]
    versions = (await place.http.get("/v1/memory/history", params=key)).json()["versions"]
    gone = await place.http.delete(url, params=key)
    unknown = [
        await place.http.delete(url, params=key),
        await place.http.patch(url, params=key, json={"text": "x"}),
    ]

    assert edited.json()["text"] == "likes tea"
    assert [(one["id"], one["text"]) for one in listed] == [(fact.id, "likes tea")]
    assert [row["changed"] for row in versions] == ["was: likes tee"]
    assert gone.status_code == 200
    assert [answer.status_code for answer in unknown] == [404, 404]
    assert (await place.http.get("/v1/memory", params=key)).json()["facts"] == []


async def test_runs_of_a_job(place: Place) -> None:
    """A job tells when it runs next and how it ran; switched off it runs at no time."""
    made = (await place.http.post("/v1/cron", json={"every": "2h", "message": "hi"})).json()
    url = f"/v1/cron/{made['id']}"
    await place.http.post(f"{url}/run")

    told = (await place.http.get(f"{url}/runs", params={"limit": 3})).json()
    off = await place.http.patch(url, json={"enabled": False})
    resting = (await place.http.get(f"{url}/runs")).json()
    unknown = await place.http.get("/v1/cron/none/runs")

    assert told["next"][0] == made["next_run_at"]
    times = [datetime.fromisoformat(at) for at in told["next"]]
    assert len(times) == 3
    assert times == sorted(times)
    assert times[0] > datetime.now(UTC)
    assert [run["status"] for run in told["past"]] == ["ok"]
    assert off.json()["enabled"] is False
    assert resting["next"] == []
    assert unknown.status_code == 404
