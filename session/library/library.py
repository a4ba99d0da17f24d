"""The playbooks and skills of a workspace, and searches that cannot hang. For threads."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import regex
import structlog
import yaml

import durable
from session.disk.layout import FileCache, text

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


log = structlog.get_logger(__name__)

# So much of a message is searched.
MAX_SEARCHED_CHARS = 20_000
PATTERN_S = 0.5
# For so long a pattern that ran too long is not tried again.
ASIDE_S = 60.0
# The YAML at the head of a file.
_HEAD = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Playbook:
    """Instructions for messages in which one of the patterns is found."""

    path: Path
    name: str
    patterns: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class Skill:
    """Instructions that the model reads when it needs them; ``path`` is its SKILL.md."""

    path: Path
    name: str
    description: str
    body: str


@dataclass(frozen=True, slots=True)
class Bad:
    """A playbook or skill that is left out, and why."""

    path: Path
    problem: str


class Library:
    """Reads ``playbooks/*.md`` and ``skills/<name>/SKILL.md`` of a workspace when they have changed."""

    def __init__(self, workspace: Path, *, clock: Callable[[], float] = durable.monotonic) -> None:
        self._workspace = workspace
        self._playbooks_folder, self._skills_folder = workspace / "playbooks", workspace / "skills"
        self._clock = clock
        self._playbooks: FileCache[Playbook | Bad] = FileCache(read_playbook)
        self._skills: FileCache[Skill | Bad] = FileCache(read_skill)
        self._aside: dict[str, float] = {}
        self._said: set[Bad] = set()
        self._lock = threading.Lock()

    def matched(self, message: str) -> list[Playbook]:
        """Return the playbooks whose patterns are found in the message, by file name."""
        known = []
        for playbook in self._all_playbooks():
            if isinstance(playbook, Playbook):
                known.append(playbook)
            else:
                self._say(playbook)
        patterns = list(dict.fromkeys(pattern for playbook in known for pattern in playbook.patterns))
        now = self._clock()
        with self._lock:
            self._aside = {pattern: until for pattern, until in self._aside.items() if until > now}
            patterns = [pattern for pattern in patterns if pattern not in self._aside]
        if not patterns or not message.strip():
            return []
        searched = message[:MAX_SEARCHED_CHARS]
        outcome = {pattern: search(pattern, searched, limit_s=PATTERN_S) for pattern in patterns}
        for playbook in known:
            self._note(playbook, outcome)
        broken = {pattern for pattern, one in outcome.items() if one.problem and not one.slow}
        return [
            playbook
            for playbook in known
            if broken.isdisjoint(playbook.patterns)
            and any(outcome.get(pattern, PatternResult()).hit for pattern in playbook.patterns)
        ]

    def skills(self) -> list[Skill]:
        """Return the skills by folder name; of two with one name the first."""
        skills: dict[str, Skill] = {}
        for one in self._all_skills():
            if isinstance(one, Skill):
                skills.setdefault(one.name, one)
            else:
                self._say(one)
        return list(skills.values())

    def problems(self) -> Iterator[Bad]:
        """Yield what is left out, each with its reason."""
        for playbook in self._all_playbooks():
            if isinstance(playbook, Bad):
                yield playbook
            else:
                for pattern in playbook.patterns:
                    if problem := search(pattern, "", limit_s=PATTERN_S).problem:
                        yield Bad(playbook.path, f"the pattern {pattern!r}: {problem}")
        first: dict[str, Path] = {}
        for skill in self._all_skills():
            if isinstance(skill, Bad):
                yield skill
            elif first.setdefault(skill.name, skill.path) != skill.path:
                yield Bad(skill.path, f"{first[skill.name].parent.name} has the same name, {skill.name}")

    def _all_playbooks(self) -> Iterator[Playbook | Bad]:
        for path in _sorted(self._playbooks_folder):
            if path.suffix == ".md" and not path.name.startswith("."):
                found = self._playbooks.get(path)
                yield found if found is not None else Bad(path, "it cannot be read")

    def _all_skills(self) -> Iterator[Skill | Bad]:
        for folder in _sorted(self._skills_folder):
            if folder.is_dir() and not folder.name.startswith("."):
                found = self._skills.get(folder / "SKILL.md")
                yield (found if found is not None else Bad(folder / "SKILL.md", "it cannot be read"))

    def _note(self, playbook: Playbook, outcome: dict[str, PatternResult]) -> None:
        for pattern in playbook.patterns:
            found = outcome.get(pattern, PatternResult())
            if found.slow:
                with self._lock:
                    self._aside[pattern] = self._clock() + ASIDE_S
                log.warning("playbook.slow", file=playbook.path.name, aside_s=ASIDE_S)
            elif found.problem:
                self._say(Bad(playbook.path, f"a pattern: {found.problem}"))

    def _say(self, bad: Bad) -> None:
        with self._lock:
            new = bad not in self._said
            self._said.add(bad)
        if new:
            name = str(bad.path.relative_to(self._workspace))
            log.warning("instructions.skipped", file=name, problem=bad.problem)


def read_playbook(path: Path, data: bytes) -> Playbook | Bad:
    """Read a playbook."""
    try:
        head, body = split_head(text(path, data))
        name, patterns = text_of(head, "name"), texts_of(head, "patterns")
        if not body:
            raise Broken("it is empty below its header")
    except Broken as error:
        return Bad(path, str(error))
    return Playbook(path, name, patterns, body)


def read_skill(path: Path, data: bytes) -> Skill | Bad:
    """Read a SKILL.md."""
    try:
        head, body = split_head(text(path, data))
        return Skill(path, text_of(head, "name"), text_of(head, "description"), body)
    except Broken as error:
        return Bad(path, str(error))


def _sorted(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


class Broken(ValueError):
    """The head of a file cannot be read; the text says why."""


def split_head(text: str) -> tuple[Mapping[str, object], str]:
    """Return the values of the head, each scalar a text as it is written, and the text below the head.

    Raises:
        Broken: there is no head, it has no end, or it is not a YAML mapping.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found = _HEAD.match(text)
    if found is None:
        raise Broken("it must start with a header between two lines ---")
    try:
        values = yaml.load(found[1], Loader=yaml.CBaseLoader)  # noqa: S506 - it makes texts, lists, mappings
    except yaml.YAMLError as error:
        raise Broken(_why(error)) from None
    except RecursionError:
        raise Broken("its header is nested too deeply") from None
    if not isinstance(values, Mapping):
        raise Broken("its header must have lines of the form key: value")
    return values, text[found.end() :].strip()


def text_of(values: Mapping[str, object], key: str) -> str:
    """Return a value that must be a text, on one line.

    Raises:
        Broken: it is missing, empty, or not a text.
    """
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Broken(f"{key} is missing, or not a text")
    return " ".join(value.split())


def texts_of(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a value that must be a text or a list of texts, none of them empty.

    Raises:
        Broken: it is missing, or something else.
    """
    value = values.get(key)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
        raise Broken(f"{key} is missing, or not a list of non-empty texts")
    if any("\b" in one for one in texts):
        raise Broken(f"{key}: in double quotes \\b is a backspace; use single quotes")
    return tuple(texts)


def _why(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        # The head begins on the file's second line, and marks count from 0.
        return f"line {error.problem_mark.line + 2}: {error.problem}; a text with : or # in it needs quotes"
    return str(error)
