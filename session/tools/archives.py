"""The tool ``session_archive_read``: the session that a compaction summarised and put away, page by page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, tzinfo
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from session.disk.layout import Layout
from session.errors import StoreError, ToolError
from session.models.model import ToolSpec
from session.tools import ToolPlace, parameters
from session.tools.beneath import off_loop
from session.transcript import archive
from session.transcript.attachments import with_references
from session.transcript.history import deleted, is_deletion, is_record, new_texts, with_text
from session.transcript.line import decode, time_of
from session.transcript.loading import load
from session.transcript.repair import plain_text
from session.transcript.transcript import Transcript

PAGE_BYTES = 32 * 1024
# So much is shown of a tool's result, and of the arguments of a call.
RESULT_CHARS = 2_000

_NEXT = "[More follows. For the next page call session_archive_read with {arguments}]"
_END = "[This is the end of the archive.]"
_DAMAGED = " Parts of the file are damaged and left out."
# A page leaves so much for its first and last line.
_MARGIN_BYTES = 1024


class SessionArchiveRead:
    """Reads the archive that the ``compact`` line of the session names, and no other."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "session_archive_read",
        "Read the earlier part of this conversation word for word, where its summary lacks a detail. "
        "Gives one page; each page says how to ask for the next.",
        parameters(
            line={"type": "integer", "minimum": 1, "description": "First line, by default 1"},
            offset={"type": "integer", "minimum": 0, "description": "Characters of it to skip"},
        ),
    )

    def __init__(self, layout: Layout, *, zone: tzinfo, page_bytes: int = PAGE_BYTES) -> None:
        """Read below ``layout``, with times in ``zone``."""
        self._layout = layout
        self._zone = zone
        self._page_bytes = page_bytes

    def serves(self, place: ToolPlace) -> bool:
        """Say whether a compaction has left an archive behind."""
        return place.previous is not None

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return the page that begins at ``line``."""
        line, offset = arguments.get("line", 1), arguments.get("offset", 0)
        try:
            return await off_loop(partial(self._read, place, line, offset))
        except StoreError as error:
            raise ToolError("the archive cannot be read; only its summary is left") from error

    def _read(self, place: ToolPlace, line: int, offset: int) -> str:
        found, transcript = self._open(place)
        total = len(transcript.messages)
        if line > total:
            raise ToolError(f"the archive has {total} lines, numbered from 1")
        rows, last, following = page_of(
            transcript, line, offset, zone=self._zone, page_bytes=self._page_bytes
        )
        head = f"The earlier part of this conversation, ended {_time(found.ended_at, self._zone)}: "
        head += f"lines {line} to {last} of {total}." + (_DAMAGED if transcript.damaged else "")
        end = _END if following is None else _NEXT.format(arguments=json.dumps(following))
        return "\n".join([head, "", *rows, "", end])

    def _open(self, place: ToolPlace) -> tuple[archive.Archived, Transcript]:
        """Find the archive by the ULID in its name, among those of this conversation alone."""
        session_id = archive.session_in(place.previous or "")
        found = archive.find(self._layout, session_id, stem=place.stem) if place.stem else None
        read = load(found.path, place.stem) if found is not None else None
        if found is None or read is None:
            raise ToolError("the archive no longer exists; only its summary is left")
        transcript = read[0]
        if not transcript.messages:
            raise ToolError("the archive is damaged: no line of it can be read; only its summary is left")
        if transcript.key != place.key:
            raise ToolError("this is not an archive of this conversation")
        return found, transcript


def page_of(
    transcript: Transcript, line: int, offset: int, *, zone: tzinfo, page_bytes: int
) -> tuple[list[str], int, dict[str, int] | None]:
    """Return the rows of a page, the last line on it, and the arguments of the next one."""
    withdrawn, rows = _withdrawn(transcript), list[str]()
    texts = new_texts((at, decode(transcript.messages[at])) for at in transcript.index.records)
    left = page_bytes - _MARGIN_BYTES
    for number in range(line, len(transcript.messages) + 1):
        skipped = offset if number == line else 0
        row = "" if number - 1 in withdrawn else row_of(transcript.messages[number - 1], number, zone, texts)
        row = row[skipped:]
        size = len(row.encode()) + 1
        if size > left and rows:
            return rows, number - 1, {"line": number}
        if size > left:
            part = row.encode()[:left].decode("utf-8", "ignore")
            return [part], number, {"line": number, "offset": skipped + len(part)}
        if row:
            rows.append(row)
            left -= size
    return rows, len(transcript.messages), None


def row_of(
    raw: bytes, number: int, zone: tzinfo, texts: Mapping[str, tuple[int, str]] = MappingProxyType({})
) -> str:
    """Write a line as flat text; empty where it is a record that says nothing to a reader.

    ``texts`` are the newest ones of messages that were edited, by their ids.
    """
    line = with_text(decode(raw), number - 1, texts)
    if is_record(line) and line["kind"] not in ("compact", "overlay"):
        return ""
    at = time_of(line)
    stamp = f", {_time(at, zone)}" if at is not None else ""
    text = with_references(plain_text(line.get("content")), line)
    if line["role"] == "tool":
        text = _shortened(text)
    calls = [f"[{number} calls]: {call}" for call in _calls(line)]
    rows = [f"[{number} {_who(line)}{stamp}]: {text}"] if text or not calls else []
    return "\n".join([*rows, *calls]).encode("utf-8", "replace").decode()


def _time(at: datetime, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M}"


def _withdrawn(transcript: Transcript) -> set[int]:
    records = {at: decode(transcript.messages[at]) for at in transcript.index.records}
    indexes = set[int]()
    if any(map(is_deletion, records.values())):
        indexes = deleted([decode(raw) for raw in transcript.messages])
    for at, line in records.items():
        since = line.get("from")
        if line.get("kind") == "undo" and type(since) is int and 0 <= since < at:
            indexes.update(range(since, at))
    return indexes


def _who(line: Mapping[str, Any]) -> str:
    role = str(line["role"])
    if role == "system":
        return "summary of what came before" if is_record(line) else "system"
    if role == "tool":
        kind = "failed" if line.get("is_error") is True else "result"
        return f"{kind}: {_name(line.get('name'))}"
    sender = line.get("sender")
    name = _name(sender.get("name")) if isinstance(sender, Mapping) else ""
    return f"{role} {name}".rstrip()


def _calls(line: Mapping[str, Any]) -> list[str]:
    calls = line.get("tool_calls")
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = plain_text(function.get("arguments"))
            found.append(f"{_name(function.get('name'))} {_shortened(arguments)}".rstrip())
    return found


def _name(value: object) -> str:
    return " ".join(value.split())[:100] if isinstance(value, str) else ""


def _shortened(text: str) -> str:
    if len(text) <= RESULT_CHARS:
        return text
    return f"{text[:RESULT_CHARS]} […, {len(text)} characters in all]"
