"""Big transcripts through the store: in parts, with an index beside them, and in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from session.errors import StoreError
from session.store import rollover
from session.store.store import Session
from session.transcript.index import (
    VERSION,
    Exchange,
    pack,
    read_index,
    unpack,
    write_index,
)
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
        kept = [
            session.transcript.messages[0],
            session.transcript.messages[len(session) - 3],
            *session.transcript.messages[1:30],
        ]
        count = len(session)

    written = parse(path.read_bytes(), stem=STEM)
    assert kept == [BODY[0], orjson.dumps(exchange(5)[0]), *BODY[1:30]]
    assert count == len(written.messages) == len(BODY) + 3
    assert written.last_consolidated == 100
    assert written.metadata["unknown"] == "kept"
    assert not written.needs_checkpoint


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
                lambda *writers: rollover.reopen(*writers, session_id=str(HEAD["metadata"]["session_id"]))
            )
            count, last = len(session), session.transcript.messages[-1]

    assert was_there
    assert gone
    assert ended.messages == BODY
    assert (count, last) == (len(BODY), BODY[-1])


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
                session.transcript.messages[100]
        async with store.open(KEY) as session:
            assert session.transcript.messages[100] == BODY[100]
    async with store_at(tmp_path) as store, store.open(KEY) as session:
        assert is_used(session.transcript)
        assert session.transcript.messages[100] == BODY[100]


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


# -- the index, which is never believed without a look at the file ---------------------------------------


ENDS = {
    "sound": b"",
    "torn": b'{"role": "user", "content": "hal',
    "open": orjson.dumps(exchange(99999)[0]),
    "open, with blanks": orjson.dumps(exchange(99999)[0]) + b"  ",
    "NUL bytes": b"\0" * 500,
    "another line 1": json.dumps(HEAD).encode(),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_read_in_parts_is_what_is_read_as_a_whole(tmp_path: Path, end: str) -> None:
    """Lines, ids, records, sums and the tail: without an index, with one, and with one of fewer lines."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    fewer = BODY[:-40] if len(whole(BODY[:-40])) > 2**22 else BODY
    path.write_bytes(whole(fewer))
    save(path, index)
    with path.open("ab") as file:
        file.write(b"".join(raw + b"\n" for raw in BODY[len(fewer) :]) + ENDS[end])
    expected = told(parse(path.read_bytes(), stem=STEM))

    in_parts, with_index = loaded(path), loaded(path, index)

    assert told(in_parts) == expected
    assert told(with_index) == expected
    assert isinstance(in_parts.messages, Lines) == (end not in ("open, with blanks", "another line 1"))
    assert is_used(with_index) == isinstance(in_parts.messages, Lines)
    if end == "sound":
        save(path, index)
        assert told(loaded(path, index)) == expected


MIDDLE = len(BODY) // 2
LINES = {
    "torn in the middle": BODY[MIDDLE][:100],
    "blank": b"",
    "carriage return": BODY[MIDDLE] + b"\r",
    "stray": b'{"hello": 1}',
    "no object": b"[1]",
    "too deep": b'{"role":"user","content":' + b"[" * 600 + b"]" * 600 + b"}",
    "two on one line": BODY[MIDDLE] + BODY[MIDDLE + 1],
    "another line 1": json.dumps(HEAD).encode(),
    "state of a provider": b'{"_type": "provider_state"}',
}
DAMAGED = {name: whole([*BODY[:MIDDLE], line, *BODY[MIDDLE + 1 :]]) for name, line in LINES.items()} | {
    "no line 1": whole(BODY).partition(b"\n")[2],
    "byte order mark": b"\xef\xbb\xbf" + whole(BODY),
    "UTF-16": whole(BODY).decode().encode("utf-16"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_read_as_a_whole(tmp_path: Path, name: str) -> None:
    """Whatever is wrong with it, it is said and repaired as of a small one."""
    path = path_of(tmp_path)
    path.write_bytes(DAMAGED[name])

    transcript = loaded(path)

    assert isinstance(transcript.messages, list)
    assert transcript.whole
    expected = parse(path.read_bytes(), stem=STEM)
    assert transcript.messages == expected.messages
    assert transcript.damage == expected.damage


def spoil_truncated(data: bytes, at: int) -> bytes:
    return data[:at]


def spoil_flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("spoil", [spoil_truncated, spoil_flipped])
def test_a_spoilt_index_is_not_believed(tmp_path: Path, spoil: Callable[[bytes, int], bytes]) -> None:
    """Wherever it is cut, and whichever bit is another."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    save(path, index)
    data = index.read_bytes()
    assert is_used(loaded(path, index))

    edges = [0, 1, 8, 11, 12, 20, 150, 167, len(data) - 17, len(data) - 1]
    for at in [*edges, *random.sample(range(len(data)), 40)]:
        assert unpack(spoil(data, at)) is None, at
    index.write_bytes(spoil(data, len(data) // 2))

    assert not is_used(loaded(path, index))


def test_an_index_of_a_newer_version_is_not_believed(tmp_path: Path) -> None:
    """Its digest is right; what it means is not known."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    data = pack(save(path, index))[:-16]
    newer = data[:8] + (VERSION + 1).to_bytes(4, sys.byteorder) + data[12:]

    index.write_bytes(newer + hashlib.blake2b(newer, digest_size=16).digest())

    assert read_index(index) is None
    assert not is_used(loaded(path, index))


def edit_in_place(path: Path, old: bytes, new: bytes) -> None:
    """Change bytes in the middle of the file, and leave its time of change as it was."""
    before = path.stat()
    data = path.read_bytes()
    at = data.index(old, len(data) // 2)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(new if len(new) == len(old) else new + data[at + len(old) :])
        file.truncate(len(data) + len(new) - len(old))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_file(path: Path) -> None:
    path.write_bytes(whole(body(first=100_000)))


def other_of_same_size(path: Path) -> None:
    size, time = path.stat().st_size, path.stat().st_mtime_ns
    lines = body(first=1)
    data = whole(lines[:-1])
    last = orjson.loads(lines[-1]) | {"content": ""}
    last["content"] = "x" * (size - len(data) - len(orjson.dumps(last)) - 1)
    temp = path.with_suffix(".new")
    temp.write_bytes(data + orjson.dumps(last) + b"\n")
    assert temp.stat().st_size == size
    temp.rename(path)
    os.utime(path, ns=(time, time))


def same_bytes_written_anew(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def other_words_and_a_line_more(path: Path) -> None:
    more = orjson.dumps(exchange(5)[0]) + b"\n"
    path.write_bytes(path.read_bytes().replace("wörter".encode(), "wärter".encode()) + more)


STALE = {
    "other words of the same length, and a line more": other_words_and_a_line_more,
    "another file": other_file,
    "another file of the same size and time": other_of_same_size,
    "the same bytes, written anew": same_bytes_written_anew,
    "shorter": lambda path: os.truncate(path, path.stat().st_size - 1),
    "an id of the same length": lambda path: edit_in_place(path, b'"cli:1', b'"cli:x'),
    "a role": lambda path: edit_in_place(path, b'"role":"assistant"', b'"role":   "system"'),
    "a newline more": lambda path: edit_in_place(path, b'{"role":"user"', b'\n{"role":"user"'),
    "a line less": lambda path: edit_in_place(path, b"\n", b" "),
    "a longer text": lambda path: edit_in_place(path, b'"content":"', b'"content":"and more, '),
}


@guarantee("storage", "The index of a big transcript is used only if it matches the file.")
@pytest.mark.parametrize("change", STALE)
def test_an_index_of_what_is_no_longer_there_is_not_believed(tmp_path: Path, change: str) -> None:
    """However the file was changed; only lines that came behind leave it true."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    save(path, index)

    STALE[change](path)

    transcript = loaded(path, index)
    assert not is_used(transcript)
    assert told(transcript) == told(parse(path.read_bytes(), stem=STEM))


def test_another_line_1_leaves_the_index_true(tmp_path: Path) -> None:
    """Consolidation renews line 1 again and again, and nothing else."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    save(path, index)
    temp = path.with_suffix(".new")
    temp.write_bytes(whole(BODY, last_consolidated=200, more="x" * 1000))
    temp.rename(path)

    transcript = loaded(path, index)

    assert is_used(transcript)
    assert told(transcript) == told(parse(path.read_bytes(), stem=STEM))
