"""What the gateway keeps of a subject in files that are of all: jobs, access, what was sent and typed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import orjson

import durable
from channels.cron.actions_file import Left
from channels.cron.job import read_job
from channels.cron.jobs_file import CronFile
from channels.errors import ChannelError
from channels.pairing import Pairing
from channels.storage import read_rows
from gateway.errors import GatewayError
from session.kept.export import Extra
from session.kept.subject import Subject
from session.transcript.key import split
from session.transcript.line import dump

CRON = "cron"
_NUMBER: Final = re.compile(rb'"(?:to|originChatId)"\s*:\s*(-?[0-9]+)')
TORN: Final = "{} cannot be read to its end and may contain more jobs; correct it, then run this again"


def answering(workspace: Path) -> dict[str, str]:
    """Return which chat each job answers: the key of its conversation, and the key of that chat.

    Of several rows of one id the conversation is that of the one which can run.

    Raises:
        ChannelError: the file of jobs cannot be opened.
    """
    contents = CronFile(workspace).read()
    found: dict[str, str | None] = {}
    # What cannot run holds words of the chat all the same.
    for bad in contents.bad:
        if bad.id and (chat := _chat_of(bad.row)):
            found.setdefault(f"{CRON}:{bad.id}", chat)
    found |= {f"{CRON}:{id_}": job.answer_to for id_, job in contents.jobs.items()}
    return {key: to for key, to in found.items() if to}


def jobs_of(workspace: Path, subject: Subject) -> list[dict[str, Any]]:
    """Return the rows of the subject's jobs as they stand in their file."""
    return [row for row in CronFile(workspace).every_row() if _is_of(row, subject)]


def remove_jobs(workspace: Path, subject: Subject) -> int:
    """Remove the subject's jobs, and the copies of damaged files in which their words stand.

    Raises:
        ChannelError: the disk refused; call it again.
    """
    count = CronFile(workspace).remove_all(lambda row: _is_of(row, subject))
    copies = [path for path in (workspace / CRON).glob("*.corrupt-*") if _names_any(path, subject)]
    for path in copies:
        path.unlink(missing_ok=True)
    return count + len(copies)


def unread_jobs(workspace: Path, subject: Subject) -> list[str]:
    """Say which files of jobs nobody can read, so that the subject's may stand there after ``remove_jobs``.

    Raises:
        ChannelError: the file of jobs cannot be opened.
    """
    file = CronFile(workspace)
    torn = file.read().fault is not None and _names_any(file.path, subject)
    found = [TORN.format("cron/jobs.json")] if torn else []
    try:
        Left(workspace).read()
    except ChannelError:
        found.append(TORN.format("cron/action.jsonl"))
    return found


def _is_of(row: object, subject: Subject) -> bool:
    """Say whether a row is the subject's: by the chat that it names, for several may have one id."""
    if not isinstance(row, Mapping):
        return False
    chat = _chat_of(row)
    # One that names no chat answers into the conversation of its id.
    return row.get("id") in subject.jobs if chat is None else chat in subject.keys


def _names_any(path: Path, subject: Subject) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    chats = {split(key)[1] for key in subject.keys}
    if any(f'"{text}"'.encode() in data for text in (*subject.jobs, *chats)):
        return True
    # A chat may stand there as a number, which others are as well.
    return any(found[1].decode() in chats for found in _NUMBER.finditer(data))


def _chat_of(row: object) -> str | None:
    """Return the key of the chat that a row names; of one that cannot run, as far as it can be told."""
    try:
        return read_job(row, UTC).answer_to
    except ChannelError:
        return _named_in(row)


def _named_in(row: object) -> str | None:
    payload = row.get("payload") if isinstance(row, Mapping) else None
    if not isinstance(payload, Mapping):
        return None
    for channel, chat in (("channel", "to"), ("originChannel", "originChatId")):
        if payload.get(channel) not in (None, "", CRON) and payload.get(chat):
            return f"{payload[channel]}:{payload[chat]}"
    return None


# -- who was let in --------------------------------------------------------------------------------


def _asked_from(state: Path, subject: Subject) -> set[tuple[str, str]]:
    """Return by channel and id who the subject is to the table of access."""
    chats = {split(key) for key in subject.keys}
    with contextlib.suppress(ChannelError), read_rows(state) as file:
        direct = file.execute("SELECT person, chat FROM cursors WHERE person IS NOT NULL").fetchall()
        return chats | {("discord", person) for person, chat in direct if ("discord", chat) in chats}
    return chats


def access_of(state: Path, subject: Subject) -> list[dict[str, Any]]:
    """Return who of the subject has access or asked for it."""
    return Pairing(state).records(_asked_from(state, subject))


def forget_access(state: Path, subject: Subject) -> int:
    """Forget the names of those who asked for access; a person has to ask again, a chat has not.

    Raises:
        ChannelError: the disk refused; call it again.
    """
    return Pairing(state).forget(_asked_from(state, subject), access=subject.is_person)


# -- what was sent, and what was typed ---------------------------------------------------------------


def forget_typed(state: Path, subject: Subject) -> int:
    """Forget what was typed at this machine's terminal: no line of it tells for whom it was.

    Raises:
        GatewayError: the disk refused; call it again.
    """
    path = state / "chat_history"
    if not path.exists() or not subject.typed:
        return 0
    try:
        count = path.read_bytes().count(b"\n#")
        durable.replace(path, b"")
    except OSError as error:
        raise GatewayError(f"{path.name} could not be emptied: {error.strerror}") from error
    return count


def logs(state: Path) -> list[str]:
    """Name the files of logs that lie here."""
    return [path.name for path in sorted(state.glob("chat.log*"))]


def extras(
    workspace: Path,
    subject: Subject,
    letters: Collection[Mapping[str, Any]],
    journals: Mapping[str, Collection[Mapping[str, Any]]],
) -> Iterator[Extra]:
    """Yield the parts of an export that are rows of files of all.

    ``letters`` are the parked ones; ``journals`` has the entries of each key.
    """
    state = workspace / "state"
    found = (
        ("schedule", "rows/jobs.json", jobs_of(workspace, subject), "cron/jobs.json"),
        ("pairing", "rows/pairing.json", access_of(state, subject), "state/channels.db"),
        ("letter", "rows/parked.json", list(letters), "the queue"),
    )
    for kind, name, rows, source in found:
        if rows:
            yield Extra(kind, name, orjson.dumps(rows, option=orjson.OPT_INDENT_2), source)
    lines = [dump({"key": key, **entry}) + b"\n" for key in journals for entry in journals[key]]
    if lines:
        yield Extra("journal", "rows/journal.jsonl", b"".join(lines), "state/gateway.db")
