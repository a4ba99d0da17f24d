"""Writes docs/guarantees.md from the ``@guarantee`` markers of the tests: ``python -m tests.guarantees``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
# The heading and the introduction of each group, in the order of the page.
GROUPS = {
    "loss": (
        "No message is lost",
        "After any crash each accepted message is answered, its chat learns why not, or it is parked.",
    ),
    "order": (
        "Messages keep their order",
        "A chat runs one turn at a time, in the order in which its messages were accepted.",
    ),
    "once": (
        "Each message has one effect",
        "A message delivered again gets its stored answer; an interrupted turn resumes after its last step.",
    ),
    "connection": (
        "A lost connection does not restart a turn",
        "A turn whose message is delivered again continues and acknowledges the new delivery.",
    ),
    "writer": (
        "One process owns a chat",
        "A process that lost a chat to another one can no longer write to it.",
    ),
    "leaks": (
        "Chats never leak into each other",
        "Context, memory, search and tools of a chat see only what belongs to its scope.",
    ),
    "failures": (
        "Poison messages, outages and limits",
        "A message that can never be answered is parked, and an outage only delays messages.",
    ),
    "storage": (
        "Files survive",
        "Stored data survives crashes, power cuts, upgrades, backups and damage.",
    ),
    "sessions": (
        "Sessions, context and memory",
        "A conversation stays complete while sessions end, move and are compacted.",
    ),
    "privacy": (
        "Privacy",
        "Personal data can be exported and erased completely.",
    ),
    "security": (
        "Security",
        "People, programs and models can do only what the operator allows.",
    ),
    "interfaces": (
        "Interfaces and documentation",
        "The page, the API, channels and brokers behave as documented.",
    ),
    "operation": (
        "Operation",
        "The gateway can be installed, watched and run within known resources.",
    ),
}
INTRODUCTION = """\
# Guarantees

Each guarantee is followed by the tests that fail when it no longer holds: `make test` runs most of them,
`make chaos-all` the rest. The sentences are markers of the tests, `@guarantee("group", "sentence")`;
`python -m tests.guarantees` writes this page from them.
"""


def marked(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield group, sentence and test (``path::name``) of each marker in a test file."""
    where = path.relative_to(ROOT).as_posix()
    yield from _in_body(ast.parse(path.read_text(encoding="utf-8")).body, where)


def _in_body(body: list[ast.stmt], where: str) -> Iterator[tuple[str, str, str]]:
    assigned = [node for node in body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    if len(assigned) > 1:
        raise ValueError(f"{where} sets pytestmark twice: pytest sees the last one only")
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{where}::{node.name}"
            for group, text in _arguments(node.decorator_list, where):
                if not node.name.lower().startswith("test"):
                    raise ValueError(f"{name} is marked with a guarantee but is not a test")
                yield group, text, name
            if isinstance(node, ast.ClassDef):
                yield from _in_body(node.body, name)
        elif isinstance(node, ast.Assign) and _is_pytestmark(node):
            marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            yield from ((group, text, where) for group, text in _arguments(marks, where))


def _is_pytestmark(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


def _arguments(marks: list[ast.expr], where: str) -> Iterator[tuple[str, str]]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "guarantee":
            group, text = (ast.literal_eval(argument) for argument in mark.args)
            if group not in GROUPS:
                raise ValueError(f"{where}: '{group}' is not a group of guarantees: {', '.join(GROUPS)}")
            yield group, text


def page() -> str:
    """Return the text of docs/guarantees.md."""
    found: dict[str, dict[str, list[str]]] = {group: {} for group in GROUPS}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for group, text, test in marked(path):
            found[group].setdefault(text, []).append(test)
    parts = [INTRODUCTION]
    for group, (heading, introduction) in GROUPS.items():
        parts.append(f"\n## {heading}\n\n{introduction}\n\n")
        for text, tests in found[group].items():
            parts.append(f"- {text}\n" + "".join(f"    - `{test}`\n" for test in tests))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
