"""Summaries that are asked for: what leaves, and the model that is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from session.compaction.compactor import Compactor, Summary
from session.compaction.plan import Plan
from session.compaction.rules import CompactionRules
from session.errors import ModelAway
from tests.contracts.models import Script
from tests.session.compaction_talk import RULES, STRUCTURED, calls, filled, planned, result, said, sure, user

KEY = "telegram:1"
PROSE = "The person asked for the way to the station and was told."
AWAY = ModelAway("unreachable", cause="unreachable")
LONG = [user(filled("one", 500)), said(filled("two", 500))]
SPLIT = [
    user("do it"),
    calls(("1", "read", {"path": "a.py"})),
    result("1", filled("r", 300)),
    said("x" * 900),
]
WIDE = {
    preset: replace(rules, keep_recent_tokens=0, summary_window=100_000) for preset, rules in RULES.items()
}
HALF = CompactionRules(window=2_000, keep_recent_tokens=200, summary_window=100_000)
PAGE = "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"


def leaving(lines: list[dict[str, Any]], rules: CompactionRules) -> Plan:
    """The plan of what leaves these lines, which something does."""
    return sure(planned(lines, rules))


def form(preset: str) -> str:
    return STRUCTURED if RULES[preset].structured else PROSE


async def summarised(
    model: Script, lines: list[dict[str, Any]], rules: CompactionRules, **more: Any
) -> Summary:
    return await Compactor(model).summarise(leaving(lines, rules), rules, key=KEY, **more)


def asked(model: Script, number: int = 0) -> str:
    """The user message of a request."""
    return str(model.prompts[number].messages[1]["content"])
