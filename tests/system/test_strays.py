"""A whole run of many chats, people and groups, each with a secret that nobody else may come to see."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from ulid import ULID

from tests.support.harness import Daemon, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, head_of, transcript, with_model, write
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import with_telegram

SECRET = re.compile(r"sesame-([a-z]+)-[a-z]+")
# Who is who: the chats of three people, two chats of nobody in particular, four groups (one of them listed).
PEOPLE = {"ada": [101, "cli:ada"], "bob": [102, "web:bob"], "cem": [103, -204]}
SINGLE, GROUPS = (111, 112), (-201, -202, -203, -204)
WORDS = {**{str(number): f"chat{number}" for number in SINGLE}, **{str(n): f"group{-n}" for n in GROUPS}}


def secret(owner: str, kind: str) -> str:
    """Name what only ``owner`` may know; digits become letters, since the log has many numbers."""
    return f"sesame-{letters(owner)}-{kind}"


def letters(owner: str) -> str:
    return "".join(chr(ord("a") + int(c)) if c.isdigit() else c for c in owner)


def owner_of(chat: int | str) -> str:
    """Say whose a chat is: the person's who has it, its own where it is a group or nobody has it."""
    person = next((name for name, chats in PEOPLE.items() if chat in chats), None)
    is_group = isinstance(chat, int) and chat < 0
    return person if person is not None and not is_group else WORDS[str(chat)]


def folder_of(chat: int | str) -> str:
    owner = owner_of(chat)
    return f"people/{owner}" if owner in PEOPLE else f"chats/telegram_{chat}"


def key_of(chat: int | str) -> str:
    return chat if isinstance(chat, str) else f"telegram:{chat}"


CHATS: Sequence[int | str] = (*SINGLE, *GROUPS, *(c for chats in PEOPLE.values() for c in chats if c != -204))


def planted(workspace: Path) -> None:
    """Put a secret of each scope into each kind of file that a scope has."""
    for chat in CHATS:
        below, owner = folder_of(chat), owner_of(chat)
        write(workspace / "memory" / below / "MEMORY.md", f"- {secret(owner, 'memory')}\n")
        write(workspace / "memory" / below / "USER.md", f"{secret(owner, 'profile')}\n")
        write(workspace / "memory" / below / "HISTORY.md", f"[2026-01-01 09:00] {secret(owner, 'history')}\n")
        write(workspace / "files" / below / "notes.txt", f"{secret(owner, 'file')}\n")
        # What a chat had before it was a person's is nobody's now; the same of a group that is listed.
        stem = key_of(chat).replace(":", "_")
        if below.startswith("people/"):
            write(workspace / "memory" / "chats" / stem / "MEMORY.md", f"- {secret('nobody', 'memory')}\n")


def strays(text: str, allowed: str) -> set[str]:
    """List the secrets in a text that are not those of ``allowed``."""
    return {found[0] for found in SECRET.finditer(text) if found[1] != letters(allowed)}


def asked_for(text: str) -> str | None:
    """Say whose request it is, by the word that its chat says in each of its messages."""
    found = set(re.findall(r"i-am-([a-z]+)", text))
    assert len(found) <= 1, found
    return found.pop() if found else None


async def spoke(daemon: Daemon, server: TelegramServer, chat: int | str, text: str) -> str:
    """Say something in a chat, and return what it is answered."""
    if isinstance(chat, str):
        answer = await ask(daemon, chat, str(ULID()), text)
        assert answer is not None
        return str(answer["reply"])

    def texts() -> list[str]:
        return [sent.text for sent in server.sent_to(chat) if sent.text]

    before = len(texts())
    server.write(chat, text, user=chat if chat > 0 else 101)
    await server.until(lambda: len(texts()) > before)
    return texts()[before]


async def talked(
    daemon: Daemon, server: TelegramServer, chat: int | str, said: Sequence[str]
) -> dict[str, str]:
    """Say all of these in one chat, one after the other; return what it was answered to each."""
    return {text: await spoke(daemon, server, chat, text) for text in said}


def life(chat: int | str) -> tuple[Sequence[str], Sequence[str]]:
    """What is said in a chat: words, tools and commands, then the end of a conversation and the next one."""
    who = f"i-am-{letters(owner_of(chat))}"
    calls: Sequence[tuple[str, Mapping[str, str]]] = (
        ("read", {"path": "notes.txt"}),
        ("grep", {"pattern": "sesame"}),
        ("memory_search", {"query": "i am words sesame"}),
        ("read", {"path": "../../people/bob/notes.txt"}),
        ("ls", {"path": ".."}),
    )
    look = " ".join(f"{tool} {json.dumps(arguments)}" for tool, arguments in calls)
    links = f"[[say:{who} [mine](notes.txt) [his](../bob/notes.txt)]]"
    # Few messages: a platform takes no more than one in three seconds from a bot in a group.
    first = (f"{who} {secret(owner_of(chat), 'words')} [[tool:{look}]] {links}", "/memory")
    return first, ("/new", f"{who} what did we say?")


async def test_nothing_of_a_scope_is_seen_in_another(tmp_path: Path) -> None:
    """Requests, tools, replies, jobs, summaries, notes, the log, metrics, status, files and verbs."""
    planted(tmp_path)
    people = {name: [key_of(chat) for chat in chats] for name, chats in PEOPLE.items()}
    async with TelegramServer() as server, ModelServer() as model:
        config = with_model(model, **with_telegram(server, stream=False, groups="all", allow_from=["101"]))
        config |= {"people": people}
        async with Daemon(tmp_path, config=config) as daemon:
            told = [
                await asyncio.gather(*(talked(daemon, server, chat, life(chat)[part]) for chat in CHATS))
                for part in (0, 1)
            ]
            jobs = await jobs_answered(daemon, server)
            await settled(tmp_path)
            async with httpx.AsyncClient(base_url=daemon.url) as http:
                pages = [
                    (await http.get(path)).text
                    for path in ("/metrics", "/v1/status", "/readyz", "/v1/sessions")
                ]
            assert await daemon.stop() == 0
            printed = {chat: await shown(tmp_path, config, chat) for chat in ("cli:ada", -204)}

        requests = [json.dumps(seen.body) for seen in [*model.seen, *model.asides]]
        # What is looked for was there to be seen: each scope's own notes and profile, and files by its tools.
        for owner in map(owner_of, CHATS):
            kinds = ("memory", "profile") if owner.startswith("group") else ("memory", "profile", "file")
            for kind in kinds:
                assert any(secret(owner, kind) in text for text in requests), (owner, kind)
        for text in requests:
            owner = asked_for(text) or ""
            assert not strays(text, owner), (owner, strays(text, owner))
        asked = {asked_for(json.dumps(seen.body)) for seen in model.turns}
        assert asked >= {letters(owner_of(chat)) for chat in CHATS}

    for chat, *parts in zip(CHATS, *told, strict=True):
        answers = {**parts[0], **parts[1]}
        assert not strays(json.dumps(answers), owner_of(chat)), (chat, answers)
        assert secret(owner_of(chat), "memory") in answers["/memory"], (chat, answers)
    assert jobs
    for sent in server.sent:
        assert not strays(sent.text, owner_of(sent.chat_id)), sent
    for text in (daemon.log.decode(), *pages):
        assert not strays(text, ""), strays(text, "")
    for chat, text in printed.items():
        assert secret(owner_of(chat), "history") in text
        assert not strays(text, owner_of(chat))
    kept(tmp_path)


async def shown(workspace: Path, config: Mapping[str, Any], chat: int | str) -> str:
    """Return what ``memory show`` prints of a chat."""
    code, printed = await command(workspace, "memory", "show", key_of(chat), "--json", config=config)
    assert code == 0
    return printed


async def jobs_answered(daemon: Daemon, server: TelegramServer) -> Sequence[str]:
    """Run a job that answers each of some chats and reads the files of that chat; return the answers."""
    chats = (101, 111, -201, -204)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        for chat in chats:
            text = f'i-am-{letters(owner_of(chat))} job [[tool:read {{"path": "notes.txt"}}]]'
            job = {"at": "2099-01-01T09:00", "message": text, "to": key_of(chat)}
            row = (await http.post("/v1/cron", json=job)).json()
            assert (await http.post(f"/v1/cron/{row['id']}/run")).status_code == 202
    return [(await server.said(chat, lambda sent: " job" in sent.text)).text for chat in chats]


async def settled(workspace: Path) -> None:
    """Wait until the background has put every ended conversation into memory, with its summary."""

    def so() -> bool:
        ended = [path for chat in CHATS for path in archives(workspace, key_of(chat).replace(":", "_"))]
        done = [path for path in ended if head_of(path)["metadata"].get("summary")]
        return (
            len(ended) >= len(CHATS)
            and done == ended
            # What waits for a silence of minutes waits on.
            and not [path for path in (workspace / "state/jobs").glob("*.json") if ".facts." not in path.name]
        )

    await until(so, 120)


def kept(workspace: Path) -> None:
    """Look at what was written: each scope's folder holds its own secrets alone."""
    for chat in CHATS:
        for top in ("memory", "files"):
            for path in (workspace / top / folder_of(chat)).rglob("*"):
                text = path.read_text() if path.is_file() else ""
                assert not strays(text, owner_of(chat)), path
        text = transcript(workspace, key_of(chat).replace(":", "_")).read_text()
        assert not strays(text, owner_of(chat)), chat
