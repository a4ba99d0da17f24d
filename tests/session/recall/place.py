"""A workspace whose conversations are searched as one process does it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from session.context.embeddings import Embeddings
from session.context.scopes import Scopes
from session.memory.scope_resolver import ScopeResolver, remember_chat_kind
from session.models.model import Embedder
from session.models.spending import Spending
from session.recall.finding import Hit
from session.recall.recall import Recall, SearchResults
from session.store.derived import index_path
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp

ADA, BOB, GROUP = SessionKey("telegram:1"), SessionKey("telegram:2"), SessionKey("telegram:-3")
START = datetime(2026, 3, 1, 10, tzinfo=UTC)


@dataclass
class Place:
    """One process: its store, its searches."""

    workspace: Path
    store: Store
    scope_resolver: ScopeResolver
    recall: Recall

    async def say(self, key: SessionKey, *texts: str, group: bool = False, **fields: Any) -> None:
        """Append texts, by the person and the assistant in turn, each pair an exchange of its own."""
        async with self.store.open(key) as session:
            await remember_chat_kind(session, "group" if group else "direct")
            count = len(session)
            await session.append(
                [
                    make_line(
                        "assistant" if number % 2 else "user",
                        text,
                        stamp(START + timedelta(minutes=count + number), UTC),
                        message_id=f"m{(count + number) // 2}",
                        **({"final": True} if number % 2 else fields),
                    )
                    for number, text in enumerate(texts)
                ]
            )

    async def end(self, key: SessionKey = ADA) -> None:
        """End a session as ``/new`` does."""
        async with self.store.open(key) as session:
            await session.end()

    async def record(self, kind: str, text: str = "", **fields: Any) -> None:
        """Append a record of ours to Ada's session."""
        async with self.store.open(ADA) as session:
            await session.append([make_line("system", text, stamp(START, UTC), kind=kind, **fields)])

    async def find(self, key: SessionKey, text: str, *, limit: int = 10, **more: Any) -> list[Hit]:
        """Search as the chat itself does."""
        return (await self.search(key, text, limit=limit, **more)).hits

    async def search(self, key: SessionKey, text: str, *, limit: int = 10, **more: Any) -> SearchResults:
        scope = await self.scope_resolver.of_key(key)
        return await self.recall.search(scope, key, text, limit=limit, **more)

    async def texts(self, key: SessionKey, text: str) -> list[str]:
        return [hit.text for hit in await self.find(key, text)]

    def index(self, key: SessionKey = ADA) -> Path:
        """Where the index of a chat of its own lies."""
        return index_path(self.workspace, f"chats/{key.replace(':', '_')}")

    def note(self, name: str, text: str, stem: str = "telegram_1") -> Path:
        """Write a file of a chat's memory."""
        path = self.workspace / "memory/chats" / stem / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@asynccontextmanager
async def place(
    workspace: Path,
    *,
    kind: Literal["chat", "workspace"] = "chat",
    quiet_s: float = 0,
    embedder: Embedder | None = None,
    cost_meter: Spending | None = None,
) -> AsyncIterator[Place]:
    store = Store(workspace, zone=UTC)
    scope_resolver = ScopeResolver(Scopes(workspace, kind=kind), store=store)
    # No test waits for it: one that hangs is ended by the test itself.
    embeddings = Embeddings(embedder, workspace / "state", limit_s=30) if embedder is not None else None
    recall = Recall(
        scope_resolver, store=store, embeddings=embeddings, cost_meter=cost_meter, quiet_s=quiet_s
    )
    try:
        yield Place(workspace, store, scope_resolver, recall)
    finally:
        if embeddings is not None:
            await embeddings.aclose()
        await recall.aclose()
        await store.aclose()


def fact(text: str, **more: Any) -> str:
    """One line of facts.jsonl."""
    return (
        json.dumps({"id": "01", "text": text, "category": "preference", "replaced_by": None, **more}) + "\n"
    )
