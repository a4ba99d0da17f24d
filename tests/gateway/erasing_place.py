"""A workspace in which Ada and Bob have left something in every place, and what erases there."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from channels.cron.jobs import new_row
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import At
from channels.message import Attachment, Inbound
from channels.pairing import Pairing
from gateway.app.erasure import Erasure
from gateway.app.wiring_session import SessionServices
from gateway.config.settings import Settings
from gateway.outbound.send_log import SendLog
from gateway.queue.mailbox import INBOUND, ParkedAs, Post, outbound
from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval
from session.approvals.record import Call as AskedCall
from session.context.scopes import CHAT
from session.models.caps import Amount, Total
from session.models.model import Payer, Usage
from session.models.usage_rows import Held, add_row, day_of, keep
from session.store.derived import Vectors
from session.store.places import kind_of
from session.store.store import Store
from session.subagents.records import Call, SubagentFiles
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.gateway.embedded_place import opened
from tests.session.store_place import keep as keep_vectors
from tests.support.place import write
from tests.support.usage_rows import usage_row

ADA, BOB, TERMINAL = (SessionKey(key) for key in ("telegram:1", "telegram:2", "cli:ada"))
PEOPLE = {"ada": (ADA, TERMINAL)}
NOW = datetime.now(UTC)


def configured(workspace: Path, **more: Any) -> Settings:
    return Settings.model_validate({"workspace": workspace, "people": PEOPLE, **more})


def media(workspace: Path, content: bytes) -> str:
    """Keep a file that somebody sent; return how lines name it."""
    digest = hashlib.sha256(content).hexdigest()
    path = workspace / "media" / digest[:2] / f"{digest}.txt"
    write(path, content.decode())
    return path.relative_to(workspace).as_posix()


async def talked(
    store: Store, key: SessionKey, who: str, *, refs: Sequence[str] = (), sessions: int = 2
) -> None:
    """Store ended sessions and one that is open, each with words of ``who``."""
    attached = [{"kind": "file", "name": f"{who}.txt", "mime": "text/plain", "ref": ref} for ref in refs]
    for number in range(sessions):
        async with store.open(key) as session:
            if number:
                await session.end()
            await session.remember({CHAT: "direct"})
            at = datetime.now(UTC).isoformat()
            line = make_line(
                "user", f"{who} says {number}", at, message_id=f"m{number}", attachments=attached
            )
            await session.append([line])
            await session.append(
                [make_line("assistant", f"so {who}", at, final=True, message_id=f"m{number}")]
            )


def asked(key: str, who: str) -> Approval:
    """Return a question for a word about a call."""
    call = AskedCall(
        key=key,
        chat=key,
        message_id="m1",
        number=1,
        call_id="call-1",
        tool="write",
        arguments=f'{{"text": "{who}"}}',
        folder=f"files/{who}",
        asked_by=who,
    )
    return Approval.of(call, datetime.now(UTC), timeout_s=600)


async def worked(store: Store, key: SessionKey, who: str) -> None:
    """Have a job answer a chat, and a subagent work for it."""
    file = CronFile(store.layout.workspace)
    job = file.add(new_row(At(NOW + timedelta(days=9)), f"{who} job", at=NOW, to=key))
    await talked(store, SessionKey(f"cron:{job.id}"), who)
    session_id = (await store.look(key)).session_id
    files = SubagentFiles(store.layout.workspace / "state")
    call = Call(key, session_id, "m1", "call-1")
    begun = files.begin(call, task=f"{who} task", label=f"{who} label", origin={"sender": {"name": who}})
    apart = Store(files.home, zone=UTC)
    await talked(apart, SessionKey(begun.key), who, sessions=1)
    await apart.aclose()


def letter(key: str, text: str, id_: str, *, refs: Sequence[str] = (), answer_to: str | None = None) -> bytes:
    channel, _, chat = key.partition(":")
    files = [Attachment(ref=ref) for ref in refs]
    return Inbound(
        v=1,
        id=id_,
        key=key,
        channel=channel,
        chat_id=chat,
        text=text,
        attachments=files,
        answer_to=answer_to,
    ).to_bytes()


async def planted(workspace: Path, *, lean: bool = False) -> None:
    """Leave words of ``sesame`` for Ada and of ``bobwords`` for Bob everywhere.

    ``lean``: Ada has one chat, and nobody has jobs and subagents.
    """
    state = workspace / "state"
    store = Store(workspace, zone=UTC)
    async with opened(state) as mailbox:
        for key, who, below in (
            (ADA, "sesame", "people/ada"),
            (TERMINAL, "sesame", "people/ada"),
            (BOB, "bobwords", "chats/telegram_2"),
        ):
            if lean and key == TERMINAL:
                continue
            await talked(store, key, who, refs=[media(workspace, who.encode()), media(workspace, b"of both")])
            stem = await store.stem(key)
            for name in ("MEMORY.md", "HISTORY.md", "USER.md", "facts.jsonl", "versions/1"):
                write(workspace / "memory" / below / name, f"{who}\n")
            write(workspace / "memory" / "chats" / stem / "MEMORY.md", f"{who} before\n")
            write(workspace / "files" / below / "deep" / "er.txt", f"{who}\n")
            write(state / "memory" / f"{below}.json", f'{{"v": 1, "x": "{who}"}}')
            write(state / "facts" / f"{stem}.json", f'{{"v": 1, "x": "{who}"}}')
            ApprovalFiles(state).ask(asked(key, who))
            write(workspace / "sessions" / f"{stem}.jsonl.corrupt-01ARZ3NDEKTSV4RRFFQ69G5FAV", who)
            vectors = Vectors(state)
            keep_vectors(vectors, "model", stem, {who: [1.0, 2.0]})
            vectors.close()
            if not lean:
                await worked(store, key, who)
            later = [media(workspace, f"{who} later".encode())]
            for number in range(2):
                id_ = f"{key}{number}"
                await mailbox.put(Post(INBOUND, key, id_, letter(key, f"{who} waits", id_, refs=later)))
            told = letter(key, f"{who} told", "told")
            await mailbox.put(Post(outbound("telegram"), key, f"{key}0#reply", told))
            async with SendLog(state, "telegram") as send_log:
                await send_log.sent(key, f"{key}0#reply", 0, platform_id=f"{who} sent")
        for channel, id_, who in (("telegram", "1", "sesame"), ("telegram", "2", "bobwords")):
            Pairing(state).admit(channel, id_, kind="person", name=who)
        async with mailbox.take(INBOUND) as letters:
            for _ in range(4 if lean else 6):
                each = await anext(letters)
                if each.id.endswith("0"):
                    await mailbox.park(each, ParkedAs(each.id[:-1], "failed", 3))
    write(state / "chat_history", "\n# 2026-01-01 09:00:00\n+sesame typed\n")
    await spent(store)
    await store.aclose()


async def spent(store: Store) -> None:
    """Count turns of Ada in her chats and in a group, and one of Bob; a turn of hers is under way."""
    group = "telegram:-5"
    rows = [
        usage_row(NOW, ADA, "people/ada", Usage(10, 1, 0.5), id_="m0"),
        usage_row(NOW, TERMINAL, "people/ada", Usage(20, 2, 0.25)),
        usage_row(NOW, group, "people/ada", Usage(40, 4, 0.125)),
        usage_row(NOW, BOB, BOB, Usage(80, 8, 0.0625)),
    ]
    held = Held(day_of(NOW), Total(Amount(10**9, 2)))
    running = keep(Payer(ADA, "people/ada", "", "m1"), 1, held)
    await store.state.write([*(add_row(row) for row in rows), running])


@asynccontextmanager
async def eraser(workspace: Path, **more: Any) -> AsyncIterator[tuple[Erasure, SessionServices]]:
    """Open what erases, with the queue of the workspace, as a command without a daemon does."""
    settings = configured(workspace, **more)
    services = SessionServices(settings, status=lambda *_: [])
    try:
        async with opened(settings.state) as mailbox:
            yield Erasure(settings, services, mailbox=mailbox), services
    finally:
        await services.aclose()


def holding(workspace: Path, word: str) -> set[str]:
    """List the files that hold a word, in any byte, or have it in their name."""
    return {
        path.relative_to(workspace).as_posix()
        for path in workspace.rglob("*")
        if path.is_file() and (word.encode() in path.read_bytes() or word in path.name)
    }


def tree(workspace: Path, word: str) -> dict[str, bytes]:
    """Return the files that hold a word and are of one alone, with their bytes."""
    names = {name for name in holding(workspace, word) if not name.startswith("state/queue")}
    shared = ("usage", "delivery", "pairing", "schedule", "letter")
    return {name: (workspace / name).read_bytes() for name in names if kind_of(name) not in shared}
