"""A transcript is read while another thread takes a line in: it is told as it was before, or is behind."""

from __future__ import annotations

import os
import re
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Generic, TypeVar

import pytest

from session.context import prepared as prepared_module
from session.context import request as request_module
from session.context.prepared import lines_from, prepared
from session.context.request import sent_from
from session.models.model import Echo
from session.store import rollover as rollover_module
from session.store.rollover import ended_before
from session.transcript import history as history_module
from session.transcript import index as index_module
from session.transcript import lines as lines_module
from session.transcript import transcript as transcript_module
from session.transcript.attachments import Album
from session.transcript.history import last_exchange, visible
from session.transcript.index import Index
from session.transcript.journal import JournalState
from session.transcript.line import encode, make_line
from session.transcript.lines import HeldFile, Lines
from session.transcript.transcript import Transcript, fresh
from tests.support.guarantee import guarantee

AT = "2026-01-31T09:15:00+00:00"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MODULES = (
    index_module,
    lines_module,
    prepared_module,
    request_module,
    rollover_module,
    transcript_module,
    history_module,
)
# What both threads touch, as these modules name it.
SHARED = r"transcript|messages|records|newest|finals|_starts|_begins|_hot|hot\b|_end\b|_block"
Line = dict[str, Any]
Read = Callable[[Transcript], Any]


def user(id_: str, **more: Any) -> Line:
    return make_line("user", f"asks {id_}", AT, message_id=id_, **more)


def answer(id_: str, **more: Any) -> Line:
    return make_line("assistant", f"answers {id_}", AT, message_id=id_, final=True, **more)


def record(kind: str, **more: Any) -> Line:
    return make_line("system", kind, AT, kind=kind, **more)


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLS = make_line("assistant", None, AT, message_id="b", tool_calls=[CALL])
NOBODYS = make_line("assistant", "of another program", AT)
ASKED = [user("a"), answer("a"), user("b")]
OVERLAY = record("overlay", first_kept=2)
NOTE = record("note", edits="a")
# So many questions that the next one has the index keep most of them otherwise.
MANY = [user(str(number)) for number in range(index_module._NEWEST_IDS_MAX)]
LONG = "one question more than are kept by text"
GROWS: dict[str, tuple[list[Line], Line]] = {
    "a summary behind a question": (ASKED, OVERLAY),
    "a summary behind calls": ([*ASKED, CALLS], OVERLAY),
    "a summary behind an answer": ([*ASKED, answer("b")], OVERLAY),
    "a summary behind a summary": ([*ASKED, record("overlay", first_kept=1)], OVERLAY),
    "a summary behind a note": ([*ASKED, answer("b"), NOTE], record("overlay", first_kept=4)),
    "a note behind a note": ([*ASKED, NOTE], NOTE),
    "a withdrawal": (ASKED, record("undo", **{"from": 2})),
    "calls": (ASKED, CALLS),
    "an answer": ([*ASKED, CALLS], answer("b")),
    "an answer behind a note": ([*ASKED, NOTE], answer("b")),
    "an answer for two": ([*ASKED, user("c")], answer("c", answers=["b", "c"])),
    "the next question": ([*ASKED, answer("b")], user("c")),
    "a question that enters": ([*ASKED, CALLS], user("c", part_of="b")),
    "a question once more": ([*ASKED, answer("b")], user("b")),
    "a line of another program": (ASKED, NOBODYS),
    LONG: (MANY, user("a")),
}
# Which ids are looked for; most lines say nothing of others.
IDS = dict.fromkeys(GROWS, "abc") | {LONG: ("0", "31", "a")}


def small(lines: Sequence[Line], line: Line) -> Transcript:
    transcript = fresh("cli_x", "cli:x", now=NOON, inner={})
    for each in lines:
        transcript.grow(encode(each), each)
    return transcript


def big(lines: Sequence[Line], line: Line) -> Transcript:
    """Hold but the last lines in memory; the next one, which the file has already, puts more of them out."""
    raws = [encode(each) for each in (*lines, line)]
    fd = os.memfd_create("transcript")
    os.write(fd, b"\n" + b"".join(raw + b"\n" for raw in raws))
    starts, end = array("Q"), 0
    for raw in raws[:-1]:
        starts.append(end)
        end += len(raw) + 1
    held = Lines(HeldFile(fd), 1, starts, end, hot_bytes=len(raws[-2]) // 2 + 50, block_bytes=200)
    transcript = fresh("cli_x", "cli:x", now=NOON, inner={})
    transcript.messages, transcript.index = held, Index(held)
    for at, each in enumerate(lines):
        transcript.index.add(at, each)
    return transcript


def of_a_request(transcript: Transcript) -> Any:
    """Read what the next request sends, as it is built anew."""
    first = sent_from(transcript)
    return visible(
        lines_from(transcript, first),
        last_consolidated=transcript.history_start - first,
        running_id="next",
    )


def of_a_prepared_request(transcript: Transcript) -> Any:
    """Read what the next request sends, as it is prepared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_module, "PIECE", 2)
        kept = prepared(
            transcript,
            sent_from(transcript),
            user("next"),
            running_id="next",
            keep_results=2,
            escapes=False,
            least=0,
        )
    if kept is None:
        return None
    return kept[0].messages(kept[1], Album(None, Echo()).show(), summary_role="user")


def running_turn(transcript: Transcript) -> int | None:
    """Read where the turn begins that runs, among the lines that there are; None where none does."""
    count = len(transcript.messages)
    begins = ended_before(transcript, JournalState(), NOON)
    return begins if begins < count else None


def taken_back(transcript: Transcript) -> Any:
    records = list(transcript.index.records)
    return last_exchange(transcript.messages, records, history_start=transcript.history_start)


def found(id_: str) -> Read:
    return lambda transcript: transcript.index.find(id_)


READS: dict[str, Read] = {
    "the last message": lambda transcript: transcript.index.last_message(),
    "the turn that runs": running_turn,
    "a request": of_a_request,
    "a prepared request": of_a_prepared_request,
    "lines": lambda transcript: lines_from(transcript, 1),
    "what is withdrawn": taken_back,
}


@guarantee("sessions", "A reader sees a consistent conversation while a line is being stored.")
@pytest.mark.parametrize("grows", GROWS)
def test_who_reads_meanwhile_is_told_of_one_moment(grows: str) -> None:
    """Wherever the other one is, in the midst of a line as well."""
    reads = {} if grows == LONG else READS

    assert told_of_none(grows, small, reads | {f"finds {id_}": found(id_) for id_ in IDS[grows]}) == []


@pytest.mark.parametrize("grows", ["a summary behind calls", "an answer behind a note", "the next question"])
def test_so_is_who_reads_what_is_not_in_memory(grows: str) -> None:
    """Of a big transcript the older lines lie in the file alone, and more of them with each new one."""
    names = ("the last message", "lines")
    reads = {name: READS[name] for name in names} | {f"finds {id_}": found(id_) for id_ in "ab"}

    assert told_of_none(grows, big, reads) == []


def told_of_none(
    grows: str, make: Callable[[Sequence[Line], Line], Transcript], reads: dict[str, Read]
) -> list[tuple[str, Any, tuple[int, int]]]:
    """List what readers were told that was true neither before the line came in nor behind that."""
    lines, line = GROWS[grows]
    raw, told = encode(line), []
    for name, read in reads.items():

        def begin(read: Read = read) -> tuple[Callable[[], object], Callable[[], Any]]:
            transcript = make(lines, line)
            return lambda: transcript.grow(raw, line), lambda: read(transcript)

        before, behind = make(lines, line), make(lines, line)
        behind.grow(raw, line)
        moments = (read(before), read(behind))
        met = interleaved(begin, SHARED, *MODULES)
        told += [(name, said, at) for said, at in met if said not in moments]
    return told


# -- two pieces of work as two threads may run them: each line of one against each line of the other ---------


T = TypeVar("T")


# The lines of each file before which one of both may be in the middle.
Places = dict[str, set[int]]


class _Writer:
    """Does its work in a thread up to its n-th place, and the rest once it is told to."""

    def __init__(self, work: Callable[[], object], places: Places, stop: int) -> None:
        self._work, self._steps = work, _Steps[object](places, stop, self._hold)
        self._held, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._held.wait()

    @property
    def is_done(self) -> bool:
        return not self._steps.was_there

    def end(self) -> None:
        self._go.set()
        self._thread.join()

    def _hold(self) -> None:
        self._held.set()
        self._go.wait()

    def _run(self) -> None:
        try:
            self._steps.run(self._work)
        finally:
            self._held.set()


class _Steps(Generic[T]):
    """Counts the places that some work comes to, and does something before one of them."""

    def __init__(self, places: Places, at: int, then: Callable[[], object]) -> None:
        self._places, self._at, self._then = places, at, then
        self._count = 0
        self.was_there = False

    def run(self, work: Callable[[], T]) -> T:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._stepped if frame.f_code.co_filename in self._places else None

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lineno in self._places[frame.f_code.co_filename]:
            if self._count == self._at:
                self.was_there = True
                self._then()
            self._count += 1
        return self._stepped


def interleaved(
    begin: Callable[[], tuple[Callable[[], object], Callable[[], T]]], shared: str, *modules: ModuleType
) -> Iterator[tuple[T | LookupError, tuple[int, int]]]:
    """Let a reader run while a writer does, and yield what it says each time, with where they met.

    Args:
        begin: makes both, with nothing that an earlier pair has touched.
        shared: finds the lines that touch what both of them do; what is between those makes no difference.
        modules: in which these lines are looked for.
    """
    places = {str(module.__file__): _lines_with(shared, str(module.__file__)) for module in modules}
    held = 0
    while True:
        met = 0
        while True:
            write, read = begin()
            writer = _Writer(write, places, held)
            reader = _Steps[T](places, met, writer.end)
            said: T | LookupError
            try:
                said = reader.run(read)
            except LookupError as error:
                said = error
            finally:
                writer.end()
            yield said, (held, met)
            if not reader.was_there:
                break
            met += 1
        if writer.is_done:
            return
        held += 1


def _lines_with(shared: str, file: str) -> set[int]:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if re.search(shared, line)}
