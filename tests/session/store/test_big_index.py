"""Big transcripts read in parts: with an index that is never believed without a look at the file."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from session.transcript.index_file import (
    VERSION,
    pack,
    read_index,
    unpack,
)
from session.transcript.lines import Lines
from session.transcript.transcript import parse
from tests.session.big_place import (
    HEAD,
    STEM,
    body,
    exchange,
    index_of,
    is_used,
    loaded,
    path_of,
    save,
    told,
    whole,
)
from tests.support.guarantee import guarantee

pytestmark = pytest.mark.slow

BODY = body()


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


def damaged(name: str) -> bytes:
    middle = len(BODY) // 2
    lines = list(BODY)
    lines[middle] = {
        "torn in the middle": lines[middle][:100],
        "blank": b"",
        "carriage return": lines[middle] + b"\r",
        "stray": b'{"hello": 1}',
        "no object": b"[1]",
        "too deep": b'{"role":"user","content":' + b"[" * 600 + b"]" * 600 + b"}",
        "two on one line": lines[middle] + lines[middle + 1],
        "another line 1": json.dumps(HEAD).encode(),
        "state of a provider": b'{"_type": "provider_state"}',
    }.get(name, lines[middle])
    data = whole(lines)
    if name == "no line 1":
        return data.partition(b"\n")[2]
    if name == "byte order mark":
        return b"\xef\xbb\xbf" + data
    if name == "UTF-16":
        return data.decode().encode("utf-16")
    return data


@pytest.mark.parametrize(
    "name",
    [
        "torn in the middle",
        "blank",
        "carriage return",
        "stray",
        "no object",
        "too deep",
        "two on one line",
        "another line 1",
        "state of a provider",
        "no line 1",
        "byte order mark",
        "UTF-16",
    ],
)
def test_a_damaged_file_is_read_as_a_whole(tmp_path: Path, name: str) -> None:
    """Whatever is wrong with it, it is said and repaired as of a small one."""
    path = path_of(tmp_path)
    path.write_bytes(damaged(name))

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

    for at in [
        0,
        1,
        8,
        11,
        12,
        20,
        150,
        167,
        len(data) - 17,
        len(data) - 1,
        *random.sample(range(len(data)), 40),
    ]:
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


def test_an_index_that_is_no_file_is_not_believed(tmp_path: Path) -> None:
    """Whatever stands in its place."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    index.mkdir(parents=True)

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


async def test_two_ids_of_one_checksum_are_told_apart(tmp_path: Path) -> None:
    """CRC-32 is no secret, so that anyone may make two of them."""
    path = path_of(tmp_path)
    # The well-known pair of words with one CRC-32.
    pair = ["plumless", "buckeroo"]
    lines = [orjson.dumps({"role": "user", "content": id_, "message_id": id_}) for id_ in [*pair, pair[0]]]
    path.write_bytes(whole([*lines, *BODY]))

    transcript = loaded(path)

    found = [transcript.index.find(id_) for id_ in [*pair, "nobody"]]
    assert [one and one.start for one in found] == [2, 1, None]


def test_a_writer_that_is_killed_leaves_an_index_that_is_whole_or_not_believed(tmp_path: Path) -> None:
    """SIGKILL at any moment: the file is read right, and the next writer puts its index there."""
    path, index = path_of(tmp_path), index_of(tmp_path)
    path.write_bytes(whole(BODY))
    expected = told(loaded(path))
    draw = random.Random(7)

    for _ in range(6):
        victim = subprocess.Popen(
            [sys.executable, "-m", "tests.session.index_victim", str(path), str(index)],
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None
        for _ in range(draw.randint(1, 30)):
            victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        victim.stdout.close()
        assert told(loaded(path, index)) == expected

    save(path, index)
    assert is_used(loaded(path, index))
