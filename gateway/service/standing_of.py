"""Where a message stands, judged by the steps that are known of it; pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.dispatch.events import LOCAL_CHANNELS
from gateway.dispatch.lanes import PendingMessage
from gateway.outbound.send_log import SentMessage
from gateway.queue.mailbox import INBOUND, Parked, Waiting
from session.store.trace import Step
from session.transcript.key import SUBAGENTS, split

# Steps behind which nothing of a message comes any more, with what it then is.
_ENDS = {
    "stopped": "stopped",
    "silent": "ended",
    "handed on": "handed on",
    "withdrawn": "withdrawn",
    "cleared": "cleared",
    "parked": "parked",
}
# What is on record of a subagent whose conversation is gone, by its state there.
_OVER = {
    "answered": ("answered", "finished; its result waits for the chat that started it"),
    "told": ("answered", "its result was delivered to the chat that started it"),
    "ended": ("ended", "stopped, because nobody waited for it any more"),
}
_QUIET = "the job's answer is stored; it reports nothing, so nothing is sent"
Standing = tuple[str, str, list[str]]


def standing_of(
    key: str,
    message_id: str,
    steps: Sequence[Step],
    *,
    entry: PendingMessage | None,
    letters: Sequence[Waiting],
    parked: Sequence[Parked],
    sent: Sequence[SentMessage],
) -> Standing:
    """Say where a message stands, in a word and in a sentence, and what nothing tells of it.

    ``steps`` is what is known, in order of time; ``entry`` the message in the line of its chat, where this
    process has it; ``letters`` what of it waits in the queue, ``parked`` what is set aside, ``sent`` what the
    send log says of what goes out for it.
    """
    unknown = [] if any(each.step in ("accepted", "put") for each in steps) else ["when it was accepted"]
    if entry is not None:
        return *_in_lane(entry), unknown
    if any(each.box == INBOUND for each in parked):
        return "parked", f"parked; to answer it: chat-gateway parked retry {message_id}", unknown
    for each in letters:
        if each.box == INBOUND:
            return "waiting", f"waiting in the queue since {_time(each.put_at)}", unknown
    if any(each.box != INBOUND for each in parked):
        return (
            "not delivered",
            f"its reply is parked: chat-gateway parked show {message_id}#reply",
            unknown,
        )
    return _ended(key, steps, letters, sent, unknown)


def _in_lane(entry: PendingMessage) -> tuple[str, str]:
    if entry.asking:
        return "asking", f"waiting for an approval of {entry.asking}"
    if entry.begun_at:
        held = f", held back: {entry.held}" if entry.held else ""
        return "running", f"being answered{held}"
    return "waiting", "waiting for earlier messages of its chat"


def _ended(
    key: str,
    steps: Sequence[Step],
    letters: Sequence[Waiting],
    sent: Sequence[SentMessage],
    unknown: list[str],
) -> Standing:
    """Judge a message that is neither in the queue nor in a lane, as far as that can be seen."""
    again = max((at for at, each in enumerate(steps) if each.step == "retried"), default=-1)
    if again >= 0:
        unknown = [*unknown, "whether it is in the queue since it was put back"]
    steps = steps[again + 1 :]
    last = _last(steps, "stored", "notice", "archived", *_ENDS)
    if last is None:
        begun = _last(steps, "begun", "attempt", "put off", "model", "tool", "asked")
        if begun is not None:
            words = f"its turn started, but its end is not recorded; last known step at {_time(begun.at)}"
            return "open", words, unknown
        if sent:
            return _of_sends(key, sent, letters, unknown)
        over = _OVER.get(_state_of(key, steps))
        return (*over, unknown) if over is not None else ("unknown", "how it ended is not known", unknown)
    if last.step in _ENDS:
        return _ENDS[last.step], last.words, unknown
    if last.words == _QUIET or "turn" in last.fields or "of" in last.fields:
        return "answered" if "turn" in last.fields else "ended", last.words, unknown
    if last.step == "archived":
        return "answered", "its session is closed; the rest is recorded there", unknown
    return _of_sends(key, sent, letters, unknown)


def _state_of(key: str, steps: Sequence[Step]) -> str:
    """Return the state of the subagent whose key that is, as on record; empty of any other message."""
    own = [each for each in steps if each.step == "subagent" and each.fields.get("subagent") == key]
    return str(own[-1].fields.get("state") or "") if own else ""


def _of_sends(
    key: str, sent: Sequence[SentMessage], letters: Sequence[Waiting], unknown: list[str]
) -> Standing:
    """Judge a message whose answer is stored by what is known of its way out."""
    waiting = [each for each in letters if each.box != INBOUND]
    if waiting:
        box = waiting[-1].box.partition(".")[2]
        return "sending", f"its reply waits in the outbound queue of {box}", unknown
    done = [each.done_at for each in sent if each.done_at is not None]
    if done:
        return "delivered", f"delivered at {_time(max(done))}", unknown
    begun = [chunk for each in sent for chunk in each.chunks]
    if begun:
        newest = max(begun, key=lambda chunk: chunk.at)
        if newest.unknown and not newest.platform_id:
            return "sending", f"sent at {_time(newest.at)}, but the platform never confirmed it", unknown
        return "sending", f"being sent since {_time(newest.at)}, not yet complete", unknown
    channel = split(key)[0]
    if channel == SUBAGENTS:
        return "answered", "its result is stored for the chat that started it", unknown
    if channel in LOCAL_CHANNELS:
        return (
            "answered",
            "its answer is stored; clients read it from there",
            [*unknown, "when it was shown"],
        )
    lost = "whether it was sent: no adapter recorded it, or it is more than a week ago"
    return "answered", "its answer is stored; there is no record of its delivery", [*unknown, lost]


def _last(steps: Sequence[Step], *names: str) -> Step | None:
    return next((each for each in reversed(steps) if each.step in names), None)


def _time(at: object) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else "an unknown time"
