"""Sessions of OpenClaw: pi's files, and beside them the store that says which key each belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from session.interchange import pi
from session.interchange.conversation import BadFormat, Conversation, Files, json_object, stem_of

STORE = "sessions.json"
_CHAT = re.compile(
    r"agent:[^:]+:(?P<channel>[a-z][a-z0-9_]{0,31}):(?:[^:]+:)?(?:direct|dm|group|channel|room):(?P<chat>[^:]+)"
    r"(?::(?:topic|thread):(?P<thread>[^:]+))?"
)
_CRON = re.compile(r"(?:agent:[^:]+:)?cron:(?P<job>[^:]+)(?::run:.*)?")


def decode(files: Files) -> list[Conversation]:
    """Read each session's file, with its key where ``sessions.json`` beside it names one."""
    found = []
    for path, data in files.items():
        folder, _, name = path.rpartition("/")
        if not (name.endswith(".jsonl") or len(files) == 1) or _stands_beside(name):
            continue
        conversation = pi.decode_file(path, data)
        keys = _keys(json_object(files.get(f"{folder}/{STORE}" if folder else STORE, b"")))
        theirs = keys.get(stem_of(path)) or keys.get(conversation.session_id) or ""
        key = our_key(theirs)
        lost = (*conversation.lost, f"the key {theirs}") if theirs != key else conversation.lost
        found.append(replace(conversation, key=key, lost=lost))
    if not found:
        raise BadFormat("it contains no OpenClaw session", hint="choose the folder agents/<agent>/sessions")
    return found


def our_key(theirs: str) -> str:
    """Return the key that a chat has here; empty where it is no chat's. One without a colon stays."""
    if (chat := _CHAT.fullmatch(theirs)) is not None:
        channel, thread = chat["channel"], chat["thread"]
        if thread and channel == "discord":
            return f"discord:{thread}"
        return f"{channel}:{chat['chat']}" + (f":topic:{thread}" if thread else "")
    if (job := _CRON.fullmatch(theirs)) is not None:
        return f"cron:{job['job']}"
    return "" if ":" in theirs else theirs


def _keys(store: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, entry in store.items():
        if not isinstance(entry, dict):
            continue
        for name in ("sessionId", "sessionFile"):
            if isinstance(value := entry.get(name), str) and value:
                found.setdefault(stem_of(value.replace("\\", "/")), key)
    return found


def _stands_beside(name: str) -> bool:
    """Say whether a file only goes with a session, as its trajectory or a checkpoint of it."""
    stem = name.removesuffix(".jsonl")
    return stem != name and (stem.endswith(".trajectory") or ".checkpoint." in stem)
