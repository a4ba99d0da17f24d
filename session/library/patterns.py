"""Searches by regular expressions that people and models write, each within a time limit; for threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

# Compiling holds up every other thread, and takes the longer the longer a pattern is.
MAX_PATTERN_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class PatternResult:
    """The result of one pattern: ``lines`` count from 1; ``problem`` says why it was not searched."""

    hit: bool = False
    lines: Sequence[int] = ()
    problem: str = ""
    slow: bool = False


def search(
    pattern: str, text: str, *, limit_s: float, ignore_case: bool = True, most_lines: int = 0
) -> PatternResult:
    """Search ``text`` for a pattern as ``re`` reads it; give up after about ``limit_s``.

    Args:
        pattern: a broken one is a ``problem``.
        text: what is searched.
        limit_s: of the processor.
        ignore_case: whether ``a`` also finds ``A``.
        most_lines: 0 searches the text as a whole; else line by line, until so many lines are found.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        return PatternResult(problem=f"it has over {MAX_PATTERN_CHARS} characters")
    try:
        compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
        if not most_lines:
            return PatternResult(compiled.search(text, timeout=limit_s, concurrent=True) is not None)
        lines: list[int] = []
        for number, line in enumerate(text.split("\n"), 1):
            if compiled.search(line, timeout=limit_s, concurrent=True):
                lines.append(number)
                if len(lines) == most_lines:
                    break
        return PatternResult(bool(lines), lines)
    except TimeoutError:
        return PatternResult(problem=f"it ran for over {limit_s:g} s", slow=True)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        return PatternResult(problem=str(error) or type(error).__name__)
