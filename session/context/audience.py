"""What a chat is, direct or a group: as its platform said, remembered with its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from session.context.scopes import OWN_CHANNELS, Chat
from session.transcript.key import SUBAGENTS, split
from session.transcript.transcript import Transcript, decode

# The name of the field in line 1's metadata.
CHAT: Final = "chat"
# The chats that a job has answered, by their keys.
ANSWERS: Final = "answers_to"
MAX_ANSWERS: Final = 20
_OWN_IDS: Final = tuple(f"{channel}:" for channel in sorted({*OWN_CHANNELS, SUBAGENTS}) if channel)


def told(key: str, message_id: str, *, group: bool) -> Chat | None:
    """Return what a message says of its chat; None where it does not come from the chat's platform.

    What the terminal, the page, a job or a subagent puts into a chat of a platform knows nothing of that
    chat. That it is a group is believed of whoever says so.
    """
    if group:
        return "group"
    is_own = split(key)[0] in OWN_CHANNELS
    return None if is_own or message_id.startswith(_OWN_IDS) else "direct"


def newer(known: object, said: Chat | None) -> Chat | None:
    """Return what is to be remembered besides what is known; None where that says as much.

    Who was in a group stays in its lines: it never becomes a direct chat.
    """
    return None if said is None or known in ("group", said) else said


def as_chat(value: object) -> Chat | None:
    """Read what line 1 says of a chat."""
    return "group" if value == "group" else "direct" if value == "direct" else None


def answers_in(inner: Mapping[str, Any]) -> tuple[str, ...]:
    """Read which chats line 1 says that a job has answered."""
    found = inner.get(ANSWERS)
    return tuple(key for key in found if isinstance(key, str)) if isinstance(found, list) else ()


def chat_in(transcript: Transcript) -> Chat | None:
    """Return what a session knows of its chat: by its line 1, else by its lines; None where nothing tells.

    A line of ours says that it was written in a group; one of a message of the platform that does not was
    written in a direct chat.
    """
    known = as_chat(transcript.inner.get(CHAT))
    if known is not None:
        return known
    found: Chat | None = None
    for raw in transcript.messages:
        if b'"group"' not in raw and (found is not None or b'"message_id"' not in raw):
            continue
        line = decode(raw)
        if line.get("group") is True:
            return "group"
        message_id = line.get("message_id")
        if line.get("role") == "user" and isinstance(message_id, str) and message_id:
            found = found or told(transcript.key, message_id, group=False)
    return found
