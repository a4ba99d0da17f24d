"""Only files of ``media/`` and of the chat's own scope leave the workspace, whoever put the letter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from channels.message import Attachment, Outbound
from gateway.config.settings import Settings
from gateway.outbound.attachments import folders_by, media_alone
from session.context.scopes import Chat
from session.memory.scope_resolver import remember_chat_kind
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.gateway.delivery_place import Place, reply

ADA, GROUP, JOB = "telegram:1", "telegram:-5", "cron:j1@2026-01-01T09:00:00Z"
PHOTO, SHARED = "media/ab/cat.jpg", "files/shared.txt"
OWN, THEIRS = "files/chats/telegram_1/own.txt", "files/chats/telegram_-5/theirs.txt"
REFS = (
    *(PHOTO, SHARED, OWN, THEIRS),
    "files/chats/cron_j1/job.txt",
    "agents/clerk/files/shared.txt",
    "agents/clerk/files/chats/telegram_-5/theirs.txt",
    "agents/clerk/files/people/bob/his.txt",
    "memory/MEMORY.md",
    "sessions/telegram_1.jsonl",
    "chat-gateway.toml",
)


async def heard(workspace: Path, key: str, chat: Chat) -> None:
    """Let a platform tell what a chat is."""
    store = Store(workspace, zone=UTC)
    async with store.open(SessionKey(key)) as session:
        await remember_chat_kind(session, chat)
        await session.append(
            [make_line("user", "hi", "2026-01-01T09:00:00+00:00", message_id="telegram:1:1")]
        )
    await store.aclose()


def letter(key: str, in_reply_to: str = "telegram:1:1") -> Outbound:
    channel, _, chat_id = key.partition(":")
    return Outbound(
        id="x#reply",
        key=key,
        channel=channel,
        chat_id=chat_id,
        text="here",
        in_reply_to=in_reply_to,
        attachments=[Attachment(name=ref, ref=ref) for ref in REFS],
    )


def make_files(workspace: Path) -> None:
    for ref in REFS:
        path = workspace / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.exists() or path.write_text(ref)


async def leaving(workspace: Path, folders: Sequence[Path]) -> list[str]:
    """Send a letter with all files; return those that the platform got."""
    make_files(workspace)
    place = Place(workspace)
    place.may_leave = list(folders)
    await place.delivered(reply(1, "here", files=letter(ADA).attachments))
    return [held.decode() for held in place.platform.files.values()]


@pytest.mark.parametrize("asked", ["telegram:1:1", JOB])
@pytest.mark.parametrize(
    ("scope", "key", "expected"),
    [("chat", ADA, OWN), ("chat", GROUP, THEIRS), ("workspace", ADA, SHARED), ("workspace", GROUP, THEIRS)],
)
async def test_a_letter_brings_what_its_chat_may_see(
    tmp_path: Path, scope: str, key: str, asked: str, expected: str
) -> None:
    await heard(tmp_path, ADA, "direct")
    await heard(tmp_path, GROUP, "group")
    table: dict[str, Any] = {"workspace": tmp_path, "memory": {"scope": scope}}
    folders = folders_by(Settings.model_validate(table))

    assert set(await leaving(tmp_path, await folders(letter(key, asked)))) == {PHOTO, expected}


async def test_an_agent_that_shares_its_files_sends_none_of_its_other_scopes(tmp_path: Path) -> None:
    """What its groups and people put beside the shared files is theirs."""
    make_files(tmp_path)
    await heard(tmp_path, ADA, "direct")
    agents = {"clerk": {"memory": {"scope": "workspace"}}}
    settings = Settings.model_validate({"workspace": tmp_path, "agents": agents})
    folders = await folders_by(settings)(letter(ADA))

    assert set(await leaving(tmp_path, folders)) == {PHOTO, OWN, "agents/clerk/files/shared.txt"}


async def test_without_a_word_about_scopes_only_media_leaves(tmp_path: Path) -> None:
    assert await leaving(tmp_path, await media_alone(letter(ADA))) == [PHOTO]
