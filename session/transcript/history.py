"""Which lines of a transcript a model sees, in what shape, and what ``/undo`` withdraws; without I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from session.models.assembly import OPAQUE
from session.models.tokens import estimate_messages
from session.transcript.attachments import BESIDE_TEXT, Show, with_references
from session.transcript.line import decode, taken_back
from session.transcript.repair import ROLES, plain_text, repair, truncate_tool_results

Line = Mapping[str, Any]
_Message = TypeVar("_Message", bound=Mapping[str, Any])
SummaryRole = Literal["user", "assistant"]
# Given the messages before a turn, it says at which indexes those stand that are sent.
Select = Callable[[Sequence[Line]], Iterable[int]]

FULL_TOOL_RESULTS = 2
SUMMARY_HEAD = (
    "The conversation history before this point was compacted into the following summary:\n<summary>\n"
)
SUMMARY_TAIL = "\n</summary>"
# Signatures go back as long as the call itself does: a provider may look for them in every one.
_SENT = ("role", "content", "tool_calls", "tool_call_id", "name", OPAQUE)
# Providers want these back within a turn.
_SENT_RUNNING = (*_SENT, "reasoning_content", "thinking_blocks")


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """How much of a history is sent in mode ``last``: so many messages beside the running turn.

    ``tokens`` bounds both together.
    """

    messages: int = 50
    tokens: int = 50_000


def visible(
    lines: Sequence[Line],
    *,
    last_consolidated: int,
    running_id: str | None,
    keep_results: int = FULL_TOOL_RESULTS,
    show: Show | None = None,
    window: HistoryWindow | None = None,
    summary_role: SummaryRole = "user",
    select: Select | None = None,
) -> list[dict[str, Any]]:
    """Turn the message lines of a transcript into the messages of a request.

    Args:
        lines: parsed lines, oldest first; what is no message is skipped and not counted.
        last_consolidated: index over the messages; the history begins there, moved back to the user
            line that opens the exchange, unless an overlay says where it begins.
        running_id: ``message_id`` of the turn that runs. From its newest user line on nothing is
            truncated.
        keep_results: how many of the older tool results stay whole.
        show: what turns the files of user messages into parts, asked from the newest back; None: they are
            named in the text.
        window: sends the newest messages that fit it, from a user line on, the running turn always whole
            (mode ``last``); None: all of them (mode ``all``).
        summary_role: whose message the summary of an overlay is.
        select: chooses among the messages before the running turn (mode ``relevant``), see ``before_turn``.

    Returns:
        Provider messages, oldest first, repaired; before them the summary where an overlay has one, else
        from a user message on, foreign system messages apart.
    """
    messages = edited([line for line in lines if is_message(line)])
    running = _running_from(messages, running_id)
    overlay = newest_overlay(messages)
    summary = None if overlay is None else plain_text(overlay.get("content"))
    opening = [] if summary is None else [summary_message(summary, summary_role)]
    sent = _since_start(messages, overlay, last_consolidated)
    if select is not None:
        sent = _selected(messages, sent, running, select)
    count = len(sent)
    if window is not None:
        sent = _newest(sorted(sent), running, window.messages)
    # What an overlay keeps may begin with the model's words.
    follows = overlay is not None and len(sent) == count
    contents: dict[int, object] = {}
    for i in sorted(sent, reverse=True):
        contents[i] = content_of(messages[i], show, newest=i >= running)
    older = repair(
        (stripped(messages[i], contents[i]) for i in sorted(sent) if i < running),
        more_follow=running < len(messages),
    )
    newer = repair(
        (stripped(messages[i], contents[i], running=True) for i in sorted(sent) if i >= running),
        taken=[call["id"] for message in older for call in message.get("tool_calls", ())],
    )
    shown = truncate_tool_results([*older, *newer], keep=keep_results, running_from=len(older))
    if window is not None:
        tokens = window.tokens - estimate_messages(opening)
        shown = shown[_within(shown, len(older), tokens, whole=follows) :]
    return opening + shown if opening else from_a_user(shown)


def before_turn(lines: Sequence[Line], *, last_consolidated: int, running_id: str | None) -> list[Line]:
    """List the messages before the running turn that ``visible`` gives its ``select`` to choose from."""
    messages = edited([line for line in lines if is_message(line)])
    running = _running_from(messages, running_id)
    sent = _since_start(messages, newest_overlay(messages), last_consolidated)
    return [messages[i] for i in sorted(sent) if i < running]


def is_message(line: Line) -> bool:
    """Say whether a line counts: an object without ``_type`` whose role is one of the four."""
    role = line.get("role")
    return isinstance(role, str) and role in ROLES and "_type" not in line


def is_record(line: Line) -> bool:
    """Say whether a message line is one of our own records, which are never sent."""
    return line.get("role") == "system" and isinstance(line.get("kind"), str)


def newest_overlay(messages: Sequence[Line], *, start: int = 0) -> Line | None:
    """Return the newest overlay that points at a message, with its ``first_kept`` as ``kept_from`` reads it.

    Args:
        messages: the session's, from ``start`` to its end.
        start: index of ``messages[0]`` in the session.
    """
    for i in range(len(messages) - 1, -1, -1):
        # Most lines are no record: they are passed over without a look at what a record must hold.
        kept = kept_from(messages[i], start + i) if messages[i].get("role") == "system" else None
        if kept is not None:
            return {**messages[i], "first_kept": kept}
    return None


def kept_from(line: Line, at: int) -> int | None:
    """Return from where on the messages are sent after an overlay that stands at ``at``.

    Where it keeps nothing of what was before, it points at itself.

    Returns:
        An index up to ``at``; None where the line is no overlay, or points nowhere.
    """
    kept = line.get("first_kept")
    if not is_record(line) or line["kind"] != "overlay" or not _is_index(kept, at):
        return None
    return int(line["first_kept"])


def start_of(messages: Sequence[Line], last_consolidated: int) -> int:
    """Return where the history begins: at ``last_consolidated``, moved back to the start of its exchange.

    An offset that is no place in the file counts as 0. At the end of the file, or where only our own
    records follow, nothing is left to send. Where no user line stands before, tool results move
    back to the call they answer.
    """
    offset = last_consolidated if _is_index(last_consolidated, len(messages)) else 0
    while offset < len(messages) and is_record(messages[offset]):
        offset += 1
    if offset in (0, len(messages)):
        return offset
    for at in range(offset, -1, -1):
        if messages[at]["role"] == "user":
            return at
    while offset > 0 and messages[offset]["role"] == "tool":
        offset -= 1
    return offset


def summary_text(summary: str) -> str:
    """Wrap a summary in the words by which a model knows it for one."""
    return SUMMARY_HEAD + summary + SUMMARY_TAIL


def summary_message(summary: str, role: SummaryRole) -> dict[str, Any]:
    """Make the message that opens the history after an overlay: told to the model, or as if it said it."""
    if role == "user":
        return {"role": role, "content": summary_text(summary)}
    return {"role": role, "content": f"<summary>\n{summary}{SUMMARY_TAIL}"}


def _since_start(messages: Sequence[Line], overlay: Line | None, last_consolidated: int) -> set[int]:
    start = start_of(messages, last_consolidated) if overlay is None else overlay["first_kept"]
    return {i for i, _ in sendable(messages) if i >= start}


def sendable(messages: Sequence[Line], *, start: int = 0) -> Iterator[tuple[int, Line]]:
    """Yield the lines that are neither our own records nor withdrawn by one, as edited, with their indexes.

    Args:
        messages: the session's, from ``start`` to its end, since an exchange is withdrawn by a later line.
        start: index of ``messages[0]`` in the session.
    """
    out = left_out(messages, start=start)
    return ((i, line) for i, line in enumerate(edited(messages), start) if i not in out)


def left_out(messages: Sequence[Line], *, start: int = 0) -> set[int]:
    """Return the indexes of the lines that are our own records or withdrawn by one; see ``sendable``."""
    out = deleted(messages, start=start)
    for i, line in enumerate(messages, start):
        if line.get("role") != "system" or not is_record(line):
            continue
        out.add(i)
        out.update(each for each in taken_back(line, i) if each >= start)
    return out


def deleted(messages: Sequence[Line], *, start: int = 0) -> set[int]:
    """Return the indexes of the lines that messages took with them which were deleted later.

    That is the whole exchange; only the message's own line where its turn served other messages, too.
    """
    named = ((line.get("edits"), i) for i, line in enumerate(messages, start) if is_deletion(line))
    until = {id_: i for id_, i in named if isinstance(id_, str)}
    if not until:
        return set()
    shared = {id_ for line in messages for id_ in _served_by(line)}
    return {
        i
        for i, line in enumerate(messages, start)
        if isinstance(id_ := line.get("message_id"), str)
        and i < until.get(id_, 0)
        and (line.get("role") == "user" or id_ not in shared)
    }


def is_deletion(line: Line) -> bool:
    """Say whether a line is our record that a message was deleted."""
    return line.get("deleted") is True and is_record(line) and line["kind"] == "note"


def new_texts(records: Iterable[tuple[int, Line]]) -> dict[str, tuple[int, str]]:
    """Map the ids of messages that were edited after they were asked to the newest text, and its index."""
    return {
        line["edits"]: (i, plain_text(line.get("content")))
        for i, line in records
        if isinstance(line.get("edits"), str) and is_record(line) and line["kind"] == "note"
        if not is_deletion(line)
    }


def with_text(line: Line, at: int, texts: Mapping[str, tuple[int, str]]) -> Line:
    """Return the line at an index with its message's text of ``texts``, where that is newer."""
    id_ = line.get("message_id")
    if line.get("role") != "user" or not isinstance(id_, str) or id_ not in texts:
        return line
    noted_at, text = texts[id_]
    return {**line, "content": text} if at < noted_at else line


def edited(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the lines with each edited message's newest text in the place of the one that was asked."""
    texts = new_texts((i, line) for i, line in enumerate(lines) if line.get("role") == "system")
    return [with_text(line, i, texts) for i, line in enumerate(lines)] if texts else lines


def _served_by(line: Line) -> list[str]:
    answers = line.get("answers")
    return [str(id_) for id_ in (*(answers if isinstance(answers, list) else ()), line.get("part_of"))]


def _selected(messages: Sequence[Line], sent: set[int], running: int, select: Select) -> set[int]:
    earlier = sorted(i for i in sent if i < running)
    chosen = {earlier[n] for n in select([messages[i] for i in earlier])}
    return {i for i in sent if i >= running} | chosen


def _newest(sent: Sequence[int], running: int, most: int) -> set[int]:
    newer = [i for i in sent if i >= running]
    older = sent[: len(sent) - len(newer)]
    return {*older[max(len(older) - most, 0) :], *newer}


def _within(shown: Sequence[Line], running: int, tokens: int, *, whole: bool) -> int:
    """Return the first user message from which on all fits so many ``tokens``; ``running`` where none does.

    ``whole``: where all fits, it may begin with any message.
    """
    first, left = running, tokens - estimate_messages(shown[running:])
    for i in range(running - 1, -1, -1):
        left -= estimate_messages(shown[i : i + 1])
        if left < 0:
            break
        if shown[i]["role"] == "user" or (whole and i == 0):
            first = i
    return first


def from_a_user(shown: Sequence[_Message]) -> list[_Message]:
    """Leave out what the model said before any person did, which some providers refuse at the start."""
    first = next((i for i, message in enumerate(shown) if message["role"] == "user"), len(shown))
    return [message for i, message in enumerate(shown) if i >= first or message["role"] == "system"]


def _running_from(messages: Sequence[Line], running_id: str | None) -> int:
    if running_id is None:
        return len(messages)
    found = newest_of(messages, running_id)
    if found is not None:
        return found
    # A compaction cut the turn in two: its question is summed up, and what is left begins with its own lines.
    own = (
        i for i, line in enumerate(messages) if running_id in (line.get("message_id"), line.get("part_of"))
    )
    return next(own, len(messages))


def newest_of(messages: Sequence[Line], message_id: str) -> int | None:
    """Return the index of the newest user line of a message; None where there is none."""
    for i in range(len(messages) - 1, -1, -1):
        line = messages[i]
        if line["role"] == "user" and line.get("message_id") == message_id:
            return i
    return None


def content_of(line: Line, show: Show | None, *, newest: bool) -> object:
    """Return the content of a line as it is sent; ``show`` is asked for the files of a person's message."""
    # A picture that is stored in the content is named, not sent again.
    text = plain_text(line.get("content"))
    if line["role"] != "user" or not any(field in line for field in BESIDE_TEXT):
        return text
    return with_references(text, line) if show is None else show.content(text, line, newest=newest)


def stripped(line: Line, content: object, *, running: bool = False) -> dict[str, Any]:
    """Return a line with the fields that are sent alone; more of them where its turn is ``running``."""
    message = {field: line[field] for field in (_SENT_RUNNING if running else _SENT) if field in line}
    message["content"] = content
    return message


def _is_index(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= end


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
        if line.get("kind") == "undo" and line.get("message_id") == message_id:
            return taken.start if (taken := taken_back(line, at)) else None
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
    return taken.start if (taken := taken_back(record, at)) else at


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
