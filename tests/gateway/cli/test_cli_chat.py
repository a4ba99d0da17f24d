"""``chat -m`` and ``parked``, attached to a daemon and without one: the same errors with the same cures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.app.daemons import DaemonRegistry
from gateway.errors import MailboxDown, Unreachable
from gateway.http import operation
from gateway.http.client import Client
from gateway.inbound.pipeline import Intake
from session.errors import StoreError
from tests.gateway.cli_place import Ran
from tests.gateway.http_place import Place, open_place

KEYS = ("Bad Channel:x", "nocolon", "cli:", ":x", "cli:" + "x" * 5000, "cli:\udcff")


async def attached(place: Place, *argv: str) -> Ran:
    """Run a verb beside this daemon, as another process does."""
    workspace = place.application.settings.workspace
    with DaemonRegistry(workspace).entry(url=place.server.url, role="all"):
        return await asyncio.to_thread(Ran, workspace, *argv)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_no_letter_can_have(key: str, tmp_path: Path) -> None:
    """It is refused before anything is put, so that no letter of it can wait or be parked."""
    ran = Ran(tmp_path, "chat", "-m", "hi", "--key", key, "--timeout", "5")
    parked = Ran(tmp_path, "parked", "list")

    assert (ran.code, ran.out) == (1, "")
    assert "try: a key is channel:chat_id" in ran.err
    assert (parked.code, parked.out, parked.err) == (0, "", "no parked messages\n")


async def test_cures_are_commands(tmp_path: Path) -> None:
    """What a daemon refuses is cured by the same command as without one, not by a route of the API."""
    verbs = {
        ("parked", "show", "v2"): "chat-gateway parked list",
        ("parked", "retry", "v2"): "chat-gateway parked list",
        ("parked", "drop", "v2"): "chat-gateway parked list",
        ("cron", "run", "x"): "chat-gateway cron list",
    }
    for verb, cure in verbs.items():
        ran = await asyncio.to_thread(Ran, tmp_path, *verb)
        assert (ran.code, ran.err.endswith(f"try: {cure}\n")) == (1, True), verb

    async with open_place(tmp_path) as place:
        for verb, cure in verbs.items():
            ran = await attached(place, *verb)
            assert (ran.code, ran.err.endswith(f"try: {cure}\n")) == (1, True), verb
        for chat in ("ada", "bob"):
            await place.post("x" * (2**20 + 1), chat=chat, id="one", wait=30)
        ran = await attached(place, "parked", "drop", "web:one")
        assert (ran.code, "try: choose one with --key" in ran.err) == (1, True)
        assert (await attached(place, "parked", "drop", "web:one", "--key", "web:bob")).code == 0


@pytest.mark.slow
async def test_a_queue_that_is_away(tmp_path: Path) -> None:
    """It is said once that the daemon cannot store the message now; the end names its reason, and is 69."""
    async with open_place(tmp_path) as place:
        place.server.chats.accept_within_s = 0.2
        place.application.intake = Away()  # type: ignore[assignment]
        ran = await attached(place, "chat", "-m", "hi", "--timeout", "2")
        place.application.intake = Intake(place.application.mailbox)

    assert (ran.code, ran.out) == (69, "")
    assert ran.err.count("the queue did not confirm the message in time; trying again") == 1
    assert ran.err.endswith("the queue did not confirm the message in time\ntry: chat-gateway doctor\n")


async def test_a_message_goes_in_when_the_queue_is_back(tmp_path: Path) -> None:
    """The same message is handed in until it is stored, and answered."""
    async with open_place(tmp_path) as place, Client(place.server.url) as client:
        place.server.chats.accept_within_s = 0.2
        place.application.intake = Away()  # type: ignore[assignment]
        told: list[str] = []

        def back(reason: str) -> None:
            told.append(reason)
            place.application.intake = Intake(place.application.mailbox)

        outcome = await client.ask("cli:direct", "hello", "one", within_s=30, away=back)

    assert outcome is not None
    assert outcome.text == "echo: hello"
    assert len(told) == 1


async def test_a_refusing_store_keeps_its_own_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 is answered by a daemon that runs: nobody is told to start one."""

    async def refuse(_: object) -> dict[str, Any]:
        raise StoreError("no space", hint="free some space")

    monkeypatch.setattr(operation, "status_of", refuse)
    async with open_place(tmp_path) as place, Client(place.server.url) as client:
        with pytest.raises(Unreachable) as caught:
            await client.status()

    assert "no space" in str(caught.value)
    assert caught.value.hint == "free some space"


class Away:
    """An intake whose queue is away."""

    async def accept(self, _: object) -> None:
        raise MailboxDown("away")
