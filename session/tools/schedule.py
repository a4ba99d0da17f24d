"""The tool ``schedule``: the chat's own jobs, made, listed and removed by whoever asks there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from session.errors import ToolError
from session.models.model import ToolSpec
from session.tools import ToolPlace, parameters
from session.transcript.key import split

# No answer of these reaches a person: the parent of a subagent makes what it needs.
_WORDS = ("message", "every", "cron", "at", "tz", "name")
_WITHOUT = frozenset({"", "sub"})


@dataclass(frozen=True, slots=True)
class Wish:
    """A job as the model words it: one of ``every``, ``cron`` and ``at``; empty where it said nothing."""

    message: str
    every: str = ""
    cron: str = ""
    at: str = ""
    tz: str = ""
    name: str = ""
    own_session: bool = False


class Schedules(Protocol):
    """Who keeps the jobs of all chats, and decides who may change which."""

    async def add(self, wish: Wish, place: ToolPlace) -> str:
        """Make a job of the chat and say when it runs; the same wish of the same message makes no second.

        Raises:
            ToolError: it cannot be made; nothing was written.
        """
        ...

    async def listed(self, place: ToolPlace) -> str:
        """Tell of the chat's jobs, one a line. Raises ``ToolError``."""
        ...

    async def remove(self, job_id: str, place: ToolPlace) -> str:
        """Remove a job of the chat. Raises ``ToolError``: there is none, or whoever asks may not."""
        ...


class Schedule:
    """Makes, lists and removes what the clock asks in this chat."""

    repeatable: ClassVar[bool] = False
    spec: ClassVar[ToolSpec] = ToolSpec(
        "schedule",
        "Add, list and remove reminders and scheduled jobs of this chat. Use it when somebody wants to be "
        "reminded, or wants something done later or repeatedly. The context of this conversation contains "
        "the current date, time and time zone: use them to work out what people mean by words such as "
        "tomorrow. Pass one of every, cron and at. At that time you get the message, as if it had been "
        "written here, and your answer goes to this chat.",
        parameters(
            "action",
            action={"type": "string", "enum": ["add", "list", "remove"]},
            message={
                "type": "string",
                "description": "add: what you will be asked then, with everything that you need to know",
            },
            at={
                "type": "string",
                "description": "Once: 2027-01-01T09:00 in the time zone tz, or with an offset",
            },
            every={"type": "string", "description": "Repeatedly: 30m, 2h, 1d; at least one minute"},
            cron={"type": "string", "description": "Five fields: 0 9 * * 1-5 is 9:00 on working days"},
            tz={
                "type": "string",
                "description": "Zone of at or cron, such as Europe/Berlin; default: this conversation's",
            },
            name={"type": "string", "description": "A short name for lists"},
            session={
                "type": "string",
                "enum": ["chat", "job"],
                "description": "chat (default): part of this conversation; job: in its own conversation, for "
                "long work of which only the answer should appear here",
            },
            id={"type": "string", "description": "remove: the id from list"},
        ),
    )

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def serves(self, place: ToolPlace) -> bool:
        """Say whether there is a chat that could be answered later."""
        return split(place.key)[0] not in _WITHOUT

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Do what is asked; on return it survives a power cut."""
        action = arguments["action"]
        if action == "list":
            return await self._schedules.listed(place)
        if action == "remove":
            job_id = arguments.get("id", "").strip()
            if not job_id:
                raise ToolError("pass the id from list")
            return await self._schedules.remove(job_id, place)
        words = {name: arguments.get(name, "").strip() for name in _WORDS}
        if not words["message"]:
            raise ToolError("pass in message what to ask then")
        own = arguments.get("session", "chat") == "job"
        return await self._schedules.add(Wish(**words, own_session=own), place)
