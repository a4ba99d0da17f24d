"""How long a conversation has been silent, and what a session that ends for it says last; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from session.transcript import history
from session.transcript.key import split
from session.transcript.repair import plain_text
from session.transcript.transcript import Transcript, decode, read_time

# Messages at the end of a session among which its last words are looked for.
LOOKED_AT = 200
MAX_WORDS_CHARS = 300


def fresh_at(transcript: Transcript) -> datetime | None:
    """Return when a person or the model last said something; system messages and cron do not count.

    A session that was opened again is as fresh as that moment. Where there is nothing else, the newest line
    counts, in a cron job's own conversation any line. None for a session without messages, and where no
    line says when it was written.
    """
    spoken = _spoken_at(transcript)
    opened = read_time(transcript.inner.get("resumed_at"))
    return max((at for at in (spoken, opened) if at is not None), default=None) if spoken else None


def is_idle(transcript: Transcript, *, received_at: datetime | None, now: datetime, limit: timedelta) -> bool:
    """Say whether a message comes so late that a new session should begin for it.

    Args:
        transcript: the active session.
        received_at: when the message was accepted; None counts as now, and so does a time yet to come.
        now: the time now.
        limit: how long a chat may be silent; zero is for ever.
    """
    if limit <= timedelta(0):
        return False
    fresh = fresh_at(transcript)
    at = now if received_at is None else min(received_at, now)
    return fresh is not None and at - fresh > limit


def last_words(transcript: Transcript) -> str:
    """Quote the last question that got an answer, and the answer; empty where there is none.

    It stands for the summary of a session that has none yet.
    """
    start = max(len(transcript.messages) - LOOKED_AT, 0)
    lines = [decode(raw) for raw in transcript.messages[start:]]
    answer = ""
    for _, line in reversed(list(history.sendable(lines, start=start))):
        said = " ".join(plain_text(line.get("content")).split())
        if line.get("role") == "user" and said and answer:
            return f"It ended with the question: {_cut(said)} — and the answer: {_cut(answer)}"
        if line.get("role") == "assistant" and not answer:
            answer = said
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS_CHARS else f"{text[:MAX_WORDS_CHARS]}…"


def _spoken_at(transcript: Transcript) -> datetime | None:
    newest: datetime | None = None
    of_cron = split(transcript.key)[0] == "cron"
    for line in _backwards(transcript.messages):
        at = read_time(line.get("timestamp")) or read_time(line.get("created_at"))
        if at is None:
            continue
        if of_cron or not (line.get("role") == "system" or _from_cron(line)):
            return at
        newest = newest or at
    return newest


def _backwards(messages: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    return (decode(raw) for raw in reversed(messages))


def _from_cron(line: Mapping[str, Any]) -> bool:
    id_ = line.get("message_id")
    return isinstance(id_, str) and id_.startswith("cron:")
