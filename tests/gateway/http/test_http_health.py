"""``/readyz`` tells everybody whether, and those with the token why."""

from __future__ import annotations

from pathlib import Path

from session.errors import ModelAway
from tests.gateway.http_place import Place, open_place

TOKEN = "a-token-of-24-characters"
WHY = "refused by account 4711 at 10.0.0.5"


def break_model(place: Place) -> None:
    assert place.application.worker is not None
    place.application.worker.outage.met(ModelAway(WHY, cause="credentials", hint="pay"), 1.0)


async def test_without_the_token_there_are_names_and_no_words(tmp_path: Path) -> None:
    """Neither errors nor times nor cures; a wrong token is none."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        break_model(place)
        for headers in ({}, {"Authorization": "Bearer wrong-token-of-24-characters"}):
            answer = await place.http.get("/readyz", headers=headers)

            assert answer.status_code == 200
            assert answer.json()["parts"]["model"] == {"up": False}
            assert all(set(part) == {"up"} for part in answer.json()["parts"].values())
            assert WHY not in answer.text


async def test_with_the_token_or_where_none_is_set_the_words_come(tmp_path: Path) -> None:
    """By header or by the cookie of the page."""
    async with open_place(tmp_path / "a", http={"token": TOKEN}) as place:
        break_model(place)
        bearer = await place.http.get("/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
        await place.http.post("/v1/login", json={"token": TOKEN})
        cookie = await place.http.get("/readyz")
    async with open_place(tmp_path / "b") as place:
        break_model(place)
        without = await place.http.get("/readyz")

    for answer in (bearer, cookie, without):
        part = answer.json()["parts"]["model"]
        assert (part["error"], part["cause"], part["hint"]) == (WHY, "credentials", "pay")
        assert set(answer.json()["parts"]["queue"]) == {"up", "since", "error"}
