"""How the command line speaks: data to stdout, words and errors to stderr.

Texts of people, models and tools may hold control characters, which steer a terminal or hide what was said.
None but line breaks and tabs reaches a terminal, nor what is written for people.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from durable import HintedError, NewerVersion
from gateway.config import finding
from gateway.errors import ConfigError, GatewayError, StateInUse
from session.errors import WorkspaceInUse

if TYPE_CHECKING:
    from gateway.cli.root import GlobalOptions
    from gateway.config.settings import Settings

DEBUG_VARIABLE = "CHAT_GATEWAY_DEBUG"
FAILED, BAD_CONFIGURATION, INTERRUPTED = 1, 78, 130


_SEEN = {
    code: "\\r" if code == 13 else f"\\x{code:02x}"
    for code in (*range(32), *range(127, 160))
    if chr(code) not in "\n\t"
}
_IN_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}


def plain(text: str) -> str:
    """Return ``text`` with control characters to be seen: ``\\r``, ``\\x1b``; line breaks and tabs stay."""
    return text.replace("\r\n", "\n").translate(_SEEN)


def data(text: str) -> None:
    """Write ``text`` and a newline to stdout: exactly, but plain where a terminal shows it."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    _write(sys.stdout, plain(text) if is_terminal else text)


def shown(text: str) -> None:
    """Write ``text`` and a newline to stdout for people, plain wherever it goes."""
    _write(sys.stdout, plain(text))


def document(value: object) -> None:
    """Write one JSON document to stdout; control characters are escapes, so that its values stay exact.

    A number that no JSON can hold, such as NaN, is null.
    """
    try:
        text = _as_json(value, ensure_ascii=False)
    except ValueError:
        # Hardly any output needs what transcripts are read with.
        from session.transcript.line import finite

        value = finite(value)
        text = _as_json(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    # A lone surrogate, or a terminal that is not UTF-8: escapes keep what it was.
    except UnicodeEncodeError:
        text = _as_json(value)
    _write(sys.stdout, text.translate(_IN_JSON))


def rows(items: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Write a table with one line per item to stdout, numbers to the right; nothing if there are no items."""
    if not items:
        return
    shown = []
    for column in columns:
        cells = [column.upper().replace("_", " "), *(_cell(item.get(column)) for item in items)]
        width = max(map(len, cells))
        numbers = all(cell.removesuffix(" USD").replace(".", "").isdecimal() for cell in cells[1:])
        shown.append([cell.rjust(width) if numbers else cell.ljust(width) for cell in cells])
    for line in zip(*shown, strict=True):
        data("  ".join(line).rstrip())


def listed(
    items: Sequence[Mapping[str, object]], columns: Sequence[str], none: str, *, as_json: bool
) -> None:
    """Write one JSON document, or a table; where there are no items, ``none`` to stderr in its place."""
    if as_json:
        document(items)
        return
    rows(items, columns)
    if not items:
        words(none)


def spent(sums: Mapping[str, Any]) -> str:
    """Say what a sum of ``/v1/usage`` or ``/v1/status`` comes to, in tokens and dollars."""
    # A daemon of an older version counts no caches.
    cached, written = sums.get("cached_tokens", 0), sums.get("cache_written_tokens", 0)
    cache = f" ({cached} read from cache, {written} written to it)" if cached or written else ""
    return f"{sums['prompt_tokens']} + {sums['completion_tokens']} tokens{cache}, cost {cost(sums)}"


def cost(sums: Mapping[str, Any]) -> str:
    """Say the dollars of a sum, and whether there are tokens whose price is not known."""
    if sums["cost_usd"] is None:
        return "unknown"
    return f"{sums['cost_usd']:.4f} USD" + (" + unknown" if sums.get("unpriced_tokens") else "")


def counted(count: int, word: str) -> str:
    """Return ``1 turn``, ``2 turns``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def words(text: str) -> None:
    """Write ``text`` to stderr, for the person rather than for a program, plain."""
    _write(sys.stderr, plain(text))


def error(text: str, hint: str = "") -> None:
    """Write ``error: …`` and, with a hint, ``try: …`` to stderr."""
    words(f"error: {text}")
    if hint:
        words(f"try: {hint}")


def report(fault: BaseException, opts: GlobalOptions) -> int:
    """Say on stderr why a verb failed, without secrets, and return its exit code."""
    from gateway.config.redact import Redactor

    fault = leaf(fault)
    settings = None if isinstance(fault, ConfigError) else _settings(opts)
    found = explained(fault, settings)
    debug = os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    if debug and not found.problems:
        words(Redactor.of(settings).error(fault))
    hint = found.hint
    if not found.foreseen:
        hint = "" if debug else f"{DEBUG_VARIABLE}=1 with the same command shows where it happened"
    for problem in found.problems:
        words(f"error: {problem}")
    if found.problems:
        words(f"try: {hint}")
    else:
        error(found.text, hint)
    return found.code


@dataclass(frozen=True, slots=True)
class Explained:
    """A fault in words without secrets: all problems of a configuration, else one text, and the cure."""

    text: str
    hint: str
    code: int
    problems: Sequence[str] = ()
    foreseen: bool = True


def explained(fault: BaseException, settings: Settings | None) -> Explained:
    """Put a fault into words; of a group what ended it."""
    from gateway.config.redact import Redactor

    fault = leaf(fault)
    if settings is not None and (said := finding.explain(settings.workspace, fault)) is not None:
        said.__cause__, fault = fault, said
    if isinstance(fault, ConfigError):
        return Explained(str(fault), fault.hint, fault.exit_code, fault.problems)
    redactor = Redactor.of(settings)
    code, hint = _code_and_hint(fault)
    text = str(fault) or type(fault).__name__
    if code is None:
        text = f"{type(fault).__name__}: {text}" if str(fault) else text
        return Explained(redactor.text(text), "", FAILED, foreseen=False)
    return Explained(redactor.text(text), redactor.text(hint), code)


def _code_and_hint(fault: BaseException) -> tuple[int | None, str]:
    """Return the exit code and hint of an error that was foreseen; None for one that was not."""
    if isinstance(fault, GatewayError):
        return fault.exit_code, fault.hint
    if isinstance(fault, NewerVersion):
        return BAD_CONFIGURATION, fault.hint
    if isinstance(fault, WorkspaceInUse):
        return StateInUse.exit_code, fault.hint
    if isinstance(fault, HintedError):
        return FAILED, fault.hint
    return None, ""


def _settings(opts: GlobalOptions) -> Settings | None:
    from gateway.config.load import load

    try:
        return load(opts.config, opts.workspace)
    except ConfigError:
        return None


def leaf(fault: BaseException) -> BaseException:
    """Take out of a group what ended it: the first foreseen error, else the first one."""
    if not isinstance(fault, BaseExceptionGroup):
        return fault
    leaves = [leaf(each) for each in fault.exceptions]
    return next((each for each in leaves if isinstance(each, GatewayError)), leaves[0])


def _as_json(value: object, *, ensure_ascii: bool = True) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=2, default=str, allow_nan=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def _write(stream: TextIO | None, text: str) -> None:
    """Write a line, in one write; what the encoding cannot show becomes ``?``, lone surrogates included."""
    # Started without one.
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
