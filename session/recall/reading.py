"""Reads what can be found out of the lines of transcripts, out of notes and out of facts; mostly pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from session.context.quoted import is_mark, marked
from session.recall.index import Kind, Piece
from session.transcript.attachments import author_of
from session.transcript.history import deleted, is_deletion, is_record
from session.transcript.line import decode
from session.transcript.repair import plain_text

FACTS: Final = "facts.jsonl"
MAX_QUESTION_CHARS = 120
# A longer text is found by its beginning.
MAX_TEXT_CHARS = 100_000
_MARK = re.compile(rb"^<!-- session ([0-9A-Z]{26}) messages .* -->\s*$", re.MULTILINE)
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)\]")


def digest(raw: bytes) -> int:
    """Return what tells one text from another, within SQLite's integers."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=7).digest(), "big")


# -- transcripts -----------------------------------------------------------------------------------


def of_line(raw: bytes, index: int, at: int) -> Piece | None:
    """Read a message line; None for one that nobody said: results of tools, records, empty ones.

    ``index`` is its place in the session from 0, ``at`` the byte where it begins behind the first message.
    """
    line = decode(raw)
    who = speaker(line)
    text = plain_text(line.get("content")) if who else ""
    if not text.strip():
        return None
    ends = text.rstrip()[-1]
    return Piece(
        text[:MAX_TEXT_CHARS],
        index + 1,
        at,
        len(raw),
        digest(raw),
        who,
        question=len(text) < MAX_QUESTION_CHARS and ends in "?？",
        day=_day(line.get("timestamp") or line.get("created_at")),
    )


def _day(time: object) -> str:
    return time[:10] if isinstance(time, str) else ""


def speaker(line: Mapping[str, Any]) -> str:
    """Say who said a line: ``assistant``, a person by name, ``user`` without one; empty for nobody."""
    role = line.get("role")
    if role == "assistant":
        return "assistant"
    # The new text of a message that was edited is what was said.
    if role != "user" and not (is_record(line) and line["kind"] == "note" and "edits" in line):
        return ""
    sender = line.get("sender")
    name = sender.get("name") if isinstance(sender, Mapping) else None
    who = " ".join(name.split())[:100] or "user" if isinstance(name, str) else "user"
    forwarded = author_of(line.get("forwarded_from"))
    return f"{forwarded}, forwarded by {who}" if forwarded else who


def withdrawn(raw: bytes, index: int) -> tuple[int, int] | None:
    """Return the first and the last ``seq`` that a record takes back; None where it takes none."""
    if b'"undo"' not in raw:
        return None
    line = decode(raw)
    since = line.get("from")
    if not is_record(line) or line["kind"] != "undo" or type(since) is not int or not 0 <= since < index:
        return None
    return since + 1, index


def taken_back(lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the ``seq`` of what deleted messages took with them, and of each text that an edit replaced."""
    notes = {at: id_ for at, line in enumerate(lines) if is_record(line) and (id_ := _edits(line))}
    newest = {id_: at for at, id_ in notes.items()}
    removed = {id_ for at, id_ in notes.items() if is_deletion(lines[at])}
    gone = {at for at, id_ in notes.items() if id_ in removed or at < newest[id_]}
    for at, line in enumerate(lines):
        of = line.get("message_id")
        if line.get("role") == "user" and isinstance(of, str) and at < newest.get(of, 0):
            gone.add(at)
    return {at + 1 for at in gone | deleted(lines)}


def _edits(line: Mapping[str, Any]) -> str:
    id_ = line.get("edits")
    return id_ if isinstance(id_, str) else ""


# -- notes and facts -------------------------------------------------------------------------------


def of_notes(data: bytes, kind: Kind) -> list[Piece]:
    """Take MEMORY.md apart by its lines, HISTORY.md by its paragraphs, facts by theirs."""
    if kind == "fact":
        return list(_facts(data))
    pieces: list[Piece] = []
    for number, at, raw in _paragraphs(data) if kind == "history" else _lines(data):
        said = _MARK.sub(b"", raw).strip()
        if said and not said.startswith(b"#"):
            text = said.decode("utf-8", "replace")[:MAX_TEXT_CHARS]
            seq = number if kind == "memory" else len(pieces) + 1
            found = _TIME.match(text)
            pieces.append(Piece(text, seq, at, len(raw), digest(raw), day=found[1] if found else ""))
    return pieces


def _lines(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, at, line
        at += len(line) + 1


def _paragraphs(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the same of the first of lines between which none is blank, with all of their bytes."""
    first = last = begun = end = 0
    for number, at, line in _lines(data):
        if not first or number != last + 1:
            if first:
                yield first, begun, data[begun:end]
            first, begun = number, at
        last, end = number, at + len(line)
    if first:
        yield first, begun, data[begun:end]


def _facts(data: bytes) -> Iterator[Piece]:
    for number, (_, at, raw) in enumerate(_lines(data), 1):
        fact = fact_of(raw)
        if fact is not None:
            day = _day(fact.get("created_at"))
            yield Piece(fact["text"], number, at, len(raw), digest(raw), day=day)


def told(fact: Mapping[str, Any]) -> str:
    """Return the text of a fact, with whose words it is behind it."""
    source = fact.get("source")
    known = isinstance(source, str) and is_mark(source)
    return marked(fact["text"], source if known else None)


def fact_of(raw: bytes) -> dict[str, Any] | None:
    """Read a fact that holds; None for one that was replaced, and for what is none."""
    try:
        fact = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fact, dict) or fact.get("replaced_by"):
        return None
    return fact if isinstance(fact.get("text"), str) and fact["text"].strip() else None


def note_of(raw: bytes) -> dict[str, Any]:
    """Return text, time and session of a note, as far as it says them."""
    mark = _MARK.search(raw)
    text = _MARK.sub(b"", raw).strip().decode("utf-8", "replace")
    at = _TIME.match(text)
    return {
        "text": text,
        "at": f"{at[1]}T{at[2]}" if at is not None else None,
        "session_id": mark[1].decode() if mark is not None else None,
    }


def excerpt(text: str, wanted: Sequence[str], *, chars: int) -> str:
    """Return a text whole where it is short, else so many characters around the first word wanted."""
    if len(text) <= chars:
        return text
    folded = text.lower()
    places = [at for word in wanted if (at := folded.find(word)) >= 0]
    start = max(0, min(min(places, default=0) - chars // 3, len(text) - chars))
    before, after = "…" if start else "", "…" if start + chars < len(text) else ""
    return f"{before}{text[start : start + chars].strip()}{after}"
