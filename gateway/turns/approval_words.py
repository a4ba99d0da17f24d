"""What a chat is told of a call that waits for a person: pure, and nothing that the call could forge."""

from __future__ import annotations

import json
from typing import Final

from channels.message import Button
from session.approvals.record import Approval

REASON: Final = "approval"
ASKED_SAID: Final = """\
**Approval needed:** the assistant wants to use the tool `{tool}`.

```json
{arguments}
```
Folder: `{folder}`
Asked by: {who}

`/approve {id}` allows it once, `/deny {id}` denies it. Without an answer within {time} it is not run."""
_RESOLVED: Final = {
    "allowed": "Allowed by {who}: `{tool}`",
    "denied": "Denied by {who}: `{tool}` is not run.",
    "expired": "Nobody decided in time: `{tool}` is not run.",
    "cancelled": "Stopped before anybody decided: `{tool}` is not run.",
}
# What would end the block that it stands in.
_MARKS: Final = frozenset("`")


def reason_of(approval: Approval) -> str:
    """Return the reason of the notice that asks."""
    return f"{REASON}.{approval.id}"


def asked(approval: Approval) -> str:
    """Say what is to be run, in full."""
    call = approval.call
    return ASKED_SAID.format(
        tool=_word(call.tool),
        arguments=shown_arguments(call.arguments),
        folder=_word(call.folder),
        who=_name(call.asked_by) or "somebody in this chat",
        id=approval.id,
        time=_time(approval.timeout_s),
    )


def buttons(approval: Approval) -> list[Button]:
    """Return the buttons below it; a value is the command that would be typed."""
    return [
        Button(label="Allow", value=f"/approve {approval.id}"),
        Button(label="Deny", value=f"/deny {approval.id}"),
    ]


def resolved(approval: Approval) -> str:
    """Say what was decided, and by whom."""
    words = _RESOLVED.get(approval.state, _RESOLVED["allowed"])
    return words.format(who=_name(approval.decided_by) or "a person", tool=_word(approval.call.tool))


def shown_arguments(arguments: str) -> str:
    """Write arguments as JSON that reads the same everywhere.

    Letters stay as they are. What is invisible, turns the direction of writing or ends a block of code is
    written as ``\\uXXXX``, which is the same JSON.
    """
    try:
        text = json.dumps(json.loads(arguments or "{}"), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = json.dumps(arguments)
    return "".join(_sure(character) for character in text)


def _sure(character: str) -> str:
    if character == "\n" or (character.isprintable() and character not in _MARKS):
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _word(text: str) -> str:
    return "".join(each for each in text if each.isprintable() and each not in _MARKS) or "?"


def _name(text: str) -> str:
    """Take out of a person's name what would format it, or make a line of ours of it."""
    return "".join(each for each in text if each.isprintable() and each not in "`*_~[]|<>")[:200]


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:g} seconds"
