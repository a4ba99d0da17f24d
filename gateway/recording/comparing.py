"""What differs between a recording and its replay: order, outcomes, words and cost; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gateway.recording.letter import Recording
from gateway.recording.outcome import OPEN, TOGETHER, Outcome
from gateway.recording.replaying import Played
from session.turn.commands import OUT_OF_LINE, parse

# So many times the tokens of before, and so many more at least, make a letter stand out.
_DEARER: Final = 2
_DEARER_TOKENS: Final = 500
_SHOWN: Final = 20
_FIGURES: Final = {
    "prompt": "prompt tokens",
    "completion": "completion tokens",
    "cost_usd": "USD",
    "tools": "calls of tools",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a replay; ``of`` is what was recorded."""

    of: Recording
    played: Sequence[Played]

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        """The letters that ended otherwise, in their order.

        Whether one answer served two letters is no difference: that is the clock's doing.
        """
        return [
            {
                "letter": each.letter.id,
                "key": each.letter.key,
                "recorded": each.letter.outcome.word,
                "replayed": "refused" if each.fault else each.outcome.word,
                "id": each.id,
                "why": each.fault,
            }
            for each in self.played
            if _word(each.letter.outcome) != OPEN
            and (each.fault or _word(each.letter.outcome) != _word(each.outcome))
        ]

    @property
    def order(self) -> list[dict[str, Any]]:
        """The chats whose turns were begun in another order, with the letters of both orders."""
        found = []
        chats: dict[str, list[Played]] = {}
        for each in self.played:
            if _has_place(each):
                chats.setdefault(each.letter.key, []).append(each)
        for key, both in chats.items():
            before = [each.letter.id for each in sorted(both, key=lambda each: _began(each.letter.outcome))]
            now = [each.letter.id for each in sorted(both, key=lambda each: _began(each.outcome))]
            if before != now:
                found.append({"key": key, "recorded": before, "replayed": now})
        return found

    @property
    def dearer(self) -> list[dict[str, Any]]:
        """The letters that took far more tokens than before, the worst first."""
        found = [
            {"letter": each.letter.id, "key": each.letter.key, "recorded": then, "replayed": now}
            for each in self.played
            if (now := _tokens(each.outcome)) > (then := _tokens(each.letter.outcome)) * _DEARER
            and now > then + _DEARER_TOKENS
        ]
        return sorted(found, key=lambda row: int(row["recorded"]) - int(row["replayed"]))

    @property
    def is_same(self) -> bool:
        """Say whether order and outcomes are those of before."""
        return not self.outcomes and not self.order

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "letters": len(self.played),
            "chats": len({each.letter.key for each in self.played}),
            "masked": self.of.masked,
            "outcomes": self.outcomes,
            "order": self.order,
            "dearer": self.dearer,
            "replies": self._replies(),
            "recorded": _sums([each.letter.outcome for each in self.played]),
            "replayed": _sums([each.outcome for each in self.played]),
            "without_files": sum(bool(each.letter.files) for each in self.played),
            "left_out": dict(self.of.left_out),
        }

    def lines(self) -> Iterator[str]:
        """Tell it for people."""
        found = self.document()
        then, now, replies = found["recorded"], found["replayed"], found["replies"]
        yield f"{found['letters']} letters in {found['chats']} chats"
        yield from _listed("ended otherwise", [_outcome_line(row) for row in found["outcomes"]])
        yield from _listed("chats were answered in another order", [row["key"] for row in found["order"]])
        if not self.of.masked:
            yield f"replies: {replies['same']} word for word the same, {replies['other']} in other words"
        for name in ("answered", TOGETHER, "notice", "silent", "stopped", "withdrawn", "parked", OPEN):
            before, after = then["outcomes"].get(name, 0), now["outcomes"].get(name, 0)
            if before or after:
                yield f"{name}: {before} recorded, {after} replayed"
        for name, words in _FIGURES.items():
            yield f"{words}: {_figure(then[name])} recorded, {_figure(now[name])} replayed"
        dear = [f"{r['key']} {r['letter']}: {r['recorded']} → {r['replayed']}" for r in found["dearer"]]
        yield from _listed("letters took far more tokens", dear)
        if found["without_files"]:
            yield f"asked without the files that came with them: {found['without_files']} letters"
        for what, count in found["left_out"].items():
            yield f"not in the recording: {count} {what}"

    def _replies(self) -> dict[str, int]:
        told = () if self.of.masked else self.played
        compared = [each for each in told if each.letter.reply and each.reply]
        same = sum(each.letter.reply == each.reply for each in compared)
        return {"same": same, "other": len(compared) - same}


def _listed(what: str, rows: Sequence[str]) -> Iterator[str]:
    if rows:
        yield f"{len(rows)} {what}"
        yield from (f"  {row}" for row in rows[:_SHOWN])
        if len(rows) > _SHOWN:
            yield f"  and {len(rows) - _SHOWN} more: --json lists all"


def _figure(value: float) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _outcome_line(row: dict[str, Any]) -> str:
    why = f" ({row['why']})" if row["why"] else ""
    return f"{row['key']} {row['letter']}: {row['recorded']} → {row['replayed']}{why}"


def _word(outcome: Outcome) -> str:
    return "answered" if outcome.word == TOGETHER else outcome.word


def _has_place(played: Played) -> bool:
    """Say whether a letter has a place in the order of both sides: not what is answered out of line."""
    command = parse(played.letter.text)
    if command is not None and command.name in OUT_OF_LINE:
        return False
    return played.outcome.began is not None and played.letter.outcome.began is not None


def _began(outcome: Outcome) -> datetime:
    assert outcome.began is not None
    return outcome.began


def _tokens(outcome: Outcome) -> int:
    return outcome.prompt + outcome.completion


def _sums(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "outcomes": dict(Counter(each.word for each in outcomes)),
        "prompt": sum(each.prompt for each in outcomes),
        "completion": sum(each.completion for each in outcomes),
        "cost_usd": round(sum(each.cost_usd for each in outcomes), 6),
        "tools": sum(each.tools for each in outcomes),
    }
