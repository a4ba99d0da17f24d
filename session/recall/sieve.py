"""Says of the bytes of a file, without an index, whether a question may find anything in it; pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from session.recall.words import days, forms, terms

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
