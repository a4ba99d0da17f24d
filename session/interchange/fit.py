"""Whether a file is of the format that was named; where it is not, what it looks like; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from session.interchange.conversation import BadFormat, Losses
from session.interchange.records import json_lines, json_object

_LOOKED_AT = 20
_SHOWN = {
    "pi": "a session of pi or OpenClaw",
    "nanobot": "a session of nanobot",
    "annabelle": "a session of annabelle",
    "overlay": "a session.jsonl of overlay",
    "archive": "a file of archive",
    "rows": "a document of rows",
}


class Fit:
    """Counts the records of a file that are of the format, and those that are not."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data
        self.fitting = 0
        self.strange = 0

    def count(self, fits: bool) -> bool:
        """Count a record and return ``fits`` itself."""
        self.fitting += fits
        self.strange += not fits
        return fits

    def check(self, wanted: str) -> None:
        """Let pass a file that is empty, or whose records fit for the greater part.

        Args:
            wanted: what each record should be, as it is told to a person.

        Raises:
            BadFormat: the file is something else; the hint says what it looks like.
        """
        if (self.fitting and self.fitting >= self.strange) or not self._data.strip(b"\xef\xbb\xbf\r\n\t \0"):
            return
        count = self.fitting + self.strange
        what = f"only {self.fitting} of {count} records are" if self.fitting else "none is"
        guess = look(self._data)
        cure = f"it looks like {_SHOWN[guess]}: --from {guess}" if guess else f"each line should be {wanted}"
        raise BadFormat(f"{self._path} is not a session of this format: {what} {wanted}", hint=cure)


def look(data: bytes) -> str:
    """Return the format that a file looks like; empty where nobody knows."""
    for record in islice(_records(data), _LOOKED_AT):
        if (found := _of(record)) is not None:
            return found
    return ""


def _records(data: bytes) -> Iterator[Mapping[str, Any]]:
    whole = json_object(data)
    yield from (whole,) if whole else json_lines(data, Losses())


def _of(record: Mapping[str, Any]) -> str | None:
    kind = record.get("type")
    if (kind == "session" and "id" in record) or (kind == "message" and "message" in record):
        return "pi"
    if (kind == "header" and "chatId" in record) or (kind == "turn" and "user" in record):
        return "annabelle"
    if record.get("_type") == "metadata":
        return "nanobot"
    if "recordType" in record:
        return "overlay"
    if "chat_sessions" in record:
        return "rows"
    if "role" in record and "ts" in record:
        return "archive"
    return "nanobot" if "role" in record and "content" in record and "type" not in record else None
