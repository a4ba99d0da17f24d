"""Backups taken while a hundred chats talk: each has every answer, and a start goes on from it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, command, status
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model
from tests.support.until import until

pytestmark = guarantee(
    "storage", "A backup taken under load has every answer, and a gateway started from it repeats no request."
)

CHATS = 100
Told = dict[tuple[str, str], str]


def client_of(daemon: Daemon) -> httpx.AsyncClient:
    """One client for all chats."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CHATS)
    return httpx.AsyncClient(base_url=daemon.url, timeout=90, limits=limits)


class Talk:
    """A hundred chats, each of which says the next thing once it has its answer."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.told: Told = {}
        self._client = client
        self._enough = asyncio.Event()

    async def run(self) -> None:
        """Talk until it is enough."""
        async with asyncio.TaskGroup() as group:
            for number in range(CHATS):
                group.create_task(self._chat(f"c{number:03}"))

    def end(self) -> None:
        """Let each chat have its last answer."""
        self._enough.set()

    async def _chat(self, chat: str) -> None:
        for number in range(1000):
            if self._enough.is_set():
                return
            id_ = f"{chat}-{number:03}"
            body = {"chat_id": chat, "text": f"say {id_}", "id": id_}
            answer = await self._client.post("/v1/messages?wait=60", json=body)
            self.told[chat, id_] = str(answer.json()["reply"])


async def backed_up(workspace: Path, target: Path, talk: Talk, config: dict[str, Any]) -> Told:
    """Take a backup while the chats talk; return what was told before it began."""
    talking = asyncio.create_task(talk.run())
    await until(lambda: len(talk.told) >= CHATS, 120)
    before = dict(talk.told)
    code, _ = await command(workspace, "backup", "create", str(target), config=config)
    assert code == 0
    talk.end()
    await talking
    assert len(talk.told) > len(before)
    return before


def check_restored(workspace: Path, told: Told) -> None:
    """Every message that was answered stands there once, with its answer, in the order of its chat."""
    for chat in {chat for chat, _ in told}:
        lines = lines_of(workspace, f"web_{chat}")
        asked = [line["message_id"].removeprefix("web:") for line in lines if line["role"] == "user"]
        answers = {
            line["message_id"].removeprefix("web:"): line["content"] for line in lines if line.get("final")
        }
        ids = sorted(id_ for of, id_ in told if of == chat)
        assert asked[: len(ids)] == ids
        assert asked == sorted(set(asked))
        assert {id_: answers.get(id_) for id_ in ids} == {id_: told[chat, id_] for id_ in ids}


async def test_under_load_embedded(tmp_path: Path) -> None:
    """What waited is gone on with, unasked; an answered message is answered from its transcript."""
    backup, new = tmp_path / "a.tar", tmp_path / "new"
    async with ModelServer() as model:
        model.delay_s = 0.05
        config = with_model(model, **{"facts.enabled": False, "limits.concurrent_turns": 20})
        async with Daemon(tmp_path / "old", config=config) as daemon, client_of(daemon) as client:
            before = await backed_up(tmp_path / "old", backup, Talk(client), config)
        code, printed = await command(new, "backup", "verify", str(backup), "--json", config=config)
        report = json.loads(printed)
        assert (code, report["problems"]) == (0, [])
        assert report["waiting"] > 0
        assert report["answered"] >= len(before)
        assert (await command(new, "backup", "restore", str(backup), config=config))[0] == 0
        check_restored(new, before)

        model.delay_s = 0
        async with Daemon(new, config=config) as daemon:

            async def done() -> bool:
                found = await status(daemon)
                return found["lanes"] == [] and found["queues"]["inbound"]["count"] == 0

            await until(done, 60)
            asked = len(model.seen)
            assert asked > 0
            (chat, id_), reply = next(iter(before.items()))
            again = await answer_to(daemon, f"web:{chat}", id_, f"say {id_}")
            assert again["reply"] == reply
            assert len(model.seen) == asked
            assert await daemon.stop() == 0
        check_restored(new, before)
        code, printed = await command(new, "sessions", "verify", "--json", config=config)
        assert (code, json.loads(printed)) == (0, [])
