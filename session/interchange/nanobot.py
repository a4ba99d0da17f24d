"""nanobot's session files: line 1 of metadata, then messages; all fields are carried."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass

from session.interchange.conversation import Conversation, Files, Losses, Written
from session.interchange.fit import Fit
from session.interchange.parts import is_record
from session.interchange.records import stem_of
from session.transcript.history import edited
from session.transcript.key import marked_stem, needs_mark, plain_stem
from session.transcript.line import dump, is_ulid, naive
from session.transcript.transcript import HEAD_FIELDS, Transcript, decode, parse

_KEY = re.compile(r"[^\s:]+:.+", re.DOTALL)
_REMARK = "nanobot sends withdrawn messages again; they stand in the file"


@dataclass(frozen=True, slots=True)
class Nanobot:
    """The format, with the file names of one range of versions."""

    name_of: Callable[[str], str]

    def decode(self, files: Files) -> list[Conversation]:
        """Read each file, whatever its damage and whichever version named it."""
        return [
            _decode(path, data) for path, data in files.items() if path.endswith(".jsonl") or len(files) == 1
        ]

    def encode(self, conversation: Conversation) -> Written:
        """Write a file that every nanobot from 0.1.4 on loads."""
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
        return Written({self.name_of(conversation.key): data}, (_REMARK,) if undone else ())


def _old_name(key: str) -> str:
    return f"{marked_stem(key) if needs_mark(key) else plain_stem(key)}.jsonl"


def _b64_name(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode("utf-8", "surrogatepass")).rstrip(b"=").decode() + ".jsonl"


OLD_NAMES = Nanobot(_old_name)
B64_NAMES = Nanobot(_b64_name)


def _decode(path: str, data: bytes) -> Conversation:
    stem = stem_of(path)
    found = parse(data, stem=stem)
    if not found.damage.heads:
        # Line 1 of nanobot outweighs any number of strange lines: those of later versions and of damage.
        fit = Fit(path, data)
        fit.strange = len(found.damage.strays) + found.damage.uncounted
        for raw in found.messages:
            fit.count("recordType" not in decode(raw))
        fit.check("a message or metadata")
    losses = Losses()
    for problem in found.damage.problems:
        losses.add(problem)
    losses.add("objects that are no messages", len(found.damage.strays) + found.damage.uncounted)
    if found.torn:
        losses.add("an unfinished line at the end")
    inner = dict(found.inner)
    session_id = inner.pop("session_id", "")
    return Conversation(
        lines=tuple(decode(raw) for raw in found.messages),
        key=_key(found, stem),
        session_id=session_id if is_ulid(session_id) else "",
        origin=path,
        created_at=found.created_at,
        inner=inner,
        extra={name: value for name, value in found.metadata.items() if name not in HEAD_FIELDS},
        last_consolidated=found.last_consolidated,
        lost=losses.words(),
    )


def _key(found: Transcript, stem: str) -> str:
    """Return the key that line 1 names, else the one in the file's name, of either kind; empty for none."""
    named = found.metadata.get("key")
    if isinstance(named, str) and named:
        return named
    try:
        text = base64.b64decode(stem + "=" * (-len(stem) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if _KEY.fullmatch(text) and _b64_name(text) == f"{stem}.jsonl" and text.isprintable():
        return text
    return found.key if ":" in found.key else ""
