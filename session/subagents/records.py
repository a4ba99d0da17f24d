"""Which subagents each conversation has started, on disk: their limits, how far each is, and whose they are.

One small file for each conversation that ever started one, changed under one lock that all daemons share.
A subagent goes ``waiting`` (its letter may not be in the queue yet) → ``queued`` → ``answered`` (how it ended
is settled) → ``told`` (its parent had the result). ``ended``: nobody waits for it any more.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import durable
from session.disk.layout import Layout
from session.disk.state import locked, read_state, write_state
from session.errors import StoreError, ToolError
from session.transcript import archive
from session.transcript.key import SUBAGENTS, marked_stem, plain_stem

State = Literal["waiting", "queued", "answered", "told", "ended"]

# So many of a conversation work at once, and so many may begin within an hour.
AT_ONCE: Final = 4
AN_HOUR: Final = 20
# What has ended stays known for as long as its letter may come again, and what has not for as long as that
# letter, or the one with its result, may wait somewhere.
KEPT: Final = timedelta(hours=48)
FORGOTTEN: Final = timedelta(days=7)
_STOPS_KEPT: Final = 50
_LIVE: Final = ("waiting", "queued")
_OVER: Final = ("told", "ended")
_TEXTS: Final = (
    *("key", "id", "parent", "session_id", "message_id"),
    *("task", "label", "failure", "ended_by"),
)


@dataclass(frozen=True, slots=True)
class Subagent:
    """A subagent: its key, the id of its letter, who started it, and how far it is.

    ``parent`` is the key of the conversation that started it, ``session_id`` the ULID of its session then,
    and ``message_id`` the message whose turn did it. ``origin`` holds what the letter with the result shares
    with that message. ``failure`` says why there is no result. Once it is over no word is kept of it.
    """

    key: str
    id: str
    parent: str
    session_id: str
    message_id: str
    task: str
    label: str
    created_at: datetime
    origin: Mapping[str, Any] = field(default_factory=dict)
    state: State = "waiting"
    failure: str = ""
    ended_by: str = ""
    changed_at: datetime | None = None

    @property
    def live(self) -> bool:
        """Whether it works, or waits for its turn."""
        return self.state in _LIVE

    @property
    def result_id(self) -> str:
        """The id of the letter that brings its result."""
        return f"{self.id}#result"

    def now(self, state: State, at: datetime, **fields: Any) -> Subagent:
        """Return it in another state; over, it keeps no text."""
        if state in _OVER:
            fields |= {"task": "", "label": "", "failure": "", "origin": {}}
        return replace(self, state=state, changed_at=at, **fields)


@dataclass(frozen=True, slots=True)
class Call:
    """The call that starts a subagent: the conversation with its session, the message, the model's own id."""

    parent: str
    session_id: str
    message_id: str
    call_id: str

    def id_for(self, task: str) -> str:
        """Return the id of the subagent's letter: the same for the same call."""
        text = "\0".join((self.parent, self.message_id, self.call_id, task))
        return f"{SUBAGENTS}:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:32]}"


@dataclass(slots=True)
class _Chat:
    parent: str
    # The number of the newest one, never given again.
    last: int
    subagents: dict[str, Subagent]
    # The ids of the orders that ended some.
    stops: list[str]

    def put(self, subagent: Subagent) -> Subagent:
        self.subagents[subagent.key] = subagent
        return subagent


class SubagentFiles:
    """The files of a workspace; every method blocks, for threads, and raises NewerFormat or StoreError.

    Args:
        state: the folder ``state/`` of the workspace.
        clock: the time now, aware.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self.home = state / "subagents"
        self._folder = self.home / "chats"
        self._lock = self.home / "chats.lock"
        self._clock = clock

    # -- reading -----------------------------------------------------------------------------------

    def of(self, parent: str) -> Sequence[Subagent]:
        """List those of a conversation, oldest first."""
        return list(self._read(parent).subagents.values())

    def find(self, parent: str, key: str) -> Subagent | None:
        """Return a subagent that this conversation has started; None where it did not."""
        return self._read(parent).subagents.get(key)

    def everywhere(self) -> Iterator[Subagent]:
        """List those of all conversations."""
        for parent in self._parents():
            yield from self.of(parent)

    # -- changing ----------------------------------------------------------------------------------

    def begin(self, call: Call, *, task: str, label: str, origin: Mapping[str, Any]) -> Subagent:
        """Make a subagent for a call; the same call has the same one, however far that is.

        Raises:
            ToolError: as many work, or began within the hour, as may.
        """
        id_ = call.id_for(task)
        with self._changing(call.parent) as chat:
            known = next((each for each in chat.subagents.values() if each.id == id_), None)
            if known is not None:
                return known
            now = self._clock()
            self._limit(chat, now)
            chat.last += 1
            return chat.put(
                Subagent(
                    key=f"{SUBAGENTS}:{call.session_id}:{chat.last}",
                    id=id_,
                    parent=call.parent,
                    session_id=call.session_id,
                    message_id=call.message_id,
                    task=task,
                    label=label,
                    created_at=now,
                    origin=origin,
                    changed_at=now,
                )
            )

    def queued(self, subagent: Subagent) -> None:
        """Note that its letter is in the queue."""
        with self._changing(subagent.parent) as chat:
            known = chat.subagents.get(subagent.key)
            if known is not None and known.state == "waiting":
                chat.put(known.now("queued", self._clock()))

    def answered(self, subagent: Subagent, failure: str) -> Subagent | None:
        """Settle how it ended, once: in a result, or in the ``failure``. None: nobody waits for it."""
        with self._changing(subagent.parent) as chat:
            known = chat.subagents.get(subagent.key)
            if known is None or known.state in _OVER:
                return None
            if known.state == "answered":
                return known
            return chat.put(known.now("answered", self._clock(), failure=failure))

    def told(self, subagent: Subagent) -> None:
        """Note that its parent had the result, or will never have it."""
        with self._changing(subagent.parent) as chat:
            known = chat.subagents.get(subagent.key)
            if known is not None and known.state not in _OVER:
                chat.put(known.now("told", self._clock()))

    def end(self, parent: str, by: str = "", *, results: bool = False) -> list[Subagent]:
        """End those of a conversation that work.

        Args:
            parent: the conversation.
            by: the id of the message that asks for it; asking again ends no later one.
            results: those whose result has not been told, too.

        Returns:
            Which these are; where ``by`` asked before, those that it ended then.
        """
        if not self._path(parent).exists():
            return []
        with self._changing(parent) as chat:
            if by and by in chat.stops:
                return [each for each in chat.subagents.values() if each.ended_by == by]
            ending = (*_LIVE, "answered") if results else _LIVE
            now = self._clock()
            found = [each for each in chat.subagents.values() if each.state in ending]
            if by:
                chat.stops = [*chat.stops, by][-_STOPS_KEPT:]
            return [chat.put(each.now("ended", now, ended_by=by)) for each in found]

    def prune(self) -> None:
        """Let go of what need not be known any more; a file in which nothing is left goes."""
        for parent in self._parents():
            with locked(self._lock):
                chat = self._read(parent)
                kept = self._kept(chat)
                if not kept:
                    self._path(parent).unlink(missing_ok=True)
                elif len(kept) < len(chat.subagents):
                    self._write(chat, kept)

    def _limit(self, chat: _Chat, now: datetime) -> None:
        live = [each for each in chat.subagents.values() if each.live]
        if len(live) >= AT_ONCE:
            raise ToolError(
                f"{len(live)} subagents of this conversation are running, which is the limit: continue "
                "without another one, or wait for their results"
            )
        begun = sum(now - each.created_at < timedelta(hours=1) for each in chat.subagents.values())
        if begun >= AN_HOUR:
            raise ToolError(
                f"this conversation has started {begun} subagents within an hour, which is the limit: "
                "do the work yourself, or tell the person"
            )

    # -- the files ---------------------------------------------------------------------------------

    def _path(self, parent: str) -> Path:
        return self._folder / f"{marked_stem(parent)}.json"

    def _read(self, parent: str) -> _Chat:
        content = read_state(self._path(parent))
        rows = content.get("subagents") if content.get("parent") == parent else None
        found = [_subagent(row) for row in rows] if isinstance(rows, list) else []
        last, stops = content.get("last"), content.get("stops")
        return _Chat(
            parent=parent,
            last=last if type(last) is int else 0,
            subagents={each.key: each for each in found if each is not None and each.parent == parent},
            stops=[str(each) for each in stops] if isinstance(stops, list) else [],
        )

    @contextlib.contextmanager
    def _changing(self, parent: str) -> Iterator[_Chat]:
        """Read the file under the lock, and write what was made of it; on return it survives a power cut."""
        with locked(self._lock):
            chat = self._read(parent)
            before = (chat.last, dict(chat.subagents), list(chat.stops))
            yield chat
            if before == (chat.last, chat.subagents, chat.stops):
                return
            self._write(chat, self._kept(chat))

    def _parents(self) -> list[str]:
        found = [(path, read_state(path).get("parent")) for path in sorted(self._folder.glob("*.json"))]
        return [name for path, name in found if isinstance(name, str) and self._path(name) == path]

    def _kept(self, chat: _Chat) -> list[Subagent]:
        now = self._clock()
        return [each for each in chat.subagents.values() if not _is_forgotten(each, now)]

    def _write(self, chat: _Chat, kept: Sequence[Subagent]) -> None:
        content = {"parent": chat.parent, "last": chat.last, "stops": chat.stops}
        write_state(self._path(chat.parent), content | {"subagents": [_row(each) for each in kept]})


def shown(state: Path) -> list[dict[str, str]]:
    """List the subagents of a workspace that work or wait, oldest first, without a word of theirs.

    Raises:
        NewerFormat, StoreError: they cannot be read.
    """
    found = [each for each in SubagentFiles(state).everywhere() if each.live]
    return [
        {"key": each.key, "parent": each.parent, "since": each.created_at.isoformat()}
        for each in sorted(found, key=lambda each: each.created_at)
    ]


def is_needed(subagent: Subagent, now: datetime) -> bool:
    """Say whether the conversation of a subagent may still be gone on with, or hold its result.

    A turn that has not heard yet that it was ended cleans up behind itself.
    """
    return subagent.state not in _OVER and not _is_forgotten(subagent, now)


def goes_on(layout: Layout, stem: str, active: str, session_id: str) -> bool:
    """Say whether a conversation is still the one in which a subagent was started.

    Args:
        layout: the files of the workspace.
        stem: the name of the conversation's files.
        active: the ULID of its session now.
        session_id: that of its session then; a compaction may have ended it since, a person has not.
    """
    if active == session_id:
        return True
    ended = archive.of_stem(layout, stem)
    at = next((at for at, found in enumerate(ended) if found.session_id == session_id), None)
    return at is not None and all(archive.goes_on(found) for found in ended[at:])


def remove_conversation(layout: Layout, key: str) -> None:
    """Remove all files of a subagent's conversation; none of it is left, and twice does no harm."""
    for stem in (plain_stem(key), marked_stem(key)):
        _remove(layout, stem)


def stems_on_disk(layout: Layout) -> set[str]:
    """List the names of the files that conversations of subagents have, or have left behind."""
    return {path.stem for path in [*layout.sessions.glob("*.jsonl"), *layout.keys.glob("*.lock")]}


def remove_all_but(layout: Layout, stems: Collection[str], keys: Collection[str]) -> None:
    """Remove the files with these names, but not the conversations of these keys."""
    kept = {stem for key in keys for stem in (plain_stem(key), marked_stem(key))}
    for stem in stems:
        if stem not in kept:
            _remove(layout, stem)


def _remove(layout: Layout, stem: str) -> None:
    paths = [layout.transcript(stem), layout.index(stem), layout.lock(stem)]
    try:
        for path in [*layout.sessions.glob(f"{glob.escape(stem)}.jsonl.*"), *paths]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{stem} cannot be removed: {error.strerror}") from error


def _is_forgotten(subagent: Subagent, now: datetime) -> bool:
    since = subagent.changed_at or subagent.created_at
    return now - since > (KEPT if subagent.state in _OVER else FORGOTTEN)


def _row(subagent: Subagent) -> dict[str, Any]:
    row = {each.name: getattr(subagent, each.name) for each in fields(subagent)}
    times = {name: row[name].isoformat() for name in ("created_at", "changed_at") if row[name] is not None}
    return {name: value for name, value in (row | times).items() if value not in ("", None, {})}


def _subagent(row: object) -> Subagent | None:
    """Read one row; None where damage, or an unknown state, makes it say nothing."""
    if not isinstance(row, dict) or row.get("state", "waiting") not in get_args(State):
        return None
    texts = {name: row.get(name, "") for name in _TEXTS}
    created, changed = _time(row.get("created_at")), _time(row.get("changed_at"))
    if created is None or not all(isinstance(text, str) for text in texts.values()) or not texts["key"]:
        return None
    origin = row.get("origin")
    return Subagent(
        **texts,
        created_at=created,
        changed_at=changed,
        state=cast(State, row.get("state", "waiting")),
        origin=origin if isinstance(origin, dict) else {},
    )


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
