"""Finds out who reads a conversation, remembers it with the session, and has its scope drawn by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from durable import BoundedDict
from session.context.context_parts import MAX_LINE_BYTES, Head, read_head
from session.context.request import Request
from session.context.scopes import (
    ANSWERS,
    CHAT,
    CHATS,
    MAX_ANSWERS,
    OWN_CHANNELS,
    WORKSPACE,
    Chat,
    Reader,
    Scope,
    Scopes,
    answers_in,
    as_chat,
    is_job,
    newer,
)
from session.disk.layout import FileCache, seen
from session.memory.unconsolidated import Unconsolidated, known_answers, known_chat, stems_on_disk
from session.store.store import Session, Store, View
from session.subagents.records import SubagentFiles
from session.transcript import archive
from session.transcript.agent import agent_in, parted, within
from session.transcript.key import SessionKey, is_subagent, marked_stem, plain_stem, split
from session.transcript.loading import read_beginning

MAX_NAMES = 10_000
# How the names of the files of jobs begin.
JOB_STEMS = plain_stem("cron:")
# In line 1's metadata of a subagent's conversation: the key of the one that started it.
PARENT: Final = "subagent_of"


async def remember_chat_kind(session: Session, said: Chat | None) -> None:
    """Remember what is said of the session's chat, where that is news.

    Raises:
        Fenced, StoreError: it is not remembered.
    """
    news = newer(session.metadata.get(CHAT), said)
    if news is not None:
        await session.remember({CHAT: news})


class ScopeResolver:
    """Draws the scope of each message that is asked; the same for memory, profile, files and tools."""

    def __init__(self, scopes: Scopes, *, store: Store) -> None:
        self.scopes = scopes
        self._store = store
        self._heads: FileCache[Head] = FileCache(read_head, max_bytes=MAX_LINE_BYTES)
        self._names: BoundedDict[tuple[str, str], tuple[object, str]] = BoundedDict(MAX_NAMES)
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
            await remember_chat_kind(session, "group")
        if is_job(session.key) and len(known) < MAX_ANSWERS and not {*answered} <= {*known}:
            # Background work draws the scope later, when no message says any more who was answered.
            await session.remember({ANSWERS: [*known, *answered]})
        reader = Reader(session.key, own, session.stem)
        return self.scopes.of(reader, *readers, stem=session.stem, agent=agent_in(session.metadata))

    async def _of_subagent(self, session: Session) -> Scope:
        """Return the scope of the conversation that started a subagent, as is on record of it.

        One of which nothing is on record has a scope of its own, in which there is nothing.
        """
        parent = str(session.metadata.get(PARENT) or "")
        found = await asyncio.to_thread(self._subagents.find, parent, session.key) if parent else None
        if found is None:
            name = within(agent_in(session.metadata), CHATS + session.stem)
            return self.scopes.named(name, group=True)
        answered = found.origin.get("answer_to")
        others = [answered] if isinstance(answered, str) and answered else []
        # The agent that started it, whoever answers in that chat by now.
        scope = await self.of_key(parent, *others, agent=agent_in(found.origin))
        # Who was in a group when it was started reads the result, whatever became of that chat since.
        is_group = scope.group or found.origin.get("several") is not False
        return self.scopes.named(scope.name, group=is_group)

    async def of_key(self, key: str, *others: str, agent: str | None = None) -> Scope:
        """Return what a conversation may see whose answers go to ``others`` as well.

        ``agent``: with whom; None: with the one that has its active session, or will have its next one.
        """
        view = await self._store.look(SessionKey(key))

        def look() -> tuple[Chat | None, tuple[str, ...], str]:
            layout = self._store.layout
            answers = known_answers(view, layout) if is_job(key) else ()
            return known_chat(view, layout), answers, self._agent_now(view) if agent is None else agent

        chat, answered, whose = await asyncio.to_thread(look)
        return await self._drawn(Reader(key, chat, view.stem), [*others, *answered], whose)

    def _agent_now(self, view: View) -> str:
        if view.path.exists():
            return agent_in(view.metadata)
        return self.scopes.agents.of(view.key, view.journal_state.agent)

    async def of_next(self, key: str, answered: str = "") -> Scope:
        """Return what the next message of a conversation may see, with whoever will answer it.

        ``answered`` is the chat that reads the answer where that is another one; empty for none.
        """
        agents = self.scopes.agents
        decides = agents.decided_in(key, answered)
        chosen = (await self._store.look(SessionKey(decides))).journal_state.agent
        others = [answered] if answered else []
        return await self.of_key(key, *others, agent=agents.of(decides, chosen))

    async def of_session(self, key: str, session_id: str | None) -> Scope:
        """Return what a session of a conversation may see, active (None) or ended, by its own agent.

        An ended one of a job has that of the chats which the job answered in it.
        """
        agent = await self.agent_of(key, session_id)
        view = await self._store.look(SessionKey(key))
        if session_id is None or session_id == view.session_id or not is_job(key):
            return await self.of_key(key, agent=agent)
        inner = await asyncio.to_thread(self._ended, view, session_id)
        return await self.of_answers(key, answers_in(inner), agent=agent)

    async def of_answers(self, job: str, answers: Iterable[str], *, agent: str) -> Scope:
        """Return what a session of a job may see that answered these chats."""
        view = await self._store.look(SessionKey(job))
        chat = await asyncio.to_thread(known_chat, view, self._store.layout)
        return await self._drawn(Reader(job, chat, view.stem), answers, agent)

    async def agent_of(self, key: str, session_id: str | None = None) -> str:
        """Return whose session it is, active (None) or ended; empty: the default agent's, or nobody's."""
        view = await self._store.look(SessionKey(key))
        if session_id is None or view.session_id == session_id:
            return agent_in(view.metadata)
        return agent_in(await asyncio.to_thread(self._ended, view, session_id))

    def _ended(self, view: View, session_id: str) -> Mapping[str, Any]:
        found = archive.find(self._store.layout, session_id, stem=view.stem)
        head = read_beginning(found.path, view.stem) if found is not None else None
        return head.inner if head is not None and head.key == view.key else {}

    async def all_of_key(self, key: str, *others: str, agents: Iterable[str]) -> list[Scope]:
        """Return what a conversation may see with each of these agents."""
        return [await self.of_key(key, *others, agent=agent) for agent in agents]

    async def of_past(self, unconsolidated: Unconsolidated) -> Scope:
        """Return whose memory the messages of a session go into, by what that session itself knows."""
        reader = Reader(unconsolidated.key, unconsolidated.chat, unconsolidated.stem)
        return await self._drawn(reader, unconsolidated.answers, unconsolidated.agent)

    async def _scope_name(self, key: str, agent: str) -> str:
        """Return the scope of a conversation with an agent, found out anew where its files changed."""
        layout, stem = self._store.layout, await self._store.stem(SessionKey(key))
        now = await asyncio.to_thread(lambda: (seen(layout.transcript(stem)), seen(layout.archive(stem))))
        known = self._names.get((key, agent))
        if known is None or known[0] != now:
            known = self._names[key, agent] = (now, (await self.of_key(key, agent=agent)).name)
        return known[1]

    async def chat(self, key: str) -> Chat | None:
        """Return what is known of a chat; None where nobody ever said."""
        return (await self._reader(key)).chat

    async def keys_of(self, scope: Scope) -> list[str]:
        """List the keys whose conversations a scope holds: those for which it is drawn.

        They are those of its chats, and those of the jobs that answer there. Of their sessions only those are
        the scope's that its agent had.
        """
        agent, name = parted(scope.name)

        def look() -> list[str]:
            layout = self._store.layout
            if name == WORKSPACE:
                return list(stems_on_disk(layout))
            own = name.removeprefix(CHATS)
            near = stems_on_disk(layout, lambda stem: stem == own or stem.startswith(JOB_STEMS))
            return [*self.scopes.keys_of_person(scope.person or ""), *near]

        maybe = await asyncio.to_thread(look)
        return [key for key in dict.fromkeys(maybe) if await self._scope_name(key, agent) == scope.name]

    async def alike(self, scope: Scope, key: str) -> list[str]:
        """List the other direct chats of the person whose scope it is; it is asked for each message."""
        others = self.scopes.others(scope, key)
        return (
            await asyncio.to_thread(lambda: [each for each in others if self._is_direct(each)])
            if others
            else []
        )

    def _is_direct(self, key: str) -> bool:
        layout = self._store.layout
        for stem in (plain_stem(key), marked_stem(key)):
            paths = [layout.transcript(stem), *(found.path for found in archive.of_stem(layout, stem)[-1:])]
            for path in paths:
                head = self._heads.get(path)
                if head is not None and head.key == key:
                    return not head.group
        return False

    async def _drawn(self, reader: Reader, others: Iterable[str], agent: str) -> Scope:
        keys = dict.fromkeys(key for key in others if key != reader.key)
        return self.scopes.of(
            reader, *[await self._reader(key) for key in keys], stem=reader.stem, agent=agent
        )

    async def _reader(self, key: str) -> Reader:
        view = await self._store.look(SessionKey(key))
        return Reader(key, await asyncio.to_thread(known_chat, view, self._store.layout), view.stem)

    async def _own(self, session: Session) -> Chat | None:
        known = as_chat(session.metadata.get(CHAT))
        if known is None and split(session.key)[0] not in OWN_CHANNELS:
            await remember_chat_kind(
                session, await asyncio.to_thread(known_chat, session, self._store.layout)
            )
            known = as_chat(session.metadata.get(CHAT))
        return known
