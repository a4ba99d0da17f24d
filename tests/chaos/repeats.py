"""Explains each repeated request and delivery by the harm that came between, or names it as a fault; pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.records import CALL, DISCONNECTS, INTERRUPTS, Call, Guarantee, Harm, Records, Repeat, Reply

# A process that died by itself is seen dead so much later at most; a delivery is seen so late.
SEEN_WITHIN_S = 2.0
# A process that was frozen, or cut off, hears so much later at most that its letters are another's.
LOST_UNSEEN_S = 15.0
# So many repeats of one reply may come of one harm.
EXPLAINS = 2


def repeated_calls(records: Records, repeats: list[Repeat], effect: Guarantee, flight: Guarantee) -> None:
    """Look at every request that was made again.

    It is explained where the process that made it was killed or frozen, or could not write, after it had
    begun to ask and before somebody asked again, or lost its connection while others ran. What is stored is
    the answer to the last request, but for one of a process that woke, or lost its letters, after another had
    answered.
    """
    harms = _by_life(records.harms)
    made: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in records.calls:
        made[call.message, call.round].append(call)
    stored = _stored(records)
    for (message, number), calls in made.items():
        for earlier, later in pairwise(sorted(calls, key=lambda call: call.n)):
            cause = _cause(earlier, later, harms, records.daemons)
            repeats.append(Repeat(f"request {number + 1}", message, earlier.life, cause, later.at))
            if cause:
                continue
            words = f"{message} request {number + 1}, #{earlier.n} again as #{later.n}"
            # The same process asked again: it was handed a letter whose turn it ran.
            (flight if earlier.life == later.life else effect).broken.append(
                f"{words} after {later.at - earlier.at:.2f} s, by {earlier.life}, {later.life}: no fault"
            )
        kept = stored.get((message, number))
        for call in calls:
            if kept is not None and call.n > kept and not _lost_it(call, harms, records.daemons):
                words = f"{message} request {number + 1}: #{kept} is stored"
                effect.broken.append(f"{words}, and {call.life} asked after it, #{call.n}")
    flight.checked += sum(harm.kind in DISCONNECTS for harm in records.harms)


def repeated_replies(records: Records, repeats: list[Repeat], effect: Guarantee) -> None:
    """Look at every reply that came again unasked: a harm came between, or its message was put again.

    One harm explains two at most: who put the reply may not know of it, and who took it may not have said so.
    """
    came: dict[str, list[Reply]] = defaultdict(list)
    able = [harm for harm in records.harms if harm.kind in (*INTERRUPTS, *DISCONNECTS)]
    for reply in records.replies:
        if reply.kind == "reply" and not reply.asked:
            came[reply.message].append(reply)
    for message, replies in came.items():
        used: Counter[int] = Counter()
        for number, (earlier, later) in enumerate(pairwise(replies), 1):
            since = earlier.at - SEEN_WITHIN_S
            near = (harm for harm in able if harm.within(since, later.at) and used[id(harm)] < _most(harm))
            if (harm := next(near, None)) is not None:
                used[id(harm)] += 1
                cause = harm.kind
            else:
                # A message that was put twice is answered twice, by the same answer.
                cause = "put again" if number < records.published.get(message, 1) else ""
            repeats.append(Repeat("reply", message, "", cause, later.at))
            if not cause:
                effect.broken.append(f"the reply to {message} came again, and no fault came between")


def _most(harm: Harm) -> float:
    return math.inf if harm.kind == "refusing disk" else EXPLAINS


def _by_life(harms: Sequence[Harm]) -> Mapping[str, list[Harm]]:
    found: dict[str, list[Harm]] = defaultdict(list)
    for harm in harms:
        found[harm.life].append(harm)
    return found


def _cause(earlier: Call, later: Call, harms: Mapping[str, list[Harm]], daemons: int) -> str:
    for harm in harms.get(earlier.life, ()):
        if harm.kind in INTERRUPTS and harm.within(earlier.at, later.at + SEEN_WITHIN_S):
            return harm.kind
        # Another daemon's work took the key from a running turn, which began again: it says so itself.
        said = harm.how == later.message and harm.within(earlier.at, later.at)
        if harm.kind == "fenced" and said:
            return harm.kind
        # There was no connection on which to end it: when it came back is not known here.
        cut = any(each.kind in DISCONNECTS and each.began < harm.began for each in harms[earlier.life])
        if harm.kind == "delayed" and said and cut and earlier.life != later.life:
            return harm.kind
    if daemons > 1 and earlier.life != later.life:
        near: list[Harm] = [*harms.get(earlier.life, ()), *harms.get("", ())]
        for harm in near:
            if harm.kind in DISCONNECTS and harm.within(earlier.at - SEEN_WITHIN_S, later.at):
                return harm.kind
    return ""


def _lost_it(call: Call, harms: Mapping[str, list[Harm]], daemons: int) -> bool:
    """Say whether a process may not have known that it had lost the letter, and another had answered it."""
    near = [*harms.get(call.life, ()), *harms.get("", ())]
    return daemons > 1 and any(
        harm.kind in ("freeze", *DISCONNECTS) and harm.within(call.at - LOST_UNSEEN_S, call.at)
        for harm in near
    )


def _stored(records: Records) -> dict[tuple[str, int], int]:
    """Return which call's answer stands in the transcript, for each round of each message."""
    found: dict[tuple[str, int], int] = {}
    for sessions in records.lines.values():
        for session in sessions:
            rounds: dict[str, int] = defaultdict(int)
            for line in session:
                if line.get("role") != "assistant":
                    continue
                message = str(line.get("message_id"))
                number = _number(line)
                if number is not None:
                    found[message, rounds[message]] = number
                rounds[message] += 1
    return found


def _number(line: Mapping[str, Any]) -> int | None:
    calls = line.get("tool_calls") or []
    if calls:
        _, _, rest = str(calls[0]["id"]).partition("_")
        first = rest.partition("_")[0]
        return int(first) if first.isdigit() else None
    if line.get("stopped"):
        return None
    match = CALL.search(str(line.get("content") or ""))
    return int(match[1]) if match else None
