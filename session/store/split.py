"""What of a session that ends stays in its archive, and what goes over into the next one; pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from session.store.writer import Line
from session.transcript.history import is_record
from session.transcript.journal import KEPT, JournalState, Known, SessionPlace
from session.transcript.transcript import Transcript, decode, encode, read_time


def place_of(transcript: Transcript) -> SessionPlace:
    """Say where a session stands, for the journal's count."""
    return SessionPlace(transcript.session_id, len(transcript.index.finals))


class Parted:
    """The lines of a session from ``first_kept`` on, as they stand in the next one behind ``behind`` lines.

    Our own records count anew. A summary among them speaks of what stays behind and does so too, at the
    archive's end; a withdrawal that reaches over the cut stands on both sides of it.
    """

    def __init__(self, old: Transcript, first_kept: int, *, behind: int = 0) -> None:
        self.moved: list[Line] = []
        self.left_behind: list[bytes] = []
        # Where each line stands in the next session; for one that stays behind, the line that follows it.
        places: list[int] = []
        for at, raw in enumerate(old.messages[first_kept:], first_kept):
            line, written = decode(raw), raw
            places.append(len(self.moved) + behind)
            if is_record(line) and line["kind"] in ("overlay", "compact"):
                self.left_behind.append(raw)
                continue
            since = line.get("from")
            if is_record(line) and line["kind"] == "undo" and type(since) is int and 0 <= since <= at:
                if since < first_kept:
                    self.left_behind.append(raw)
                line = {**line, "from": places[max(since - first_kept, 0)]}
                written = encode(line)
            self.moved.append((written, line))
        self._first = first_kept
        self._before = [at - behind for at in [*places, len(self.moved) + behind]]

    def before(self, stop: int) -> int:
        """Count the moved lines that stood before ``stop``, which is no less than ``first_kept``."""
        return self._before[stop - self._first]


def ended_before(transcript: Transcript, journal_state: JournalState, now: datetime) -> int:
    """Return where a turn begins that has not ended, which is the number of messages where none runs."""
    count = len(transcript.messages)
    # Our own records may come at any moment of a turn.
    last = transcript.index.last_message()
    newest = decode(transcript.messages[last]) if last >= 0 else {}
    own, part_of = newest.get("message_id"), newest.get("part_of")
    # A message that entered a running turn is a part of that.
    id_ = part_of if isinstance(part_of, str) else own
    if not isinstance(id_, str) or journal_state.known(id_, now) is not None:
        return count
    found = transcript.index.find(id_)
    if found is None:
        # Another thread is just storing the question, of which the index does not know yet.
        return last if id_ == own else count
    return found.start if found.final is None else count


def recent_ids(
    transcript: Transcript, journal_state: JournalState, now: datetime, *, stop: int | None = None
) -> dict[str, dict[str, Any]]:
    """Collect the ids of the last 48 h before ``stop`` with their ends, as the journal keeps them."""
    place = place_of(transcript)
    numbers = {
        at: journal_state.seq_of_final(place, number) for number, at in enumerate(transcript.index.finals, 1)
    }
    ids: dict[str, dict[str, Any]] = {}

    def is_recent(line: Mapping[str, Any]) -> bool:
        at = read_time(line.get("timestamp"))
        return at is None or now - at <= KEPT

    for id_, found in transcript.index.ends(is_recent).items():
        if stop is not None and found.start >= stop:
            continue
        before = journal_state.known(id_, now)
        line = decode(transcript.messages[found.final]) if found.final is not None else {}
        if before is not None and before.kind != "archived" and (not line or line.get("stopped") is True):
            ids[id_] = _end_known(before, is_final=bool(line))
        elif found.final is None:
            ids[id_] = {"final": False}
        else:
            # Without a number of this session it was said before that began, or was opened again.
            seq = numbers.get(found.final) or (before.seq if before is not None else None)
            ids[id_] = _end_shown(id_, line, seq)
    return ids


def _end_known(known: Known, *, is_final: bool) -> dict[str, Any]:
    """Say how an id ended whose lines show no answer, as the journal has it.

    What stands there already would be forgotten sooner than the other ids of the session.
    """
    end = {"final": is_final, "kind": known.kind, "text": known.text, "reason": known.reason}
    return end if known.seq is None else end | {"seq": known.seq}


def _end_shown(id_: str, line: Mapping[str, Any], seq: int | None) -> dict[str, Any]:
    """Say how an id ended by the line that answers it."""
    # The answer of a job that was to be told to nobody stays untold.
    unsent = line.get("unsent") is True
    text = line.get("content")
    end: dict[str, Any] = {"final": True, "text": text if isinstance(text, str) and not unsent else ""}
    if line.get("message_id") != id_:
        end["by"] = line.get("message_id")
    elif seq is not None and not unsent:
        end["seq"] = seq
    if line.get("stopped") is True:
        end["stopped"] = True
    return end
