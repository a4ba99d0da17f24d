"""Who made a job in a chat, and who may change it: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
