"""Conversations to compact: their lines, and what of them a summariser was shown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from session.compaction.flat import flat
from session.compaction.plan import Plan, plan
from session.compaction.rules import CompactionRules
from session.transcript.history import visible
from session.transcript.line import make_line

AT = "2026-01-31T09:15:00.000000+00:00"
STRUCTURED = (
    "## Goal\nA trip.\n\n## Progress\n- [x] booked\n\n## Key Decisions\n- **train**: calm\n\n"
    "## Next Steps\n1. pack\n\n## Critical Context\n- leaves at 9"
)


def user(text: str, **fields: Any) -> dict[str, Any]:
    return make_line("user", text, AT, **fields)


def said(text: str, **fields: Any) -> dict[str, Any]:
    return make_line("assistant", text, AT, **fields)


def calls(*named: tuple[str, str, dict[str, Any]], text: str | None = None) -> dict[str, Any]:
    """An assistant line with calls: id, name, arguments."""
    made = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id_, name, arguments in named
    ]
    return make_line("assistant", text, AT, tool_calls=made)


def result(id_: str, text: str = "ok") -> dict[str, Any]:
    return make_line("tool", text, AT, tool_call_id=id_, name="read")


def record(kind: str, content: str = "", **fields: Any) -> dict[str, Any]:
    return make_line("system", content, AT, kind=kind, **fields)


def filled(text: str, tokens: int) -> str:
    """A text of so many tokens that begins with ``text``."""
    return text.ljust(4 * tokens, ".")


def planned(lines: list[dict[str, Any]], rules: CompactionRules | None = None, **more: Any) -> Plan | None:
    rules = rules or CompactionRules(window=2_000, keep_recent_tokens=100)
    return plan(lines, **{"start": 0, "history_start": 0, "rules": rules, **more})


def sure(made: Plan | None) -> Plan:
    assert made is not None
    return made


def shown(made: Plan) -> str:
    """Everything that the summariser gets to read of a plan, before it is escaped for the tags."""
    return "\n".join([made.previous, *flat(made.lines), *flat(made.prefix)])


class Talk:
    """A session that grows and is compacted as each strategy stores it; every message says its own number."""

    def __init__(self, rules: CompactionRules) -> None:
        self.rules = rules
        self.lines: list[dict[str, Any]] = []
        self.facts = 0

    def fact(self, tokens: int) -> str:
        """The next fact, as the text of a message."""
        self.facts += 1
        return filled(f"fact-{self.facts:04};", tokens)

    def exchange(self, sizes: Sequence[int], *, tools: int = 0) -> None:
        """Add a question, ``tools`` rounds of two parallel calls, and an answer."""
        weights = iter([*sizes, *([1] * (2 + 4 * tools))])
        self.lines.append(user(self.fact(next(weights))))
        for number in range(tools):
            ids = [f"{len(self.lines)}-{number}-{letter}" for letter in "ab"]
            self.lines.append(calls(*((id_, "read", {"path": self.fact(3)}) for id_ in ids)))
            self.lines += [result(id_, self.fact(min(next(weights), 400))) for id_ in ids]
        self.lines.append(said(self.fact(next(weights))))

    def told(self) -> list[str]:
        """The facts that a model is told: in the summary, or in a message that is sent whole."""
        opening = [line["content"] for line in self.lines if line.get("kind") == "compact"]
        sent = visible(self.lines, last_consolidated=0, running_id=None, keep_results=len(self.lines))
        return facts_of(json.dumps([opening, sent]))

    def compact(self, *, running_from: int | None = None, forced: bool = False) -> Plan | None:
        """Compact once: the summary repeats the facts that were shown, so that a lost one is missed."""
        made = plan(
            self.lines,
            start=0,
            history_start=0,
            rules=self.rules,
            running_from=running_from,
            forced=forced,
        )
        if made is None:
            return None
        summary = " ".join(facts_of(shown(made)))
        if self.rules.strategy == "overlay":
            self.lines.append(
                record(
                    "overlay",
                    "\n\n".join(filter(None, (summary, made.files.lists()))),
                    first_kept=made.first_kept,
                    read_files=list(made.files.read),
                    modified_files=list(made.files.modified),
                )
            )
        else:
            self.lines = [record("compact", summary), *(self.lines[i] for i in made.kept)]
        return made


def facts_of(text: str) -> list[str]:
    """The facts in a text, each once, in order."""
    return list(dict.fromkeys(re.findall(r"fact-\d{4}", text)))


RULES = {
    "overlay": CompactionRules(window=2_000, keep_recent_tokens=200, reserve_tokens=400),
    "off": CompactionRules(preset="off", window=2_000, keep_recent_tokens=200),
    "budget": CompactionRules(preset="budget", window=2_000, keep_recent_tokens=200, history_messages=12),
    "archive": CompactionRules(preset="archive", window=2_000),
    "annabelle": CompactionRules(preset="annabelle", window=2_000, keep_recent_turns=2),
}

exchanges = st.lists(
    st.tuples(st.lists(st.integers(4, 300), max_size=6), st.integers(0, 3)), min_size=1, max_size=8
)
