"""What the model is asked for a letter: the message, what it is told besides, and the history before it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from session import context
from session.attachments import Album, Attachment
from session.history import Window, is_record, visible
from session.key import SessionKey
from session.line import decode
from session.models import Message, Model, Prompt
from session.store import Session
from session.tools import Toolbox
from session.transcript import Transcript

Line = Mapping[str, Any]

LONG_HISTORY = 500  # messages from which on the request is built in a thread
_POINTERS = ("first_kept", "from")


@dataclass(frozen=True, slots=True)
class Request:
    """One message as the session package sees it.

    ``id`` is the inbound id, ``platform_id`` the platform's own, ``sender`` its stored form.
    """

    id: str
    key: SessionKey
    text: str
    platform_id: str | None = None
    sender: Mapping[str, str] = field(default_factory=dict)
    group: bool = False
    source: str = "interactive"
    cron_job_id: str | None = None
    attachments: Sequence[Attachment] = ()
    received_at: datetime | None = None
    typed: str = ""  # where the text is not what was typed: what was


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a turn has around it: what the model is told, its files, the tools on offer."""

    parts: Sequence[context.Part]
    files: Path
    tools: Collection[str]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a turn."""

    turn_timeout_s: float = 600
    max_tool_rounds: int = 25
    max_output_tokens: int | None = None
    full_tool_results: int = 2
    changing_parts: context.ChangingParts = "end"
    window: Window | None = None  # how much of the history is sent; None: all


class Asking:
    """Builds the requests of one turn; what it is told besides the history stays the same over its rounds."""

    def __init__(
        self,
        session: Session,
        request: Request,
        around: Surroundings,
        *,
        model: Model,
        toolbox: Toolbox,
        limits: Limits,
        workspace: Path | None,
    ) -> None:
        self._session = session
        self._request = request
        self._around = around
        self._model = model
        self._toolbox = toolbox
        self._limits = limits
        self.album = Album(workspace, model)

    async def prompt(self, pending: Line | None) -> Prompt:
        """Build the request, ``pending`` being the user line as long as it is not stored."""
        if self._model.plain:
            return Prompt(messages=[{"role": "user", "content": self._request.text}])
        transcript = self._session.transcript
        first = sent_from(transcript)
        slow = len(transcript.messages) - first > LONG_HISTORY or self._holds_files(transcript, first)
        messages = (
            await asyncio.to_thread(self._messages, transcript, first, pending)
            if slow
            else self._messages(transcript, first, pending)
        )
        tools = self._toolbox.specs(self._around.tools)
        return Prompt(messages=messages, tools=tools, max_tokens=self._limits.max_output_tokens)

    def _messages(self, transcript: Transcript, first: int, pending: Line | None) -> Sequence[Message]:
        limits = self._limits
        lines = lines_from(transcript, first)
        history = visible(
            [*lines, pending] if pending is not None else lines,
            last_consolidated=transcript.history_start - first,
            running_id=self._request.id,
            keep_results=limits.full_tool_results,
            show=self.album.show(),
            window=limits.window,
        )
        parts = [*self._around.parts, context.earlier(_compact_lines(transcript))]
        return context.request(parts, history, changing=limits.changing_parts)

    def _holds_files(self, transcript: Transcript, first: int) -> bool:
        """Say whether files may have to be read for the request."""
        lines = transcript.messages[first:]
        return bool(self._request.attachments) or any(b'"attachments"' in raw for raw in lines)


def sent_from(transcript: Transcript) -> int:
    """Say where the history begins, so that nothing before it is read; a few lines too early does no harm.

    That is ``first_kept`` of the newest overlay, else the user line at or before ``history_start``.
    """
    messages = transcript.messages
    for at in reversed(transcript.index.records):
        if b'"overlay"' in messages[at]:
            line = decode(messages[at])
            kept = line.get("first_kept")
            if line.get("kind") == "overlay" and type(kept) is int and 0 <= kept <= at:
                return kept
    first = transcript.history_start
    while 0 < first < len(messages) and decode(messages[first])["role"] != "user":
        first -= 1
    return first


def lines_from(transcript: Transcript, first: int) -> list[Line]:
    """Read the message lines from ``first`` on; the indexes in our own records count from there, too."""
    lines: list[Line] = [decode(raw) for raw in transcript.messages[first:]]
    for at in reversed(transcript.index.records if first else ()):
        if at < first:
            break
        line = lines[at - first]
        moved = {name: max(line[name] - first, 0) for name in _POINTERS if type(line.get(name)) is int}
        if moved and is_record(line):
            lines[at - first] = {**line, **moved}
    return lines


def _compact_lines(transcript: Transcript) -> Iterator[Line]:
    """Yield our own lines that may be the summary with which the session opens, the newest first."""
    for at in reversed(transcript.index.records):
        if b'"compact"' in transcript.messages[at]:
            yield decode(transcript.messages[at])
