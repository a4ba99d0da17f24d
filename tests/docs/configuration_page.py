"""Writes the tables of ``docs/configuration.md`` and the example file from what ``config schema`` prints.

``python -m tests.docs.configuration_page`` writes both; a test compares.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from channels.tables import MOST
from gateway.config.schema import is_table, json_schema, keys
from gateway.config.settings import Settings

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = DOCS / "configuration.md"
EXAMPLE = DOCS / "chat-gateway.example.toml"
BEGIN, END = "<!-- the tables, written by tests/docs/configuration_page.py -->\n", "<!-- end -->\n"
EXAMPLE_HEAD = """\
# Every key of chat-gateway with its default. Copy what you change into chat-gateway.toml, or start from this
# file: all keys are commented out. `chat-gateway config check` lists all problems.
# A secret can be kept in its own file: token_file = "/etc/chat-gateway/telegram-token".
"""


def page(old: str) -> str:
    """Put the tables between the marks of the page."""
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(_tables()) + "\n" + END + after


def example() -> str:
    """Write the example file."""
    lines = [EXAMPLE_HEAD.rstrip()]
    for name, entry in keys(json_schema(Settings)):
        if ".*." in name:
            # There is no such table before somebody names it.
            continue
        words = _plain(entry.get("description", ""))
        if is_table(entry):
            lines += ["", "", *_comment(words), f"[{name}]"]
        elif not _is_file(name, entry):
            lines += ["", *_comment(f"{words}{_choice(entry)}"), f"# {_assignment(name, entry)}"]
    return "\n".join(lines) + "\n"


def _choice(entry: dict[str, Any]) -> str:
    """Say which values there are where they are few, or within bounds."""
    if "enum" in entry:
        return f" One of {_plain(wants(entry))}."
    return f" ({bounds(entry)})" if bounds(entry) else ""


def _is_file(name: str, entry: dict[str, Any]) -> bool:
    return name.endswith("_file") and "default" not in entry


def _assignment(name: str, entry: dict[str, Any]) -> str:
    key = name.rpartition(".")[2]
    # What the preset sets has no default of its own.
    return f"{key} = {toml(entry['default'])}" if "default" in entry else f"{key} = {_by_preset(key)}"


def _by_preset(key: str) -> str:
    from session.compaction.rules import numbers_of

    return toml(getattr(numbers_of("overlay"), key))


def _tables() -> list[str]:
    schema = json_schema(Settings)
    lines: list[str] = []
    top = [(name, entry) for name, entry in keys(schema) if "." not in name and not is_table(entry)]
    lines += ["", "## At the top", "", *_table(top)]
    for name, entry in keys(schema):
        if not is_table(entry) or ".*." in name:
            continue
        chosen = entry.get("additionalProperties")
        if isinstance(chosen, dict) and "properties" in chosen:
            entry = chosen | {"description": entry["description"]}
            name = f"{name}.NAME"
        inner = [(f"{name}.{key}", value) for key, value in entry.get("properties", {}).items()]
        inner = [(key, value) for key, value in inner if not is_table(value) or name.endswith(".NAME")]
        lines += ["", f"## `[{name}]`", "", entry["description"]]
        if inner:
            lines += ["", *_table(inner)]
    return lines


def _table(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
    lines = ["| key | default | takes | |", "|---|---|---|---|"]
    for name, entry in rows:
        key = name.rpartition(".")[2]
        if _is_file(name, entry):
            continue
        default = "`{}`" if is_table(entry) else "by the preset"
        default = f"`{toml(entry['default'])}`" if "default" in entry else default
        lines.append(f"| `{key}` | {default} | {wants(entry)} | {entry.get('description', '')} |")
    return lines


def wants(entry: dict[str, Any]) -> str:
    """Say which values a key takes."""
    if "enum" in entry:
        return ", ".join(f"`{toml(choice)}`" for choice in entry["enum"])
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list"}
    kinds["object"] = "a table"
    return f"{kinds.get(entry['type'], 'text')} {bounds(entry)}".rstrip()


def bounds(entry: dict[str, Any]) -> str:
    """Say between which numbers a key's value lies; empty where every one will do."""
    low, high = entry.get("minimum"), entry.get("maximum")
    # What only keeps a time within the calendar is no bound that anybody asks for.
    high = None if high == MOST else high
    if "exclusiveMinimum" in entry:
        return f"above {entry['exclusiveMinimum']}" + (f", at most {high}" if high is not None else "")
    if high is not None:
        return f"from {low} to {high}"
    return f"from {low}" if low is not None else ""


def toml(value: Any) -> str:
    """Write a value as TOML does."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _plain(words: str) -> str:
    return re.sub(r"`([^`]*)`", r"\1", words)


def _comment(words: str) -> list[str]:
    return textwrap.wrap(words, 100, initial_indent="# ", subsequent_indent="# ")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    EXAMPLE.write_text(example(), encoding="utf-8")
