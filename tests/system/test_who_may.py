"""Whole gateways and people who may not: what they send, and what they make of it by editing."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx

from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.place import lines_of, with_model, write
from tests.support.telegram_server import TelegramServer
from tests.support.usage_rows import called
from tests.system.platform_place import ADA, told, with_telegram

GROUP, STRANGER = -1001234567890, 777


async def test_who_may_not_begin_anew_in_a_group_does_not_by_editing(tmp_path: Path) -> None:
    """A text that waits behind a turn and is edited to ``/new`` is asked as the text that it was."""
    async with TelegramServer() as server, ModelServer() as model:
        config = with_telegram(server, stream=False, groups="all")
        config |= with_model(model)
        async with Daemon(tmp_path, config=config):
            held = asyncio.Event()
            model.script.append(Reply(text="stub: first", held=held))
            server.write(GROUP, "first", user=STRANGER)
            await model.arrived(1)
            waiting = server.write(GROUP, "second", user=STRANGER)
            edit = server.write(GROUP, "/new", user=STRANGER, edited=server.message_of[waiting])
            await server.until_confirmed(edit)
            held.set()
            await server.said(GROUP, lambda sent: sent.text.startswith("stub: ") and "second" in sent.text)

    lines = lines_of(tmp_path, f"telegram_{GROUP}")
    assert [line["content"] for line in lines if line["role"] == "user"] == ["first", "second"]
    assert not (tmp_path / "sessions" / "archive").exists()


SECRET, PROFILE = "the safe opens with 4711", "Ada is the owner"
GROUP_TOOLS = {"skill_read"}


async def owned(workspace: Path, server: TelegramServer, model: ModelServer) -> dict[str, Any]:
    """Fill the owner's memory, which all direct chats share; return the configuration."""
    write(workspace / "memory" / "MEMORY.md", SECRET)
    write(workspace / "memory" / "USER.md", PROFILE)
    config = with_telegram(server, stream=False, groups="all", allow_from=[str(ADA)])
    # A consolidation behind a turn would write the stub's words over the secret, sooner or later: there is
    # nothing left for it.
    await called(workspace, int(time.time()) // 60)
    more = {
        "memory.scope": "workspace",
        "tools.groups": ["skill_read"],
        "limits.background_calls_per_hour": 1,
    }
    return config | with_model(model, **more)


def shown(seen: Seen) -> tuple[bool, set[str]]:
    """Say whether a request held the owner's memory or profile, and which tools it offered."""
    sent = json.dumps(seen.messages)
    assert (SECRET in sent) == (PROFILE in sent)
    return SECRET in sent, set(seen.tools)


async def test_a_group_never_sees_the_owners_memory_whoever_speaks_in_it(tmp_path: Path) -> None:
    """By its own people, over HTTP, by ``chat --key`` and by a job; the owner's own chats do."""
    async with TelegramServer() as server, ModelServer() as model:
        config = await owned(tmp_path, server, model)
        async with Daemon(tmp_path, config=config) as daemon:
            server.write(GROUP, "what opens the safe?", user=STRANGER)
            await server.said(GROUP)
            server.write(ADA, "what opens the safe?")
            await server.said(ADA)
            to_group = f"telegram:{GROUP}"
            async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
                rows = (await http.get("/v1/sessions")).json()["sessions"]
                (ulid,) = [row["id"] for row in rows if row["key"] == to_group]
                answered = await http.post(f"/v1/sessions/{ulid}/messages?wait=60", json={"text": "by http"})
                assert answered.status_code == 200
            for key in (to_group, "telegram:-77", f"telegram:{ADA}", "cli:direct"):
                assert await ask(daemon, key, f"to {key}", "and now?") is not None
            await told(tmp_path, "chat", "--key", to_group, "-m", "by chat")
            for key in (to_group, f"telegram:{ADA}"):
                await told(tmp_path, "cron", "add", "--at", "2099-01-01T09:00", "--message", key, "--to", key)
            for row in json.loads(await told(tmp_path, "cron", "list", "--json")):
                await told(tmp_path, "cron", "run", row["id"])
            await model.finished(10)

    direct = {"read", "write", "edit", "ls", "grep", "profile", "memory_search", "schedule", "send_file"}
    direct |= {"spawn", *GROUP_TOOLS}
    asked = [shown(seen) for seen in model.seen[:7]]
    assert asked == [
        (False, GROUP_TOOLS), (True, direct),  # from the group, from the direct chat
        (False, GROUP_TOOLS),  # into the group's session
        (False, GROUP_TOOLS), (False, GROUP_TOOLS), (True, direct), (True, direct),  # by key
    ]  # fmt: skip
    assert shown(model.seen[7]) == (False, GROUP_TOOLS)
    jobs = {to_group in json.dumps(seen.messages): shown(seen) for seen in model.seen[8:]}
    assert jobs == {True: (False, GROUP_TOOLS), False: (True, direct)}


async def test_what_a_group_is_outlives_a_new_conversation_and_the_daemon(tmp_path: Path) -> None:
    """The session that ``/new`` begins knows it from the one before, and so does the next daemon."""
    async with TelegramServer() as server, ModelServer() as model:
        config = await owned(tmp_path, server, model)
        async with Daemon(tmp_path, config=config):
            server.write(ADA, "hello")
            await server.said(ADA)
            server.write(ADA, "/new")
            await server.said(ADA, lambda sent: "new conversation" in sent.text)
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, f"telegram:{ADA}", "late", "and now?") is not None

    # Behind the turn, the conversation that ended goes into memory: that request has no tools of a turn.
    (asked,) = [seen for seen in model.seen if "and now?" in json.dumps(seen.messages)]
    assert shown(asked)[0]
