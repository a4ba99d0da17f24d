"""What a transcript shows of each message id, counted line by line; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from session.line import decode


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the active transcript shows of one message id: its last occurrence.

    ``start`` is the index of its user line and ``stop`` one past its last line; ``final`` is the index of the
    line that answers it; ``tail`` says that no message of another id follows (our own records do not count)
    and that it was not withdrawn.
    """

    start: int
    stop: int
    final: int | None
    tail: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the lines of a session: exchanges that people opened, tokens and price."""

    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class _Newest:
    """The exchange at the end of a transcript, as long as nothing but its own lines comes in."""

    __slots__ = ("final", "id", "shared", "stop")

    def __init__(self, id_: str, at: int) -> None:
        self.id, self.stop = id_, at
        self.final: int | None = None
        self.shared = False  # a line of it answers other ids too

    def take(self, at: int, line: Mapping[str, Any]) -> None:
        self.stop = at + 1
        self.shared = self.shared or "answers" in line
        if line.get("final") is True and line["role"] != "user":
            self.final = at


class Index:
    """Grows with the transcript; keeps where each id begins, and looks the rest up in the raw lines."""

    __slots__ = ("_messages", "_newest", "_starts", "_summed", "_totals", "finals", "records")

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.finals: list[int] = []  # lines that were sent as a reply
        self.records: list[int] = []  # our own ``role: system`` lines: overlay, undo, note, compact
        self._messages = messages
        self._starts: dict[str, int] = {}
        self._newest: _Newest | None = None
        self._totals = Totals()
        self._summed = 0

    def add(self, at: int, line: Mapping[str, Any]) -> None:
        """Take in message line ``at``; one without ``message_id`` that is no system line may be left out."""
        role = line["role"]
        if role == "system" and type(line.get("kind")) is str:
            self.records.append(at)
            return
        id_ = line.get("message_id")
        if type(id_) is not str:
            return
        newest = self._newest
        if role == "user" or id_ not in self._starts:
            self._starts[id_] = at
            newest = self._newest = _Newest(id_, at)
        elif newest is not None and (newest.id != id_ or newest.stop != at):
            newest = self._newest = None
        if newest is not None:
            newest.take(at, line)
        if "final" in line and role != "user" and line["final"] is True and line.get("stopped") is not True:
            self.finals.append(at)

    def find(self, id_: str) -> Exchange | None:
        """Return the newest exchange of a message id; None where no line begins one."""
        start = self._starts.get(id_)
        if start is None:
            return None
        newest = self._newest
        if (
            newest is not None
            and newest.id == id_
            and newest.stop == len(self._messages)
            and not newest.shared
        ):
            return Exchange(start, newest.stop, newest.final, tail=True)
        stop, final, messages = start + 1, None, self._messages
        needle = orjson.dumps(id_)[1:-1] if _is_plain(id_) else b'"message_id"'
        for at in range(start, len(messages)):
            if needle not in messages[at] and b"\\" not in messages[at]:
                continue
            line = decode(messages[at])
            if line.get("role") == "system" and type(line.get("kind")) is str:
                continue
            if line.get("message_id") == id_:
                stop = at + 1
                if line.get("final") is True and line.get("role") != "user":
                    final = at
            answers = line.get("answers")
            if isinstance(answers, list) and id_ in answers:
                final = at
        return Exchange(start, stop, final, self._last_message() < stop and not self._withdrawn(start))

    def _withdrawn(self, at: int) -> bool:
        """Say whether a later record withdraws the line at ``at``."""
        for record in reversed(self.records):
            if record <= at:
                return False
            line = decode(self._messages[record])
            since = line.get("from")
            if line["kind"] == "undo" and type(since) is int and 0 <= since <= at:
                return True
        return False

    def _last_message(self) -> int:
        """Return the index of the newest line that is not our own record."""
        at = len(self._messages) - 1
        for record in reversed(self.records):
            if record != at:
                break
            at -= 1
        return at

    def ids(self) -> list[str]:
        """List the message ids, oldest first appearance first."""
        return list(self._starts)

    def totals(self) -> Totals:
        """Sum up turns, tokens and price; only lines that came since the last call are read."""
        sums = self._totals
        turns, prompt, completion, cost = (
            sums.turns,
            sums.prompt_tokens,
            sums.completion_tokens,
            sums.cost_usd,
        )
        while self._summed < len(self._messages):
            raw = self._messages[self._summed]
            self._summed += 1
            if b'"user"' not in raw and b'"usage"' not in raw:
                continue
            line = decode(raw)
            turns += line.get("role") == "user"
            spent = usage_of(line)
            prompt += spent.prompt_tokens
            completion += spent.completion_tokens
            cost += spent.cost_usd
        self._totals = Totals(turns, prompt, completion, cost)
        return self._totals


def usage_of(line: Mapping[str, Any]) -> Totals:
    """Read what a stored line says that its request cost."""
    usage = line.get("usage")
    if not isinstance(usage, Mapping):
        return Totals()
    prompt, completion = int(_number(usage.get("prompt"))), int(_number(usage.get("completion")))
    return Totals(0, prompt, completion, _number(usage.get("cost_usd")))


def _is_plain(id_: str) -> bool:
    """Say whether every JSON writer spells the id alike, so that its bytes can be searched for."""
    return id_.isascii() and id_.isprintable() and not any(c in id_ for c in '"\\/')


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    return 0.0
