"""Fields of a type that nobody wrote on purpose: no conversation is shut by them, and no command fails."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from session.compaction.compactions import Snapshot, was_too_long, weight
from session.compaction.due import measure
from session.compaction.flat import FileLists, flat
from session.compaction.plan import region
from session.compaction.rules import CompactionRules
from session.context import scopes
from session.context.prepared import lines_from, prepared
from session.context.quoted import of_line
from session.context.relevance import Relevance, compared
from session.context.request import compact_line, sent_from
from session.memory import fact_extraction, note_taking, titles
from session.memory.text_similarity import Sources
from session.models.model import Echo
from session.models.tokens import estimate_messages
from session.recall import reading
from session.store import listing, rollover, trace
from session.store.rollover import Parted, ended_before, place_of, recent_ids
from session.store.session import View
from session.store.store import Session
from session.tools.archives import page_of
from session.transcript import history, pages
from session.transcript.attachments import Album, attachments_of
from session.transcript.history import HistoryWindow, before_turn, visible
from session.transcript.index import Index
from session.transcript.journal import Journal, JournalState
from session.transcript.key import SessionKey
from session.transcript.line import decode, dump, read_time, stamp
from session.transcript.loading import Survey
from session.transcript.repair import repair
from session.transcript.transcript import Transcript, make_line, parse
from session.turn.joining import parts_of, served, stopped_before
from session.turn.tool_calls import calls_of
from session.turn.turn_compaction import _count_basis
from tests.session.wild_lines import ODD_HEADS, ODD_LINES, TIMES, assert_legal
from tests.support.examples import drawn

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
# Far from UTC on either side, so that the ends of the calendar are passed.
ZONES = (ZoneInfo("Pacific/Kiritimati"), ZoneInfo("Pacific/Pago_Pago"))
IDS = ("m0", "m1", "m2", "c", "another")
ASKED = {"role": "user", "content": "asks?", "message_id": "m1"}
RULES = [
    CompactionRules(preset=preset, window=window, keep_recent_tokens=8, keep_recent_turns=1)
    for preset in ("overlay", "budget", "archive", "annabelle")
    for window in (64, 100_000)
]


def file_of(head: dict[str, Any], lines: Sequence[dict[str, Any]], hole: int | None = None) -> bytes:
    """Write a transcript as other programs do; before line ``hole`` a power cut left zeros."""
    raws = [json.dumps(line).encode() for line in (head, *lines)]
    if hole is not None and hole < len(raws):
        raws.insert(hole, bytes(20))
    return b"".join(raw + b"\n" for raw in raws)


def view_of(transcript: Transcript) -> View:
    return View(
        lambda: transcript,
        Journal(JournalState, None, lambda: NOW),
        key=SessionKey("cli:x"),
        stem="cli_x",
        path=Path("cli_x.jsonl"),
    )


FILES = st.builds(file_of, ODD_HEADS, ODD_LINES, st.none() | st.integers(1, 12))
TRANSCRIPTS = FILES.map(lambda data: parse(data, stem="cli_x"))


@given(FILES)
@drawn(800)
def test_a_file_is_read_and_each_id_is_found(data: bytes) -> None:
    """Line 1 and what stands below; each message has its place, and what is written anew is read alike."""
    transcript = parse(data, stem="cli_x")
    messages, index = transcript.messages, transcript.index

    for id_ in IDS:
        found = index.find(id_)
        if found is not None:
            assert 0 <= found.start < found.stop <= len(messages)
            assert found.final is None or found.start <= found.final < len(messages)
    assert all(end.start < end.stop for end in index.ends(lambda line: True).values())
    assert index.last_message() < len(messages)
    assert index.totals() == index.snapshot()().totals
    assert 0 <= transcript.history_start <= len(messages)
    assert transcript.weight > 0
    head = json.loads(transcript.head(now=NOW))
    again = parse(b"".join([dump(head), b"\n", *(raw + b"\n" for raw in messages)]), stem="cli_x")
    assert again.messages == messages
    assert (again.key, again.session_id) == (transcript.key, transcript.session_id)


@given(ODD_LINES)
@drawn(500)
def test_a_big_file_is_surveyed_as_it_is_read(lines: list[dict[str, Any]]) -> None:
    """Its index knows of each id what reading it line by line tells."""
    data = file_of({}, lines)[3:]
    fd = os.memfd_create("body")
    survey = Survey()
    try:
        os.write(fd, data)
        whole = survey.walk(fd, 0, len(data))
    finally:
        os.close(fd)
    transcript = parse(b'{"_type": "metadata"}\n' + data, stem="cli_x")

    index = Index(transcript.messages, survey.older())

    assert not whole or [index.find(id_) for id_ in IDS] == [transcript.index.find(id_) for id_ in IDS]
    assert not whole or index.totals() == transcript.index.totals()


@given(TRANSCRIPTS)
@example(parse(file_of({}, [ASKED, {**ASKED, "message_id": None, "part_of": "m1"}]), stem="cli_x"))
@drawn(800)
def test_commands_find_what_they_take_back(transcript: Transcript) -> None:
    """And a turn that goes on finds its calls, and whom it serves."""
    view, messages = view_of(transcript), transcript.messages
    found = [*view.records()]

    at = history.last_exchange(messages, found, history_start=transcript.history_start)
    for start in {0, at or 0}:
        asked = history.questions(messages, start)
        assert isinstance(history.text_of(asked), str)
        assert all(file.name is not None for line in asked for file in attachments_of(line))
    assert at is None or decode(messages[at])["role"] == "user"
    for id_ in IDS:
        history.withdrawn_by(messages, found, id_)
        assert all(isinstance(line["message_id"], str) for line in (*served(view, id_), *parts_of(view, id_)))
        view.seq_of(id_)
        view.spent(id_)
        view.find_sent(id_)
        assert view.journal_state.seq(place_of(transcript)) == view.seq
    for line in view.lines():
        calls_of(line)
    stopped_before(view, len(messages))
    was_too_long(cast(Session, view))
    assert view.previous_archive is None or isinstance(view.previous_archive, str)
    view.told()


@given(TRANSCRIPTS)
@drawn(800)
def test_a_session_ends(transcript: Transcript) -> None:
    """Its ids go into the journal, and the lines of a turn that runs into the next session."""
    stop = ended_before(transcript, JournalState(), NOW)
    assert 0 <= stop <= len(transcript.messages)

    dump(recent_ids(transcript, JournalState(), NOW, stop=stop))

    assert len(Parted(transcript, stop).moved) <= len(transcript.messages) - stop
    rollover.fresh_at(transcript)
    rollover.is_idle(transcript, received_at=None, now=NOW, limit=NOW - NOW.replace(hour=1))
    rollover.last_words(transcript)


@given(TRANSCRIPTS, st.sampled_from(IDS))
@drawn(800)
def test_requests_are_built(transcript: Transcript, id_: str) -> None:
    """In each mode they are what every provider takes."""
    first = sent_from(transcript)
    lines = lines_from(transcript, first)
    offset = transcript.history_start - first
    running = make_line("user", "now", "", message_id=id_)

    for window in (None, HistoryWindow(3, 50)):
        sent = visible([*lines, running], last_consolidated=offset, running_id=id_, window=window)
        assert_legal(sent)
        assert repair(sent) == sent
    compared(before_turn(lines, last_consolidated=offset, running_id=id_), Relevance(always=0))
    kept = prepared(transcript, first, running, running_id=id_, keep_results=2, escapes=True, least=0)
    if kept is not None:
        messages, _ = kept[0].messages(kept[1], Album(None, Echo()).show(), summary_role="user")
        assert_legal([dict(message) for message in messages])
        assert estimate_messages(messages) >= 0
    compact_line(transcript)


@given(TRANSCRIPTS, st.sampled_from(RULES), st.booleans())
@drawn(800)
def test_a_conversation_is_weighed_and_cut(
    transcript: Transcript, rules: CompactionRules, forced: bool
) -> None:
    snapshot = Snapshot.of(cast(Session, view_of(transcript)))

    decided = snapshot.plan(rules, forced=forced)

    if decided is not None:
        assert snapshot.start < decided.first_kept <= snapshot.count
        assert decided.tokens_before >= 0
        flat([*decided.lines, *decided.prefix])
        assert snapshot.still(transcript, decided.first_kept)
    weight(transcript, rules)
    _count_basis(transcript)
    start = transcript.history_start
    measured = {"start": snapshot.start, "history_start": start, "opening": snapshot.opening}
    measure(snapshot.lines, rules=rules, now=NOW, **cast(Any, measured))
    live = region(snapshot.lines, **cast(Any, measured))
    FileLists.of_record(live.record).plus(line for _, line in live.lines).lists()


@given(TRANSCRIPTS)
@drawn(800)
def test_a_conversation_is_shown(transcript: Transcript) -> None:
    """To people, to other programs, and where somebody searches."""
    messages = transcript.messages

    json.dumps(pages.records_page(messages, after=0, limit=100))
    json.dumps(pages.entries_page(messages, before=None, after=None, limit=100))
    for id_ in IDS:
        for step in trace.in_order(trace.of_lines(messages, id_, session_id="s", source="transcript")):
            json.dumps(step.as_dict())
    for zone in ZONES:
        listing.make_row(transcript, Path("cli_x.jsonl"), zone, active=True)
        page_of(transcript, 1, 0, zone=zone, page_bytes=4_096)
    listing.problems(transcript)
    for at, raw in enumerate(messages):
        reading.of_line(raw, at, 0)
        reading.withdrawn(raw, at)
    reading.taken_back([*map(decode, messages)])


@given(TRANSCRIPTS)
@drawn(800)
def test_a_conversation_goes_into_memory(transcript: Transcript) -> None:
    lines = [*map(decode, transcript.messages)]
    own = [lines[at] for at in transcript.index.records]

    scopes.chat_in(transcript)
    scopes.answers_in(transcript.inner)
    spoken = note_taking.sendable(lines, start=0, stop=len(lines))
    for zone in ZONES:
        note_taking.chunk_end(spoken, zone=zone, max_chars=50)
        note_taking.notes_prompt(spoken, memory="", zone=zone, max_bytes=1_000)
        note_taking.raw_entry(spoken, count=len(spoken), zone=zone, now=NOW)
        begins, earlier = titles.beginning(own, len(lines))
        titles.summary_prompt(lines[begins:], start=begins, earlier=earlier, zone=zone, max_chars=99)
    titles.name_prompt(lines)
    said = fact_extraction.material(lines, start=0, upto=0, max_turns=9)
    fact_extraction.facts_prompt(said, [], max_chars=1_000)
    Sources.of(spoken, group=True).mark_of("asks")
    for line in lines:
        of_line(line)


@given(TIMES)
def test_a_time_can_be_written_in_each_zone(value: Any) -> None:
    """Where it would be beyond the calendar there, it is none."""
    at = read_time(value)

    assert at is None or all(stamp(at, zone) for zone in ZONES)
