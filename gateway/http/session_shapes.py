"""The shapes of what routes answer of sessions, and of their messages as records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.http.shape import Metrics, Open, Shape


class SessionRowOut(Shape):
    """A session in the list; ``message_count`` counts messages only."""

    id: str
    key: str
    name: str | None
    created_at: str | None
    last_message_at: str | None
    message_count: int
    model: str | None
    source: str
    cron_job_id: str | None
    active: bool
    agent: str
    metrics: Metrics


class SessionsOut(Shape):
    """A page of sessions, newest message first; ``next`` is the cursor of the next page."""

    sessions: list[SessionRowOut]
    next: str | None


class SessionOut(SessionRowOut):
    """A session with its details."""

    instructions: str | None
    summary: str | None
    ended_at: str | None
    previous_session: str | None


class TextBlock(Shape):
    """A text of a message."""

    type: Literal["text"]
    text: str


class ToolCallBlock(Shape):
    """A tool call; arguments that are not an object are in ``raw``."""

    type: Literal["toolCall"]
    id: str
    name: str
    arguments: dict[str, Any]


class MessageRecord(Shape):
    """A message; the last two fields belong to tool results."""

    recordType: Literal["message"]  # noqa: N815 - the format's own name, as those below
    schemaVersion: int  # noqa: N815
    seq: int
    role: str
    content: list[Annotated[TextBlock | ToolCallBlock, Field(discriminator="type")]]
    timestamp: str
    toolCallId: str = ""  # noqa: N815
    isError: bool = False  # noqa: N815


class CompactionRecord(Shape):
    """A summary that replaces all messages before ``firstKeptSeq``."""

    recordType: Literal["compaction"]  # noqa: N815
    schemaVersion: int  # noqa: N815
    seq: int
    firstKeptSeq: int  # noqa: N815
    summary: str
    tokensBefore: int  # noqa: N815
    readFiles: list[str]  # noqa: N815
    modifiedFiles: list[str]  # noqa: N815
    timestamp: str


class RecordsOut(Shape):
    """A page of records, oldest first; ``next`` is the ``after`` of the next page."""

    messages: list[Annotated[MessageRecord | CompactionRecord, Field(discriminator="recordType")]]
    next: int | None


class DeletedOut(Shape):
    """The deleted session."""

    id: str
    deleted: Literal[True]


class ErasedOut(Open):
    """What was removed of one chat or person, and what stays, in words."""

    name: str
    removed: list[dict[str, Any]]
    stays: list[str]


class ClearedOut(Shape):
    """The chats that had an active session; with ``everything`` also what was deleted of each."""

    cleared: list[str]
    erased: list[ErasedOut] = Field(default=[])
