"""Finds what ``/undo`` and ``/retry`` withdraw; reads from the newest line back and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from session.transcript.history import is_deletion, is_record, kept_from, new_texts, with_text
from session.transcript.line import decode
from session.transcript.repair import plain_text


def last_exchange(messages: Sequence[bytes], records: Sequence[int], *, history_start: int) -> int | None:
    """Return the index of the user line that opens the last exchange which is still sent.

    Several questions that one answer serves are one exchange, turns that were stopped for it among them.
    None where there is none: the session is empty, or what there was is withdrawn, summarised or in memory.
    """
    own = {at: decode(messages[at]) for at in records}
    floor, strict = _floor(own, history_start)
    at, answered, sent = len(messages) - 1, set[str](), False
    deleted = _deleted(own.values())
    while at >= 0 and (at >= floor or (sent and not strict)):
        if at in own:
            at = _before(own[at], at) - 1
            continue
        line = decode(messages[at])
        # Another thread may just be storing a record, of which nobody knows yet.
        is_gone = line.get("role") == "user" and _is_among(deleted, line) and not answered
        if is_gone or is_record(line):
            at -= 1
            continue
        sent = sent or at >= floor
        # A message that entered the turn of another one belongs to that.
        if line.get("role") == "user" and not isinstance(line.get("part_of"), str):
            return _first_of(messages, own, at, answered, floor)
        answers = line.get("answers")
        if isinstance(answers, list):
            answered.update(id_ for id_ in answers if isinstance(id_, str))
        at -= 1
    return None


def withdrawn_by(messages: Sequence[bytes], records: Sequence[int], message_id: str) -> int | None:
    """Return where the exchange begins that the command of this id withdrew; None where it has not yet."""
    for at in reversed(records):
        line = decode(messages[at])
        since = line.get("from")
        if line.get("kind") == "undo" and line.get("message_id") == message_id and type(since) is int:
            return since if 0 <= since < at else None
    return None


def set_aside(messages: Sequence[bytes], records: Sequence[int]) -> int | None:
    """Return where the exchange begins that was set aside last; None where anything came since."""
    own = set(records)
    for at in range(len(messages) - 1, -1, -1):
        line = decode(messages[at])
        if at not in own and not is_record(line):
            return None
        if line.get("kind") == "undo":
            first = _before(line, at)
            return first if first < at and isinstance(line.get("set_aside"), str) else None
    return None


def questions(messages: Sequence[bytes], start: int) -> list[dict[str, Any]]:
    """Return the user lines with which the exchange at ``start`` begins, and those that came into its turn.

    Messages that were deleted since are left out, edited ones have their newest texts.
    """
    found: list[dict[str, Any]] = []
    begins = True
    lines = [decode(raw) for raw in messages[start:]]
    texts = new_texts(enumerate(lines))
    for at, line in enumerate(lines):
        if line.get("role") == "user":
            part_of = line.get("part_of")
            entered = isinstance(part_of, str) and part_of in [each.get("message_id") for each in found]
            if not begins and not entered:
                break
            found.append(dict(with_text(line, at, texts)))
        elif is_record(line) and line["kind"] == "undo":
            break
        elif not is_record(line):
            # A turn that was stopped for the next message is answered with that.
            begins = line.get("interrupted") is True
    deleted = _deleted(lines)
    return [line for line in found if not _is_among(deleted, line)]


def text_of(lines: Sequence[dict[str, Any]]) -> str:
    """Join the texts of user lines, as they are asked again."""
    return "\n\n".join(text for line in lines if (text := plain_text(line.get("content"))))


def _deleted(lines: Iterable[dict[str, Any]]) -> set[str]:
    """Return the ids of the messages that records among ``lines`` say were deleted."""
    return {line["edits"] for line in lines if is_deletion(line) and isinstance(line.get("edits"), str)}


def _is_among(ids: Collection[str], line: dict[str, Any]) -> bool:
    """Say whether the message of a line is one of these; a line may have anything in place of an id."""
    id_ = line.get("message_id")
    return isinstance(id_, str) and id_ in ids


def _floor(own: dict[int, dict[str, Any]], history_start: int) -> tuple[int, bool]:
    """Return where the history begins, and whether it is cut off there for good."""
    for at in sorted(own, reverse=True):
        first = kept_from(own[at], at)
        if first is not None:
            return first, True
    return history_start, False


def _before(record: dict[str, Any], at: int) -> int:
    """Return the first line that a record withdraws, the record itself where it withdraws none."""
    since = record.get("from")
    return since if record.get("kind") == "undo" and type(since) is int and 0 <= since <= at else at


def _first_of(
    messages: Sequence[bytes], own: dict[int, dict[str, Any]], at: int, answered: set[str], floor: int
) -> int:
    """Go back over the questions right before ``at`` that the same answer serves, and their stopped turns."""
    first = at
    while answered and at - 1 >= floor:
        at -= 1
        if at in own:
            if _before(own[at], at) < at:
                break
            continue
        line = decode(messages[at])
        if not _is_among(answered, line):
            break
        if line.get("role") == "user":
            first = at
    return first
