"""Big transcripts through the store: in parts, with an index beside them, and in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from session.disk.layout import Layout
from session.errors import StoreError
from session.store import switch_session
from session.store.cache import Handles
from session.store.fence import Fence
from session.store.store import Session, utc_now
from session.store.writer import TranscriptWriter
from session.transcript.index import Exchange
from session.transcript.index_file import (
    write_index,
)
from session.transcript.key import SessionKey
from session.transcript.lines import Lines
from session.transcript.transcript import parse
from tests.session.big_place import (
    HEAD,
    KEY,
    STEM,
    body,
    exchange,
    index_of,
    is_used,
    loaded,
    path_of,
    save,
    store_at,
    told,
    whole,
)
from tests.support.guarantee import guarantee

pytestmark = pytest.mark.slow

BODY = body()


def lines_of(session: Session) -> Lines:
    lines = session.transcript.messages
    assert isinstance(lines, Lines)
    return lines


async def test_the_index_appears_behind_the_first_turn_and_serves_the_next_process(tmp_path: Path) -> None:
    """It is written when the first turn is over, and not again for a turn of ordinary size."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))

    async with store_at(tmp_path) as store, store.open(KEY) as session:
        await session.append(exchange(70000))
    first = index.stat()
    async with store_at(tmp_path) as store, store.open(KEY) as session:
        used = is_used(session.transcript)
        await session.append(exchange(70001))
        asked = session.find("cli:70001")
    again = index.stat()

    assert used
    assert asked == Exchange(len(BODY) + 2, len(BODY) + 4, len(BODY) + 3, tail=True)
    assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)
    assert first.st_mode & 0o777 == 0o600
    assert told(loaded(path, index)) == told(parse(path.read_bytes(), stem=STEM))


async def test_it_is_written_again_when_much_has_come(tmp_path: Path) -> None:
    """What no index knows must be read at the next opening, so it never becomes much."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))

    # The first index is whole when its store is closed: while one is being written, no other one is.
    async with store_at(tmp_path) as store, store.open(KEY):
        pass
    async with store_at(tmp_path) as store:
        for number in range(3):
            async with store.open(KEY) as session:
                await session.append(
                    [line for some in range(400) for line in exchange(10**6 + 1000 * number + some)]
                )
    async with store_at(tmp_path) as store, store.open(KEY) as session:
        lines = lines_of(session)
        unknown = lines.body_bytes - lines.saved_bytes
        ids = [session.find(f"cli:{10**6 + 1000 * number + 3}") for number in range(3)]

    assert unknown < 2**21
    assert all(found is not None and found.final == found.start + 1 for found in ids)
    assert told(loaded(path, index)) == told(parse(path.read_bytes(), stem=STEM))


async def test_a_last_line_without_its_newline_is_in_no_index(tmp_path: Path) -> None:
    """Its newline is not in the file yet: the index is made once it is."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY)[:-1])

    async with store_at(tmp_path) as store, store.open(KEY):
        pass
    without = index.exists()
    async with store_at(tmp_path) as store, store.open(KEY) as session:
        await session.append(exchange(70000))
    transcript = loaded(path, index)

    assert not without
    assert is_used(transcript)
    assert told(transcript) == told(parse(path.read_bytes(), stem=STEM))


async def test_renewing_line_1_keeps_every_line_readable(tmp_path: Path) -> None:
    """Older lines are read from the new file then, and it is the file that a small one would have become."""
    path = path_of(tmp_path)
    path.write_bytes(whole(BODY, unknown="kept") + orjson.dumps(exchange(5)[0]))

    async with store_at(tmp_path) as store, store.open(KEY) as session:
        await session.checkpoint(metadata={"name": "a name that makes line 1 longer"}, last_consolidated=100)
        await session.append(exchange(70000))
        # The old file is gone.
        assert os.fstat(lines_of(session).snapshot()[0].fd).st_ino == path.stat().st_ino
        kept = [session.raw(0), session.raw(len(session) - 3), *session.transcript.messages[1:30]]
        count = len(session)

    written = parse(path.read_bytes(), stem=STEM)
    assert kept == [BODY[0], orjson.dumps(exchange(5)[0]), *BODY[1:30]]
    assert count == len(written.messages) == len(BODY) + 3
    assert written.last_consolidated == 100
    assert written.metadata["unknown"] == "kept"
    assert not written.needs_checkpoint


async def test_a_line_1_of_another_program_is_renewed_without_a_look_at_the_lines(tmp_path: Path) -> None:
    """Its lines are copied as they are, and no original is kept: no byte is lost."""
    path = path_of(tmp_path)
    head = {name: value for name, value in HEAD.items() if name not in ("last_consolidated", "metadata")}
    path.write_bytes(b"".join(raw + b"\n" for raw in [json.dumps(head).encode(), *BODY]))

    async with store_at(tmp_path) as store, store.open(KEY) as session:
        await session.append(exchange(70000))
        assert session.raw(3) == BODY[3]

    written = parse(path.read_bytes(), stem=STEM)
    assert list(written.messages[: len(BODY)]) == BODY
    assert not written.needs_checkpoint
    assert not list(path.parent.glob("*.corrupt-*"))


async def test_a_session_ends_and_is_opened_again_with_every_line(tmp_path: Path) -> None:
    """The archive has the bytes; the index goes with the session."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))

    async with store_at(tmp_path) as store, store.open(KEY):
        pass
    was_there = index.exists()
    async with store_at(tmp_path) as store:
        async with store.open(KEY) as session:
            archived = await session.end()
            await session.append(exchange(1))
        assert archived is not None
        ended = parse(archived.read_bytes(), stem=STEM)
        gone = not index.exists()
        async with store.open(KEY) as session:
            await session.change(
                lambda scribe, book, epoch, wait: switch_session.reopen(
                    scribe, book, epoch, wait, session_id=str(HEAD["metadata"]["session_id"])
                )
            )
            count, last = len(session), session.raw(-1)

    assert was_there
    assert gone
    assert ended.messages == BODY
    assert (count, last) == (len(BODY), BODY[-1])


async def test_clearing_takes_the_index_away(tmp_path: Path) -> None:
    """Nothing is left of what was derived."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    save(path, index)

    async with store_at(tmp_path) as store:
        assert await store.clear(KEY)

    assert not index.exists()
    assert not path.exists()


async def test_an_index_that_tells_wrong_places_costs_one_error_and_is_made_anew(tmp_path: Path) -> None:
    """Even one whose samples are right is found out when a line is read, and the next look is right."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    saved = save(path, index)
    wrong = array("Q", saved.starts)
    wrong[100] += 1
    write_index(index, replace(saved, starts=wrong))

    async with store_at(tmp_path) as store:
        async with store.open(KEY) as session:
            assert is_used(session.transcript)
            with pytest.raises(StoreError):
                session.raw(100)
        async with store.open(KEY) as session:
            assert session.raw(100) == BODY[100]
    async with store_at(tmp_path) as store, store.open(KEY) as session:
        assert is_used(session.transcript)
        assert session.raw(100) == BODY[100]


async def test_a_full_disk_costs_the_index_alone(tmp_path: Path) -> None:
    """Where it cannot be written the turn is over all the same, and the next one too."""
    path = path_of(tmp_path)
    path.write_bytes(whole(BODY))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "index").write_text("a file where the folder should be")

    async with store_at(tmp_path) as store:
        for number in range(2):
            async with store.open(KEY) as session:
                await session.append(exchange(70000 + number))

    assert len(parse(path.read_bytes(), stem=STEM).messages) == len(BODY) + 4


async def test_a_session_that_grows_big_gives_its_memory_back(tmp_path: Path) -> None:
    """What was small when it was read does not stay in memory as a whole when it is big."""
    path = path_of(tmp_path)
    path.write_bytes(whole(BODY[:100]))

    async with store_at(tmp_path) as store:
        for number in range(4):
            async with store.open(KEY) as session:
                await session.append(
                    [line for some in range(1500) for line in exchange(10**6 * (number + 1) + some)]
                )
        async with store.open(KEY) as session:
            count, kept = len(session), isinstance(session.transcript.messages, Lines)
        weight = store.cached_bytes()

    assert count == len(parse(path.read_bytes(), stem=STEM).messages)
    assert kept
    assert weight < path.stat().st_size // 2


def test_the_files_that_stay_open_are_bounded(tmp_path: Path) -> None:
    """Whoever nobody uses gives its descriptor up, the one used longest ago first."""
    handles = Handles(2**30, max_files=2)
    layout = Layout(tmp_path)
    entered = []
    for name in "abcd":
        key = SessionKey(f"cli:{name}")
        layout.sessions.mkdir(exist_ok=True)
        layout.transcript(f"cli_{name}").write_bytes(whole(BODY, key=key))
        handle = handles.enter(key)
        fence = Fence(layout, f"cli_{name}", owner="me", freeze_s=30)
        handle.writer = TranscriptWriter(layout, f"cli_{name}", key, fence=fence, clock=utc_now)
        handle.writer.refresh()
        entered.append(handle)

    for handle in entered:
        handles.leave(handle)
        handles.close()

    assert [name for name in "abcd" if handles.get(SessionKey(f"cli:{name}")) is not None] == ["c", "d"]


@guarantee("operation", "The memory of a turn depends on its request, not on the size of the transcript.")
def test_memory_is_bounded_by_what_is_sent_and_not_by_the_file(tmp_path: Path) -> None:
    """A turn on 100 MB takes little more memory than one on a small file, with and without an index."""
    path = path_of(tmp_path)
    with path.open("wb") as file:
        file.write(whole([], last_consolidated=2))
        written = 0
        while written < 100_000_000:
            written += file.write(b"".join(raw + b"\n" for raw in BODY))

    grew = []
    for _ in range(2):
        command = [sys.executable, "-m", "tests.session.big_reader", str(tmp_path)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
        grew.append(json.loads(answer.stdout))

    assert index_of(tmp_path).exists()
    assert grew[0]["messages"] > 50_000
    assert max(one["grew_mb"] for one in grew) < 40, grew
