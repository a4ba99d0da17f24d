"""The messages of a long history, kept as they are sent: a turn prepares only what came since the last one.

For requests that hold all of a history (mode ``all``). What is kept is what ``visible`` says of the same
lines, message by message; requests share it, so that nobody may change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from session.context.context import unmarked, unmarked_message
from session.models.model import Message
from session.transcript.attachments import BESIDE_TEXT, Show, attachments_of, with_references
from session.transcript.history import (
    SummaryRole,
    content_of,
    edited,
    from_a_user,
    is_deletion,
    is_record,
    left_out,
    newest_of,
    newest_overlay,
    start_of,
    stripped,
    summary_message,
)
from session.transcript.line import decode, decode_all
from session.transcript.repair import Repairing, is_clean, plain_text, shortened_result
from session.transcript.transcript import Transcript

Line = Mapping[str, Any]
# First line, beginning of the history from there, tool results that stay whole, whether marks are escaped.
Basis = tuple[int, int, int, bool]

_POINTERS = ("first_kept", "from")
# A shorter history takes less time to prepare than its messages are worth in memory: they are half of all.
KEPT_FROM = 100
# So many lines are read at once: what is made of them in passing fits a cache of the processor.
PIECE = 400
# What a message takes beside its text: an object, its place, the objects of a call now and then.
_MESSAGE_BYTES = 320


@dataclass(slots=True)
class _Files:
    """A message of a person that came with files: they are shown or named anew in each request."""

    at: int
    text: str
    line: Line


@dataclass(slots=True)
class Prepared:
    """The history of one transcript, as far as it was prepared.

    ``basis`` must not have changed; ``taken`` counts the lines that are in it, from its first. ``summary``
    opens it, ``deletions`` says whether messages were deleted, ``weight`` about what it takes in memory.
    """

    basis: Basis
    taken: int
    summary: str | None
    deletions: bool
    keep_results: int
    escapes: bool
    weight: int = 0
    files: list[_Files] = field(default_factory=list)
    _repairing: Repairing = field(default_factory=lambda: Repairing(set()))
    # Tool results that are still whole, with the names of their calls.
    _whole: list[tuple[int, str]] = field(default_factory=list)
    _seen: int = 0

    def take(self, lines: Iterable[Line]) -> None:
        """Take in lines of turns that have ended; none of them is left out."""
        legal, escapes, waits = self._repairing.legal, self.escapes, self._repairing.waits
        begin = legal.append
        for line in lines:
            role, content = line["role"], line.get("content")
            if (
                "tool_calls" in line
                or role == "tool"
                or "name" in line
                or "attachments" in line
                or "quoted" in line
                or "forwarded_from" in line
            ):
                self._take_other(line)
                waits = self._repairing.waits
                continue
            # The usual line takes the shortest way: it is left out where it says nothing.
            if type(content) is not str or not is_clean(content):
                content = plain_text(content)
            if content and not content.isspace():
                if escapes and "<" in content and role == "user":
                    content = unmarked(content)
                if waits:
                    self._close()
                    waits = False
                begin({"role": role, "content": content})
        self._seen = len(legal)
        self._cut()

    def _take_other(self, line: Line) -> None:
        if line["role"] == "tool":
            # It comes to stand among the messages with the one behind it.
            self._repairing.take(line)
            return
        before = len(self._repairing.legal)
        if line["role"] == "user" and any(field in line for field in BESIDE_TEXT):
            self._take_files(line, plain_text(line.get("content")))
        elif "reasoning_content" in line or "thinking_blocks" in line:
            # They are sent within a turn alone.
            self._repairing.take(stripped(line, line.get("content")))
        else:
            self._repairing.take(line)
        self._settle(before)

    def _close(self) -> None:
        before = len(self._repairing.legal)
        self._repairing.close()
        self._settle(before)

    def _take_files(self, line: Line, text: str) -> None:
        named = with_references(text, line)
        before = len(self._repairing.legal)
        self._repairing.take(stripped(line, named))
        if not attachments_of(line) or len(self._repairing.legal) == before:
            return
        kept = {name: line[name] for name in ("role", "name", *BESIDE_TEXT) if name in line}
        self.files.append(_Files(len(self._repairing.legal) - 1, text, kept))

    def _settle(self, before: int) -> None:
        """Escape what came since there were so many messages, and note the tool results among it."""
        legal = self._repairing.legal
        for at in range(before, len(legal)):
            message = legal[at]
            role = message["role"]
            if role == "user":
                if self.escapes and "<" in str(message["content"]):
                    legal[at] = unmarked_message(message)
            elif role == "tool":
                self._whole.append((at, message.get("name") or _name_of(legal, at)))

    def _cut(self) -> None:
        legal = self._repairing.legal
        over = max(len(self._whole) - self.keep_results, 0)
        for at, name in self._whole[:over]:
            legal[at] = shortened_result(legal[at], {legal[at]["tool_call_id"]: name})
        del self._whole[:over]

    def messages(
        self, running: Sequence[Line], show: Show, *, summary_role: SummaryRole
    ) -> tuple[list[Message], int]:
        """Return all messages of a request with the lines of the running turn, as ``visible`` does.

        Returns:
            The messages, and how many at their head need not be looked at for marks.
        """
        # Files are asked for from the newest message back.
        contents = [content_of(line, show, newest=True) for line in reversed(running)][::-1]
        newer = Repairing(set(self._repairing.used))
        last_user = max((i for i, line in enumerate(running) if line["role"] == "user"), default=-1)
        for i, (line, content) in enumerate(zip(running, contents, strict=True)):
            newer.take(stripped(line, content, running=True), newest=i == last_user)
        sent: list[Message] = list(self._repairing.legal)
        for place in reversed(self.files):
            shown = Repairing(set())
            shown.take(stripped(place.line, show.content(place.text, place.line, newest=False)))
            sent[place.at] = unmarked_message(shown.legal[0]) if self.escapes else shown.legal[0]
        older = len(sent) + len(self._repairing.open_end())
        sent += self._repairing.open_end()
        whole = [*self._whole, *((at, _name_of(sent, at)) for at in range(self._seen, older))]
        for at, name in whole[: max(len(whole) - self.keep_results, 0)]:
            sent[at] = shortened_result(sent[at], {sent[at]["tool_call_id"]: name})
        sent += newer.legal
        sent += newer.open_end()
        if self.summary is not None:
            opening = summary_message(self.summary, summary_role)
            return [unmarked_message(opening) if self.escapes else opening, *sent], older + 1
        if sent and sent[0]["role"] == "user":
            return sent, older
        shorter = from_a_user(sent)
        return shorter, max(older - (len(sent) - len(shorter)), 0)


def _weight(raws: Sequence[bytes]) -> int:
    """Say about how much memory the messages of so many lines take; a character takes up to four bytes."""
    return 2 * sum(map(len, raws)) + _MESSAGE_BYTES * len(raws)


def lines_from(transcript: Transcript, first: int) -> list[Line]:
    """Read the message lines from ``first`` on; the indexes in our own records count from there, too."""
    lines: list[Line] = [*decode_all(transcript.messages[first:])]
    # The index is not asked: another thread may just be storing a line, which stands in one of both alone.
    for i, line in enumerate(lines if first else ()):
        if line.get("role") == "system" and is_record(line):
            moved = {name: max(line[name] - first, 0) for name in _POINTERS if type(line.get(name)) is int}
            lines[i] = {**line, **moved}
    return lines


def _name_of(messages: Sequence[Message], at: int) -> str:
    call_id = messages[at]["tool_call_id"]
    while messages[at]["role"] == "tool":
        at -= 1
    calls = messages[at].get("tool_calls") or ()
    return next((str(call["function"]["name"]) for call in calls if call["id"] == call_id), "tool")


def prepared(
    transcript: Transcript,
    first: int,
    pending: Line | None,
    *,
    running_id: str,
    keep_results: int,
    escapes: bool,
    least: int = KEPT_FROM,
) -> tuple[Prepared, list[Line]] | None:
    """Prepare a history as far as the running turn, going on with what the transcript keeps of it.

    While that is under way the transcript keeps nothing: of two who come at once the second begins anew.

    Args:
        transcript: whose lines they are.
        first: the line with which the history begins, or one before it.
        pending: the user line of the running turn as long as it is not stored.
        running_id: the message of the running turn.
        keep_results: how many tool results before the running turn stay whole.
        escapes: marks in the texts of people are escaped, as ``request`` does.
        least: with fewer lines nothing is kept.

    Returns:
        What is prepared, and the lines of the running turn; None where it has to be built as a whole.
    """
    kept, transcript.prepared = transcript.prepared, None
    if len(transcript.messages) - first < least:
        return None
    offset = transcript.history_start - first
    basis = (first, offset, keep_results, escapes)
    if not isinstance(kept, Prepared) or kept.basis != basis:
        kept = None
    found = _gone_on(kept, transcript, first, pending, running_id) if kept is not None else None
    if found is None:
        found = _begun(transcript, first, pending, running_id, basis)
    if found is not None and not isinstance(transcript.prepared, Prepared):
        transcript.prepared = found[0]
    return found


def _gone_on(
    kept: Prepared, transcript: Transcript, first: int, pending: Line | None, running_id: str
) -> tuple[Prepared, list[Line]] | None:
    """Take in what came since; None where that changes what was prepared before."""
    at = first + kept.taken
    raws = transcript.messages[at:]
    lines: list[Line] = [*decode_all(raws)]
    if pending is not None:
        lines.append(pending)
    running = newest_of(lines, running_id)
    if running is None or any(map(is_record, lines)):
        return None
    if kept.deletions and any("answers" in line or "part_of" in line for line in lines):
        return None
    kept.take(lines[:running])
    kept.taken += running
    kept.weight += _weight(raws[:running])
    return kept, lines[running:]


def _begun(
    transcript: Transcript,
    first: int,
    pending: Line | None,
    running_id: str,
    basis: Basis,
) -> tuple[Prepared, list[Line]] | None:
    """Prepare from the beginning; None where the running turn is not the last."""
    raws = transcript.messages[first:]
    records = transcript.index.records
    # Another thread may have stored a line that the index does not know yet: one, the last.
    if (records and records[-1] >= first) or (raws and is_record(decode(raws[-1]))):
        return _begun_with_records(transcript, first, pending, running_id, basis)
    offset = transcript.history_start - first
    running = _running_from(raws, pending, running_id)
    start = start_of(decode_all(raws[: offset + 1]), offset)
    if running is None or start >= running:
        # Nothing is sent before the turn, and what is stored next may still say where the history begins.
        return None
    kept = Prepared(basis, running, None, False, basis[2], basis[3], _weight(raws[:running]))
    for at in range(start, running, PIECE):
        kept.take(decode_all(raws[at : min(at + PIECE, running)]))
    rest: list[Line] = [*decode_all(raws[running:])]
    return kept, rest if pending is None else [*rest, pending]


def _running_from(raws: Sequence[bytes], pending: Line | None, running_id: str) -> int | None:
    """Return the index of the newest user line of a turn, that of ``pending`` behind all; else None."""
    if pending is not None and newest_of([pending], running_id) is not None:
        return len(raws)
    # It is mostly near the end.
    for stop in range(len(raws), 0, -PIECE):
        begin = max(stop - PIECE, 0)
        found = newest_of(decode_all(raws[begin:stop]), running_id)
        if found is not None:
            return begin + found
    return None


def _begun_with_records(
    transcript: Transcript, first: int, pending: Line | None, running_id: str, basis: Basis
) -> tuple[Prepared, list[Line]] | None:
    """Prepare as ``_begun`` does what our own records say something of."""
    lines = [*edited(lines_from(transcript, first))]
    if pending is not None:
        lines.append(pending)
    running = newest_of(lines, running_id)
    if running is None:
        return None
    out, overlay = left_out(lines), newest_overlay(lines)
    start = start_of(lines, transcript.history_start - first) if overlay is None else overlay["first_kept"]
    if start >= running:
        return None
    kept = Prepared(
        basis=basis,
        taken=running,
        summary=None if overlay is None else plain_text(overlay.get("content")),
        deletions=any(map(is_deletion, lines)),
        keep_results=basis[2],
        escapes=basis[3],
        weight=_weight(transcript.messages[first : first + running]),
    )
    kept.take([line for i, line in enumerate(lines[start:running], start) if i not in out])
    return kept, [line for i, line in enumerate(lines[running:], running) if i not in out]
