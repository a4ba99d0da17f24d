"""A whole run of many chats, people and groups, each with a secret that nobody else may come to see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from ulid import ULID

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, head_of, transcript, with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import with_telegram
from tests.system.stray_cast import (
    PEOPLE,
    Cast,
    asked_for,
    key_of,
    letters,
    stem_of,
    strays,
)

# With a scope of their own each of twenty chats; with one that is shared, a few show as much.
CASTS = [Cast("chat", range(111, 131)), Cast("workspace", (111, 112))]


async def spoke(daemon: Daemon, server: TelegramServer | None, chat: int | str, text: str) -> str:
    """Say something in a chat, and return what it is answered."""
    if isinstance(chat, str):
        answer = await answer_to(daemon, chat, str(ULID()), text)
        return str(answer["reply"])
    assert server is not None

    def texts() -> list[str]:
        return [sent.text for sent in server.sent_to(chat) if sent.text]

    before = len(texts())
    server.write(chat, text, user=chat if chat > 0 else 101)
    await server.until(lambda: len(texts()) > before)
    return texts()[before]


async def talked(daemon: Daemon, server: TelegramServer, chat: int | str, said: Sequence[str]) -> list[str]:
    """Say all of these in one chat, one after the other; return what it was answered to each."""
    return [await spoke(daemon, server, chat, text) for text in said]


@guarantee("leaks", "Nothing of a chat, person or group appears in another one, in logs or in metrics.")
@pytest.mark.parametrize("cast", CASTS, ids=lambda cast: cast.kind)
async def test_nothing_of_a_scope_is_seen_in_another(tmp_path: Path, cast: Cast) -> None:
    """Requests, tools, replies, notices, jobs, summaries, facts, notes, the log, metrics, searches, verbs."""
    cast.plant(tmp_path)
    people = {name: [key_of(chat) for chat in chats] for name, chats in PEOPLE.items()}
    told: dict[int | str, list[str]] = {chat: [] for chat in cast.chats}
    async with TelegramServer() as server, ModelServer() as model:
        config = with_model(model, **with_telegram(server, stream=False, groups="all", allow_from=["101"]))
        config |= {"people": people, "memory.scope": cast.kind, "facts.idle_s": 2.0}
        config |= {"limits.background_calls_per_hour": 9999, "limits.background_calls_per_day": 9999}
        async with Daemon(tmp_path, config=config) as daemon:
            for part in range(3):
                if part == 2:
                    await drawn(tmp_path, cast)
                spoken = (talked(daemon, server, chat, cast.life(chat)[part]) for chat in cast.chats)
                for chat, answers in zip(cast.chats, await asyncio.gather(*spoken), strict=True):
                    told[chat] += answers
            jobs = await jobs_answered(daemon, server, cast)
            await settled(tmp_path, cast)
            pages, found = await looked_up(daemon, cast)
            pages.append((await command(tmp_path, "status", "--json", config=config))[1])
            assert await daemon.stop() == 0
        printed = {chat: await shown(tmp_path, config, chat) for chat in ("cli:ada", -204)}
        asked(cast, model)

    for chat, answers in told.items():
        assert not strays(json.dumps(answers), cast.owner_of(chat)), (chat, answers)
        for kind in ("memory", "known", "fact"):
            assert any(cast.secret(chat, kind) in answer for answer in answers), (chat, kind, answers)
    assert jobs
    for sent in server.sent:
        assert not strays(sent.text, cast.owner_of(sent.chat_id)), sent
    for text in (daemon.log.decode(), *pages):
        assert not strays(text, ""), strays(text, "")
    for chat, text in [*found.items(), *printed.items()]:
        assert cast.secret(chat, "history") in text
        assert not strays(text, cast.owner_of(chat)), chat
    kept(tmp_path, cast)


def asked(cast: Cast, model: ModelServer) -> None:
    """Look at all that the model was sent: each scope's own was there to be seen, and nothing else."""
    requests = [json.dumps(seen.body) for seen in [*model.seen, *model.asides]]
    for text in requests:
        owner = asked_for(text) or ""
        assert not strays(text, owner), (owner, strays(text, owner))
    for chat in cast.chats:
        # A group's tools are fewer.
        by_tools = () if is_group(chat) else ("file", "words", "history")
        for kind in ("memory", "profile", "known", "fact", *by_tools):
            assert any(cast.secret(chat, kind) in text for text in requests), (chat, kind)
    owners = {asked_for(json.dumps(seen.body)) for seen in model.turns}
    assert owners >= {letters(owner) for owner in cast.owners}
    drawn_for = {asked_for(json.dumps(seen.body)) for seen in model.seen if seen.tools == ["save_facts"]}
    assert drawn_for == {letters(owner) for owner in cast.owners}


def is_group(chat: int | str) -> bool:
    return isinstance(chat, int) and chat < 0


async def looked_up(daemon: Daemon, cast: Cast) -> tuple[list[str], dict[int | str, str]]:
    """Return the pages about all chats, which show no text, and what a search of each chat finds."""
    paths = ("/metrics", "/v1/status", "/readyz", "/v1/sessions")
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        pages = [(await http.get(path)).text for path in paths]
        found = {}
        for chat in cast.chats:
            query = {"key": key_of(chat), "q": "sesame history memory", "limit": "1000", "neighbours": "5"}
            answer = await http.get("/v1/memory/search", params=query)
            assert answer.status_code == 200, answer.text
            found[chat] = answer.text
    return pages, found


async def shown(workspace: Path, config: Mapping[str, Any], chat: int | str) -> str:
    """Return what the verbs about memory print of a chat."""
    printed = ""
    for verb in (["show"], ["facts"], ["search", "sesame"]):
        words = [verb[0], key_of(chat), *verb[1:]]
        code, text = await command(workspace, "memory", *words, "--json", config=config)
        assert code == 0
        printed += text
    return printed


async def jobs_answered(daemon: Daemon, server: TelegramServer, cast: Cast) -> Sequence[str]:
    """Run a job that answers each of some chats and reads the files of that chat; return the answers."""
    chats = (101, 111, -201, -204)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        for chat in chats:
            text = f'{cast.who(chat)} job [[tool:read {{"path": "notes.txt"}}]]'
            job = {"at": "2099-01-01T09:00", "message": text, "to": key_of(chat)}
            row = (await http.post("/v1/cron", json=job)).json()
            assert (await http.post(f"/v1/cron/{row['id']}/run")).status_code == 202
    return [(await server.said(chat, lambda sent: " job" in sent.text)).text for chat in chats]


async def drawn(workspace: Path, cast: Cast) -> None:
    """Wait until facts were drawn from every chat."""

    def so() -> bool:
        paths = {workspace / "memory" / cast.folder_of(chat) / "facts.jsonl" for chat in cast.chats}
        return all("-fact" in path.read_text() for path in paths)

    await until(so, 120)


async def settled(workspace: Path, cast: Cast) -> None:
    """Wait until the background has put every ended conversation into memory, with its summary."""

    def so() -> bool:
        ended = [path for chat in cast.chats for path in archives(workspace, stem_of(chat))]
        done = [path for path in ended if head_of(path)["metadata"].get("summary")]
        jobs = list((workspace / "state/jobs").glob("*.json"))
        return len(ended) >= len(cast.chats) and done == ended and not jobs

    await until(so, 120)


def kept(workspace: Path, cast: Cast) -> None:
    """Look at what was written: each scope's folder holds its own secrets alone."""
    for chat in cast.chats:
        owner = cast.owner_of(chat)
        for top in ("memory", "files"):
            folder = workspace / top / cast.folder_of(chat)
            # The folder of the workspace has those of other scopes below it.
            for path in folder.rglob("*") if cast.folder_of(chat) else folder.glob("*"):
                text = path.read_text() if path.is_file() else ""
                assert not strays(text, owner), path
        for path in (transcript(workspace, stem_of(chat)), *archives(workspace, stem_of(chat))):
            assert not strays(path.read_text(), owner), path
