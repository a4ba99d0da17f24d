"""The file of a recording: a head, then a line of JSON for each letter, in the order in which they came."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from durable import NewerVersion, check_version, replacing, write_all
from gateway.errors import GatewayError
from gateway.recording.outcome import WORDS, Outcome
from session.transcript.line import read_time

VERSION: Final = 1
KIND: Final = "chat-gateway recording"
_MAX_HEAD_BYTES: Final = 64 * 1024


class NewerRecording(NewerVersion, GatewayError):
    """A newer version wrote the recording."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class Letter:
    """One letter: who asked what, and what became of it.

    Args:
        key: its conversation.
        id: its own, unique in its conversation.
        at: when its channel handed it in, aware.
        text: as it was typed.
        outcome: what became of it.
        reply: the words that answered it; empty where another letter's answer did, or none.
        sender: the name, else the id, of who wrote it.
        files: the names of what came with it; a recording does not hold them.
    """

    key: str
    id: str
    at: datetime
    text: str
    outcome: Outcome
    reply: str = ""
    sender: str = ""
    files: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """What was asked between two times.

    Args:
        since: from when on, aware.
        until: up to when, aware.
        letters: oldest first.
        left_out: what is not in it, in words, each with how much of it there was.
        workspace: tells one workspace from another.
        masked: no word of a person or model is in it, nor who they are.
    """

    since: datetime
    until: datetime
    letters: Sequence[Letter]
    left_out: Mapping[str, int] = field(default_factory=dict)
    workspace: str = ""
    masked: bool = False


def write(path: Path, recording: Recording) -> None:
    """Write a recording: whole, or not at all; readable for its owner alone.

    Raises:
        FileExistsError: something stands there; it is as it was.
        OSError: the disk refused.
    """
    with replacing(path, temp=path.with_name(f".{path.name}.partial"), new=True) as fd:
        for line in _lines(recording):
            write_all(fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _lines(recording: Recording) -> Iterator[dict[str, Any]]:
    yield {
        "v": VERSION,
        "kind": KIND,
        "since": recording.since.astimezone(UTC).isoformat(),
        "until": recording.until.astimezone(UTC).isoformat(),
        "letters": len(recording.letters),
        "masked": recording.masked,
        "left_out": dict(recording.left_out),
        "workspace": recording.workspace,
    }
    for each in recording.letters:
        found = asdict(each)
        outcome = {name: _stored(value) for name, value in found.pop("outcome").items()}
        yield {name: _stored(value) for name, value in found.items()} | {"outcome": outcome}


def _stored(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def read(path: Path) -> Recording:
    """Read a recording.

    Raises:
        NewerRecording: a newer version wrote it.
        GatewayError: it is none, or not whole.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        # What is no recording may be one line without an end.
        head = _object(file.readline(_MAX_HEAD_BYTES))
        check_version(head.get("v"), VERSION, "a recording", error=NewerRecording)
        since, until = read_time(head.get("since")), read_time(head.get("until"))
        if head.get("kind") != KIND or since is None or until is None:
            raise GatewayError(f"{path} is no recording", hint="chat-gateway record PATH makes one")
        letters = []
        for at, raw in enumerate(file, 2):
            letter = _letter(_object(raw))
            if letter is None:
                raise GatewayError(f"{path}: line {at} is no letter", hint="record it again")
            letters.append(letter)
    if len(letters) != head.get("letters"):
        count = f"{len(letters)} of {head.get('letters')} letters are in it"
        raise GatewayError(f"{path} is not whole: {count}", hint="copy or record it again")
    left_out = head.get("left_out")
    return Recording(
        since,
        until,
        letters,
        {str(what): _count(n) for what, n in left_out.items()} if isinstance(left_out, dict) else {},
        str(head.get("workspace") or ""),
        head.get("masked") is True,
    )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _letter(found: Mapping[str, Any]) -> Letter | None:
    at, outcome, files = read_time(found.get("at")), found.get("outcome"), found.get("files")
    key, id_, text = found.get("key"), found.get("id"), found.get("text")
    if not (isinstance(key, str) and key and isinstance(id_, str) and isinstance(text, str)):
        return None
    if at is None or not isinstance(outcome, dict) or outcome.get("word") not in WORDS:
        return None
    cost = outcome.get("cost_usd")
    return Letter(
        key,
        id_,
        at,
        text,
        Outcome(
            outcome["word"],
            read_time(outcome.get("began")),
            read_time(outcome.get("ended")),
            _count(outcome.get("prompt")),
            _count(outcome.get("completion")),
            float(cost) if isinstance(cost, int | float) and math.isfinite(cost) else 0.0,
            _count(outcome.get("tools")),
        ),
        str(found.get("reply") or ""),
        str(found.get("sender") or ""),
        tuple(map(str, files)) if isinstance(files, list) else (),
    )


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0
