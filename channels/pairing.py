"""Strangers and groups that ask for access: their codes, and whom the operator let in (``pairing.json``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from channels import state_file
from channels.errors import ChannelError
from channels.message import now_text

ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # nothing that looks like another letter
CODE_CHARS: Final = 8
VALID: Final = timedelta(hours=1)
ANSWER_EVERY: Final = timedelta(days=1)
MAX_PENDING: Final = 3
Who = Literal["person", "group"]


@dataclass(frozen=True, slots=True)
class Approved:
    """Whom the operator let in on one channel, by numeric id."""

    people: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One request for access; ``code`` is empty once it was approved, ``at`` is when it changed last."""

    channel: str
    id: str
    kind: Who
    name: str
    at: datetime
    code: str = ""

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
    """When somebody was told a code, for which message."""

    at: datetime
    id: str
    code: str


@dataclass(slots=True)
class _Book:
    """What the file holds."""

    entries: list[Entry]
    answers: dict[str, _Answer]  # by who, with kind

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

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = state / "pairing.json"
        self._lock = state / "pairing.lock"
        self._clock = clock

    def ask(self, channel: str, id: str, *, kind: Who, name: str, message_id: str) -> str | None:
        """Return the code to be told in answer to a message, None where the answer is silence.

        Everyone is answered once a day, but the same message always gets the same answer; while three
        codes of a channel wait nobody gets a new one.

        Raises:
            ChannelError: the file cannot be read or written, or its lock not be had.
        """
        with self._open() as book:
            now = self._clock()
            asked = f"{kind} {channel}:{id}"
            known = book.answers.get(asked)
            if known is not None:
                return known.code if known.id == message_id else None
            if sum(1 for each in book.entries if each.code and each.channel == channel) >= MAX_PENDING:
                return None
            code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARS))
            book.entries.append(Entry(channel, id, kind, name, now, code))
            book.answers[asked] = _Answer(now, message_id, code)
            return code

    def approve(self, code: str) -> Entry:
        """Let in who was told ``code``, for ever.

        Raises:
            NoSuchCode: it is not one, or it ran out.
        """
        wanted = code.strip().upper()
        with self._open() as book:
            for place, each in enumerate(book.entries):
                if each.code and secrets.compare_digest(each.code.encode(), wanted.encode()):
                    granted = replace(each, code="", at=self._clock())
                    book.entries[place] = granted
                    return granted
        raise NoSuchCode("no such code waits: codes are valid for an hour", hint="chat-gateway pairing list")

    def admit(self, channel: str, id: str, *, kind: Who, name: str) -> None:
        """Let somebody in without a code."""
        with self._open() as book:
            if not any(_same(each, channel, id, kind) and not each.code for each in book.entries):
                book.entries.append(Entry(channel, id, kind, name, self._clock()))

    def revoke(self, who: str) -> list[Entry]:
        """Take back the access, and the codes, of ``telegram:123``, or of ``123`` on every channel.

        Raises:
            NobodyThere: there is nothing to take back.
        """
        with self._open() as book:
            gone = [each for each in book.entries if who in (each.who, each.id)]
            if gone:
                book.entries = [each for each in book.entries if each not in gone]
                return gone
        raise NobodyThere(f"nobody called {who} has asked or was let in", hint="chat-gateway pairing list")

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
        raise ChannelError(
            f"{path.name} cannot be reached: {error.strerror}", hint=f"look at {path}"
        ) from error
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


def _same(entry: Entry, channel: str, id: str, kind: Who) -> bool:
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
                Entry(
                    channel=str(each["channel"]),
                    id=str(each["id"]),
                    kind="group" if each["kind"] == "group" else "person",
                    name=str(each["name"]),
                    at=datetime.fromisoformat(each["at"]),
                    code=str(each["code"]),
                )
                for each in content.get("entries", [])
            ],
            {
                str(who): _Answer(datetime.fromisoformat(each["at"]), str(each["id"]), str(each["code"]))
                for who, each in content.get("answers", {}).items()
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ChannelError(f"{path.name} is damaged", hint=f"mend {path}, or move it away") from error
