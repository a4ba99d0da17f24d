"""``chat -m`` and ``parked``, attached to a daemon and without one: the same errors with the same cures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.roster import Roster
from tests.gateway.http_place import Place, open_place

KEYS = ("Bad Channel:x", "nocolon", "cli:", ":x", "cli:" + "x" * 5000, "cli:\udcff")


def run(workspace: Path, *argv: str) -> int:
    return main([*argv, "--workspace", str(workspace)])


async def attached(place: Place, *argv: str) -> int:
    """Run a verb beside this daemon, as another process does."""
    workspace = place.house.settings.workspace
    with Roster(workspace).entry(url=place.server.url, role="all"):
        return await asyncio.to_thread(run, workspace, *argv)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_no_letter_can_have(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before anything is put, so that no letter of it can wait or be parked."""
    code = run(tmp_path, "chat", "-m", "hi", "--key", key, "--timeout", "5")
    out, words = capsys.readouterr()
    parked = run(tmp_path, "parked", "list")

    assert (code, out) == (1, "")
    assert "try: a key is channel:chat_id" in words
    assert (parked, capsys.readouterr()) == (0, ("", "nothing is parked\n"))


async def test_no_key_beside_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words come where a daemon runs."""
    async with open_place(tmp_path) as place:
        for key in KEYS:
            assert await attached(place, "chat", "-m", "hi", "--key", key, "--timeout", "5") == 1
            assert "try: a key is channel:chat_id" in capsys.readouterr().err


async def test_cures_are_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a daemon refuses is cured by the same command as without one, not by a route of the API."""
    verbs = {
        ("parked", "show", "v2"): "chat-gateway parked list",
        ("parked", "retry", "v2"): "chat-gateway parked list",
        ("parked", "drop", "v2"): "chat-gateway parked list",
        ("cron", "run", "x"): "chat-gateway cron list",
    }
    for verb, cure in verbs.items():
        assert await asyncio.to_thread(run, tmp_path, *verb) == 1
        assert capsys.readouterr().err.endswith(f"try: {cure}\n")

    async with open_place(tmp_path) as place:
        for verb, cure in verbs.items():
            assert await attached(place, *verb) == 1
            assert capsys.readouterr().err.endswith(f"try: {cure}\n")
        for chat in ("ada", "bob"):
            await place.post("x" * (2**20 + 1), chat=chat, id="one", wait=10)
        assert await attached(place, "parked", "drop", "web:one") == 1
        assert "try: name the key by --key" in capsys.readouterr().err
        assert await attached(place, "parked", "drop", "web:one", "--key", "web:bob") == 0
