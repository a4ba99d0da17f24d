"""Searches the sessions of one conversation for words, the newest first; bounded, for threads.

What a compaction kept stands in two sessions: it is found once, where it was said last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from session.disk.layout import Layout
from session.errors import StoreError
from session.transcript import archive
from session.transcript.archive import previous_in, session_in
from session.transcript.history import new_texts, with_text
from session.transcript.index import copies_behind
from session.transcript.lines import walk
from session.transcript.loading import load
from session.transcript.repair import plain_text
from session.transcript.transcript import Transcript, decode

# How much is read of all files together.
MAX_BYTES = 256 * 2**20
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
class SearchResult:
    """The hits, newest first; ``all`` says that nothing was left out for its number or the files' size."""

    hits: list[Hit]
    all: bool


def search(
    layout: Layout, stem: str, key: str, words: str, *, limit: int, tools: bool = False
) -> SearchResult:
    """Find the messages of people and model that hold all ``words``, in whatever case.

    ``tools``: and the results of tools.

    Raises:
        StoreError: the active transcript cannot be read; an ended session that cannot is passed over.
    """
    wanted = words.casefold().split()
    roles = ("user", "assistant", "tool") if tools else ("user", "assistant")
    hits: list[Hit] = []
    left = MAX_BYTES
    copies = _Copies()
    for path, transcript in _sessions(layout, stem, key):
        left -= transcript.size
        if left < 0:
            return SearchResult(hits, False)
        active = path == layout.transcript(stem)
        found = copies.found_in(transcript)
        texts = new_texts((at, decode(transcript.messages[at])) for at in transcript.index.records)
        for at in range(len(transcript.messages) - 1, -1, -1):
            if at in found:
                continue
            hit = _hit(transcript, at, wanted, roles=roles, active=active, texts=texts)
            if hit is not None and len(hits) == limit:
                return SearchResult(hits, False)
            if hit is not None:
                hits.append(hit)
    return SearchResult(hits, True)


class _Copies:
    """What a compaction copied from one session into the next, as far as the search has come."""

    def __init__(self) -> None:
        self._searched: set[str] = set()
        self._lines: set[bytes] = set()

    def found_in(self, transcript: Transcript) -> set[int]:
        """Return the places of a session's lines that were found in one before it."""
        messages = transcript.messages
        opening = decode(messages[0]) if messages else {}
        copies = range(1, 1 + copies_behind(opening))
        found = set[int]()
        # An archive that was opened again is searched before the session that has the copies.
        if session_in(previous_in(opening) or "") in self._searched:
            found.update(copies)
        if self._lines:
            found.update(at for at, raw in enumerate(walk(messages, 0)) if raw in self._lines)
        self._searched.add(transcript.session_id)
        self._lines.update(messages[copies.start : copies.stop])
        return found


def _sessions(layout: Layout, stem: str, key: str) -> Iterator[tuple[Path, Transcript]]:
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
            # A damaged session hides no other one.
            continue
        if read is not None and (transcript := read[0]).key == key:
            yield found.path, transcript


def _hit(
    transcript: Transcript,
    at: int,
    wanted: list[str],
    *,
    roles: Sequence[str],
    active: bool,
    texts: Mapping[str, tuple[int, str]],
) -> Hit | None:
    line = with_text(decode(transcript.messages[at]), at, texts)
    role = line.get("role")
    if role not in roles:
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
