"""Finds messages, notes and facts by the words of a question; reads them from their files. For threads."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from session.disk.layout import pread, read_file
from session.errors import StoreError
from session.recall.index import ASSISTANT, Kind, Place, Source, WordIndex
from session.recall.ranking import COMMON_NAME, NAME, OTHER_FORM, Row, Traits, rank
from session.recall.reading import digest, excerpt, fact_of, note_of, of_notes, speaker, told
from session.recall.words import days, expression, forms, names, terms
from session.transcript.line import decode
from session.transcript.loading import load
from session.transcript.repair import plain_text

EXCERPT_CHARS = 600
NEIGHBOUR_CHARS = 300
MAX_NEIGHBOURS = 5
# So many rows are ranked, those that hold the most of the question, and what stands beside the best.
CANDIDATES = 250
BESIDE = 60
QUESTION_TERMS = 3


@dataclass(frozen=True, slots=True)
class Hit:
    """What was found: who said it, where it stands, the text around the words.

    ``seq`` counts the session's messages from 1, of a note its lines or paragraphs. ``before`` and ``after``
    are its neighbours, where they were asked for.
    """

    kind: Kind
    key: str
    session_id: str | None
    message_id: str | None
    seq: int | None
    at: str | None
    speaker: str | None
    text: str
    score: float
    before: Sequence[Mapping[str, Any]] = ()
    after: Sequence[Mapping[str, Any]] = ()

    def as_dict(self, *, neighbours: bool = False) -> dict[str, Any]:
        """Return what other programs see."""
        names = ("kind", "key", "session_id", "message_id", "seq", "at", "speaker", "text", "score")
        row = {name: getattr(self, name) for name in names}
        return row | ({"before": list(self.before), "after": list(self.after)} if neighbours else {})


@dataclass(frozen=True, slots=True)
class Match:
    """A hit with its whole text; ``stem`` names the file of its conversation, and is empty for a note.

    ``still`` says whether the text stands where it was read.
    """

    hit: Hit
    text: str
    stem: str
    still: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for, by ``key``: at most ``limit`` hits, each with so many messages around it.

    The lines of the message ``asking`` are not found: they hold the question.
    """

    text: str
    key: str
    limit: int
    neighbours: int = 0
    asking: str = ""
    wanted: list[str] = field(init=False)
    names: set[str] = field(init=False)
    days: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", terms(self.text))
        object.__setattr__(self, "names", names(self.text))
        object.__setattr__(self, "days", days(self.text))


def find(index: WordIndex, question: Question) -> list[Match]:
    """Return what holds words of a question, the best first.

    Raises:
        StoreError: the index cannot be used.
    """
    sources = {source.id: source for source in index.sources() or ()}
    scores = _scores(index, question.wanted)
    common = COMMON_NAME * sum(source.rows for source in sources.values())
    for term, of_term in zip(question.wanted, scores, strict=True):
        if term in question.names and len(of_term) > common:
            of_term.update({row: NAME * score for row, score in of_term.items()})
    if question.days:
        scores.append(index.said_on(question.days, set().union(*scores)))
    alone = {id_: source.kind != "message" for id_, source in sources.items()}
    traits = {
        row: Traits(source, speaker, bool(question_), alone[source])
        for row, source, speaker, question_ in index.traits(_candidates(scores))
        if source in alone
    }
    ranked = rank(scores, traits, _asked(index.speakers(), question.wanted))
    reader = _Reader(index, sources, question)
    hits: list[Match] = []
    told = set[int]()
    try:
        for place, score in _placed(index, ranked, at_once=max(question.limit, 1)):
            if len(hits) == question.limit:
                break
            # What a compaction kept stands in two sessions.
            if place.digest not in told and (hit := reader.hit(place, score)):
                told.add(place.digest)
                hits.append(hit)
    finally:
        reader.close()
    return hits


def _placed(
    index: WordIndex, ranked: Sequence[tuple[Row, float]], *, at_once: int
) -> Iterator[tuple[Place, float]]:
    for at in range(0, len(ranked), at_once):
        some = ranked[at : at + at_once]
        places = index.places(row for row, _ in some)
        yield from ((places[row], score) for row, score in some if row in places)


def _scores(index: WordIndex, wanted: Sequence[str]) -> list[dict[Row, float]]:
    asked = [(term, 1.0) for term in wanted]
    other = [
        (form, number) for number, term in enumerate(wanted) for form in forms(term) if form not in wanted
    ]
    found = index.match([expression(term) for term in (*wanted, *(form for form, _ in other))])
    if found is None:
        raise StoreError("the search index is not available", hint="try again in a moment")
    scores = found[: len(asked)]
    for (_, number), of_form in zip(other, found[len(asked) :], strict=True):
        of_term = scores[number]
        for row, score in of_form.items():
            of_term[row] = max(of_term.get(row, 0.0), score * OTHER_FORM)
    return scores


def _candidates(scores: Sequence[Mapping[Row, float]]) -> list[Row]:
    whole: defaultdict[Row, float] = defaultdict(float)
    for of_term in scores:
        for row, score in of_term.items():
            whole[row] += score
    best = sorted(whole, key=lambda row: (-whole[row], -row))[:CANDIDATES]
    # An answer need not hold a word of its question; who looks for a word or two wants these.
    beside = (
        row + step for row in best[: BESIDE if len(scores) >= QUESTION_TERMS else 0] for step in (-1, 1)
    )
    return list(dict.fromkeys((*best, *beside)))


def _asked(speakers: Mapping[int, str], wanted: Sequence[str]) -> set[int]:
    named = {number: name for number, name in speakers.items() if number != ASSISTANT and name != "user"}
    return {number for number, name in named.items() if not {*terms(name)}.isdisjoint(wanted)}


class _Reader:
    """Reads what was found from the files in which it stands."""

    def __init__(
        self,
        index: WordIndex,
        sources: Mapping[int, Source],
        question: Question,
    ) -> None:
        self._index = index
        self._sources = sources
        self._question = question
        self._files: dict[str, int] = {}

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)

    def hit(self, place: Place, score: float) -> Match | None:
        """Read a row; None where its file no longer holds it."""
        source = self._sources[place.source]
        raw = self._raw(source, place)
        if raw is None:
            return None
        found = self._message(raw, source) if source.kind == "message" else self._note(raw, source)
        if source.key == self._question.key and found.get("message_id") == (self._question.asking or 0):
            return None
        before, after = self._around(place, source)
        hit = Hit(
            kind=source.kind,
            key=found.get("key") or source.key or self._question.key,
            session_id=found.get("session_id"),
            message_id=found.get("message_id"),
            seq=place.seq if source.kind != "fact" else None,
            at=found.get("at"),
            speaker=found.get("speaker"),
            text=excerpt(found["text"], self._question.wanted, chars=EXCERPT_CHARS),
            score=round(score, 3),
            before=before,
            after=after,
        )
        stem = source.stem if source.kind == "message" else ""
        return Match(hit, found["text"], stem, partial(_stands, source, place))

    def _message(self, raw: bytes, source: Source) -> dict[str, Any]:
        line = decode(raw)
        return {
            "session_id": source.session,
            "message_id": _text(line.get("message_id")) or _text(line.get("edits")),
            "at": _text(line.get("timestamp")) or _text(line.get("created_at")),
            "speaker": speaker(line),
            "text": plain_text(line.get("content")),
        }

    def _note(self, raw: bytes, source: Source) -> dict[str, Any]:
        if source.kind != "fact":
            return note_of(raw)
        fact = fact_of(raw) or {"text": ""}
        return {
            "key": _text(fact.get("key")),
            "message_id": _text(fact.get("message_id")),
            "at": _text(fact.get("created_at")),
            "text": told(fact),
        }

    def _around(self, place: Place, source: Source) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        count = min(self._question.neighbours, MAX_NEIGHBOURS)
        if not count or source.kind != "message":
            return [], []
        near = self._index.places([place.row + step for step in range(-count, count + 1) if step])
        shown: list[list[dict[str, Any]]] = [[], []]
        for row in sorted(near):
            raw = self._raw(source, near[row])
            if near[row].source == source.id and raw is not None:
                line = decode(raw)
                text = excerpt(plain_text(line.get("content")), (), chars=NEIGHBOUR_CHARS)
                shown[row > place.row].append({"seq": near[row].seq, "speaker": speaker(line), "text": text})
        return shown[0], shown[1]

    def _raw(self, source: Source, place: Place) -> bytes | None:
        try:
            fd = self._files.get(source.path)
            if fd is None:
                fd = self._files[source.path] = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
            raw = pread(fd, place.size, source.base + place.at)
            if digest(raw) == place.digest:
                return raw
            return next((raw for raw in self._anew(source, place) if digest(raw) == place.digest), None)
        except (OSError, StoreError):
            return None

    def _anew(self, source: Source, place: Place) -> Iterator[bytes]:
        """Look for a row where its bytes do not stand in the file as they are read, as in a damaged one."""
        path = Path(source.path)
        if source.kind != "message":
            read = read_file(path)
            data = read[0] if read is not None else b""
            yield from (data[each.at : each.at + each.size] for each in of_notes(data, source.kind))
            return
        loaded = load(path, source.stem)
        messages = loaded[0].messages if loaded is not None else []
        if place.seq <= len(messages):
            yield messages[place.seq - 1]


def _stands(source: Source, place: Place) -> bool:
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return digest(pread(fd, place.size, source.base + place.at)) == place.digest
    except StoreError:
        return False
    finally:
        os.close(fd)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
