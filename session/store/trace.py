"""What transcripts, archives and journals tell of one message, as steps in time."""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from session.disk.layout import Layout
from session.errors import SessionError
from session.transcript import archive
from session.transcript.index import usage_of
from session.transcript.journal import Entry
from session.transcript.key import SessionKey
from session.transcript.line import decode, dump, read_time, taken_back
from session.transcript.loading import load, resolve

Line = Mapping[str, Any]

# What the journal's word for the end of an id means.
_ENDS: Mapping[str, tuple[str, str]] = {
    "command": ("stored", "command run, reply stored"),
    "notice": ("notice", "ended with a notice"),
    "silent": ("silent", "ended without an answer or notice"),
    "parked": ("parked", "parked"),
    "withdrawn": ("withdrawn", "withdrawn"),
    "cleared": ("cleared", "its conversation was deleted"),
    "archived": ("archived", "its session was closed"),
}
# The source whose times are whole milliseconds, and the order of its steps.
SEND_LOG = "send log"
_SENT = ("put", "sending", "not sent", "sent", "delivered")


@dataclass(frozen=True, slots=True)
class Step:
    """One step in the life of a message.

    Args:
        at: when it was done (UTC); None: nothing on disk tells.
        step: its name, of a fixed set of words.
        words: what happened, for people; no text of a message.
        source: where it stands.
        fields: figures and names: tokens and cost, a tool, a piece with its id on the platform.
    """

    at: datetime | None
    step: str
    words: str
    source: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as clients see it."""
        at = self.at.astimezone(UTC).isoformat() if self.at is not None else None
        # A cost of null is one that nobody knows.
        kept = {
            name: value
            for name, value in self.fields.items()
            if value not in (None, "") or name == "cost_usd"
        }
        return {"at": at, "step": self.step, "words": self.words, "source": self.source, **kept}


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Sort by time, those without one last; what two files tell alike stands once."""
    once: dict[object, Step] = {}
    for each in steps:
        once.setdefault((each.at, each.step, each.words), each)
    return sorted(once.values(), key=_place)


def _place(step: Step) -> tuple[int, int, datetime]:
    """Order by milliseconds, as the send log has them; within one what was sent comes after all else."""
    at = step.at or datetime.max.replace(tzinfo=UTC)
    sent = _SENT.index(step.step) + 1 if step.step in _SENT and step.source == SEND_LOG else 0
    return int(at.timestamp() * 1000), sent, at


# -- the transcript --------------------------------------------------------------------------------


def of_lines(
    messages: Sequence[bytes],
    message_id: str,
    *,
    session_id: str,
    source: str,
) -> list[Step]:
    """Tell what a transcript shows of a message: its question, model and tool calls, its end, its changes.

    A message that another one's answer serves has the steps of that turn from where it entered.
    """
    named = list(_naming(messages, message_id))
    turns = {message_id} | {
        other
        for _, line in named
        for other in (line.get("part_of"), line.get("message_id") if _serves(line, message_id) else None)
        if isinstance(other, str) and other
    }
    first = named[0][0] if named else 0
    found = dict(named)
    for turn in turns - {message_id}:
        found |= {at: line for at, line in _naming(messages, turn) if at >= first}
    steps: list[Step] = []
    before: datetime | None = None
    for at in sorted(found):
        line = found[at]
        whose = line.get("message_id")
        if (isinstance(whose, str) and whose in turns) or line.get("edits") == message_id:
            steps += _of_line(line, message_id, before, {"session_id": session_id, "seq": at + 1}, source)
            before = _time(line)
    return [*steps, *_undone(messages, found, message_id, source)]


def names(message_id: str) -> bytes:
    """Return how a line of ours spells an id."""
    return dump({"": message_id})[4:-1]


def _naming(messages: Sequence[bytes], message_id: str) -> Iterator[tuple[int, Line]]:
    name = names(message_id)
    plain = message_id.isascii()
    # One after the other they are read in blocks.
    for at, raw in enumerate(messages):
        if name in raw or (not plain and b"\\" in raw):
            line = decode(raw)
            if message_id in (line.get("message_id"), line.get("edits")) or _serves(line, message_id):
                yield at, line


def _serves(line: Line, message_id: str) -> bool:
    answers = line.get("answers")
    return isinstance(answers, list) and message_id in answers


def _of_line(
    line: Line, message_id: str, before: datetime | None, place: dict[str, Any], source: str
) -> Iterator[Step]:
    at, role, turn = _time(line), line.get("role"), line.get("message_id")
    other = {"turn": turn} if turn != message_id else {}
    if role == "user" and turn == message_id:
        yield from _begun(line, at, place, source)
    elif role == "assistant":
        if calls := _called(line):
            yield Step(
                at, "model", f"the model called {', '.join(calls)}", source, _cost(line, before) | other
            )
        elif line.get("final") is True:
            yield from _final(line, message_id, before, place | other, source)
    elif role == "tool":
        failed = {"failed": True} if line.get("is_error") is True else {}
        words = f"the tool {line.get('name')} {'failed' if failed else 'ended'}"
        yield Step(
            at, "tool", words, source, {"tool": line.get("name"), **_took(line, before), **failed, **other}
        )
    elif line.get("kind") == "note":
        yield _noted(line, message_id, at, source)


def _begun(line: Line, at: datetime | None, place: dict[str, Any], source: str) -> Iterator[Step]:
    yield from _before(line, source)
    part_of = line.get("part_of")
    words = "joined the turn of another message" if part_of else "turn started"
    more = {"turn": part_of, "trace_id": f"{line.get('traceparent') or ''}-".split("-")[1]}
    yield Step(at, "begun", words, source, place | {name: value for name, value in more.items() if value})


def _final(
    line: Line, message_id: str, before: datetime | None, place: dict[str, Any], source: str
) -> Iterator[Step]:
    at, turn = _time(line), line.get("message_id")
    answers = line.get("answers")
    fields = dict(place)
    if isinstance(answers, list):
        fields["answers"] = answers
    if line.get("stopped") is True:
        words = "turn stopped"
        if line.get("interrupted") is True:
            words = "turn stopped by the next message; both are answered together"
        yield Step(at, "stopped", words, source, fields)
        return
    yield Step(at, "model", "the model answered", source, _cost(line, before))
    words = "answer stored" if turn == message_id else "answered together with another message"
    if line.get("unsent") is True:
        words = "the job's answer is stored; it reports nothing, so nothing is sent"
    yield Step(at, "stored", words, source, fields)


def _noted(line: Line, message_id: str, at: datetime | None, source: str) -> Step:
    deleted = line.get("deleted") is True
    if line.get("edits") == message_id:
        words = "deleted by its sender" if deleted else "edited by its sender"
        return Step(at, "deleted" if deleted else "edited", words, source, {"by": line.get("message_id")})
    words = "recorded the deletion" if deleted else "recorded the edit"
    return Step(at, "stored", f"{words} of an earlier message", source, {"of": line.get("edits")})


def _undone(
    messages: Sequence[bytes],
    found: Mapping[int, Line],
    message_id: str,
    source: str,
) -> Iterator[Step]:
    starts = [
        at
        for at, line in found.items()
        if line.get("role") == "user" and line.get("message_id") == message_id
    ]
    if not starts:
        return
    for at in range(starts[-1] + 1, len(messages)):
        if b'"undo"' not in messages[at]:
            continue
        line = decode(messages[at])
        if starts[-1] in taken_back(line, at):
            by = {"by": line["message_id"]} if line.get("message_id") else {}
            words = (
                "the message and its answer were withdrawn"
                if by
                else "the messages of its turn were split up; each is answered by itself"
            )
            yield Step(_time(line), "withdrawn", words, source, by)


def _before(kept: Mapping[str, Any], source: str) -> Iterator[Step]:
    if (accepted := read_time(kept.get("received_at"))) is not None:
        yield Step(accepted, "accepted", "accepted from its channel", source)
    if (queued := read_time(kept.get("queued_at"))) is not None:
        yield Step(queued, "queued", "taken from the queue; waiting for its turn in the chat", source)


def _called(line: Line) -> list[str]:
    calls = line.get("tool_calls")
    found = (
        [call.get("function") or {} for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    return [str(each.get("name")) for each in found if isinstance(each, dict)]


def _cost(line: Line, before: datetime | None) -> dict[str, Any]:
    found = usage_of(line).fields() if isinstance(line.get("usage"), dict) else {}
    return {**found, **_took(line, before)}


def _took(line: Line, before: datetime | None) -> dict[str, Any]:
    at = _time(line)
    return (
        {"took_s": round((at - before).total_seconds(), 3)} if at is not None and before is not None else {}
    )


def _time(line: Line) -> datetime | None:
    at = read_time(line.get("timestamp"))
    return at.astimezone(UTC) if at is not None else None


# -- the journal -----------------------------------------------------------------------------------


def of_journal(entries: Iterable[Entry], message_id: str) -> list[Step]:
    """Tell what a journal says of a message: its recorded attempts, its notices, how it ended."""
    steps: list[Step] = []
    begun = 0
    for entry in entries:
        do, at = entry.get("do"), read_time(entry.get("at"))
        if do == "ended":
            steps += _ended(entry, at, message_id)
        elif entry.get("id") != message_id:
            continue
        elif do == "begin":
            begun += 1
            words = "attempt started" + (", alone" if entry.get("alone") is True else "")
            steps.append(Step(at, "attempt", words, "journal", {"recorded": begun}))
        elif do == "strike":
            steps.append(
                Step(at, "put off", "attempt postponed: not a failure, but a wait or a shutdown", "journal")
            )
        elif do == "notice":
            reason = str(entry.get("reason", ""))
            steps.append(Step(at, "told", "a notice was sent to the chat", "journal", {"reason": reason}))
        elif do == "unpark":
            steps.append(Step(at, "retried", "put back into the queue by the operator", "journal"))
        elif do == "reopen":
            steps.append(Step(at, "reopened", "a closed session was reopened", "journal"))
        elif do == "end":
            steps += _end(entry, at)
    return steps


def _end(entry: Entry, at: datetime | None) -> Iterator[Step]:
    yield from _before(entry, "journal")
    step, words = _ENDS.get(str(entry.get("kind")), ("ended", "ended"))
    if entry.get("reason") == "handed_on":
        step, words = "handed on", "moved to the job's own conversation, with the job's agent"
    fields = {name: entry[name] for name in ("reason", "to") if entry.get(name)}
    yield Step(at, step, words, "journal", fields)


def _ended(entry: Entry, at: datetime | None, message_id: str) -> Iterator[Step]:
    ids = entry.get("ids")
    if isinstance(ids, dict) and message_id in ids:
        fields = {"session_id": entry.get("session"), "archive": entry.get("archive")}
        yield Step(at, "archived", "its session was closed", "journal", fields)


def of_message(layout: Layout, key: str, message_id: str, journal: Iterable[Entry]) -> list[Step]:
    """Tell what the files and the ``journal`` of a key say of a message, in no order.

    Raises:
        StoreError: they cannot be read.
    """
    stem = resolve(layout, SessionKey(key))
    steps = of_journal(journal, message_id)
    ended = [each.path for each in archive.of_stem(layout, stem)]
    for path in [*ended, layout.transcript(stem)]:
        if _holds(path, message_id) and (read := load(path, stem)) is not None:
            transcript, source = read[0], "archive" if path in ended else "transcript"
            session_id = transcript.session_id
            steps += of_lines(transcript.messages, message_id, session_id=session_id, source=source)
    return steps


def keys_with(layout: Layout, message_id: str) -> set[str]:
    """List the keys whose transcripts name a message; it looks through all of them.

    Raises:
        SessionError: as ``of_message``.
    """
    keys: set[str] = set()
    archives = (each.path for each in archive.everywhere(layout))
    for path in (*layout.sessions.glob("*.jsonl"), *archives):
        if _holds(path, message_id):
            stem = path.stem if path.parent == layout.sessions else path.parent.name
            # A file that cannot be read hides no other.
            with contextlib.suppress(SessionError):
                if (read := load(path, stem)) is not None:
                    keys.add(read[0].key)
    return {key for key in keys if of_message(layout, key, message_id, ())}


def _holds(path: Path, message_id: str) -> bool:
    """Say whether the bytes of a file name an id, however it is spelled."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(name) >= 0 for name in _spelled(message_id))
    # It is gone, or empty, which cannot be mapped.
    except (OSError, ValueError):
        return False


def _spelled(message_id: str) -> Iterator[bytes]:
    yield names(message_id)
    yield json.dumps(message_id).encode()
