"""Whether a summary that a model wrote may stand for the conversation."""

from __future__ import annotations

import re

from session.compaction.prompts import HEADINGS, OPTIONAL
from session.errors import BadAnswer
from session.models.errorpage import is_error_page
from session.models.model import Answer
from session.transcript.repair import plain_text

# A summary may have this part of the length of what it sums up.
MOST = 0.7
# Beside a summary so far, which may be kept whole, it may have this part of the new messages' length.
ADDED = 0.3
# A summary with about one line below each heading is believed however little it sums up.
ALWAYS_CHARS = 600
_THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\A```[a-z]*\n(.*)\n```\Z", re.DOTALL)
_WRAPPED = re.compile(r"\A<summary>(.*)</summary>\Z", re.DOTALL)


def audited(answer: Answer, *, new_chars: int, previous_chars: int, headings: bool) -> str:
    """Return the summary that an answer holds, without what some models wrap it in.

    Args:
        answer: as it came.
        new_chars: how long the conversation was that it sums up.
        previous_chars: how long the summary so far was, which it replaces.
        headings: whether it must have those of the structured form.

    Raises:
        BadAnswer: it calls tools, was cut off, is empty, an error page, too long for what it sums up, or
            lacks a heading.
    """
    if answer.tool_calls:
        raise BadAnswer("the summary calls tools")
    if answer.finish == "length":
        raise BadAnswer("the summary was cut off")
    text = _THOUGHTS.sub("", plain_text(answer.text)).strip()
    for wrapping in (_FENCED, _WRAPPED):
        if inner := wrapping.match(text):
            text = inner[1].strip()
    if not text:
        raise BadAnswer("the summary is empty")
    if is_error_page(text):
        raise BadAnswer("the summary looks like an error page")
    limit = most_chars(new_chars, previous_chars)
    if len(text) > limit:
        raise BadAnswer(f"the summary has {len(text)} characters, more than {limit}")
    missing = [name for name in HEADINGS if name not in OPTIONAL and not _has(text, name)]
    if headings and missing:
        raise BadAnswer(f"the summary lacks the headings {', '.join(missing)}")
    return text


def most_chars(new_chars: int, previous_chars: int) -> int:
    """Return how long a summary may be: 30 % shorter than its input.

    Two cases in which that cannot hold have a limit of their own: a short conversation (the headings alone
    take some room), and a few new messages beside a long summary so far, which may stay as long as it was.
    """
    kept = previous_chars + new_chars * ADDED if previous_chars else 0.0
    return max(int((new_chars + previous_chars) * MOST), int(kept), ALWAYS_CHARS)


def _has(text: str, heading: str) -> bool:
    return (
        re.search(rf"^#++\s*+\**+\s*+{re.escape(heading)}\b", text, re.MULTILINE | re.IGNORECASE) is not None
    )
