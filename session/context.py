"""The messages that open a request: what the model is told before the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from session.models import Message


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the system message; without a heading it stands as it is."""

    heading: str
    text: str


def system_message(parts: Sequence[Part]) -> dict[str, Any] | None:
    """Join the parts, each under its heading, by blank lines; absent (blank) ones are left out."""
    present = [
        f"## {part.heading}\n{part.text.strip()}" if part.heading else part.text.strip()
        for part in parts
        if part.text.strip()
    ]
    return {"role": "system", "content": "\n\n".join(present)} if present else None


def request(parts: Sequence[Part], history: Sequence[Message]) -> list[Message]:
    """Put the system message, where there is one, before the history."""
    system = system_message(parts)
    return [system, *history] if system is not None else list(history)
