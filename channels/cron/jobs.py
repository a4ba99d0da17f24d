"""One job as ``cron/jobs.json`` holds it (nanobot's schema): read, made, changed; who may change it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final, Literal

import durable
from channels.cron.schedule import (
    POLICIES,
    At,
    Every,
    Policy,
    Schedule,
    instant_of,
    is_date,
    is_slot,
    ms_of,
    next_after,
    read,
    slot_name,
)
from channels.errors import ChannelError
from channels.message import MAX_TEXT_BYTES, Inbound, key_fault, now_text
from durable import whole_text

# The names that agents have, that of the sections outside of ``[agents]`` included.
_AGENT: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who made a job in a chat.

    Args:
        chat: key of the chat.
        id: the person's id on that platform; empty where it has none.
        name: as the platform showed it then.
        message_id: the message by which it was made.
    """

    chat: str
    id: str = ""
    name: str = ""
    message_id: str = ""

    def as_row(self) -> dict[str, str]:
        """Return it as a job holds it."""
        return {"chat": self.chat, "id": self.id, "name": self.name, "message_id": self.message_id}


def read_owner(value: object) -> Owner | None:
    """Read what a job says of its owner; None where nothing sound stands there."""
    if not isinstance(value, Mapping):
        return None
    fields = {name: _text(value.get(name)) for name in ("chat", "id", "name", "message_id")}
    return Owner(**fields) if fields["chat"] else None


def read_agent(value: object) -> str | None:
    """Read which agent a job is of; empty where it says nothing, None where no agent can have that name."""
    if value is None or value == "":
        return ""
    return value if isinstance(value, str) and _AGENT.fullmatch(value) else None


@dataclass(frozen=True, slots=True)
class Asker:
    """Who wants to see or change the jobs of a chat.

    Args:
        chat: key of the chat in which it is asked.
        id: the person's id there.
        group: whether others read along and may ask as well.
        trusted: the operator let the person in, or nobody but the operator reaches this chat.
        job: the job in whose own turn it is asked; empty where a person does.
    """

    chat: str
    id: str = ""
    group: bool = False
    trusted: bool = False
    job: str = ""


def may_change(job_id: str, owner: Owner | None, asker: Asker) -> bool:
    """Say whether a job of a chat may be changed by whoever asks there.

    A job changes no job but itself. A trusted person changes all of the chat, an owner those of his own, and
    in a direct chat whoever writes there those that were made there.
    """
    if asker.job:
        return asker.job == job_id
    if asker.trusted:
        return True
    if owner is None or owner.chat != asker.chat:
        return False
    return not asker.group or bool(asker.id and asker.id == owner.id)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


Row = dict[str, Any]
Status = Literal["ok", "error", "skipped"]
CHANNEL: Final = "cron"
# Under this name the ``meta`` of a letter says of which job it is.
ABOUT: Final = "job"
MAX_HISTORY: Final = 20
# In that: every run is wanted, however many of the job's runs wait.
ALL: Final = "all"
# The answer of a beat at which nothing is to be told.
HEARTBEAT_WORD: Final = "HEARTBEAT_OK"
HEARTBEAT_MESSAGE: Final = (
    "This is a heartbeat: nobody has written. Look at the tasks below, which stand in HEARTBEAT.md, and do "
    "what is due now. If nothing needs to be told to anybody, answer with the one word "
    f"{HEARTBEAT_WORD}."
)
# With what stands around it, the id of a letter stays within its 200.
MAX_ID_BYTES: Final = 160
# A run dated further ahead than this is not believed.
CLOCK_WAS_WRONG: Final = timedelta(hours=24)
_CHANNEL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


class BadJob(ChannelError):
    """A job that cannot run; ``hint`` says how it could."""


@dataclass(frozen=True, slots=True)
class CronJob:
    """A job that can run.

    Args:
        policy: what becomes of slots that passed while nobody looked.
        answer_to: key of the chat that gets the answers; None: they stay in the job's own session.
        asks: False for what nanobot schedules for itself; such a job is kept and never run here.
        in_chat: it runs in the session of the chat that it answers, not in its own.
        heartbeat: what it asks stands in ``HEARTBEAT.md``, which is read anew at each beat.
        owner: who made it in a chat; None: the command line.
        agent: whose it is, by its name; empty: of whichever the chat has when it runs.
        row: as it stands in the file, unknown fields included.
    """

    id: str
    name: str
    enabled: bool
    schedule: Schedule
    policy: Policy
    message: str
    answer_to: str | None
    asks: bool
    row: Mapping[str, Any]
    in_chat: bool = False
    heartbeat: bool = False
    owner: Owner | None = None
    agent: str = ""

    @property
    def key(self) -> str:
        """The conversation in which it runs."""
        return self.answer_to if self.in_chat and self.answer_to else self.own_key

    @property
    def own_key(self) -> str:
        """The conversation that is the job's own."""
        return f"{CHANNEL}:{self.id}"

    @property
    def overdue(self) -> list[datetime]:
        """Its slot where it is a reminder that somebody made in a chat: that is asked however late."""
        return [self.schedule.at] if self.owner is not None and isinstance(self.schedule, At) else []

    def state_ms(self, name: str) -> int | None:
        """Return one of the instants of its ``state``; None where there is no sound one."""
        state = self.row.get("state")
        value = state.get(name) if isinstance(state, dict) else None
        return value if type(value) is int and value > 0 and is_date(value) else None


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one slot, or (``slot`` None) of a run by hand."""

    job_id: str
    slot: datetime | None
    status: Status
    at: datetime
    error: str | None = None
    duration_ms: int = 0


def read_job(row: object, zone: tzinfo) -> CronJob:
    """Read a job, whatever somebody wrote there.

    Raises:
        BadJob, BadSchedule: it cannot run.
    """
    if not isinstance(row, dict):
        raise BadJob("not a JSON object", hint="a job is an object with id, name, schedule and payload")
    payload, schedule = row.get("payload"), row.get("schedule")
    if not isinstance(schedule, dict):
        raise BadJob("schedule is not an object", hint='{"kind": "every", "everyMs": 7200000}')
    if not isinstance(payload, dict):
        raise BadJob("payload is not an object", hint='{"kind": "agent_turn", "message": "…"}')
    job_id, enabled = _id_of(row), row.get("enabled", True)
    if not isinstance(enabled, bool):
        raise BadJob(f"enabled is {enabled!r}", hint="true or false")
    policy = schedule.get("missed") or "once"
    if policy not in POLICIES:
        raise BadJob(f"schedule.missed is {policy!r}", hint="skip, once or all")
    asks = payload.get("kind") != "system_event" or bool(payload.get("message"))
    answer_to, agent = _answer_to(payload), read_agent(payload.get("agent"))
    if agent is None:
        # Asked of any other one, its words would reach whom they are not for.
        raise BadJob(f"payload.agent is {payload['agent']!r}", hint="default, or a name of [agents]")
    return CronJob(
        id=job_id,
        name=row["name"] if isinstance(row.get("name"), str) else job_id,
        enabled=enabled,
        schedule=read(schedule, anchor_ms=whole(row.get("createdAtMs")), zone=zone),
        policy=policy,
        message=_message_of(payload) if asks else "",
        answer_to=answer_to,
        asks=asks,
        row=row,
        in_chat=answer_to is not None and payload.get("session") == "chat",
        heartbeat=payload.get("heartbeat") is True,
        owner=read_owner(payload.get("owner")),
        agent=agent,
    )


def _id_of(row: Mapping[str, Any]) -> str:
    job_id = row.get("id")
    if not isinstance(job_id, str) or not job_id.strip():
        raise BadJob("id is not a string", hint="any name that no other job has")
    if not _encodable(job_id) or len(job_id.encode()) > MAX_ID_BYTES:
        raise BadJob("id is too long", hint=f"at most {MAX_ID_BYTES} bytes of UTF-8")
    return job_id


def _message_of(payload: Mapping[str, Any]) -> str:
    message = payload.get("message")
    if not isinstance(message, str) or not message.strip():
        raise BadJob("payload.message is empty", hint="put the question or task there")
    if not _encodable(message) or len(message.encode()) > MAX_TEXT_BYTES:
        raise BadJob("payload.message is over 1 MiB or not a string", hint="shorten it")
    return message


def _answer_to(payload: Mapping[str, Any]) -> str | None:
    """Find the chat that gets the answers; newer nanobots name it as the job's origin."""
    if payload.get("deliver") is True and payload.get("to"):
        channel, to = payload.get("channel") or "cli", payload["to"]
    else:
        channel, to = payload.get("originChannel"), payload.get("originChatId")
        if not channel or not to or channel == CHANNEL:
            return None
    to = str(to) if type(to) is int else to
    if not isinstance(channel, str) or not isinstance(to, str) or not _encodable(to):
        raise BadJob("payload: channel and to must be strings", hint='"channel": "telegram", "to": "123"')
    if not _CHANNEL_NAME.fullmatch(channel):
        raise BadJob(f"payload: {channel!r} is not a channel name", hint="a name such as telegram or discord")
    return f"{channel}:{to}"


def chat_of(key: str) -> tuple[str, str]:
    """Split the key of a chat into channel and chat id.

    Raises:
        BadJob: it is none.
    """
    channel, _, chat_id = key.partition(":")
    if not _CHANNEL_NAME.fullmatch(channel) or not chat_id or not _encodable(chat_id):
        raise BadJob(f"{key!r} is not a chat key", hint="channel:chat_id, such as telegram:12345678")
    if fault := key_fault(key):
        raise BadJob(f"the chat key is too long: {fault}", hint="channel:chat_id, with the platform's own id")
    return channel, chat_id


def new_row(
    schedule: Schedule,
    message: str,
    *,
    at: datetime,
    to: str = "",
    name: str = "",
    policy: Policy = "once",
    in_chat: bool = False,
    heartbeat: bool = False,
    owner: Owner | None = None,
    agent: str = "",
    job_id: str = "",
) -> Row:
    """Make a job as it is to stand in the file; it runs in every nanobot, too.

    It is made ``at`` an instant, UTC, from which intervals count; ``to`` is the key of the chat that gets the
    answers (empty: they stay in the job's own session), ``in_chat`` lets it run in that chat's session.
    ``owner`` makes it in a chat: one of theirs that runs once is gone afterwards. Without ``job_id`` it gets
    a new one. ``agent`` is whose it is. A ``heartbeat`` without a message asks the usual one.

    Raises:
        BadJob: the message is empty or too long, ``to`` is not a chat key, ``in_chat`` has none, or a text
            cannot be encoded as UTF-8.
    """
    ms, job_id = ms_of(at), job_id or durable.token_hex(4)
    message = message or (HEARTBEAT_MESSAGE if heartbeat else "")
    payload: Row = {"kind": "agent_turn", "message": message, **_answers_row(job_id, to, in_chat=in_chat)}
    if heartbeat:
        payload["heartbeat"] = True
    if owner is not None:
        payload["owner"] = owner.as_row()
    if agent:
        payload["agent"] = agent
    _message_of(payload)
    if not _encodable(name):
        raise BadJob("name is not a string", hint="it contains half of a surrogate pair")
    following = next_after(schedule, at)
    return {
        "id": job_id,
        "name": name or ("heartbeat" if heartbeat else " ".join(message.split())[:30]),
        "enabled": True,
        "schedule": _schedule_row(schedule, policy),
        "payload": payload,
        "state": {
            "nextRunAtMs": ms_of(following) if following is not None else None,
            "lastRunAtMs": None,
            "lastStatus": None,
            "lastError": None,
            "runHistory": [],
        },
        "createdAtMs": ms,
        "updatedAtMs": ms,
        "deleteAfterRun": owner is not None and isinstance(schedule, At),
    }


def _answers_row(job_id: str, to: str, *, in_chat: bool) -> Row:
    """Say where a job runs and where its answers go, in the fields of old nanobots and of newer ones."""
    if in_chat and not to:
        raise BadJob(
            "a job in the session of a chat needs a chat", hint="name a chat: --to telegram:12345678"
        )
    channel, chat_id = chat_of(to) if to else (None, None)
    row: Row = {"deliver": bool(to), "channel": channel, "to": chat_id}
    if not to:
        # A newer nanobot runs no job without a chat: this one is bound to its own session.
        bound: Row = {"sessionKey": f"{CHANNEL}:{job_id}", "originChannel": CHANNEL, "originChatId": job_id}
    elif in_chat:
        # The field is ours; the others bind it to the same session in newer nanobots.
        bound = {"session": "chat", "sessionKey": to, "originChannel": channel, "originChatId": chat_id}
    else:
        bound = {}
    return row | bound


def _schedule_row(schedule: Schedule, policy: Policy) -> Row:
    row: Row = {"kind": "at", "atMs": None, "everyMs": None, "expr": None, "tz": None}
    if isinstance(schedule, At):
        row["atMs"] = ms_of(schedule.at)
    elif isinstance(schedule, Every):
        row |= {"kind": "every", "everyMs": schedule.every_ms}
    else:
        row |= {"kind": "cron", "expr": schedule.expr, "tz": str(schedule.zone)}
    return row if policy == "once" else row | {"missed": policy}


def due(job: CronJob, now: datetime, last: datetime | None = None) -> datetime | None:
    """Return the first slot that was not run yet; it may be past. None where no more comes.

    ``nextRunAtMs`` of the file is where the last scheduler stood: from there on slots are made up, if it is a
    slot of the schedule as it stands now. A schedule that was changed, a job that was switched on again or
    one of which nothing is known begins now.

    Args:
        job: as it was read.
        now: UTC.
        last: the last slot that this process ran, where it knows of one that the file does not hold yet.
    """
    if not job.enabled or not job.asks:
        return None
    stood = _last_slot(job, now, last)
    if isinstance(job.schedule, At):
        return job.schedule.at if stood is None or stood < job.schedule.at else None
    stored = job.state_ms("nextRunAtMs")
    if stored is not None:
        begin = instant_of(stored)
        if begin <= now and is_slot(job.schedule, begin):
            if stood is None or begin > stood:
                return begin
            # This process ran on from there, up to this slot.
            if last is not None and begin <= last:
                return next_after(job.schedule, stood)
    return next_after(job.schedule, now if stood is None else max(now, stood))


def _last_slot(job: CronJob, now: datetime, last: datetime | None) -> datetime | None:
    ms = job.state_ms("lastSlotMs") or job.state_ms("lastRunAtMs")
    stored = instant_of(ms) if ms is not None else None
    if stored is not None and stored > now + CLOCK_WAS_WRONG:
        stored = None
    return max((one for one in (stored, last) if one is not None), default=None)


def letter(
    job: CronJob, slot: datetime | None, *, at: datetime, run_id: str = "", text: str | None = None
) -> Inbound:
    """Make the letter of a slot, the same id whoever makes it; without a slot, of a run by hand.

    ``text`` is what it asks where that is not the job's message. A letter for the chat's own session has no
    sender: it is the clock that asks, and not the person.
    """
    name = slot_name(slot) if slot is not None else f"run:{run_id}"
    channel, _, chat_id = job.key.partition(":")
    about: dict[str, Any] = {"name": whole_text(job.name)} | ({"heartbeat": True} if job.heartbeat else {})
    if job.policy == ALL:
        about["missed"] = ALL
    return Inbound(
        v=1,
        id=f"{job.own_key}@{name}",
        key=job.key,
        channel=channel,
        chat_id=chat_id,
        text=job.message if text is None else text,
        answer_to=job.answer_to if job.key == job.own_key else None,
        sent_at=now_text(slot or at),
        received_at=now_text(at),
        source="cron",
        cron_job_id=job.id,
        job_agent=job.agent,
        meta={ABOUT: about},
    )


def letter_slot(inbound_id: str) -> datetime | None:
    """Return the slot of a letter; None of a run by hand, or where the id is no job's."""
    try:
        return datetime.fromisoformat(inbound_id.rpartition("@")[2])
    except ValueError:
        return None


def shown(job: CronJob, now: datetime) -> Row:
    """Return the job as it is listed: nanobot's fields, and ``next_run_at``."""
    slot = due(job, now)
    return {**job.row, "next_run_at": slot_name(slot) if slot is not None else None}


def coming(job: CronJob, now: datetime, most: int) -> list[datetime]:
    """List the slots at which a job runs next, the soonest first; none where it is off."""
    slot = due(job, now)
    found: list[datetime] = []
    while slot is not None and len(found) < most:
        found.append(slot)
        slot = next_after(job.schedule, slot)
    return found


def runs(job: CronJob) -> list[Row]:
    """List what the file tells of a job's last runs, in their order."""
    state = job.row.get("state")
    history = state.get("runHistory") if isinstance(state, dict) else None
    return [one for one in history if isinstance(one, dict)] if isinstance(history, list) else []


def whole(value: object) -> int:
    """Return a number as the file may hold it; 0 for whatever else stands there."""
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _encodable(text: str) -> bool:
    """Say whether it is text of UTF-8, which half of a surrogate pair is not."""
    return whole_text(text) == text


# What a job has_task now; None: nothing.
TextOf = Callable[[CronJob], Awaitable[str | None]]
HEARTBEAT_FILE: Final = "HEARTBEAT.md"
# What stands behind it is not asked.
MAX_HEARTBEAT_CHARS: Final = 32_000
NO_TASK: Final = "HEARTBEAT.md contains no task"
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# A heading, the mark of an item without a text, a rule.
_EMPTY: Final = re.compile(r"(?:#{1,6}(?:\s.*)?|[-*+](?:\s*\[[ xX]?\])?|\d+[.)]|-{3,}|\*{3,}|_{3,})?")


async def message_of(job: CronJob) -> str | None:
    """Return what stands in the file as the job's message: what every job but a heartbeat has_task."""
    return job.message


def has_task(text: str) -> bool:
    """Say whether there is a task: more than headings, comments and items without a text."""
    return not all(
        _EMPTY.fullmatch(line.strip()) for line in _COMMENT.sub("", text[:MAX_HEARTBEAT_CHARS]).splitlines()
    )


def beat(message: str, tasks: str) -> str | None:
    """Return what a beat has_task: the job's message, below it the tasks. None: there is no task."""
    return f"{message}\n\n{tasks[:MAX_HEARTBEAT_CHARS].strip()}" if has_task(tasks) else None
