"""Finds out who reads a conversation, remembers it with the session, and has its scope drawn by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from durable import BoundedDict
from session.context.audience import ANSWERS, CHAT, MAX_ANSWERS, answers_in, as_chat, newer
from session.context.recent import MAX_LINE_BYTES, Head, read_head
from session.context.request import Request
from session.context.scopes import CHATS, OWN_CHANNELS, WORKSPACE, Chat, Reader, Scope, Scopes, is_job
from session.disk.layout import seen
from session.library.file_cache import FileCache
from session.memory.unconsolidated import Unconsolidated, known_answers, known_chat, stems_on_disk
from session.store.store import Session, Store
from session.subagents.records import SubagentFiles
from session.transcript import archive
from session.transcript.key import SessionKey, is_subagent, marked_stem, plain_stem, split

MAX_NAMES = 10_000
# How the names of the files of jobs begin.
JOB_STEMS = plain_stem("cron:")
# In line 1's metadata of a subagent's conversation: the key of the one that started it.
PARENT: Final = "subagent_of"


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
        self.scopes = scopes
        self._store = store
        self._heads: FileCache[Head] = FileCache(read_head, max_bytes=MAX_LINE_BYTES)
        self._names: BoundedDict[str, tuple[object, str]] = BoundedDict(MAX_NAMES)
        self._subagents = SubagentFiles(store.layout.workspace / "state")

    async def of(self, session: Session, request: Request) -> Scope:
        """Return what a message may see, by everyone who reads its answer.

        What its platform said of the chat is learned by then: every letter says it, a command's as well.

        Raises:
            Fenced, StoreError: what was found out cannot be remembered.
        """
        if is_subagent(session.key):
            return await self._of_subagent(session)
        own = await self._own(session)
        answered = [request.answer_to] if request.answer_to not in ("", session.key) else []
        known = answers_in(session.metadata)
        readers = [await self._reader(key) for key in dict.fromkeys([*answered, *known])]
        if answered and readers[0].chat == "group":
            # What is said here is read there, so the notes of it are the group's as well.
            await learn(session, "group")
        if is_job(session.key) and len(known) < MAX_ANSWERS and not {*answered} <= {*known}:
            # Background work draws the scope later, when no message says any more who was answered.
            await session.remember({ANSWERS: [*known, *answered]})
        return self.scopes.of(Reader(session.key, own, session.stem), *readers, stem=session.stem)

    async def _of_subagent(self, session: Session) -> Scope:
        """Return the scope of the conversation that started a subagent, as is on record of it.

        One of which nothing is on record has a scope of its own, in which there is nothing.
        """
        parent = str(session.metadata.get(PARENT) or "")
        found = await asyncio.to_thread(self._subagents.find, parent, session.key) if parent else None
        if found is None:
            return self.scopes.named(CHATS + session.stem, group=True)
        answered = found.origin.get("answer_to")
        scope = await self.of_key(parent, *([answered] if isinstance(answered, str) and answered else []))
        # Who was in a group when it was started reads the result, whatever became of that chat since.
        is_group = scope.group or found.origin.get("several") is not False
        return self.scopes.named(scope.name, group=is_group)

    async def of_key(self, key: str, *others: str) -> Scope:
        """Return what a conversation may see whose answers go to ``others`` as well."""
        view = await self._store.look(SessionKey(key))

        def look() -> tuple[Chat | None, tuple[str, ...]]:
            layout = self._store.layout
            return known_chat(view, layout), known_answers(view, layout) if is_job(key) else ()

        chat, answered = await asyncio.to_thread(look)
        return await self._drawn(Reader(key, chat, view.stem), [*others, *answered])

    async def of_past(self, unconsolidated: Unconsolidated) -> Scope:
        """Return whose memory the messages of a session go into, by what that session itself knows."""
        reader = Reader(unconsolidated.key, unconsolidated.chat, unconsolidated.stem)
        return await self._drawn(reader, unconsolidated.answers)

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
        return (await self._reader(key)).chat

    async def keys_of(self, scope: Scope) -> list[str]:
        """List the keys whose conversations a scope holds: those for which it is drawn.

        They are those of its chats, and those of the jobs that answer there.
        """

        def look() -> list[str]:
            layout = self._store.layout
            if scope.name == WORKSPACE:
                return list(stems_on_disk(layout))
            own = scope.name.removeprefix(CHATS)
            near = stems_on_disk(layout, lambda stem: stem == own or stem.startswith(JOB_STEMS))
            return [*self.scopes.keys_of_person(scope.person or ""), *near]

        maybe = await asyncio.to_thread(look)
        return [key for key in dict.fromkeys(maybe) if await self._scope_name(key) == scope.name]

    async def alike(self, scope: Scope, key: str) -> list[str]:
        """List the other direct chats of the person whose scope it is; it is asked for each message."""
        others = self.scopes.others(scope, key)
        return (
            await asyncio.to_thread(lambda: [each for each in others if self._is_direct(each)])
            if others
            else []
        )

    def _is_direct(self, key: str) -> bool:
        """Say whether the newest session of a key knows its chat as direct, by line 1 alone."""
        layout = self._store.layout
        for stem in (plain_stem(key), marked_stem(key)):
            paths = [layout.transcript(stem), *(found.path for found in archive.of_stem(layout, stem)[-1:])]
            for path in paths:
                head = self._heads.get(path)
                if head is not None and head.key == key:
                    return not head.group
        return False

    async def _drawn(self, reader: Reader, others: Iterable[str]) -> Scope:
        keys = dict.fromkeys(key for key in others if key != reader.key)
        return self.scopes.of(reader, *[await self._reader(key) for key in keys], stem=reader.stem)

    async def _reader(self, key: str) -> Reader:
        view = await self._store.look(SessionKey(key))
        return Reader(key, await asyncio.to_thread(known_chat, view, self._store.layout), view.stem)

    async def _own(self, session: Session) -> Chat | None:
        known = as_chat(session.metadata.get(CHAT))
        if known is None and split(session.key)[0] not in OWN_CHANNELS:
            await learn(session, await asyncio.to_thread(known_chat, session, self._store.layout))
            known = as_chat(session.metadata.get(CHAT))
        return known
