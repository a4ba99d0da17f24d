"""What of a session is sent as history, what leaves it, what stays, and what the summary is made of; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from session.compaction.cuts import nearest_cut
from session.compaction.flat import FileLists, without_lists
from session.compaction.rules import CompactionRules
from session.models.tokens import chars_of
from session.transcript.attachments import BESIDE_TEXT, with_references
from session.transcript.history import is_record, newest_overlay, sendable, start_of, summary_text
from session.transcript.repair import plain_text

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Region:
    """The history of a session: its lines with their indexes, withdrawn ones and records left out.

    ``record`` is the overlay or ``compact`` line whose summary stands for what was before.
    """

    first: int
    lines: Sequence[tuple[int, Line]]
    record: Line | None

    @property
    def summary(self) -> str:
        """The text of the summary; empty where there is none."""
        return plain_text(self.record.get("content")).strip() if self.record is not None else ""

    def chars(self) -> list[int]:
        """Count the characters of each line that a model reads."""
        return [_chars(line) for _, line in self.lines]

    def tokens(self, chars_per_token: float) -> list[int]:
        """Estimate each line."""
        return [ceil(chars / chars_per_token) for chars in self.chars()]


def region(lines: Sequence[Line], *, start: int, history_start: int, opening: Line | None = None) -> Region:
    """Find what is sent of a session.

    Args:
        lines: the session's message lines from ``start`` to its end.
        start: index of ``lines[0]``; the history must not begin before it.
        history_start: where the history begins unless an overlay says so.
        opening: the ``compact`` line of the session, where it stands before ``start``.
    """
    record = newest_overlay(lines, start=start)
    if record is not None:
        first = int(record["first_kept"])
    else:
        first = start + start_of(lines, history_start - start)
        compacts = (line for line in reversed(lines) if is_record(line) and line["kind"] == "compact")
        record = next(compacts, opening)
    sent = [(i, line) for i, line in sendable(lines, start=start) if i >= first]
    return Region(first, sent, record)


def _chars(line: Line) -> int:
    chars = chars_of(line)
    if line["role"] == "user" and any(field in line for field in BESIDE_TEXT):
        chars += len(with_references("", line))
    return chars


# No request is made for a summary that would have to be shorter than this.
LEAST_CHARS = 200
FRAME_CHARS = len(summary_text(""))


@dataclass(frozen=True, slots=True)
class Plan:
    """A compaction that has been decided on and waits for its summary.

    Args:
        first_kept: index of the first line that stays; the session's length where none does.
        previous: the summary so far, without its lists of files.
        lines: what leaves, oldest first, all since the previous summary; nothing withdrawn, no records.
        prefix: what leaves of a turn whose end stays; it gets a summary of its own.
        tokens_before: estimate of ``lines`` and ``prefix``.
        compacted_turns: how many messages of people leave.
        files: of the previous summaries and of what leaves.
        kept: indexes of the lines that stay; nothing withdrawn, no records.
        leaving_chars: length of ``lines`` and ``prefix``.
        previous_chars: length of the summary so far as it is sent, its lists of files included.
    """

    first_kept: int
    previous: str
    lines: Sequence[Line]
    prefix: Sequence[Line]
    tokens_before: int
    compacted_turns: int
    files: FileLists
    kept: Sequence[int]
    leaving_chars: int
    previous_chars: int

    @property
    def room_chars(self) -> int:
        """Length from which on a summary would make the next request no shorter than it is."""
        return self.leaving_chars + self.previous_chars - (0 if self.previous_chars else FRAME_CHARS)

    @property
    def worth(self) -> bool:
        """Whether so much leaves that a summary can be shorter."""
        return min(self.leaving_chars, self.room_chars) >= LEAST_CHARS


def plan(
    lines: Sequence[Line],
    *,
    start: int,
    history_start: int,
    rules: CompactionRules,
    running_from: int | None = None,
    opening: Line | None = None,
    forced: bool = False,
) -> Plan | None:
    """Decide what leaves; None where nothing would.

    ``lines``, ``start``, ``history_start`` and ``opening`` are as of ``region``. The running turn begins at
    index ``running_from`` (None: none of its lines is stored) and stays, unless it alone reaches what is kept
    by tokens: then it is split. ``forced``: the provider found the request too long, whatever we believe, so
    at most half is kept.
    """
    live = region(lines, start=start, history_start=history_start, opening=opening)
    chars, tokens = live.chars(), live.tokens(rules.chars_per_token)
    running = _running(live, running_from)
    if rules.strategy == "overlay":
        limit = sum(tokens) // 2 if forced else sum(tokens)
        keep = min(rules.keep, limit) if forced else rules.keep
        most = rules.history_messages // 2 if rules.preset == "budget" else len(tokens)
        most = min(most, len(tokens) // 2) if forced else most
        cut = _by_tokens(live, tokens, running, keep=keep, most=most, limit=limit)
        split = _split_turn(live, tokens, cut, keep=keep)
    else:
        turns = rules.keep_recent_turns if rules.strategy == "rewrite" else 0
        split = cut = _by_turns(live, running, turns, forced=forced)
    if cut <= 0:
        return None
    leaving = [line for _, line in live.lines[:cut]]
    return Plan(
        first_kept=live.lines[cut][0] if cut < len(live.lines) else start + len(lines),
        previous=without_lists(live.summary),
        lines=leaving[:split],
        prefix=leaving[split:],
        tokens_before=sum(tokens[:cut]),
        compacted_turns=sum(1 for line in leaving if line["role"] == "user"),
        files=FileLists.of_record(live.record).plus(leaving),
        kept=[index for index, _ in live.lines[cut:]],
        leaving_chars=sum(chars[:cut]),
        previous_chars=len(live.summary),
    )


def _running(live: Region, running_from: int | None) -> int:
    begins = (
        i for i, (index, _) in enumerate(live.lines) if running_from is not None and index >= running_from
    )
    return next(begins, len(live.lines))


def _by_turns(live: Region, running: int, keep: int, *, forced: bool) -> int:
    """Keep the last turns before the running one, which stays whole."""
    opened = [i for i, (_, line) in enumerate(live.lines[:running]) if line["role"] == "user"]
    keep = min(keep, len(opened) // 2) if forced else keep
    if keep == 0:
        return running
    return opened[-keep] if keep <= len(opened) else 0


def _by_tokens(live: Region, tokens: Sequence[int], running: int, *, keep: int, most: int, limit: int) -> int:
    """Walk back to the line at which enough is kept; cut at the first legal place from there on.

    A line with which more than ``limit`` would be kept leaves, or one long paste would stay for ever. Where
    no place is legal any more, the cut is the last one before. The end is one only while no turn runs.
    """
    count = cut = len(tokens)
    reached = 0
    while cut > 0 and reached < keep and count - cut < most:
        cut -= 1
        reached += tokens[cut]
    if reached > limit:
        cut += 1
    if cut == count == running:
        return count
    return nearest_cut([line for _, line in live.lines], cut)


def _split_turn(live: Region, tokens: Sequence[int], cut: int, *, keep: int) -> int:
    """Return where the turn begins that is cut in two, if it is larger than the keep; else ``cut``."""
    roles = [line["role"] for _, line in live.lines]
    if cut >= len(roles) or roles[cut] == "user" or "user" not in roles[:cut]:
        return cut
    opened = cut - 1 - roles[:cut][::-1].index("user")
    closed = roles.index("user", cut) if "user" in roles[cut:] else len(roles)
    return opened if sum(tokens[opened:closed]) >= keep else cut
