"""Which facts say the same, and which are near to a message, by their words; decisions without I/O."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import log, sqrt

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
MAX_CHARS = 2_000
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


class WordIndex:
    """Finds the texts that share the rarest words with a message."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._count = len(texts)
        places: defaultdict[str, list[int]] = defaultdict(list)
        self._places: Mapping[str, Sequence[int]] = places
        self._lengths = [1.0] * len(texts)
        for at, text in enumerate(texts):
            found = words(text)
            self._lengths[at] = sqrt(len(found) or 1)
            for word in found:
                places[word].append(at)

    def nearest(self, text: str, most: int) -> list[int]:
        """Return the places of at most ``most`` texts, the nearest first; those that share none fill it up.

        Of equals the later one comes first.
        """
        scores: Counter[int] = Counter()
        for word in words(text[:MAX_CHARS]):
            places = self._places.get(word, ())
            if len(places) > MAX_SHARED:
                continue
            weight = log(1 + self._count / len(places)) if places else 0.0
            for at in places:
                scores[at] += weight / self._lengths[at]  # type: ignore[assignment]
        near = sorted(scores, key=lambda at: (-scores[at], -at))[:most]
        taken = set(near)
        rest = (at for at in range(self._count - 1, -1, -1) if at not in taken)
        return [*near, *(at for at, _ in zip(rest, range(most - len(near)), strict=False))]


def _stem(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("’s")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _denies(found: frozenset[str]) -> bool:
    return not found.isdisjoint(_NEGATIONS)
