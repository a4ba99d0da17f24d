"""Whom an export or an erasure is about: the conversations and scopes that are a chat's or a person's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from session.context.scopes import CHATS, PEOPLE, WORKSPACE, Chat, Reader, Scopes, answers_in, counts_as_group
from session.disk.layout import Layout
from session.disk.threads import start_thread
from session.errors import SessionError
from session.memory.scope_resolver import ScopeResolver
from session.memory.unconsolidated import stems_on_disk
from session.store import places
from session.store.media import Named, named_in_files
from session.store.state import StoreState, decoded, encoded
from session.store.store import Store
from session.subagents.records import SubagentFiles
from session.transcript import archive
from session.transcript.key import SessionKey, plain_stem, split
from session.transcript.line import decode, is_ulid
from session.transcript.loading import read_beginning

JOBS, TERMINAL = "cron", "cli"
NOBODY: Final[Mapping[str, Collection[str]]] = MappingProxyType({})
_NAMING: Final = "SELECT key, entry FROM journal WHERE instr(entry, ?)"
# Ids of messages that were typed there, whatever chat they were for.
_TYPED = re.compile(rb'"message_id": ?"cli:')


class Nobody(SessionError):
    """``[people]`` lists nobody of this name, and nothing is kept under it."""


class NoText(SessionError):
    """A key or name holds bytes that are not UTF-8: no queue and no file of ours can be asked for it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and the name of its files."""

    key: str
    stem: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What belongs to a key or a person.

    Args:
        name: the key, or the person's name.
        is_person: which of the two.
        conversations: those that are meant first, then those of jobs that answer there.
        scopes: names of the scopes that nobody else has.
        jobs: ids of the cron jobs that answer there.
        media: the files of ``media/`` that the conversations name, each with the time of its newest line.
        sessions: ULIDs of their sessions.
        typed: whether somebody wrote there from the terminal, which remembers what is typed.
        stays: what is of others, too, in words.
        subagents: the keys of those that work for them, or are on record.
    """

    name: str
    is_person: bool
    conversations: tuple[Conversation, ...]
    scopes: tuple[str, ...]
    jobs: tuple[str, ...]
    media: Named
    sessions: frozenset[str] = frozenset()
    typed: bool = False
    stays: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of its conversations."""
        return [each.key for each in self.conversations]

    @property
    def lanes(self) -> list[str]:
        """The keys under which letters of theirs go."""
        return [*self.keys, *self.subagents]

    @property
    def payers(self) -> set[str]:
        """Who pays as this person in the lines of what models cost; empty for a key."""
        return {f"{PEOPLE}{self.name}", *self.keys} if self.is_person else set()

    def files(self, layout: Layout) -> Iterator[places.Found]:
        """List all files that are nobody else's; those of ``media/`` apart."""
        for each in self.conversations:
            yield from places.of_key(layout, each.key, each.stem)
        for key in self.subagents:
            yield from places.of_subagent(layout, key)
        for scope in self.scopes:
            yield from places.of_scope(layout, scope)


def check_text(name: str) -> None:
    """Refuse a key or name that is no text, as a terminal hands on that is not UTF-8.

    Raises:
        NoText: it is none.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise NoText(
            f"{name!a} is not UTF-8",
            hint="use a terminal with a UTF-8 locale; chat-gateway sessions list shows all keys",
        ) from None


class Subjects:
    """Finds out what belongs to whom.

    Args:
        scope_resolver: says what a chat is, and who is a person.
    """

    def __init__(self, scope_resolver: ScopeResolver, *, store: Store) -> None:
        self._scopes: Scopes = scope_resolver.scopes
        self._scope_resolver = scope_resolver
        self._store = store

    async def of_key(
        self, key: str, *, answering: Mapping[str, str], waiting: Mapping[str, Collection[str]] = NOBODY
    ) -> Subject:
        """Return what belongs to a key.

        Args:
            key: the conversation.
            answering: the chat that each cron job answers.
            waiting: the chats that letters of jobs are to answer which wait or are parked.

        Raises:
            StoreError: a file cannot be read.
        """
        person = self._scopes.person(key)
        shared = []
        chat = await self._scope_resolver.chat(key)
        if not counts_as_group(Reader(key, chat)):
            if self._scopes.of(Reader(key, chat), stem="").name == WORKSPACE:
                shared.append("memory/ and files/ of the workspace: all direct chats share them")
            elif person is not None:
                shared.append(
                    f"memory/people/{person} and files/people/{person}: all chats of {person} share them"
                )
        return await self._gathered(key, [key], answering, waiting, stays=shared)

    async def of_person(
        self, name: str, *, answering: Mapping[str, str], waiting: Mapping[str, Collection[str]] = NOBODY
    ) -> Subject:
        """Return what belongs to a person of ``[people]``, as ``of_key``; a group that is listed is others'.

        Raises:
            Nobody: there is no such person.
            StoreError: a file cannot be read.
        """
        keys = list(self._scopes.keys_of_person(name))
        scope = self._scopes.named(PEOPLE + name)
        if not keys and not (_is_name(name) and await start_thread(lambda: self._is_kept(name), name="look")):
            raise Nobody(f"[people] has no {name!r}", hint="chat-gateway config show")
        chats: dict[str, Chat | None] = {key: await self._scope_resolver.chat(key) for key in keys}
        groups = [key for key, chat in chats.items() if chat == "group"]
        stays = [f"{key}: a group with other members; erase it by its key" for key in groups]
        stays.append("what the memory of groups says about this person")
        if self._scopes.of(Reader("cli:any", "direct"), stem="").name == WORKSPACE:
            stays.append("memory/ and files/ of the workspace: all direct chats share them")
        own = [key for key in keys if key not in groups]
        return await self._gathered(name, own, answering, waiting, stays=stays, person=scope.name)

    def _is_kept(self, name: str) -> bool:
        scopes = map(self._scopes.named, places.with_agents(self._store.layout, [PEOPLE + name]))
        return any(scope.memory.is_dir() or scope.files.is_dir() for scope in scopes)

    async def _gathered(
        self,
        name: str,
        keys: Iterable[str],
        answering: Mapping[str, str],
        waiting: Mapping[str, Collection[str]],
        *,
        stays: Iterable[str],
        person: str = "",
    ) -> Subject:
        layout, named = self._store.layout, list(keys)
        # Its journal still has the answers of the last days, and nobody writes there any more.
        every_key = [*named, *await _former(self._store.state, named)]
        own = [Conversation(key, await self._store.stem(SessionKey(key))) for key in every_key]
        meant = {*every_key}
        jobs = [key for key, to in answering.items() if to in meant]
        # What a job asked is in no conversation as long as the model was away: its letters have the words.
        asked = [
            Conversation(key, await self._store.stem(SessionKey(key)))
            for key in dict.fromkeys([*jobs, *waiting])
            if {*waiting.get(key, ()), *filter(None, [answering.get(key)])} <= meant
        ]

        def look() -> Subject:
            kept = list(stays)
            found = dict.fromkeys(own)
            found |= dict.fromkeys(_jobs(layout, meant, jobs, asked, kept))
            sessions = frozenset(id_ for each in found for id_ in self._sessions(each))
            every = tuple(found)
            records = SubagentFiles(layout.workspace / "state")
            below = tuple(sub.key for each in every for sub in records.of(each.key))
            below_them = [*(CHATS + each.stem for each in every), *([person] if person else [])]
            scopes = tuple(places.with_agents(layout, below_them))
            ids = tuple(split(key)[1] for key in jobs)
            lines = [path for each in every for path in _lines_of(layout, each)]
            typed = any(split(each.key)[0] == TERMINAL for each in every) or any(map(_was_typed, lines))
            media, stay = named_in_files(lines), tuple(kept)
            return Subject(name, bool(person), every, scopes, ids, media, sessions, typed, stay, below)

        return await start_thread(look, name="disk-look")

    def _sessions(self, conversation: Conversation) -> Iterator[str]:
        """Yield the ULIDs of a conversation's sessions, as far as its files and journal still name them."""
        store = self._store
        for path in _paths(store.layout, conversation.stem):
            head = read_beginning(path, conversation.stem)
            if head is not None:
                yield head.session_id
        entries = store.state.read_now(
            "SELECT entry FROM journal WHERE key = ?", (encoded(conversation.key),)
        )
        for (raw,) in entries:
            session = decode(raw).get("session")
            if is_ulid(session):
                yield str(session)


async def _former(state: StoreState, keys: Collection[str]) -> list[str]:
    """List the keys that these conversations had before: those of groups that were given another id."""
    found = dict[str, None]()
    for key in keys:
        for stored, raw in await state.read(_NAMING, (orjson.dumps(key),)):
            entry, former = decode(raw), decoded(stored)
            if entry.get("reason") == "moved" and entry.get("to") == key and former not in keys:
                found[former] = None
    return list(found)


def _jobs(
    layout: Layout,
    meant: Collection[str],
    jobs: Collection[str],
    asked: Iterable[Conversation],
    stays: list[str],
) -> Iterator[Conversation]:
    """Find the conversations of jobs that answered these chats and no other, or are to: those ``asked``."""
    on_disk = stems_on_disk(layout, lambda stem: stem.startswith(plain_stem(f"{JOBS}:")))
    for key, stem in on_disk.items():
        if key in meant:
            continue
        answered = {to for path in _paths(layout, stem) for to in _answered(path, stem)}
        if answered and answered <= set(meant):
            yield Conversation(key, stem)
        elif answered & set(meant):
            stays.append(f"{key}: a job that also answered other chats; erase it by its key")
        elif key in jobs and not answered:
            yield Conversation(key, stem)
    yield from (each for each in asked if each.key not in on_disk and each.key not in meant)


def _answered(path: Path, stem: str) -> tuple[str, ...]:
    head = read_beginning(path, stem)
    return answers_in(head.inner) if head is not None else ()


def _paths(layout: Layout, stem: str) -> list[Path]:
    active = layout.transcript(stem)
    return [
        *(found.path for found in archive.of_stem(layout, stem)),
        *([active] if active.exists() else []),
    ]


def _lines_of(layout: Layout, conversation: Conversation) -> Iterator[Path]:
    for found in places.of_key(layout, conversation.key, conversation.stem):
        if found.place.kind in ("transcript", "original", "archive"):
            yield found.path


def _was_typed(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(_TYPED.search(raw) for raw in file)
    except OSError:
        # Who cannot tell lets go of too much rather than of too little.
        return True


def _is_name(name: str) -> bool:
    """Say whether a name can be that of a folder of ``memory/people/``."""
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")
