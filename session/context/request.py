"""What the model is asked: the message, what it is told besides, the history; which answers stay unsent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from session.context import context
from session.context.embeddings import Embeddings
from session.context.prepared import lines_from, prepared
from session.context.relevance import Relevance, chosen, comparable, compared
from session.context.scopes import Chat
from session.models.model import Message, Model, Payer, Prompt
from session.models.spending import Meter
from session.store.store import Session
from session.tools import Toolbox, ToolPlace
from session.transcript.attachments import Album, Attachment
from session.transcript.history import HistoryWindow, Select, SummaryRole, before_turn, kept_from, visible
from session.transcript.key import SessionKey
from session.transcript.line import decode
from session.transcript.transcript import Transcript

Line = Mapping[str, Any]

# With more messages than this, what goes through all of them runs in a thread.
LONG_HISTORY = 500


@dataclass(frozen=True, slots=True)
class Request:
    """One message as the session package sees it.

    ``id`` is the inbound id, ``platform_id`` the platform's own, ``sender`` its stored form. ``chat`` is what
    the message itself says of its chat, ``answer_to`` another chat that reads the answer. ``typed`` is what
    the person typed where ``text`` is something else. ``job_name`` is that of the job which asks,
    ``heartbeat`` says that it is one. ``asker`` is the person on whose behalf it comes where its sender is
    none. ``payer`` is for whom its requests count; None: for the conversation alone. ``sent_at`` is when
    its platform says it was written, ``received_at`` when it was accepted, ``queued_at`` when it came into
    its lane (ISO 8601), ``traceparent`` its turn's span. ``quoted`` is the message that it replies to,
    ``forwarded_from`` who wrote a forwarded text, both as a line stores them.
    """

    id: str
    key: SessionKey
    text: str
    platform_id: str | None = None
    sender: Mapping[str, str] = field(default_factory=dict)
    chat: Chat | None = None
    answer_to: str = ""
    source: str = "interactive"
    cron_job_id: str | None = None
    attachments: Sequence[Attachment] = ()
    quoted: Mapping[str, Any] = field(default_factory=dict)
    forwarded_from: str = ""
    sent_at: str = ""
    received_at: str = ""
    queued_at: str = ""
    traceparent: str = ""
    typed: str = ""
    job_name: str = ""
    heartbeat: bool = False
    asker: Mapping[str, str] = field(default_factory=dict)
    payer: Payer | None = None


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a turn works with: what the model is told besides the history, its files, the tools on offer.

    ``scope`` is the name of the scope that was drawn for it, ``group`` whether several
    people read the answer, ``chat`` the conversation for which it works; empty: its own. ``parent`` is the
    conversation that started a subagent.
    """

    parts: Sequence[context.Part]
    files: Path
    tools: Collection[str]
    scope: str = ""
    group: bool = False
    chat: str = ""
    parent: str = ""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The limits of a turn, and what of the history its requests hold.

    ``window`` limits how much of it is sent (mode ``last``), ``relevance`` chooses what (mode ``relevant``);
    without both all is sent. ``summary_role`` says whose message the summary of an overlay is. ``streams``:
    answers are asked for as streams also where nobody reads along.
    """

    turn_timeout_s: float = 600
    max_tool_rounds: int = 25
    max_output_tokens: int | None = None
    full_tool_results: int = 2
    changing_parts: context.ChangingParts = "end"
    window: HistoryWindow | None = None
    relevance: Relevance | None = None
    summary_role: SummaryRole = "user"
    streams: bool = False


class Asking:
    """Builds the requests of one turn; what it is told besides the history stays the same over its rounds."""

    def __init__(
        self,
        session: Session,
        request: Request,
        turn_context: TurnContext,
        *,
        model: Model,
        toolbox: Toolbox,
        limits: TurnLimits,
        workspace: Path | None,
        embeddings: Embeddings | None,
        meter: Meter,
    ) -> None:
        self._session = session
        self._request = request
        self._turn_context = turn_context
        self._model = model
        self._toolbox = toolbox
        self._limits = limits
        self._embeddings = embeddings
        self._meter = meter
        self._select: Select | None = None
        # What is asked, by all messages together where the turn serves several.
        self.text = request.text
        self.album = Album(workspace, model)
        self.summary_role = limits.summary_role
        # Whether the last request began with a message of the assistant: some providers refuse that.
        self._spoken = False

    async def prompt(self, pending: Line | None) -> Prompt:
        """Build the request, ``pending`` being the user line as long as it is not stored."""
        if self._model.plain:
            return Prompt(messages=[{"role": "user", "content": self.text}])
        await self._compare()
        # In a thread: a long history takes a while to prepare, and files may have to be read.
        messages = await asyncio.to_thread(self._messages, self._session.transcript, pending)
        tools = self._toolbox.specs(self._turn_context.tools, self.place())
        return Prompt(messages=messages, tools=tools, max_tokens=self._limits.max_output_tokens)

    def place(self) -> ToolPlace:
        """Say where a tool acts; a compaction within the turn leaves an archive behind."""
        drawn = self._turn_context
        place = place_of(
            self._session, self._request, files=drawn.files, scope=drawn.scope, group=drawn.group
        )
        return replace(place, chat=drawn.chat or place.chat, parent=drawn.parent)

    def summary_as_user(self) -> bool:
        """Send summaries as messages of the person from now on; False where that changes nothing."""
        if not self._spoken or self.summary_role == "user":
            return False
        self.summary_role = "user"
        return True

    async def _compare(self) -> None:
        """Settle once for the turn how near the old exchanges are, so that its rounds send the same ones."""
        rules = self._limits.relevance
        if rules is None or self._select is not None:
            return
        similarity = None
        if self._embeddings is not None:
            transcript = self._session.transcript
            still = partial(self._session.is_still, transcript.session_id)
            texts = await asyncio.to_thread(self._compared, transcript, rules)
            question = comparable(self.text)
            stem = self._session.stem
            similarity = await self._embeddings.similarity(stem, question, texts, self._meter, still=still)
        self._select = partial(chosen, rules=rules, similarity=similarity)

    def _compared(self, transcript: Transcript, rules: Relevance) -> list[str]:
        first = sent_from(transcript)
        offset = transcript.history_start - first
        lines = lines_from(transcript, first)
        return compared(before_turn(lines, last_consolidated=offset, running_id=self._request.id), rules)

    def _messages(self, transcript: Transcript, pending: Line | None) -> Sequence[Message]:
        limits, first = self._limits, sent_from(transcript)
        found = self._prepared(transcript, first, pending)
        history, escaped = found or (self._visible(transcript, first, pending), 0)
        self._spoken = bool(history) and history[0]["role"] == "assistant"
        opening = compact_line(transcript)
        parts = [*self._turn_context.parts, context.earlier([opening] if opening is not None else [])]
        return context.request(parts, history, changing=limits.changing_parts, escaped=escaped)

    def _prepared(
        self, transcript: Transcript, first: int, pending: Line | None
    ) -> tuple[Sequence[Message], int] | None:
        """Return the history by what was kept of it, and how much is escaped; None: it is built anew."""
        limits = self._limits
        if limits.window is not None or self._select is not None:
            return None
        found = prepared(
            transcript,
            first,
            pending,
            running_id=self._request.id,
            keep_results=limits.full_tool_results,
            escapes=limits.changing_parts == "end",
        )
        return found and found[0].messages(found[1], self.album.show(), summary_role=self.summary_role)

    def _visible(self, transcript: Transcript, first: int, pending: Line | None) -> Sequence[Message]:
        limits = self._limits
        lines = lines_from(transcript, first)
        return visible(
            [*lines, pending] if pending is not None else lines,
            last_consolidated=transcript.history_start - first,
            running_id=self._request.id,
            keep_results=limits.full_tool_results,
            show=self.album.show(),
            window=limits.window,
            summary_role=self.summary_role,
            select=self._select,
        )


def place_of(session: Session, request: Request, *, files: Path, scope: str, group: bool) -> ToolPlace:
    """Say where the tools of a message act."""
    return ToolPlace(
        files,
        request.key,
        session.stem,
        session.previous_archive,
        scope=scope,
        session_id=session.session_id,
        message_id=request.id,
        sender=request.asker or request.sender,
        source=request.source,
        group=group,
        chat=request.answer_to,
        payer=request.payer,
    )


def sent_from(transcript: Transcript) -> int:
    """Say where the history begins, so that nothing before it is read; a few lines too early does no harm.

    That is ``first_kept`` of the newest overlay, else the user line at or before ``history_start``.
    """
    messages = transcript.messages
    for at in reversed(transcript.index.records):
        if b'"overlay"' in messages[at] and (kept := kept_from(decode(messages[at]), at)) is not None:
            return kept
    first = transcript.history_start
    while 0 < first < len(messages) and decode(messages[first])["role"] != "user":
        first -= 1
    return first


def compact_line(transcript: Transcript) -> Line | None:
    """Return the summary with which the session opens; None where it has none, or a later one took it in."""
    messages = transcript.messages
    for at in reversed(transcript.index.records):
        if b'"compact"' not in messages[at] and b'"overlay"' not in messages[at]:
            continue
        line = decode(messages[at])
        if line.get("kind") == "compact":
            return line
        if kept_from(line, at) is not None:
            return None
    return None


# Why the answer of a job is not sent: it says that nobody needs to be told.
QUIET: Final = "quiet"
NO_REPLY: Final = "NO_REPLY"
HEARTBEAT_OK: Final = "HEARTBEAT_OK"
# So much may stand beside the word in the answer to a heartbeat.
MAX_BESIDE_CHARS: Final = 300
# What people and models put around a word: Markdown, quotes, the end of a sentence.
_AROUND: Final = " \t\r\n\u00a0*_~`'\"“”‘’«»()[]<>#.,:;!…-–—"


def is_quiet(request: Request, text: str) -> bool:
    """Say whether the answer to a job is not to be sent.

    That is the word alone, ``NO_REPLY`` or ``HEARTBEAT_OK``, in capitals or not, whatever Markdown or
    punctuation stands around it. In the answer to a heartbeat ``HEARTBEAT_OK`` also counts where it begins
    or ends an answer that says little besides. People are always answered, and so is a job whose answers go
    to no chat.
    """
    if not silence_of(request):
        return False
    bare = text.strip(_AROUND).upper()
    if bare in (NO_REPLY, HEARTBEAT_OK):
        return True
    if not request.heartbeat or not (bare.startswith(HEARTBEAT_OK) or bare.endswith(HEARTBEAT_OK)):
        return False
    return len(bare) - len(HEARTBEAT_OK) <= MAX_BESIDE_CHARS


def silence_of(request: Request) -> str:
    """Return the word with which a job is to say that nobody needs to be told; empty where none counts."""
    if request.source != "cron" or not tells_a_chat(request):
        return ""
    return HEARTBEAT_OK if request.heartbeat else NO_REPLY


def tells_a_chat(request: Request) -> bool:
    """Say whether the answer goes to a chat, and does not only stand in the job's own session."""
    return bool(request.answer_to) or not request.key.startswith("cron:")
