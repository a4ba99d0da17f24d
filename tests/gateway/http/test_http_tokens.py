"""Named tokens: who may do what, what is kept of them, and how they end."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.service.tokens import TokenError, Tokens
from tests.gateway.cli_place import Ran
from tests.gateway.http_place import Place, open_place
from tests.support.command_line import parsed
from tests.support.guarantee import guarantee

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        yield place


def shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_each_right_reaches_as_far_as_it_says(place: Place) -> None:
    """Looking needs read, talking write, letting people in admin; each right includes those before it."""
    tokens = Tokens(place.application.settings.state)
    held = {right: tokens.add(right, right) for right in ("read", "write", "admin")}

    for right, token in held.items():
        http = place.http
        look = await http.get("/v1/sessions", headers=shown(token))
        talk = await http.post("/v1/messages", json={"chat_id": "a", "text": "hi"}, headers=shown(token))
        people = await http.get("/v1/pairing", headers=shown(token))
        erase = await http.post(
            "/clear-session", json={"key": "web:b", "everything": True}, headers=shown(token)
        )

        assert look.status_code == 200
        assert talk.status_code == (403 if right == "read" else 202)
        assert people.status_code == (200 if right == "admin" else 403)
        assert erase.status_code == (200 if right == "admin" else 403)
        assert (await http.get("/v1/token", headers=shown(token))).json() == {"name": right, "right": right}
        word = {"chat_id": "a", "text": " /Approve@bot abc"}
        decided = await place.http.post("/v1/messages", json=word, headers=shown(token))
        assert decided.status_code == (202 if right == "admin" else 403)
    refused = await place.http.post("/v1/stop", json={"key": "web:a"}, headers=shown(held["read"]))
    assert refused.json() == {
        "error": "the token read has the right read; this needs write",
        "hint": "use a token with the right write",
    }


@guarantee("security", "A token opens only the routes that its right allows.")
async def test_every_route_needs_a_right(place: Place) -> None:
    """A token that may only look is refused wherever the document says write or admin, and nowhere else."""
    headers = shown(Tokens(place.application.settings.state).add("looker", "read"))
    described = (await place.http.get("/openapi.json", headers=headers)).json()

    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            rights = {right for scheme in operation["security"] for right in next(iter(scheme.values()))}
            if not rights:
                assert path in ("/healthz", "/readyz", "/v1/login", "/v1/logout")
            elif rights != {"read"}:
                url = path.replace("{ulid}", "0" * 26).replace("{", "").replace("}", "")
                answer = await place.http.request(method.upper(), url, headers=headers)
                assert answer.status_code == 403, (method, path)


async def test_a_revoked_token_opens_nothing(place: Place) -> None:
    """A running daemon honours a revocation at the next request, that of the cookie included."""
    tokens = Tokens(place.application.settings.state)
    token = tokens.add("page", "read")
    async with httpx.AsyncClient(base_url=place.server.url, trust_env=False) as browser:
        login = await browser.post("/v1/login", json={"token": token})
        assert login.json() == {"ok": True, "name": "page", "right": "read"}
        assert (await browser.get("/v1/sessions")).status_code == 200
        assert (await browser.post("/v1/stop", json={"key": "web:a"})).status_code == 403

        tokens.revoke("page")

        assert (await browser.get("/v1/sessions")).status_code == 401
    assert (await place.http.get("/v1/sessions", headers=shown(token))).status_code == 401
    assert (await place.http.get("/v1/sessions", headers=shown(TOKEN))).status_code == 200


async def test_the_file_opens_no_door(place: Place) -> None:
    """The file is private, holds digests alone, and nothing in it passes as a token or a cookie."""
    state = place.application.settings.state
    token = Tokens(state).add("bot", "admin")
    file = state / "tokens.json"
    text = file.read_text()

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in text
    for word in text.replace('"', " ").replace(",", " ").split():
        bearer = await place.http.get("/v1/status", headers=shown(word))
        cookie = await place.http.get("/v1/status", headers={"Cookie": f"chat_gateway={word}"})
        assert bearer.status_code in (401, 429)
        assert cookie.status_code in (401, 429)


async def test_a_damaged_file_lets_nobody_in(place: Place) -> None:
    """What cannot be read holds no token; ``http.token`` goes on working."""
    state = place.application.settings.state
    token = Tokens(state).add("bot", "admin")
    (state / "tokens.json").write_text("{torn")

    assert (await place.http.get("/v1/status", headers=shown(token))).status_code == 401
    assert (await place.http.get("/v1/status", headers=shown(TOKEN))).status_code == 200


def test_names(tmp_path: Path) -> None:
    """A name is taken once, has no odd characters, and must be there to be revoked."""
    tokens = Tokens(tmp_path)
    tokens.add("a-1", "read")

    for name in ("a-1", "", "A", "a b", "../a", "http.token", "a" * 65):
        with pytest.raises(TokenError):
            tokens.add(name, "read")
    with pytest.raises(TokenError):
        tokens.revoke("b")
    assert [row["name"] for row in tokens.rows()] == ["a-1"]


async def test_requests_of_a_token_are_bounded(tmp_path: Path) -> None:
    """Beyond its bound a token is answered 429 with when to come again; another one is served."""
    async with open_place(tmp_path, http={"token": TOKEN, "requests_per_minute": 60}) as place:
        other = shown(Tokens(place.application.settings.state).add("other", "read"))
        answers = [await place.http.get("/v1/cron", headers=shown(TOKEN))]
        while answers[-1].status_code == 200 and len(answers) < 200:
            answers.append(await place.http.get("/v1/cron", headers=shown(TOKEN)))
        beside = await place.http.get("/v1/cron", headers=other)
        health = await place.http.get("/healthz")

    assert {answer.status_code for answer in answers[:10]} == {200}
    assert answers[-1].status_code == 429
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert set(answers[-1].json()) == {"error", "hint"}
    assert (beside.status_code, health.status_code) == (200, 200)


async def test_requests_have_ids(place: Place) -> None:
    """The id that a client gives comes back with answers and refusals; what is no id is replaced."""
    given = await place.http.get("/healthz", headers={"X-Request-Id": "trace-1"})
    refused = await place.http.get("/v1/status", headers={"X-Request-Id": "trace-2"})
    odd = await place.http.get("/healthz", headers={"X-Request-Id": "a b\tc"})
    none = await place.http.get("/healthz")

    assert (given.headers["x-request-id"], refused.headers["x-request-id"]) == ("trace-1", "trace-2")
    assert len(odd.headers["x-request-id"]) == len(none.headers["x-request-id"]) == 26


def test_the_verbs(tmp_path: Path) -> None:
    """``tokens add`` prints the token alone to stdout; ``list`` never shows it; ``revoke`` ends it."""
    assert parsed(["tokens", "add", "bot"]).right == "write"
    added = Ran(tmp_path, "tokens", "add", "bot", "--right", "read")
    token = added.out.strip()
    assert added.code == 0
    assert Tokens(tmp_path / "state").of_token(token) is not None
    listed = Ran(tmp_path, "tokens", "list", "--json").out
    assert '"read"' in listed
    assert token not in listed
    assert Ran(tmp_path, "tokens", "add", "bot").code == 1
    assert [Ran(tmp_path, "tokens", "revoke", "bot").code for _ in range(2)] == [0, 1]
