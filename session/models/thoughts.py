"""What a model thought: told apart from its text, and sent back within a turn; some providers refuse it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from session.models.model import Message

FIELDS = frozenset({"reasoning_content", "thinking_blocks"})
_NAME = r"(?:antml:|budget:)?(?:think(?:ing)?|thoughts?|reasoning)"
_OPENING = re.compile(rf"\s*<({_NAME})>", re.IGNORECASE)
# What may still become such a tag, or the fence of a code block, with the next piece.
_BEGUN = re.compile(r"\s*(?:<[a-z:]{0,20}|`{1,2}|~{1,2})?\Z", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(```|~~~)")
# Some chat templates open the thoughts themselves, and the answer holds the end alone.
_CLOSED_ALONE = re.compile(r"</(?:think|thinking)>[ \t]*(?:\n|\Z)", re.IGNORECASE)


class TaggedThoughts:
    """Takes thoughts in tags (``<think>`` and the like) out of a text that comes in pieces.

    Tags count at the start of the text and of a line, code blocks left out: elsewhere they are written about.
    """

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        # What is undecided: the beginning of a tag, perhaps.
        self._held = ""
        self._tag = ""
        self._in_tag: list[str] = []
        self._fence = ""
        self._at_line = True
        self._after_thoughts = self._any_text = False

    def feed(self, text: str) -> str:
        """Take the next piece; return the text that is surely no thought."""
        text, self._held = self._held + text, ""
        shown: list[str] = []
        while text:
            if self._tag:
                text = self._thought(text)
                continue
            if self._after_thoughts:
                text = text.lstrip()
                self._after_thoughts = not text
                continue
            if self._at_line and not self._fence and (opening := _OPENING.match(text)):
                self._tag, text = opening[1], text[opening.end() :]
                continue
            if self._at_line and _BEGUN.match(text):
                self._held = text
                break
            line, end, text = text.partition("\n")
            self._note_fence(line)
            self._at_line = bool(end)
            shown.append(line + end)
        self._any_text = self._any_text or bool(shown)
        return "".join(shown)

    def end(self) -> str:
        """Return what was held back; behind text a tag that is never closed holds no thoughts."""
        held, self._held = self._held, ""
        if not self._tag:
            return held
        thought = "".join(self._in_tag) + held
        tag, self._tag = self._tag, ""
        if self._any_text:
            return f"<{tag}>{thought}"
        self.thoughts.append(thought)
        return ""

    def _thought(self, text: str) -> str:
        """Take thoughts up to their end; return what stands behind it."""
        closing = f"</{self._tag}>".lower()
        at = text.lower().find(closing)
        if at < 0:
            kept = len(text) - len(closing) + 1
            self._in_tag.append(text[: max(kept, 0)])
            self._held = text[max(kept, 0) :]
            return ""
        self.thoughts.append("".join(self._in_tag) + text[:at])
        self._in_tag.clear()
        self._tag, self._at_line, self._after_thoughts = "", True, True
        return text[at + len(closing) :]

    def _note_fence(self, line: str) -> None:
        fence = _FENCE.match(line) if self._at_line else None
        if fence is not None and self._fence in ("", fence[1]):
            self._fence = "" if self._fence else fence[1]


def parted_thoughts(text: str) -> tuple[str, str]:
    """Part thoughts that only their end marks from the text behind them."""
    closing = _CLOSED_ALONE.search(text)
    if closing is None or text.count("```", 0, closing.start()) % 2:
        return "", text
    return text[: closing.start()], text[closing.end() :].lstrip()


def holds_thoughts(messages: Sequence[Message]) -> bool:
    """Say whether any message brings a model's thoughts back."""
    return any(not FIELDS.isdisjoint(message) for message in messages)
