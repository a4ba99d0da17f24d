"""What doctor says of a broker's version and clock, and of certificates before they end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.doctor import broker
from gateway.doctor.services import check_platforms


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.10.8", "ok"), ("4.1.0-rc.1", "ok"), ("3.9.29", "fail"), ("2.8.7", "fail"), ("", "warn")],
)
def test_a_broker_has_to_be_new_enough(version: str, level: str) -> None:
    check = broker.of_version(version)

    assert check.level == level
    assert version in check.text
    assert bool(check.cure) == (level != "ok")


@pytest.mark.parametrize(
    ("ahead_s", "level", "words"),
    [
        (29.0, "ok", "within 30 s of the broker's"),
        (61.4, "warn", "61 s ahead of the broker's"),
        (-3600.0, "warn", "3600 s behind the broker's"),
        (None, "ok", "the broker's time is unknown: it said nothing"),
    ],
)
def test_the_clock_is_compared_with_the_brokers(ahead_s: float | None, level: str, words: str) -> None:
    check = broker.of_clock(ahead_s, "it said nothing")

    assert (check.level, check.text) == (level, words)


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

    found = await check_platforms(on(url, "telegram", "discord"))

    assert [each.level for each in found] == ["ok"] * 4
    assert set(handler.paths) == {(f"/bot{TOKEN}/getMe", ""), ("/api/v10/users/@me", f"Bot {TOKEN}")}


async def test_a_token_that_is_refused(server: tuple[type[Platform], str]) -> None:
    handler, url = server
    handler.status = 401

    found = await check_platforms(on(url, "telegram"))

    assert (found[0].name, found[0].level, found[0].text) == (
        "telegram token",
        "fail",
        "telegram rejects it (HTTP 401)",
    )
    assert "docs/telegram.md" in found[0].cure


async def test_a_clock_that_is_wrong(server: tuple[type[Platform], str]) -> None:
    handler, url = server
    handler.date = "Thu, 01 Jan 2015 00:00:00 GMT"

    clock = [finding for finding in await check_platforms(on(url, "discord")) if finding.name == "clock"]

    assert clock[0].level == "warn"
    assert "ahead of discord's" in clock[0].text


async def test_a_platform_that_is_away_shows_no_token() -> None:
    found = await check_platforms(on("http://127.0.0.1:1", "telegram"))

    assert [each.level for each in found] == ["warn"]
    assert TOKEN not in str(found)
