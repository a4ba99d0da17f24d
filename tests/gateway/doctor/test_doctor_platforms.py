"""Doctor asks platforms about their tokens and clocks, and shows no token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.doctor import platforms

TOKEN = "123456:AAsecretsecretsecretsecretsecretsec"


class Platform(BaseHTTPRequestHandler):
    status, date, paths = 200, "", []  # type: ignore[var-annotated]

    def do_GET(self) -> None:
        self.paths.append((self.path, self.headers.get("Authorization", "")))
        self.send_response_only(self.status)
        self.send_header("Date", self.date or self.date_time_string())
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[type[Platform], str]]:
    handler = type("Handler", (Platform,), {"paths": []})
    listening = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield handler, f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    thread.join()
    listening.server_close()


def on(url: str, *names: str) -> Settings:
    tables: dict[str, Any] = {
        "telegram": {"enabled": True, "token": TOKEN, "base_url": f"{url}/bot"},
        "discord": {"enabled": True, "token": TOKEN, "api_base_url": f"{url}/api/v10"},
    }
    return Settings.model_validate(
        {"workspace": Path("/none"), "channels": {name: tables[name] for name in names}}
    )


async def test_a_token_that_is_taken_and_a_clock_that_is_right(server: tuple[type[Platform], str]) -> None:
    handler, url = server

    found = await platforms.check(on(url, "telegram", "discord"))

    assert [level for _, level, _, _ in found] == ["ok"] * 4
    assert set(handler.paths) == {(f"/bot{TOKEN}/getMe", ""), ("/api/v10/users/@me", f"Bot {TOKEN}")}


async def test_a_token_that_is_refused(server: tuple[type[Platform], str]) -> None:
    handler, url = server
    handler.status = 401

    found = await platforms.check(on(url, "telegram"))

    assert found[0][:3] == ("telegram token", "fail", "telegram rejects it (HTTP 401)")
    assert "docs/telegram.md" in found[0][3]


async def test_a_clock_that_is_wrong(server: tuple[type[Platform], str]) -> None:
    handler, url = server
    handler.date = "Thu, 01 Jan 2015 00:00:00 GMT"

    clock = [finding for finding in await platforms.check(on(url, "discord")) if finding[0] == "clock"]

    assert clock[0][1] == "warn"
    assert "ahead of discord's" in clock[0][2]


async def test_a_platform_that_is_away_shows_no_token() -> None:
    found = await platforms.check(on("http://127.0.0.1:1", "telegram"))

    assert [level for _, level, _, _ in found] == ["warn"]
    assert TOKEN not in str(found)


async def test_nothing_is_asked_without_a_platform() -> None:
    assert await platforms.check(Settings.model_validate({"workspace": Path("/none")})) == []
