"""nanobot's session files: line 1 of metadata, then messages; all fields are carried."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from session.interchange.conversation import (
    Conversation,
    Files,
    Fit,
    Line,
    Losses,
    Pictures,
    Written,
    each_session,
    stem_of,
    time_text,
)
from session.transcript.history import edited, is_record
from session.transcript.key import marked_stem, needs_mark, plain_stem
from session.transcript.line import decode as read_line
from session.transcript.line import dump, is_ulid, make_line, naive
from session.transcript.transcript import HEAD_FIELDS, Transcript, parse

_KEY = re.compile(r"[^\s:]+:.+", re.DOTALL)
_REMARK = "nanobot will send withdrawn messages to the model again"
# Fields of 0.3.5: the summary of what came before, a line that only nanobot reads, a command or its answer.
_SUMMARY: Final = "_last_summary"
_HIDDEN: Final = "_hidden_history"
_COMMAND: Final = "_command"
# 0.3.5 writes the offset twice, and believes the second name where both are there.
_HEAD: Final = (*HEAD_FIELDS, "last_archived")


def decode(files: Files) -> list[Conversation]:
    """Read each file, whatever its damage and whichever version named it."""
    return each_session(files, _decode)


def encode(conversation: Conversation, name_of: Callable[[str], str]) -> Written:
    """Write a file that every nanobot from 0.1.4 on loads, under the name that some versions give it."""
    created = conversation.created_at or conversation.last_at
    head = {
        "_type": "metadata",
        "key": conversation.key,
        "created_at": naive(created) if created else "1970-01-01T00:00:00.000000",
        "updated_at": naive(last) if (last := conversation.last_at) else "1970-01-01T00:00:00.000000",
        "metadata": {"session_id": conversation.session_id, **conversation.inner},
        "last_consolidated": conversation.last_consolidated,
        **{name: value for name, value in conversation.extra.items() if name not in HEAD_FIELDS},
    }
    data = b"".join(dump(line) + b"\n" for line in (head, *edited(conversation.lines)))
    undone = any(is_record(line) and line["kind"] == "undo" for line in conversation.lines)
    return Written({name_of(conversation.key): data}, (_REMARK,) if undone else ())


def old_name(key: str) -> str:
    """Name the file as versions before 0.3 do."""
    return f"{marked_stem(key) if needs_mark(key) else plain_stem(key)}.jsonl"


def b64_name(key: str) -> str:
    """Name the file as versions from 0.3 on do."""
    return base64.urlsafe_b64encode(key.encode("utf-8", "surrogatepass")).rstrip(b"=").decode() + ".jsonl"


def _decode(path: str, data: bytes) -> Conversation:
    stem = stem_of(path)
    found = parse(data, stem=stem)
    if not found.damage.heads:
        # Line 1 of nanobot outweighs any number of strange lines: those of later versions and of damage.
        fit = Fit(path, data)
        fit.strange = len(found.damage.strays) + found.damage.uncounted
        for raw in found.messages:
            fit.count("recordType" not in read_line(raw))
        fit.check("a message or metadata")
    losses = Losses()
    for problem in found.damage.problems:
        losses.add(problem)
    losses.add("objects that are not messages", len(found.damage.strays) + found.damage.uncounted)
    if found.torn:
        losses.add("an unfinished line at the end")
    inner = dict(found.inner)
    session_id = inner.pop("session_id", "")
    lines, consolidated = _said([read_line(raw) for raw in found.messages], found.last_consolidated, losses)
    if (summary := _summary(inner.pop(_SUMMARY, None), lines, consolidated)) is not None:
        lines.insert(consolidated, summary)
    return Conversation(
        lines=tuple(lines),
        key=_key(found, stem),
        session_id=session_id if is_ulid(session_id) else "",
        origin=path,
        created_at=found.created_at,
        inner=inner,
        extra={name: value for name, value in found.metadata.items() if name not in _HEAD},
        last_consolidated=consolidated,
        lost=losses.words(),
    )


def _said(lines: Sequence[Line], consolidated: int, losses: Losses) -> tuple[list[Line], int]:
    """Leave out what 0.3.5 keeps for itself: markers that nobody wrote, commands with their answers.

    Returns:
        The other lines, and how many of them memory holds.
    """
    kept = []
    before = 0
    for at, line in enumerate(lines):
        hidden = line.get(_HIDDEN)
        if hidden is True or isinstance(hidden, Mapping):
            losses.add("hidden messages of nanobot itself")
        elif line.get(_COMMAND):
            losses.add("commands and their answers")
        else:
            kept.append(line)
            before += at < consolidated
    return kept, before


def _summary(found: Any, lines: Sequence[Line], consolidated: int) -> Line | None:
    text = found.get("text") if isinstance(found, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        return None
    before = lines[consolidated - 1] if consolidated else {}
    stamp = before.get("timestamp") or found.get("last_active")
    return make_line("system", text, time_text(stamp), kind="overlay", first_kept=consolidated)


def _key(found: Transcript, stem: str) -> str:
    """Return the key that line 1 names, else the one in the file's name, of either kind; empty for none."""
    named = found.metadata.get("key")
    if isinstance(named, str) and named:
        return named
    try:
        text = base64.b64decode(stem + "=" * (-len(stem) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if _KEY.fullmatch(text) and b64_name(text) == f"{stem}.jsonl" and text.isprintable():
        return text
    return found.key if ":" in found.key else ""


def with_pictures(conversation: Conversation, read: Callable[[str], bytes | None]) -> Conversation:
    """Attach the files that user lines of 0.3.5 name in ``media``; name in the text what is not there.

    Args:
        conversation: as ``decode`` returns it.
        read: returns the content of a file by its path; None where there is none to be had.
    """
    losses = Losses()
    pictures = Pictures(losses)
    lines = [_with_media(line, read, pictures, losses) for line in conversation.lines]
    media = {**conversation.media, **pictures.files}
    return replace(conversation, lines=tuple(lines), media=media, lost=(*conversation.lost, *losses.words()))


def _with_media(line: Line, read: Callable[[str], bytes | None], pictures: Pictures, losses: Losses) -> Line:
    paths = line.get("media")
    if line.get("role") != "user" or not isinstance(paths, list) or line.get("attachments"):
        return line
    attached, named = [], []
    for path in paths:
        if not isinstance(path, str) or not path:
            continue
        if (data := read(path)) is None:
            losses.add("images and files outside the imported folder")
            named.append(f"[image: {path.rpartition('/')[2]}]")
        else:
            attached.append(pictures.keep(path, data))
    changed = {name: value for name, value in line.items() if name != "media"}
    if attached:
        changed["attachments"] = attached
    if named and isinstance(line.get("content"), str):
        changed["content"] = "\n".join(filter(None, (line["content"], *named)))
    return changed


def history_text(data: bytes) -> bytes:
    """Turn ``memory/history.jsonl`` of 0.3.5 into paragraphs of HISTORY.md; damaged lines are left out."""
    paragraphs = []
    for raw in data.split(b"\n"):
        try:
            entry = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        content = entry.get("content") if isinstance(entry, dict) else None
        if isinstance(content, str) and content.strip():
            stamp = str(entry.get("timestamp", "")).strip()
            # A paragraph is an entry: an empty line within would make two of one.
            text = re.sub(r"\n\s*\n", "\n", content.strip())
            paragraphs.append(f"[{stamp}] {text}\n\n" if stamp else f"{text}\n\n")
    return "".join(paragraphs).encode()
