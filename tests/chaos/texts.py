"""Judges the words of every question and answer: as they were sent, and as the stub model said them; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.chaos.records import CALL, Call, Guarantee, Message, Records
from tests.chaos.stub_model import words_for

_SHOWN = 160


def check_texts(records: Records, loss: Guarantee, effect: Guarantee) -> None:
    """Look at every question and answer of every transcript.

    A question stands as it was sent. An answer that was not stopped is what the model said to the last
    request of this very message.
    """
    made: dict[str, list[Call]] = defaultdict(list)
    for call in records.calls:
        made[call.message].append(call)
    for chat, messages in records.sent.items():
        known = {message.id: message for message in messages if not message.command}
        for line in (line for session in records.lines.get(chat, ()) for line in session):
            of = str(line.get("message_id"))
            message = known.get(of)
            if line["role"] == "user":
                loss.broken += _question(chat, of, message, str(line.get("content") or ""))
            elif line.get("final") and not line.get("stopped"):
                effect.broken += _answer(chat, of, message, line, made[of])


def short(text: str) -> str:
    """Return a text, or its beginning and length where it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _question(chat: str, of: str, message: Message | None, text: str) -> list[str]:
    if message is None:
        return [f"{chat} has a question {of} that it never sent: {short(text)!r}"]
    if text != message.text:
        return [f"the question {of} is stored as {short(text)!r}, not {short(message.text)!r}"]
    return []


def _answer(
    chat: str, of: str, message: Message | None, line: Mapping[str, Any], calls: list[Call]
) -> list[str]:
    text = str(line.get("content") or "")
    if message is None:
        return [f"{chat} has an answer to {of}, which it never sent: {short(text)!r}"]
    found = CALL.search(text)
    last = {
        call.n
        for call in calls
        if call.round == message.rounds - 1 and call.outcome in ("running", "answered")
    }
    if found is None or int(found[1]) not in last:
        return [f"the answer to {of} was said to none of its last requests {sorted(last)}: {short(text)!r}"]
    if text != (said := words_for(message.text, int(found[1]))):
        return [f"the answer to {of} is stored as {short(text)!r}, and was {short(said)!r}"]
    return []
