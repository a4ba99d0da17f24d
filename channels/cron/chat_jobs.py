"""The jobs of one chat, as they are made, listed and removed there: pure, over the rows of the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from channels.cron.jobs import CHANNEL, Asker, BadJob, CronJob, Row, chat_of, may_change, read_owner
from channels.cron.schedule import BadSchedule, Every, Schedule

# So many jobs that were made in a chat may be on at a time.
MOST_OF_A_CHAT: Final = 20
MIN_EVERY_MS: Final = 60_000
MAX_MESSAGE_CHARS: Final = 4_000
_ID_CHARS: Final = 8


class NotAllowed(BadJob):
    """Whoever asks may not change this job."""


def job_id_of(chat: str, message_id: str, *wish: str) -> str:
    """Return the id of the job that a message makes: the same wish in the same message is the same job."""
    parts = "\n".join((chat, message_id, *wish))
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_CHARS]


def check_wish(schedule: Schedule, message: str) -> None:
    """Refuse what a chat may not make.

    Raises:
        BadSchedule, BadJob: it would run too often, or asks too much.
    """
    if isinstance(schedule, Every) and schedule.every_ms < MIN_EVERY_MS:
        raise BadSchedule("an interval below one minute is too short", hint="use 60s or more")
    if len(message) > MAX_MESSAGE_CHARS:
        raise BadJob("the message is too long", hint=f"at most {MAX_MESSAGE_CHARS} characters")


def added(rows: list[Any], row: Row) -> list[Any]:
    """Return the rows with a job that a chat makes; the very same list where it stands there already.

    Raises:
        BadJob: the chat has too many, or another job has this id.
    """
    owner = read_owner(row["payload"]["owner"])
    assert owner is not None
    for known in rows:
        if isinstance(known, dict) and known.get("id") == row["id"]:
            maker = _owner_of(known)
            if maker is not None and (maker.chat, maker.message_id) == (owner.chat, owner.message_id):
                return rows
            raise BadJob("another job has this id", hint="use other words")
    if sum(1 for known in rows if _counts(known, owner.chat)) >= MOST_OF_A_CHAT:
        raise BadJob(f"this chat has {MOST_OF_A_CHAT} jobs", hint="remove one first")
    return [*rows, row]


def removed(rows: list[Any], job_id: str, asker: Asker, job: CronJob | None) -> list[Any]:
    """Return the rows without a job; ``job`` is what stands there under this id, where it can be read.

    Raises:
        NotAllowed: whoever asks may not change it.
        BadJob: the chat has no such job.
    """
    if job is None or not is_of(job, asker):
        raise BadJob(f"this chat has no job {job_id}", hint="list shows the jobs of this chat")
    if not may_change(job.id, job.owner, asker):
        who = (
            f"Only {job.owner.name or 'its creator'} or" if job.owner is not None else "Only the operator or"
        )
        raise NotAllowed(f"{who} an approved user can change the job {job_id}", hint="ask them")
    return [row for row in rows if not (isinstance(row, dict) and row.get("id") == job_id)]


def moved(rows: list[Any], old: str, new: str) -> list[Any]:
    """Return the rows with the jobs of a chat under the key that it has now; what cannot be read stays."""
    return [_moved(row, old, new) if isinstance(row, dict) else row for row in rows]


def _moved(row: Row, old: str, new: str) -> Row:
    payload = row.get("payload")
    if not isinstance(payload, dict):
        return row
    change: Row = {}
    for channel, chat in (("channel", "to"), ("originChannel", "originChatId")):
        if f"{payload.get(channel)}:{payload.get(chat)}" == old:
            change |= dict(zip((channel, chat), chat_of(new), strict=True))
    if payload.get("sessionKey") == old:
        change["sessionKey"] = new
    owner = read_owner(payload.get("owner"))
    if owner is not None and owner.chat == old:
        change["owner"] = replace(owner, chat=new).as_row()
    return {**row, "payload": {**payload, **change}} if change else row


def of_chat(jobs: Iterable[CronJob], asker: Asker) -> Sequence[CronJob]:
    """List the jobs that whoever asks may see, in the order of the file."""
    return [job for job in jobs if is_of(job, asker)]


def is_of(job: CronJob, asker: Asker) -> bool:
    """Say whether a job belongs to the chat: it answers there, or runs there."""
    return job.asks and asker.chat in (job.answer_to, job.key, job.own_key)


def own_job(message_id: str) -> str:
    """Return the job whose letter has this id; empty where it is no job's."""
    head, at, _ = message_id.rpartition("@")
    return head.removeprefix(f"{CHANNEL}:") if at and head.startswith(f"{CHANNEL}:") else ""


def _owner_of(row: Row) -> Any:
    payload = row.get("payload")
    return read_owner(payload.get("owner")) if isinstance(payload, dict) else None


def _counts(row: Any, chat: str) -> bool:
    if not isinstance(row, dict) or row.get("enabled", True) is False:
        return False
    owner = _owner_of(row)
    return owner is not None and owner.chat == chat
