"""Strangers and groups that ask for access: their codes, and whom the operator let in (``channels.db``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Literal, TypeVar

import durable
from channels.errors import ChannelError
from channels.message import now_text
from channels.storage import change_rows, from_ms, read_rows, to_ms

T = TypeVar("T")

# Nothing that looks like another letter.
ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
CODE_CHARS: Final = 8
VALID: Final = timedelta(hours=1)
ANSWER_EVERY: Final = timedelta(days=1)
# Codes of a channel that wait; the oldest gives way.
MAX_PENDING: Final = 20
# People and groups of a channel that are told a code within an hour. With 20 that wait this leaves each code
# 20 minutes in a steady crowd of strangers: more would take a code back before anybody could approve it.
MAX_TOLD: Final = 60
# Before somebody whose code gave way is told another.
AGAIN_AFTER: Final = timedelta(minutes=10)
Who = Literal["person", "group"]


@dataclass(frozen=True, slots=True)
class Approved:
    """Whom the operator let in on one channel, by numeric id."""

    people: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """One request for access; ``code`` is empty once it was approved, ``at`` is when it changed last.

    ``chat`` is where it was asked for, ``greet`` the id of the letter that says there that it was granted,
    until that is in its queue.
    """

    channel: str
    id: str
    kind: Who
    name: str
    at: datetime
    code: str = ""
    chat: str = ""
    greet: str = ""

    @property
    def who(self) -> str:
        """The id with its channel, as ``revoke`` takes it."""
        return f"{self.channel}:{self.id}"

    def as_row(self) -> dict[str, Any]:
        """Return the row of ``pairing list``."""
        return {
            "code": self.code or None,
            "who": self.who,
            "name": self.name,
            "channel": self.channel,
            "state": "pending" if self.code else "approved",
            "at": now_text(self.at),
        }


class NoSuchCode(ChannelError):
    """No code like this waits for approval."""


class NobodyThere(ChannelError):
    """Nobody of this id has asked or was let in."""


class Pairing:
    """Asks for access and grants it. Its methods work on the disk, and so may block.

    Args:
        state: the folder of our own files.
        clock: the wall clock, UTC.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._state = state
        self._clock = clock

    def ask(
        self, channel: str, id: str, *, kind: Who, name: str, message_id: str, chat_id: str = ""
    ) -> str | None:
        """Return the code to be told in answer to a message, None where the answer is silence.

        Everyone is answered once a day, but the same message always gets the same answer. Of the codes of a
        channel that wait, the oldest gives way to a new one, so that strangers in a crowd keep nobody out;
        whose code gave way may ask again. So many are told within an hour, and then none.

        Raises:
            ChannelError: the database cannot be read or written.
        """

        def work(file: Connection) -> str | None:
            now_ms, who = to_ms(self._clock()), (channel, kind, id)
            answer = (
                "SELECT code, message_id, at_ms FROM access_answers WHERE (channel, kind, id) = (?, ?, ?)"
            )
            known = file.execute(answer, who).fetchone()
            if known is not None and known[0]:
                return str(known[0]) if known[1] == message_id else None
            if known is not None and now_ms - known[2] < _ms(AGAIN_AFTER):
                return None
            told = "SELECT count(*) FROM access_answers WHERE channel = ? AND at_ms > ?"
            if file.execute(told, (channel, now_ms - _ms(VALID))).fetchone()[0] >= MAX_TOLD:
                return None
            _make_room(file, channel)
            code = "".join(durable.choose(ALPHABET) for _ in range(CODE_CHARS))
            row = (*who, name, code, chat_id, "", now_ms)
            file.execute("INSERT OR IGNORE INTO access VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            answered = (*who, code, message_id, now_ms)
            file.execute("INSERT OR REPLACE INTO access_answers VALUES (?, ?, ?, ?, ?, ?)", answered)
            return code

        return self._change(work)

    def approve(self, code: str) -> AccessRequest:
        """Let in who was told ``code``, for ever.

        Raises:
            NoSuchCode: it is not one, or it ran out.
        """
        wanted = code.strip().upper().encode()

        def work(file: Connection) -> AccessRequest | None:
            for each in _entries(file, "code <> ''"):
                if secrets.compare_digest(each.code.encode(), wanted):
                    greet = f"proactive:{durable.new_id()}" if each.chat else ""
                    granted = replace(each, code="", at=self._clock(), greet=greet)
                    file.execute(
                        "INSERT OR REPLACE INTO access VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _row(granted)
                    )
                    return granted
            return None

        if (found := self._change(work)) is not None:
            return found
        raise NoSuchCode(
            "no request has this code; codes are valid for an hour", hint="chat-gateway pairing list"
        )

    def to_greet(self, channel: str) -> list[AccessRequest]:
        """List who was let in on a channel and does not know it yet.

        Raises:
            ChannelError: the database cannot be read.
        """
        with read_rows(self._state) as file:
            return _entries(file, "channel = ? AND greet <> ''", channel)

    def greeted(self, entry: AccessRequest) -> None:
        """Note that the message which tells it is in its queue."""
        self._change(
            lambda file: file.execute("UPDATE access SET greet = '' WHERE greet = ?", (entry.greet,))
        )

    def admit(self, channel: str, id: str, *, kind: Who, name: str) -> None:
        """Let somebody in without a code."""
        row = _row(AccessRequest(channel, id, kind, name, self._clock()))
        statement = """INSERT INTO access VALUES (?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT DO UPDATE SET code = '', name = excluded.name, at_ms = excluded.at_ms
            WHERE code <> ''"""
        self._change(lambda file: file.execute(statement, row).rowcount)

    def revoke(self, who: str) -> list[AccessRequest]:
        """Take back the access, and the codes, of ``telegram:123``, or of ``123`` on every channel.

        Raises:
            NobodyThere: there is nothing to take back.
        """
        named = "? IN (id, channel || ':' || id)"

        def work(file: Connection) -> list[AccessRequest]:
            gone = _entries(file, named, who)
            file.execute(f"DELETE FROM access WHERE {named}", (who,))  # noqa: S608
            return gone

        if gone := self._change(work):
            return gone
        raise NobodyThere(
            f"{who} has neither asked for access nor been approved", hint="chat-gateway pairing list"
        )

    def forget(self, chats: Collection[tuple[str, str]], *, access: bool) -> int:
        """Forget the names of people and groups, by channel and id, or by that of the chat where they asked.

        With ``access`` who was let in is let in no more, and is to ask again; else only the name goes. What
        they were answered goes in both cases.

        Returns:
            How many entries were changed or removed.
        """

        def work(file: Connection) -> int:
            meant = [each for each in _entries(file) if _is_among(each, chats)]
            for each in meant:
                who = (each.channel, each.kind, each.id)
                change = "DELETE FROM" if access or each.code else "UPDATE"
                rest = "" if access or each.code else " SET name = ''"
                file.execute(f"{change} access{rest} WHERE (channel, kind, id) = (?, ?, ?)", who)
            gone = {*chats, *((each.channel, each.id) for each in meant)}
            file.executemany("DELETE FROM access_answers WHERE (channel, id) = (?, ?)", gone)
            return len(meant)

        if not (self._state / durable.CHANNELS_FILE).exists():
            return 0
        return self._change(work, erases=True)

    def records(self, chats: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
        """List what is kept of these chats, as ``forget`` would find it."""
        with read_rows(self._state) as file:
            return [each.as_row() for each in _entries(file) if _is_among(each, chats)]

    def rows(self) -> list[dict[str, Any]]:
        """List who waits and who was let in, oldest first."""
        with read_rows(self._state) as file:
            found = _entries(file, "code = '' OR at_ms > ?", to_ms(self._clock() - VALID))
            return [each.as_row() for each in sorted(found, key=lambda each: each.at)]

    def _change(self, work: Callable[[Connection], T], *, erases: bool = False) -> T:
        """Do ``work`` in a transaction, once codes that ran out and answers older than a day are removed."""

        def change(file: Connection) -> T:
            now_ms = to_ms(self._clock())
            file.execute("DELETE FROM access WHERE code <> '' AND at_ms <= ?", (now_ms - _ms(VALID),))
            file.execute("DELETE FROM access_answers WHERE at_ms <= ?", (now_ms - _ms(ANSWER_EVERY),))
            return work(file)

        return change_rows(self._state, change, erases=erases)


def approved(state: Path, channel: str) -> Approved:
    """Return whom the operator let in.

    Raises:
        ChannelError: the database cannot be read.
    """
    with read_rows(state) as file:
        found = file.execute(
            "SELECT kind, id FROM access WHERE channel = ? AND code = ''", (channel,)
        ).fetchall()
    people, groups = (frozenset(id_ for each, id_ in found if each == kind) for kind in ("person", "group"))
    return Approved(people, groups)


def _make_room(file: Connection, channel: str) -> None:
    """Take back the oldest codes of a channel that wait, so that one more may."""
    oldest = """SELECT channel, kind, id FROM access WHERE channel = ? AND code <> ''
        ORDER BY at_ms DESC LIMIT -1 OFFSET ?"""
    gone = file.execute(oldest, (channel, MAX_PENDING - 1)).fetchall()
    file.executemany("DELETE FROM access WHERE (channel, kind, id) = (?, ?, ?)", gone)
    file.executemany("UPDATE access_answers SET code = '' WHERE (channel, kind, id) = (?, ?, ?)", gone)


def _entries(file: Connection, where: str = "true", *values: object) -> list[AccessRequest]:
    query = f"SELECT channel, id, kind, name, at_ms, code, chat, greet FROM access WHERE {where}"  # noqa: S608
    return [
        AccessRequest(channel, id_, kind, name, from_ms(at_ms), code, chat, greet)
        for channel, id_, kind, name, at_ms, code, chat, greet in file.execute(query, values)
    ]


def _row(entry: AccessRequest) -> tuple[object, ...]:
    who = (entry.channel, entry.kind, entry.id)
    return (*who, entry.name, entry.code, entry.chat, entry.greet, to_ms(entry.at))


def _is_among(entry: AccessRequest, chats: Collection[tuple[str, str]]) -> bool:
    return (entry.channel, entry.id) in chats or (entry.channel, entry.chat) in chats


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
