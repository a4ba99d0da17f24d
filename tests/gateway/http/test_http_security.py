"""Who may ask: Host, Origin, token and cookie, and what no answer ever lets out."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.application import Application
from gateway.http import operation
from gateway.http.errors import HttpError
from gateway.http.security import Gate
from gateway.service.tokens import Tokens, cookie_of
from session.errors import ModelAway
from tests.gateway.http_place import Place, open_place

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        yield place


def scope(method: str = "POST", path: str = "/v1/messages", **headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "scheme": "http", "headers": raw}


def status_of(gate: Gate, request: dict[str, Any]) -> int | None:
    try:
        gate.check(request)
    except HttpError as refusal:
        return refusal.status
    return None


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1:8006", "[::1]", "[::1]:80", "chat.example:1", "10.0.0.5"]
)
def test_hosts_that_are_served(host: str) -> None:
    """Loopback names, the bound address and the allowed names are served, on any port."""
    gate = Gate(host="10.0.0.5", allowed_hosts=["Chat.Example"])

    assert status_of(gate, scope(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "localhost:80:80",
        "localhost:x",
        "127.0.0.1.evil.example",
        "0.0.0.0:8006",
        "[::1",
        "[::1]x",
        "::1",
        "user@localhost",
    ],
)
def test_hosts_that_are_not(host: str) -> None:
    """Any other name is refused, the wildcard that is bound among them."""
    assert status_of(Gate(host="0.0.0.0"), scope(host=host)) == 403


def test_host_is_needed_once() -> None:
    """A request without Host, or with two, is refused."""
    twice = scope(host="localhost")
    twice["headers"].append((b"host", b"localhost"))

    for request in (scope(), twice):
        assert status_of(Gate(host="127.0.0.1"), request) == 403


@pytest.mark.parametrize(
    ("host", "origin", "served"),
    [
        ("localhost:8006", "http://localhost:8006", True),
        ("localhost", "http://localhost", True),
        ("localhost:80", "http://localhost", True),
        ("[::1]:8006", "http://[::1]:8006", True),
        ("localhost:8006", "https://chat.example", True),
        ("localhost:8006", "http://localhost:3000", False),
        ("localhost:8006", "http://127.0.0.1:8006", False),
        ("localhost:8006", "https://localhost:8006", False),
        ("localhost:8006", "http://evil.example", False),
        ("localhost:8006", "http://localhost:8006.evil.example", False),
        ("localhost:8006", "http://localhost:8006/path", False),
        ("localhost:8006", "null", False),
        ("localhost:8006", "", False),
        ("localhost:8006", "http://localhost:x", False),
        ("localhost:8006", "http://user@localhost:8006", False),
    ],
)
def test_origins(host: str, origin: str, served: bool) -> None:
    """Where a browser says from where, a change must come from our own origin or an allowed name."""
    gate = Gate(host="127.0.0.1", allowed_hosts=["chat.example"])

    assert (status_of(gate, scope(host=host, origin=origin)) is None) is served
    assert status_of(gate, scope("GET", host=host, origin=origin)) is None


async def test_refused_before_anything_happens(place: Place) -> None:
    """A request of a foreign page is answered 403 in our form, and its message is not put."""
    foreign = await place.http.post(
        "/v1/messages", json={"chat_id": "a", "text": "hi"}, headers={"Origin": "http://evil.example"}
    )
    rebound = await place.http.get("/healthz", headers={"Host": "evil.example"})

    assert foreign.status_code == rebound.status_code == 403
    assert set(foreign.json()) == set(rebound.json()) == {"error", "hint"}
    assert (await place.application.mailbox.depths())["inbound"].count == 0


@pytest.mark.parametrize(
    "path", ["/v1/status", "/v1/parked", "/v1/events?key=web:a", "/openapi.json", "/nowhere"]
)
async def test_token_is_asked_for(locked: Place, path: str) -> None:
    """With a token set every route asks for it, in the same way whether it exists or not."""
    without = await locked.http.get(path)
    wrong = await locked.http.get(path, headers={"Authorization": "Bearer wrong"})
    in_url = await locked.http.get(path, params={"token": TOKEN})

    assert without.status_code == wrong.status_code == in_url.status_code == 401
    assert set(without.json()) == {"error", "hint"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/page/js/main.js", "/page/css/base.css"])
async def test_open_without_a_token(locked: Place, path: str) -> None:
    """Health and the page's own files need no token; uptime monitors ask with HEAD."""
    assert (await locked.http.get(path)).status_code == 200
    if not path.startswith("/page/"):
        head = await locked.http.head(path)
        assert (head.status_code, head.content) == (200, b"")


async def test_login_by_cookie(locked: Place) -> None:
    """The right token earns a cookie that no script reads, no other site sends, and that hides the token."""
    wrong = await locked.http.post("/v1/login", json={"token": "wrong"})
    before = await locked.http.get("/v1/status")
    right = await locked.http.post("/v1/login", json={"token": TOKEN})
    after = await locked.http.get("/v1/status")

    cookie = right.headers["set-cookie"].lower()
    assert (wrong.status_code, before.status_code) == (401, 401)
    assert "set-cookie" not in wrong.headers
    assert (right.status_code, after.status_code) == (200, 200)
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in right.headers["set-cookie"]


@pytest.mark.parametrize(
    "beside",
    [
        'prefs={"a":1}',
        "theme=dark mode",
        r"a=b\c",
        "flag",
        "x=1; prefs=[1,2]",
        "chat_gateway=old",
        "chat_gateway_1=b",
    ],
)
async def test_no_cookie_of_another_program_hides_ours(locked: Place, beside: str) -> None:
    """All ports of a host share a browser's cookies, and some are none by the book."""
    login = await locked.http.post("/v1/login", json={"token": TOKEN})
    ours = login.headers["set-cookie"].partition(";")[0]
    locked.http.cookies.clear()

    for header in (f"{beside}; {ours}", f"{ours};{beside}"):
        answer = await locked.http.get("/v1/status", headers={"Cookie": header})
        assert answer.status_code == 200, header


async def test_the_gateways_of_one_host_log_nobody_out_of_the_others(locked: Place) -> None:
    """A cookie of the same name would be replaced, and taken away, by the login of the other."""
    host = locked.http.base_url.host
    names = {
        (await locked.http.post("/v1/login", json={"token": TOKEN}, headers={"Host": name}))
        .headers["set-cookie"]
        .partition("=")[0]
        for name in (host, f"{host}:8787", f"{host}:8788")
    }
    left = await locked.http.post("/v1/logout", headers={"Host": f"{host}:8788"})

    assert names == {"chat_gateway", "chat_gateway_8787", "chat_gateway_8788"}
    assert "chat_gateway_8788=" in left.headers["set-cookie"]
    assert "chat_gateway_8787=" not in left.headers["set-cookie"]


async def test_forged_cookie(locked: Place) -> None:
    """Neither the token itself nor anything else passes as the cookie."""
    for value in (TOKEN, "", "x", "ü".encode().decode("latin-1")):
        answer = await locked.http.get(
            "/v1/status", headers={b"Cookie": f"chat_gateway={value}".encode("latin-1")}
        )
        assert answer.status_code == 401


async def test_token_is_nowhere_shown(locked: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """No answer and no log line holds the token or a message's text."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answers = [
        await locked.http.get("/v1/status", headers=headers),
        await locked.http.get("/openapi.json", headers=headers),
        await locked.http.get("/nowhere", headers=headers),
        await locked.http.post("/v1/login", json={"token": TOKEN}),
        await locked.http.post(
            "/v1/messages?wait=30", json={"chat_id": "a", "text": "swordfish"}, headers=headers
        ),
    ]

    shown = capfd.readouterr()
    assert answers[-1].status_code == 200
    assert not any(TOKEN in answer.text for answer in answers)
    assert TOKEN not in shown.out + shown.err
    assert "swordfish" not in shown.out + shown.err


async def test_unknown_route_and_method(place: Place) -> None:
    """What is not there, or cannot be done there, is said in our form."""
    nowhere = await place.http.get("/v1/nowhere")
    wrong = await place.http.put("/v1/messages", json={})

    assert (nowhere.status_code, wrong.status_code) == (404, 405)
    assert set(nowhere.json()) == set(wrong.json()) == {"error", "hint"}


async def test_ready_and_alive(place: Place) -> None:
    """Alive says so; ready names its parts, and is 503 while one that counts is down."""
    alive = await place.http.get("/healthz")
    ready = await place.http.get("/readyz")
    place.application.ready.clear()
    not_ready = await place.http.get("/readyz")

    assert alive.status_code == 200
    assert ready.status_code == 200
    assert ready.json()["ready"] is True
    assert {"queue", "lanes", "http"} <= set(ready.json()["parts"])
    assert all({"up", "since", "error"} <= set(part) for part in ready.json()["parts"].values())
    assert not_ready.status_code == 503
    assert not_ready.json()["ready"] is False


@pytest.mark.slow
async def test_crash_of_a_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw is answered 500 in our form, without its text."""

    async def broken(_: Application) -> dict[str, Any]:
        raise RuntimeError("the secret of the error")

    monkeypatch.setattr(operation, "status_of", broken)
    async with open_place(tmp_path) as place:
        answer = await place.http.get("/v1/status")

    assert answer.status_code == 500
    assert set(answer.json()) == {"error", "hint"}
    assert "secret" not in answer.text


async def test_a_cookie_is_no_way_to_find_a_token_that_people_chose(locked: Place) -> None:
    """Its random key lies in the private state folder, and another workspace gives another cookie."""
    given = await locked.http.post("/v1/login", json={"token": TOKEN})
    value = given.headers["set-cookie"].partition("=")[2].partition(";")[0]
    file = locked.application.settings.state / "cookie-key.json"

    assert value != cookie_of(TOKEN)
    assert value == cookie_of(TOKEN, Tokens(locked.application.settings.state).cookie_key())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


WHY = "refused by account 4711 at 10.0.0.5"


def break_model(place: Place) -> None:
    worker = place.application.worker
    assert worker is not None
    away = worker._outages._of(place.services.model).outage
    away.met(ModelAway(WHY, cause="credentials", hint="pay"), 1.0)


async def test_words_of_what_is_down_come_with_the_token_or_where_none_is_set(
    place: Place, tmp_path: Path
) -> None:
    """By header or by the cookie of the page; else neither errors nor times nor cures."""
    async with open_place(tmp_path / "locked", http={"token": TOKEN}) as locked:
        break_model(locked)
        for headers in ({}, {"Authorization": "Bearer wrong-token-of-24-characters"}):
            answer = await locked.http.get("/readyz", headers=headers)
            assert answer.status_code == 200
            assert answer.json()["parts"]["model"] == {"up": False}
            assert all(set(part) == {"up"} for part in answer.json()["parts"].values())
            assert WHY not in answer.text
        bearer = await locked.http.get("/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
        await locked.http.post("/v1/login", json={"token": TOKEN})
        cookie = await locked.http.get("/readyz")
    break_model(place)
    without = await place.http.get("/readyz")

    for answer in (bearer, cookie, without):
        part = answer.json()["parts"]["model"]
        assert (part["error"], part["cause"], part["hint"]) == (WHY, "credentials", "pay")
        assert set(answer.json()["parts"]["queue"]) == {"up", "since", "error"}
