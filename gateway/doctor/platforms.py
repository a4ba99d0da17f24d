"""Asks each platform whether it takes the bot's token, and compares its clock with this machine's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

import durable
from channels.plugins import BUILT_IN, enabled
from channels.tables import Platform
from gateway.config.settings import Settings
from gateway.doctor.finding import NamedFinding

ASKED_S: Final = 8.0
APART_S: Final = 30.0
_REFUSED: Final = (401, 403, 404)


async def check(settings: Settings) -> Sequence[NamedFinding]:
    """Return name, level, text and cure of each finding, all platforms asked at once; no token is shown."""
    own = {kind.name for kind in BUILT_IN}
    asked = [(kind.name, table) for kind, table in enabled(settings.channels) if kind.name in own]
    found = await asyncio.gather(*(_asked(name, table) for name, table in asked))
    return [finding for findings in found for finding in findings]


async def _asked(name: str, table: Platform) -> list[NamedFinding]:
    part = f"{name} token"
    address, headers = _request(name, table)
    try:
        async with asyncio.timeout(ASKED_S), httpx.AsyncClient(timeout=ASKED_S) as client:
            answer = await client.get(address, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        # Its own words may hold the address, which holds the token.
        text = f"{name} does not answer: {type(error).__name__}"
        return [(part, "warn", text, "check the network, the proxy, and the address in the configuration")]
    return [_token(name, answer), *_clock(name, answer)]


def _request(name: str, table: Platform) -> tuple[str, dict[str, str]]:
    token = table.token.get_secret_value()
    if name == "telegram":
        return f"{getattr(table, 'base_url')}{token}/getMe", {}  # noqa: B009 - a table of its own kind
    agent = "DiscordBot (chat-gateway, 1)"
    base = str(getattr(table, "api_base_url")).rstrip("/")  # noqa: B009 - as above
    return f"{base}/users/@me", {"Authorization": f"Bot {token}", "User-Agent": agent}


def _token(name: str, answer: httpx.Response) -> NamedFinding:
    part = f"{name} token"
    if answer.status_code in _REFUSED:
        text = f"{name} rejects it (HTTP {answer.status_code})"
        return part, "fail", text, f"renew channels.{name}.token; docs/{name}.md says where to get one"
    if answer.status_code != 200:
        return part, "warn", f"{name} answers with HTTP {answer.status_code}", "try again later"
    return part, "ok", f"{name} accepts it", ""


def _clock(name: str, answer: httpx.Response) -> list[NamedFinding]:
    try:
        there = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError):
        return []
    apart_s = (durable.now() - there.astimezone(UTC)).total_seconds()
    if abs(apart_s) <= APART_S:
        return [("clock", "ok", f"within {APART_S:g} s of {name}'s", "")]
    way = "ahead of" if apart_s > 0 else "behind"
    return [
        ("clock", "warn", f"{abs(apart_s):.0f} s {way} {name}'s", "set the clock: timedatectl set-ntp true")
    ]
