"""Compares texts by their words: repeats, the nearest facts, and whose words a note is; no I/O.

Notes are written by a model, which a page or a file may tell what to write. So each sentence is compared with
what was said: one whose words occur in a file, a page, a tool's result or somebody's message in a group, and
less so in what the chat's own people said, gets the mark of that source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from math import log, sqrt
from typing import Any

from session.context.profile import zone_in
from session.context.quoted import IN_GROUP, MARK, is_mark, of_line, of_quote
from session.transcript.repair import plain_text

_WORD = re.compile(r"\w+(?:['’]\w+)?")
# Scripts that write no space between words: Thai to Khmer, kana and Chinese characters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_STOP_WORDS = """
a an the of to in on at by for from with and or is are was were be been being has have had do does did this
that these those it its i me my he him his she her hers they them their we us our you your as user person said
chat
"""
_STOP = frozenset(_STOP_WORDS.split())
_DENYING_WORDS = """
not no never none nobody nothing without cannot longer stopped nicht kein keine keinen nie niemals ohne ne pas
non jamais sans nunca sin jamás não nem mai senza niet geen не нет никогда без
"""
_NEGATIONS = frozenset(_DENYING_WORDS.split())
# So much of a message is compared with facts.
MAX_QUERY_CHARS = 2_000
# A word that so many facts share tells nothing about one of them.
MAX_SHARED = 2_000


@lru_cache(maxsize=20_000)
def words(text: str) -> frozenset[str]:
    """Return the words that a text is compared by: folded, without the most common ones and endings."""
    return frozenset(chain.from_iterable(map(_compared, _WORD.findall(text.casefold()))))


# Ten thousand facts are made of a few thousand words.
@lru_cache(maxsize=50_000)
def _compared(word: str) -> tuple[str, ...]:
    if _UNSPACED.search(word):
        return tuple(word[at : at + 2] for at in range(max(len(word) - 1, 1)))
    if word.endswith(("n't", "n’t")):
        return ("not",)
    return (_stem(word),) if word not in _STOP else ()


def same(one: str, other: str) -> bool:
    """Say whether two texts differ in case, space and punctuation at most."""
    return _WORD.findall(one.casefold()) == _WORD.findall(other.casefold())


def repeats(new: str, known: str) -> bool:
    """Say whether ``new`` says nothing that ``known`` does not say: each of its words is there.

    One that denies what the other says is no repeat.
    """
    if same(new, known):
        return True
    mine, theirs = words(new), words(known)
    return bool(mine) and mine <= theirs and _denies(mine) == _denies(theirs)


def nearest(texts: Sequence[str], text: str, most: int) -> list[int]:
    """Return the places of at most ``most`` texts, those first that share the rarest words with ``text``.

    Texts that share none fill it up; of equals the later one comes first.
    """
    wanted = words(text[:MAX_QUERY_CHARS])
    shared = {at: found for at, each in enumerate(texts) if (found := words(each) & wanted)}
    counts = Counter(word for found in shared.values() for word in found)
    weights = {word: log(1 + len(texts) / n) for word, n in counts.items() if n <= MAX_SHARED}
    scores = {
        at: sum(weights.get(word, 0.0) for word in found) / sqrt(len(words(texts[at])))
        for at, found in shared.items()
    }
    return sorted(range(len(texts)), key=lambda at: (-scores.get(at, 0.0), -at))[:most]


def _stem(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("’s")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _denies(found: frozenset[str]) -> bool:
    return not found.isdisjoint(_NEGATIONS)


# So much of a sentence's words stands together in what it is taken from.
SHARE = 0.5
# So much of one message is compared, and of all that was quoted together, the newest first.
MAX_LINE_CHARS = 100_000
MAX_ALL_CHARS = 1_000_000
# A word that stands in more places says little, and to count them all for each note would take minutes.
MAX_PLACES = 2_000
# A heading with fewer words names a section, and tells nothing.
MIN_HEADING_WORDS = 4
_SENTENCE = re.compile(r"(?<=[.!?…。！？])\s+")
_PIECE = re.compile(r"\n+|(?<=[.!?…。！？])\s+")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_STAMP = re.compile(r"^\s*\[[\d :T-]+\]\s*")
_OWN = ""


class Sources:
    """The texts that something may come from, each with its mark; those of the chat's own people have none.

    ``fallback`` is the mark of what comes from none of them.
    """

    def __init__(self, *, fallback: str = "") -> None:
        self._fallback = fallback
        # Where a word stands, in what the chat's own people said and in what is quoted.
        self._places: dict[tuple[str, bool], list[int]] = {}
        self._marks: list[str] = []
        self._taken: set[tuple[frozenset[str], str]] = set()

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]], *, group: bool) -> Sources:
        """Take what people and tools said in the lines of a conversation.

        In a group everybody is somebody else, and what comes from nobody in particular was said there.
        """
        sources = cls(fallback=IN_GROUP if group else "")
        left = MAX_ALL_CHARS
        for line in reversed(lines):
            text = plain_text(line.get("content"))[:MAX_LINE_CHARS]
            if line.get("role") not in ("user", "tool") or (left := left - len(text)) < 0:
                continue
            if (quote := of_quote(line))[0]:
                sources.add(*quote)
            sources.add(text, of_line(line) or (IN_GROUP if group and line["role"] == "user" else _OWN))
        return sources

    def add(self, text: str, mark: str = _OWN) -> None:
        """Take a text, with the mark of whoever said it."""
        pieces = [words(piece) for piece in _PIECE.split(text) if piece.strip()]
        # A note may join two sentences.
        for one, next_ in pairwise([*pieces, frozenset[str]()]):
            both = one | next_
            # What a page repeats is no more the source of a note for that.
            if not both or (both, mark) in self._taken:
                continue
            self._taken.add((both, mark))
            for word in both:
                places = self._places.setdefault((word, mark == _OWN), [])
                if len(places) < MAX_PLACES:
                    places.append(len(self._marks))
            self._marks.append(mark)

    def mark_of(self, text: str) -> str:
        """Return the mark of a sentence; empty for the chat's own."""
        mine = words(_STAMP.sub("", text))
        if not mine:
            return ""
        found = Counter(
            place for word in mine for own in (True, False) for place in self._places.get((word, own), ())
        )
        best: dict[str, int] = {}
        for place, count in found.items():
            mark = self._marks[place]
            best[mark] = max(best.get(mark, 0), count)
        own = best.pop(_OWN, 0)
        mark, most = max(best.items(), key=lambda each: each[1], default=("", 0))
        if most > own and most >= SHARE * len(mine):
            return mark
        return "" if own >= SHARE * len(mine) else self._fallback

    def marked(self, text: str, *, former: str = "", fallback: bool = True) -> str:
        """Return a text with its quotations marked.

        A mark that stands in ``text`` stays. What stood in ``former`` keeps the mark that it had, or had not.
        ``fallback``: what comes from nobody in particular is marked in a group.
        """
        known = dict(_sentences(former))
        sources = self._with(known.items())
        lines = (sources._line(line, known, fallback=fallback) for line in text.split("\n"))
        return "\n".join(lines)

    def _with(self, known: Iterable[tuple[str, str]]) -> Sources:
        """Return these and the sentences that memory held before, which may be put in other words."""
        more = Sources(fallback=self._fallback)
        more._marks = [*self._marks]
        more._places = {word: [*places] for word, places in self._places.items()}
        more._taken = {*self._taken}
        for sentence, mark in known:
            more.add(sentence, mark)
        return more

    def _line(self, line: str, known: Mapping[str, str], *, fallback: bool) -> str:
        if not line.strip() or zone_in(line) is not None:
            return line
        if _HEADING.match(line) and len(words(line)) < MIN_HEADING_WORDS:
            return line
        return "".join(
            gap + self._sentence(sentence, mark, known, alone=alone, fallback=fallback)
            for gap, sentence, mark, alone in _taken_apart(line)
        )

    def _sentence(
        self, sentence: str, written: str, known: Mapping[str, str], *, alone: bool, fallback: bool
    ) -> str:
        mark = known.get(_plain(sentence))
        if mark is None:
            # Half a sentence, such as an abbreviation leaves, tells nothing of its origin.
            mark = self.mark_of(sentence) if alone or len(words(sentence)) > 1 else ""
            if mark == self._fallback and not fallback:
                mark = ""
        mark = mark or written
        return f"{sentence} ({mark})" if mark else sentence


def _taken_apart(line: str) -> list[tuple[str, str, str, bool]]:
    """Take a line apart: what stands before a sentence, the sentence, the mark behind it, if it is alone."""
    found: list[tuple[str, str, str, bool]] = []
    pieces = MARK.split(line)
    alone = sum(bool(words(text)) for text in pieces[::2]) == 1 and not _SENTENCE.search(line)
    for text, mark in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        at = 0
        for gap in [*_SENTENCE.finditer(text), None]:
            sentence = text[at : gap.start() if gap else len(text)]
            lead = len(sentence) - len(sentence.lstrip())
            found.append((sentence[:lead], sentence[lead:], "" if gap else mark, alone))
            if gap:
                found.append((gap[0], "", "", False))
                at = gap.end()
    return [each for each in found if each[0] or each[1] or each[2]]


def _sentences(text: str) -> Iterable[tuple[str, str]]:
    """Yield the sentences of a text, each with its mark, as ``known`` compares them."""
    for line in text.split("\n"):
        for _, sentence, mark, _ in _taken_apart(line):
            if plain := _plain(sentence):
                yield plain, mark if is_mark(mark) else ""


def _plain(sentence: str) -> str:
    return " ".join(sentence.strip(" \t-*+>#").split()).casefold()
