"""Searches the sessions of one conversation for words, the newest first; bounded, for threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from session import archive
from session.disk import Layout
from session.errors import StoreError
from session.loading import load
from session.repair import plain_text
from session.transcript import Transcript, decode

MAX_BYTES = 256 * 2**20  # of all files that are read
EXCERPT_CHARS = 160


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that holds all words; ``seq`` counts the session's messages from 1."""

    id: str
    seq: int
    role: str
    timestamp: str
    text: str
    active: bool

    def as_dict(self) -> dict[str, Any]:
        """Return what other programs see."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Found:
    """The hits, newest first; ``all`` says that nothing was left out for its number or the files' size."""

    hits: list[Hit]
    all: bool


def search(layout: Layout, stem: str, key: str, words: str, *, limit: int) -> Found:
    """Find the messages of people and model that hold all ``words``, in whatever case.

    Raises:
        StoreError: the active transcript cannot be read; an ended session that cannot is passed over.
    """
    wanted = words.casefold().split()
    hits: list[Hit] = []
    left = MAX_BYTES
    for path, transcript in _sessions(layout, stem, key):
        left -= transcript.size
        if left < 0:
            return Found(hits, False)
        active = path == layout.transcript(stem)
        for at in range(len(transcript.messages) - 1, -1, -1):
            hit = _hit(transcript, at, wanted, active=active)
            if hit is not None and len(hits) == limit:
                return Found(hits, False)
            if hit is not None:
                hits.append(hit)
    return Found(hits, True)


def _sessions(layout: Layout, stem: str, key: str) -> Iterator[tuple[Path, Transcript]]:
    """Yield the sessions of a key, the active one first, then the one that ended last, each once."""
    path, seen = layout.transcript(stem), set[str]()
    read = load(path, stem, layout.index(stem))
    if read is not None:
        transcript = read[0]
        if transcript.key == key:
            seen.add(transcript.session_id)
            yield path, transcript
    for found in reversed(archive.of_stem(layout, stem)):
        if found.session_id in seen:
            continue
        seen.add(found.session_id)
        try:
            read = load(found.path, stem)
        except StoreError:
            continue
        if read is not None and (transcript := read[0]).key == key:
            yield found.path, transcript


def _hit(transcript: Transcript, at: int, wanted: list[str], *, active: bool) -> Hit | None:
    line = decode(transcript.messages[at])
    role = line.get("role")
    if role not in ("user", "assistant"):
        return None
    text = plain_text(line.get("content"))
    folded = text.casefold()
    if not wanted or not all(word in folded for word in wanted):
        return None
    return Hit(
        transcript.session_id,
        at + 1,
        str(role),
        str(line.get("timestamp", "")),
        _excerpt(text, folded.find(wanted[0])),
        active,
    )


def _excerpt(text: str, at: int) -> str:
    start = max(0, at - EXCERPT_CHARS // 2)
    piece = " ".join(text[start : start + EXCERPT_CHARS].split())
    before, after = "…" if start else "", "…" if start + EXCERPT_CHARS < len(text) else ""
    return f"{before}{piece}{after}"
