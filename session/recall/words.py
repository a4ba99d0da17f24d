"""Words of a question and of a text as the index has them, and which files may hold them; pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

MAX_TERMS = 24
_STOP_WORDS: Final = """
    a about above after again all also am an and any are as at be because been before being below between both
    but by can could did do does doing don down during each few for from further had has have having he her
    here hers him his how i if in into is it its itself just ll me more most my no nor not now of off on once
    only or other our out over own re s same she should so some such t than that the their them then there
    these they this those through to too under until up ve very was we were what when where which while who
    whom why will with would you your
"""
_STOP: Final = frozenset(_STOP_WORDS.split())
# Forms that no stemmer joins: what is asked in one of them was said in another.
_IRREGULAR: Final = """
    go went gone/buy bought/see saw seen/take took taken/give gave given/get got gotten/make made/
    write wrote written/run ran/meet met/find found/feel felt/think thought/teach taught/learn learnt/
    win won/lose lost/begin began begun/speak spoke spoken/tell told/say said/sell sold/bring brought/
    catch caught/choose chose chosen/come came/become became/drive drove driven/eat ate eaten/
    fall fell fallen/fly flew flown/forget forgot forgotten/grow grew grown/hear heard/hold held/
    keep kept/know knew known/leave left/lead led/pay paid/ride rode ridden/send sent/sing sang sung/
    sit sat/sleep slept/spend spent/stand stood/swim swam/wear wore worn/break broke broken/build built/
    draw drew drawn/drink drank drunk/fight fought/wake woke woken/understand understood/
    child children kid kids/person people/man men/woman women/foot feet/good better best/bad worse worst/
    mom mother/dad father
"""
_FORMS: Final = {
    word: tuple(other for other in group.split() if other != word)
    for group in _IRREGULAR.split("/")
    for word in group.split()
}
_MONTHS: Final = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTH: Final = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    "oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
# The first letter of a group says what it holds: year, month, day, or what shows that a month is meant.
_DATE = re.compile(
    r"(?<![\d-])(?P<y1>\d{4})-(?P<m1>\d\d?)(?:-(?P<d1>\d\d?))?(?![\d-])"
    r"|(?<![\d.])(?P<d2>\d\d?)\.(?P<m2>\d\d?)\.(?P<y2>\d{4})?(?!\d)"
    r"|(?:(?P<y3>\d{4})[年년] ?)?(?<!\d)(?P<m3>\d\d?)(?P<is3>[月월])(?: ?(?P<d3>\d\d?)[日일])?"
    r"|\b(?P<is4>(?:in|during|since|until|of|last|this|early|late|mid)[ -])?"
    rf"(?:(?P<d4>\d\d?)(?:st|nd|rd|th)? (?:of )?)?\b(?P<m4>{_MONTH})\b"
    r"(?:\.? (?P<d5>\d\d?)(?:st|nd|rd|th)?(?!\d))?(?:,? ?(?P<y4>\d{4}))?"
    r"|(?<!\d)(?P<y5>(?:19|20)\d\d)(?!\d)",
    re.IGNORECASE,
)
# Scripts that put no space between words: each of their characters counts as one.
_DENSE: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_DENSE_ONE = re.compile(f"[{_DENSE}]")
_APOSTROPHE = re.compile("['’]")
# Numbers with marks between them, as in 2026-03-09, are one word: FTS5 finds it as a phrase.
_WORD = re.compile(
    f"\\d+(?:[-.:/]\\d+)+\\b|[{_DENSE}]+|(?:(?![{_DENSE}])[^\\W_])+(?:['’](?:(?![{_DENSE}])[^\\W_])+)*"
)


def indexed(text: str) -> str:
    """Return a text as the index takes it in."""
    return text if text.isascii() else _DENSE_ONE.sub(r" \g<0> ", text)


def terms(question: str) -> list[str]:
    """Return the words that a question is searched by, each once, at most ``MAX_TERMS``.

    Words that say nothing are left out, unless there is no other.
    """
    found = [part for word in _WORD.findall(_as_indexed(question)) for part in _parts(word)]
    telling = [word for word in found if word not in _STOP]
    return list(dict.fromkeys(telling or found))[:MAX_TERMS]


def names(question: str) -> set[str]:
    """Return the words of a question that are written as names, the one that it begins with left out."""
    text = unicodedata.normalize("NFC", question)
    found = [found[0] for found in _WORD.finditer(text) if text[: found.start()].strip()]
    return {part for word in found if word[0].isupper() for part in _parts(_as_indexed(word))}


def days(question: str) -> list[str]:
    """Return the days, months and years that a question names as patterns of ISO dates: ``2026-03-__``.

    The bare name of a month is left out: "may" is a verb, and April a person's name.
    """
    found = []
    for match in _DATE.finditer(unicodedata.normalize("NFKC", question)):
        given = {name[0]: value for name, value in match.groupdict().items() if value}
        year, month, day = given.get("y", "____"), given.get("m", "__"), given.get("d", "__")
        if month.isalpha():
            month = str(_MONTHS.index(month[:3].lower()) // 3 + 1)
        if given.keys() != {"m"}:
            found.append(f"{year}-{month.zfill(2)}-{day.zfill(2)}")
    return list(dict.fromkeys(found))[:MAX_TERMS]


def forms(term: str) -> tuple[str, ...]:
    """Return other forms of a word that no stemmer would find."""
    return _FORMS.get(term, ())


def expression(term: str) -> str:
    """Write a word as FTS5 searches it: quoted, so that nothing in it is an operator."""
    return f'"{indexed(term).strip()}"'


def _parts(word: str) -> Iterator[str]:
    """Take a run of a dense script apart into pairs, which are about its words, and others at apostrophes.

    A single letter beside an apostrophe says nothing: l'école is found as une école is.
    """
    if _DENSE_ONE.match(word) is not None:
        yield from (word[at : at + 2] for at in range(len(word) - 1)) if len(word) > 2 else (word,)
        return
    parts = _APOSTROPHE.split(word)
    yield from (part for part in parts if len(part) > 1) if len(parts) > 1 else parts


def _as_indexed(text: str) -> str:
    """Return a text in the letters of the index: small, as it folds them, those with accents as one."""
    # Of a capital I with a dot, SQLite takes the dot away as it does other accents.
    return unicodedata.normalize("NFC", text).replace("\u0130", "i").lower()


# Endings change with the form of a word, its beginning rarely does.
BEGINNING_CHARS = 3
_LEAST_CHARS = 2


class Sieve:
    """Lets a file pass that may hold a word or the date of a question; recall finds nothing in another.

    A question in a script without ASCII letters lets everything pass.
    """

    def __init__(self, question: str) -> None:
        words = [word for term in terms(question) for word in (term, *forms(term))]
        beginnings = [_plain(word)[:BEGINNING_CHARS] for word in words]
        # A word of which nothing is left may stand anywhere.
        open_ = any(
            len(each) < min(_LEAST_CHARS, len(word)) for each, word in zip(beginnings, words, strict=True)
        )
        beginnings += [day.strip("_").removesuffix("__-") for day in days(question)]
        self._wanted: Sequence[bytes] = () if open_ else [each.encode() for each in dict.fromkeys(beginnings)]

    @property
    def lets_all_pass(self) -> bool:
        """Whether no file needs to be looked at."""
        return not self._wanted

    def may_hold(self, data: bytes) -> bool:
        """Say whether a file with these bytes has to be searched."""
        if self.lets_all_pass:
            return True
        text = data.lower() if data.isascii() else _plain(data.decode("utf-8", "replace")).encode()
        # JSON of other writers spells letters as \\uXXXX: what they stand for is not looked up here.
        return b"\\u" in text or any(each in text for each in self._wanted)


def _plain(text: str) -> str:
    """Return the ASCII letters of a text, without what stands above or below them."""
    return unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
