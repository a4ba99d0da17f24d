"""The name of a conversation, and the safe file stem that belongs to it."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import NewType
from zlib import crc32

SessionKey = NewType("SessionKey", str)

SLOTS = 256
# The channel of subagents: no platform has it, and nothing is ever sent there.
SUBAGENTS = "sub"
# What stands between a group and its topic in a key.
TOPIC = ":topic:"
# A file name has 255 bytes: ``.jsonl`` fits behind the stem.
MAX_STEM_BYTES = 249
_MARK = re.compile(r"~[0-9a-f]{8}\Z")
_UNSAFE = re.compile(r'[<>:"/\\|?*]')


def slot_of(key: str) -> int:
    """Hash a key to one of 256 slots, the same for ever and in every language: ``crc32(utf8) % 256``."""
    return crc32(key.encode("utf-8", "surrogatepass")) % SLOTS


def split(key: str) -> tuple[str, str]:
    """Take a key apart at its first colon: ``(channel, chat_id)``; a key without one has no channel."""
    channel, colon, chat_id = key.partition(":")
    return (channel, chat_id) if colon else ("", key)


def chat_of(key: str) -> str:
    """Return the key of the group whose topic a conversation is; of every other one its own."""
    return key.partition(TOPIC)[0]


def is_subagent(key: str) -> bool:
    """Say whether a conversation is that of a subagent: ``sub:<ULID of its parent's session>:<number>``."""
    return split(key)[0] == SUBAGENTS


def source_of(key: str) -> dict[str, str]:
    """Say, as line 1 does, that a conversation is a cron job's; empty for all others."""
    channel, job_id = split(key)
    return {"source": "cron", "cron_job_id": job_id} if channel == "cron" else {}


def mark_of(key: str) -> str:
    """Return the 8 hex digits that tell two keys of one name apart."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def plain_stem(key: str) -> str:
    """Apply nanobot's file name rule, which is lossy: ``a:b:c`` and ``a:b_c`` share ``a_b_c``."""
    return _UNSAFE.sub("_", key.replace(":", "_")).strip()


def marked_stem(key: str) -> str:
    """Return the stem with its suffix, cut at a character boundary to 249 bytes, NUL replaced."""
    suffix = f"~{mark_of(key)}"
    stem = plain_stem(key).replace("\0", "_").encode("utf-8", "replace")
    return stem[: MAX_STEM_BYTES - len(suffix)].decode("utf-8", "ignore") + suffix


def looks_marked(stem: str) -> bool:
    """Say whether a plain stem ends as a marked one does: it may be the one of another key."""
    return _MARK.search(stem) is not None


def needs_mark(key: str) -> bool:
    """Say whether nanobot's own name for this key cannot be opened, or leads elsewhere."""
    stem = plain_stem(key)
    return (
        "\0" in stem
        or stem in ("", ".", "..")
        or len(stem.encode("utf-8", "replace")) > MAX_STEM_BYTES
        or any(0xD800 <= ord(c) <= 0xDFFF for c in stem)
    )


def key_from_stem(stem: str) -> SessionKey:
    """Guess the key of a file whose line 1 names none: the first ``_`` becomes ``:``."""
    return SessionKey(stem.replace("_", ":", 1))


def derived_id(key: str, created_at: datetime | None) -> str:
    """Make the ULID of a session whose file carries none: time of creation, randomness from the key."""
    # It reads its own version from disk, for which help and completion would wait.
    from ulid import ULID

    ms = 0 if created_at is None else int(created_at.timestamp() * 1_000_000 + 0.5) // 1000
    time = max(0, min(ms, 2**48 - 1)).to_bytes(6, "big")
    return str(ULID(time + hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:10]))
