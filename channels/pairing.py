"""Strangers and groups that ask for access: their codes, and whom the operator let in (``pairing.json``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import durable
from channels import state_file
from channels.errors import ChannelError
from channels.message import now_text

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


@dataclass(frozen=True, slots=True)
class _Answer:
    """When somebody was told a code, for which message; ``code`` is empty once it gave way to another's."""

    at: datetime
    id: str
    code: str


@dataclass(slots=True)
class _Book:
    """What the file holds."""

    entries: list[AccessRequest]
    # By who, with kind.
    answers: dict[str, _Answer]

    def told(self, channel: str, now: datetime) -> int:
        """Count who was told a code of a channel within the hour."""
        named = ((who.partition(" ")[2].partition(":")[0], each) for who, each in self.answers.items())
        return sum(1 for name, each in named if name == channel and now - each.at < VALID)

    def make_room(self, channel: str) -> None:
        """Take back the oldest codes of a channel that wait, so that one more may."""
        waiting = sorted(
            (each for each in self.entries if each.code and each.channel == channel), key=lambda each: each.at
        )
        for gone in waiting[: max(0, len(waiting) - MAX_PENDING + 1)]:
            self.entries.remove(gone)
            asked = f"{gone.kind} {gone.who}"
            if asked in self.answers:
                self.answers[asked] = replace(self.answers[asked], code="")

    def let_go(self, now: datetime) -> None:
        """Forget the codes that ran out, and the answers that are older than a day."""
        self.entries = [each for each in self.entries if not each.code or now - each.at < VALID]
        self.answers = {who: each for who, each in self.answers.items() if now - each.at < ANSWER_EVERY}


class NoSuchCode(ChannelError):
    """No code like this waits for approval."""


class NobodyThere(ChannelError):
    """Nobody of this id has asked or was let in."""


class Pairing:
    """Asks for access and grants it. Its methods work on the file under its lock, and so may block.

    Args:
        state: the folder of our own files.
        clock: the wall clock, UTC.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._path = state / "pairing.json"
        self._lock = state / "pairing.lock"
        self._clock = clock

    def ask(
        self, channel: str, id: str, *, kind: Who, name: str, message_id: str, chat_id: str = ""
    ) -> str | None:
        """Return the code to be told in answer to a message, None where the answer is silence.

        Everyone is answered once a day, but the same message always gets the same answer. Of the codes of a
        channel that wait, the oldest gives way to a new one, so that strangers in a crowd keep nobody out;
        whose code gave way may ask again. So many are told within an hour, and then none.

        Raises:
            ChannelError: the file cannot be read or written, or its lock not be had.
        """
        with self._open() as book:
            now = self._clock()
            asked = f"{kind} {channel}:{id}"
            known = book.answers.get(asked)
            if known is not None and known.code:
                return known.code if known.id == message_id else None
            if known is not None and now - known.at < AGAIN_AFTER:
                return None
            if book.told(channel, now) >= MAX_TOLD:
                return None
            book.make_room(channel)
            code = "".join(durable.choose(ALPHABET) for _ in range(CODE_CHARS))
            book.entries.append(AccessRequest(channel, id, kind, name, now, code, chat=chat_id))
            book.answers[asked] = _Answer(now, message_id, code)
            return code

    def approve(self, code: str) -> AccessRequest:
        """Let in who was told ``code``, for ever.

        Raises:
            NoSuchCode: it is not one, or it ran out.
        """
        wanted = code.strip().upper()
        with self._open() as book:
            for position, each in enumerate(book.entries):
                if each.code and secrets.compare_digest(each.code.encode(), wanted.encode()):
                    greet = f"proactive:{durable.new_id()}" if each.chat else ""
                    granted = replace(each, code="", at=self._clock(), greet=greet)
                    book.entries[position] = granted
                    return granted
        raise NoSuchCode(
            "no request has this code; codes are valid for an hour", hint="chat-gateway pairing list"
        )

    def to_greet(self, channel: str) -> list[AccessRequest]:
        """List who was let in on a channel and does not know it yet.

        Raises:
            ChannelError: the file cannot be read.
        """
        return [each for each in _read(self._path).entries if each.channel == channel and each.greet]

    def greeted(self, entry: AccessRequest) -> None:
        """Note that the letter which tells it is in its queue."""
        with self._open() as book:
            book.entries = [
                replace(each, greet="") if each.greet == entry.greet else each for each in book.entries
            ]

    def admit(self, channel: str, id: str, *, kind: Who, name: str) -> None:
        """Let somebody in without a code."""
        with self._open() as book:
            if not any(_same(each, channel, id, kind) and not each.code for each in book.entries):
                book.entries.append(AccessRequest(channel, id, kind, name, self._clock()))

    def revoke(self, who: str) -> list[AccessRequest]:
        """Take back the access, and the codes, of ``telegram:123``, or of ``123`` on every channel.

        Raises:
            NobodyThere: there is nothing to take back.
        """
        with self._open() as book:
            gone = [each for each in book.entries if who in (each.who, each.id)]
            if gone:
                book.entries = [each for each in book.entries if each not in gone]
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
        with self._open() as book:
            meant = [each for each in book.entries if _is_among(each, chats)]
            kept = [] if access else [replace(each, name="") for each in meant if not each.code]
            book.entries = [each for each in book.entries if each not in meant] + kept
            gone = {f"{kind} {channel}:{who}" for channel, who in chats for kind in ("person", "group")}
            gone |= {f"{each.kind} {each.who}" for each in meant}
            book.answers = {who: each for who, each in book.answers.items() if who not in gone}
            return len(meant)

    def records(self, chats: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
        """List what is kept of these chats, as ``forget`` would find it."""
        return [each.as_row() for each in _read(self._path).entries if _is_among(each, chats)]

    def rows(self) -> list[dict[str, Any]]:
        """List who waits and who was let in, oldest first."""
        book = _read(self._path)
        book.let_go(self._clock())
        return [each.as_row() for each in sorted(book.entries, key=lambda each: each.at)]

    @contextmanager
    def _open(self) -> Iterator[_Book]:
        """Read the file under its lock, let it be changed, and write it where it was."""
        with state_file.locked(self._lock):
            book = _read(self._path)
            book.let_go(self._clock())
            before = _content(book)
            yield book
            if _content(book) != before:
                state_file.write(self._path, _content(book))


def there(state: Path) -> bool:
    """Say whether anybody ever asked."""
    return (state / "pairing.json").exists()


def approved(state: Path, channel: str) -> Approved:
    """Return whom the operator let in; the file is read only where it changed.

    Raises:
        ChannelError: the file cannot be read.
    """
    path = state / "pairing.json"
    try:
        found = path.stat()
    except FileNotFoundError:
        return Approved()
    except OSError as error:
        raise ChannelError(f"{path.name} cannot be read: {error.strerror}", hint=f"check {path}") from error
    seen = (found.st_ino, found.st_size, found.st_mtime_ns)
    known = _known.get(path)
    if known is None or known[0] != seen:
        known = _known[path] = (seen, _by_channel(_read(path)))
    return known[1].get(channel, Approved())


_known: dict[Path, tuple[tuple[int, int, int], dict[str, Approved]]] = {}


def _by_channel(book: _Book) -> dict[str, Approved]:
    granted = [each for each in book.entries if not each.code]
    return {
        channel: Approved(
            frozenset(each.id for each in granted if each.channel == channel and each.kind == "person"),
            frozenset(each.id for each in granted if each.channel == channel and each.kind == "group"),
        )
        for channel in {each.channel for each in granted}
    }


def _is_among(entry: AccessRequest, chats: Collection[tuple[str, str]]) -> bool:
    return (entry.channel, entry.id) in chats or (entry.channel, entry.chat) in chats


def _same(entry: AccessRequest, channel: str, id: str, kind: Who) -> bool:
    return (entry.channel, entry.id, entry.kind) == (channel, id, kind)


def _content(book: _Book) -> dict[str, Any]:
    return {
        "entries": [
            {
                "channel": each.channel,
                "id": each.id,
                "kind": each.kind,
                "name": each.name,
                "at": now_text(each.at),
                "code": each.code,
                "chat": each.chat,
                "greet": each.greet,
            }
            for each in book.entries
        ],
        "answers": {
            who: {"at": now_text(each.at), "id": each.id, "code": each.code}
            for who, each in book.answers.items()
        },
    }


def _read(path: Path) -> _Book:
    content = state_file.read(path)
    try:
        return _Book(
            [
                AccessRequest(
                    channel=str(each["channel"]),
                    id=str(each["id"]),
                    kind="group" if each["kind"] == "group" else "person",
                    name=str(each["name"]),
                    at=datetime.fromisoformat(each["at"]),
                    code=str(each["code"]),
                    chat=str(each.get("chat", "")),
                    greet=str(each.get("greet", "")),
                )
                for each in content.get("entries", [])
            ],
            {
                str(who): _Answer(datetime.fromisoformat(each["at"]), str(each["id"]), str(each["code"]))
                for who, each in content.get("answers", {}).items()
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ChannelError(f"{path.name} is damaged", hint=f"repair {path}, or move it away") from error
