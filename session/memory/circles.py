"""Finds out who reads a conversation, remembers it with the session, and has its scope drawn by that."""

from __future__ import annotations

import asyncio

from durable import BoundedDict
from session.context.audience import CHAT, as_chat, newer
from session.context.request import Request
from session.context.scopes import OWN_CHANNELS, WORKSPACE, Chat, Reader, Scope, Scopes
from session.disk.layout import seen
from session.memory.unconsolidated import known_chat
from session.store.listing import keys_in
from session.store.store import Session, Store
from session.transcript.key import SessionKey, split

MAX_NAMES = 10_000


async def learn(session: Session, said: Chat | None) -> None:
    """Remember what is said of the session's chat, where that is news.

    Raises:
        Fenced, StoreError: it is not remembered.
    """
    news = newer(session.metadata.get(CHAT), said)
    if news is not None:
        await session.remember({CHAT: news})


class Circles:
    """Draws the scope of each message that is asked; the same for memory, profile, files and tools."""

    def __init__(self, scopes: Scopes, *, store: Store) -> None:
        self._scopes = scopes
        self._store = store
        self._names: BoundedDict[str, tuple[object, str]] = BoundedDict(MAX_NAMES)

    async def of(self, session: Session, request: Request) -> Scope:
        """Return what a message may see, by everyone who reads its answer.

        Raises:
            Fenced, StoreError: what was found out cannot be remembered.
        """
        readers = [Reader(session.key, await self._own(session, request))]
        if request.answer_to and request.answer_to != session.key:
            other = Reader(request.answer_to, await self.chat(request.answer_to))
            readers.append(other)
            if other.chat == "group":
                # What is said here is read there, so the notes of it are the group's as well.
                await learn(session, other.chat)
        return self._scopes.of(*readers, stem=session.stem)

    async def of_key(self, key: str, *others: str) -> Scope:
        """Return what a conversation may see whose answers go to ``others`` as well."""
        stem = await self._store.stem(SessionKey(key))
        readers = [Reader(each, await self.chat(each)) for each in (key, *others)]
        return self._scopes.of(*readers, stem=stem)

    async def keys_of(self, scope: Scope, key: str) -> list[str]:
        """Return the conversations whose messages may be found in ``scope``, which is that of ``key``."""
        if scope.name != WORKSPACE:
            return [key]
        keys = await asyncio.to_thread(keys_in, self._store.layout)
        return [each for each in dict.fromkeys((key, *keys)) if await self._scope_name(each) == scope.name]

    async def _scope_name(self, key: str) -> str:
        """Return the scope of a conversation, found out anew only where a file of it has changed."""
        layout, stem = self._store.layout, await self._store.stem(SessionKey(key))
        now = await asyncio.to_thread(lambda: (seen(layout.transcript(stem)), seen(layout.archive(stem))))
        known = self._names.get(key)
        if known is None or known[0] != now:
            known = self._names[key] = (now, (await self.of_key(key)).name)
        return known[1]

    async def chat(self, key: str) -> Chat | None:
        """Return what is known of a chat; None where nobody ever said."""
        view = await self._store.look(SessionKey(key))
        return await asyncio.to_thread(known_chat, view, self._store.layout)

    async def _own(self, session: Session, request: Request) -> Chat | None:
        await learn(session, request.chat)
        known = as_chat(session.metadata.get(CHAT))
        if known is None and split(session.key)[0] not in OWN_CHANNELS:
            await learn(session, await asyncio.to_thread(known_chat, session, self._store.layout))
            known = as_chat(session.metadata.get(CHAT))
        return known
