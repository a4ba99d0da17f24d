"""A chat that has left something in every place, and a look for it in every byte of the workspace."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from ulid import ULID

from channels.pairing import Pairing
from tests.support.harness import Daemon, ask, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import archives, head_of, with_model, write
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import with_telegram

ADA, BOB = 101, 102
KEY = f"telegram:{ADA}"
MEDIA = b"sesame in a file"
HASH = hashlib.sha256(MEDIA).hexdigest().encode()
# All that Ada's chats leave behind holds one of these.
SECRETS = (b"sesame", b"fact-7777", HASH)


def configured(model: ModelServer, server: TelegramServer, **more: Any) -> dict[str, Any]:
    """Have facts drawn soon, texts compared, and conversations compacted when they are told to be."""
    numbers = {
        "facts.idle_s": 3.0,
        "model.embedding": "openai/emb",
        "history.mode": "relevant",
        "compaction.keep_recent_tokens": 20,
    }
    return with_model(model, **numbers, **with_telegram(server, stream=False), **more)


async def lived(daemon: Daemon, server: TelegramServer, model: ModelServer, *, below: str) -> None:
    """Let Ada talk, with tools, files, jobs and commands; ``below`` is the folder of her memory.

    A daemon runs; at the end the answer to her last message but two is under way.
    """
    workspace = daemon.workspace
    await said(server, BOB, "good day from Bob")
    write(workspace / f"memory/{below}/USER.md", "sesame profile\n")
    write(workspace / f"memory/{below}/versions/USER.md/1", "sesame version\n")
    write(workspace / "memory/chats/telegram_102/MEMORY.md", "- Bob likes tea\n")
    Pairing(workspace / "state").admit("telegram", str(ADA), kind="person", name="sesame paired")
    Pairing(workspace / "state").admit("telegram", str(BOB), kind="person", name="Bob")

    tool = 'write {"path": "sesame.txt", "content": "sesame written"}'
    await said(
        server, ADA, f"sesame one [[tool:{tool}]]", files=[("document", "sesame.txt", MEDIA, "text/plain")]
    )
    await said(server, ADA, "sesame two")
    model.script.append(fact("sesame fact"))
    await until(lambda: b"sesame fact" in content(workspace / f"memory/{below}/facts.jsonl"))

    model.aside.extend([Reply(text="sesame aside"), Reply(text="sesame other aside")])
    model.script.append(notes("sesame history", "- sesame memory"))
    await said(server, ADA, "/new")
    await until(lambda: b"sesame memory" in content(workspace / f"memory/{below}/MEMORY.md"))
    await until(
        lambda: all("summary" in head_of(path)["metadata"] for path in archives(workspace, f"telegram_{ADA}"))
    )

    await said(server, ADA, 'sesame three [[tool:memory_search {"query": "sesame written"}]]')
    await said(server, ADA, f"fact-7777 sesame four {'and more ' * 60}")
    await said(server, ADA, f"sesame five {'and more ' * 60}")
    await said(server, ADA, "/compact")
    await said(server, ADA, "[[refuse]] sesame parked")
    with (workspace / f"sessions/telegram_{ADA}.jsonl.corrupt-{ULID()}").open("w") as copy:
        copy.write("sesame original")
    await job(daemon, server)
    await ask(daemon, "cli:ada", str(ULID()), "sesame at the terminal")
    write(workspace / "state/chat_history", "\n# 2026-01-01\n+sesame typed\n")

    server.write(ADA, "[[hang]] sesame running")
    for number in range(2):
        server.write(ADA, f"sesame waiting {number}")

    async def waits() -> bool:
        lanes = {lane["key"]: lane["waiting"] for lane in (await status(daemon))["lanes"]}
        return lanes.get(KEY) == 2 and any("sesame running" in seen.text for seen in model.turns)

    await until(waits)


async def job(daemon: Daemon, server: TelegramServer) -> None:
    """Have a job answer Ada's chat, and one that answers Bob's."""
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
        for to, text in ((ADA, "sesame job"), (BOB, "job of Bob")):
            body = {"at": "2099-01-01T09:00", "message": text, "to": f"telegram:{to}"}
            row = (await http.post("/v1/cron", json=body)).json()
            assert (await http.post(f"/v1/cron/{row['id']}/run")).status_code == 202
            await server.said(to, lambda sent, text=text: text in sent.text)


async def said(server: TelegramServer, chat: int, text: str, **more: Any) -> str:
    """Say something, and return what is answered."""
    before = len(server.sent_to(chat))
    who = {"id": chat, "is_bot": False, "first_name": "sesame" if chat == ADA else "Bob"}
    server.write(chat, text, user=who, **more)
    await server.until(lambda: len(server.sent_to(chat)) > before)
    return server.sent_to(chat)[before].text


def fact(text: str) -> Reply:
    item = {"text": text, "category": "background", "confidence": 0.95, "message": 1}
    return Reply(tool_calls=[("save_facts", json.dumps({"facts": [item]}))])


def notes(entry: str, memory: str) -> Reply:
    return Reply(tool_calls=[("save_memory", json.dumps({"history_entry": entry, "memory_update": memory}))])


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def files(workspace: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every path of the workspace with its bytes, SQLite's own files among them."""
    for path in sorted(workspace.rglob("*")):
        if path.is_file():
            yield path.relative_to(workspace).as_posix(), path.read_bytes()


def traces(workspace: Path) -> list[tuple[str, str]]:
    """List where something of Ada is: in names of files, or in their bytes."""
    found = []
    for name, data in files(workspace):
        for secret in SECRETS:
            if secret.lower() in data.lower() or secret in name.encode():
                at = data.lower().find(secret.lower())
                found.append((name, repr(data[max(at - 80, 0) : at + 80])))
    return found


def neighbours(workspace: Path) -> dict[str, bytes]:
    """Return the files that are Bob's alone."""
    own = [
        path
        for path in workspace.rglob("*")
        if path.is_file() and ("telegram_102" in path.as_posix()) and not path.name.endswith(".lock")
    ]
    return {path.relative_to(workspace).as_posix(): path.read_bytes() for path in own}
