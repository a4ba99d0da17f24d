"""Lines that were committed stand in their file, each once and in order, whatever killed or rewrote it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from durable import Unflushed
from session.store.state import replay
from session.store.store import Store
from session.transcript.line import make_line
from tests.session.commit_victim import HEAD, NEW
from tests.session.dying import victims
from tests.session.store_place import reopen, turn
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


# -- a kill at any instant -----------------------------------------------------------------------------------


def rows_in(workspace: Path, scratch: Path) -> list[Unflushed]:
    """Read what a killed process left in ``file_ops``, from a copy."""
    if not (workspace / "state/gateway.db").exists():
        return []
    shutil.copytree(workspace / "state", scratch)
    with contextlib.closing(sqlite3.connect(scratch / "gateway.db")) as file:
        if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'file_ops'").fetchall():
            return []
        found = file.execute("SELECT path, at, session, data FROM file_ops ORDER BY seq").fetchall()
    return [Unflushed(f"{workspace}/{path.decode()}", at, session, data) for path, at, session, data in found]


def said(data: bytes) -> list[str]:
    return [line["content"] for raw in data.split(b"\n") if raw and "role" in (line := json.loads(raw))]


def told(workspace: Path, key: str) -> list[str]:
    """Read what the files of a chat hold, but for the copy of its session that an ending left by half."""
    stem = key.replace(":", "_")
    active = workspace / f"sessions/{stem}.jsonl"
    data = active.read_bytes() if active.exists() else b""
    archives = sorted((workspace / "sessions/archive" / stem).glob("*.jsonl"))
    own = json.loads(data.split(b"\n")[0])["metadata"]["session_id"] if data else ""
    ended = b"".join(each.read_bytes() for each in archives if own not in each.name)
    return said(ended + data)


@guarantee("loss", "What a commit reported survives a kill at any instant, in its file, once and in order.")
async def test_a_kill_at_any_instant_of_a_commit_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Also where /new or a new header comes between the commit and the flush."""
    count = await asyncio.to_thread(victims, "commit_victim", tmp_path / "w")
    assert count > 50

    for number in range(1, count + 1):
        workspace = tmp_path / f"w-{number}"
        done = (workspace / "done").read_text().split("\n")
        rows = rows_in(workspace, tmp_path / f"state-{number}")
        before = {key: told(workspace, key) for key in (HEAD, NEW)}

        store = Store(workspace, zone=UTC)
        for key in (HEAD, NEW):
            view = await store.look(key)
            path = workspace / f"sessions/{key.replace(':', '_')}.jsonl"
            committed = [text for row in rows if row.path == str(path) for text in said(row.data)]
            after = told(workspace, key)
            assert after == [str(each) for each in range(len(after))], (number, key)
            assert set(after) == {*before[key], *committed}, (number, key)
            assert len(after) >= sum(each.startswith(f"{key} ") and each[-1].isdigit() for each in done)
            if f"{key} known" in done:
                assert view.journal.known("command") is not None
        files = {path: path.read_bytes() for path in workspace.glob("sessions/*.jsonl")}
        await store.aclose()
        replay(rows)
        assert {path: path.read_bytes() for path in files} == files


async def crash(store: Store, folder: Path) -> Store:
    """Open what a crash at this moment would leave of a workspace."""
    shutil.copytree(store.layout.workspace, folder)
    return Store(folder, zone=UTC)


async def test_lines_that_moved_on_into_the_next_session_do_not_come_back(
    store: Store, tmp_path: Path
) -> None:
    """The turn that ran during /new ended in the next session; then the old one was opened again."""
    async with store.open(HEAD) as session:
        await session.append([*turn("a"), turn("b")[0]])
        old = session.session_id
        await session.end()
        await session.append(turn("b")[1:])
    await reopen(store, old, HEAD)
    before = {path.name: path.read_bytes() for path in store.layout.sessions.rglob("*.jsonl")}

    left = await crash(store, tmp_path / "left")
    await left.look(HEAD)

    assert {path.name: path.read_bytes() for path in left.layout.sessions.rglob("*.jsonl")} == before
    await left.aclose()


async def test_of_two_files_of_one_name_the_rows_of_the_second_count(store: Store, tmp_path: Path) -> None:
    """A person deleted the first; a power cut took the second before its name was on disk."""
    for id_ in "ab":
        async with store.open(HEAD) as session:
            await session.append(turn(id_))
            path = session.path
        before = path.read_bytes()
        path.unlink()

    left = await crash(store, tmp_path / "left")
    await left.look(HEAD)

    assert left.layout.transcript(path.stem).read_bytes() == before
    await left.aclose()


# -- files that others wrote, or a power cut damaged ---------------------------------------------------------


def header(session: str = ULID, **metadata: object) -> bytes:
    head = {
        "_type": "metadata",
        "key": "web:1",
        "created_at": "2026-01-01T00:00:00.000000",
        "updated_at": "2026-01-01T00:00:00.000000",
        "metadata": {"session_id": session, **metadata},
        "last_consolidated": 0,
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n"


def line(number: int, who: str = "ours") -> bytes:
    """One line; of two that a turn stores at once only the role differs."""
    at = f"2026-01-01T00:00:{number // 2:02}.000001+00:00"
    role = "assistant" if number % 2 else "user"
    made = make_line(role, f"{who} é {number}", at, message_id=f"{who}{number // 2}")
    return json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


@dataclass
class Crashed:
    """A transcript with ``flushed`` of its lines on disk, and rows for the others."""

    flushed: int
    rows: list[Unflushed]
    data: bytes

    @property
    def synced(self) -> int:
        return self.rows[0].offset


@st.composite
def crashed(draw: st.DrawFn) -> Crashed:
    flushed = draw(st.integers(0, 4))
    is_new = flushed == 0
    data = b"" if is_new else header() + b"".join(line(number) for number in range(flushed))
    rows: list[Unflushed] = []
    number = flushed
    for size in draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)):
        lines = b"".join(line(number + each) for each in range(size))
        if draw(st.booleans()):
            # Of two equal ones none stands for both.
            lines += line(number + size - 1)
        head = header() if is_new and not rows else b""
        rows.append(Unflushed("", len(data), ULID, head + lines))
        data += head + lines
        number += size
    return Crashed(flushed, rows, data)


def rewritten(data: bytes, metadata: str, keep: Sequence[bool], *, ascii_only: bool) -> bytes:
    """Write a file as another program does, with its own header and the lines that it is to ``keep``."""
    head, *lines = data.decode().splitlines()
    first = json.loads(head)
    first["metadata"]["their"] = metadata
    kept = [first, *(json.loads(each) for each, stays in zip(lines, keep, strict=True) if stays)]
    return b"".join(json.dumps(each, ensure_ascii=ascii_only).encode() + b"\n" for each in kept)


def put_back(folder: Path, made: Crashed, data: bytes | None) -> tuple[Path, bytes | None]:
    """Replay the rows into a file that holds ``data``, twice; return what it holds then."""
    path = folder / "sessions/web_1.jsonl"
    path.parent.mkdir()
    if data is not None:
        path.write_bytes(data)
    rows = [Unflushed(str(path), row.offset, row.session, row.data) for row in made.rows]
    replay(rows)
    once = path.read_bytes() if path.exists() else None
    replay(rows)
    assert (path.read_bytes() if path.exists() else None) == once
    return path, once


def whole(data: bytes) -> list[dict[str, object]]:
    found = []
    for raw in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            found.append(json.loads(raw.strip(b"\0")))
    return found


def ours(data: bytes) -> list[str]:
    return [str(each["message_id"]) + str(each["role"]) for each in whole(data) if "message_id" in each]


def all_of(made: Crashed) -> list[str]:
    return ours(made.data)


@given(data=st.data(), made=crashed())
@drawn(200)
def test_a_power_cut_may_take_any_part_that_no_sync_covered(data: st.DataObject, made: Crashed) -> None:
    """Cut off, or as bytes that are zero, at the end or in the middle: the file ends as it was."""
    at = data.draw(st.integers(made.synced, len(made.data)))
    stop = data.draw(st.integers(at, len(made.data)))
    end = data.draw(st.sampled_from([len(made.data), stop]))
    left = (made.data[:at] + bytes(stop - at) + made.data[stop:])[:end]

    with tempfile.TemporaryDirectory() as folder:
        assert put_back(Path(folder), made, left)[1] == made.data


@given(data=st.data(), made=crashed())
@drawn(200)
def test_lines_of_other_programs_stay_and_ours_come_back(data: st.DataObject, made: Crashed) -> None:
    """They rewrote the file, from what they had read some time ago, and wrote behind it; a crash cut that."""
    found, unsynced = made.data, len(all_of(made)) - made.flushed
    keep = [True] * made.flushed + data.draw(st.lists(st.booleans(), min_size=unsynced, max_size=unsynced))
    if data.draw(st.booleans()):
        found = rewritten(
            found, data.draw(st.text("xy", max_size=400)), keep, ascii_only=data.draw(st.booleans())
        )
    foreign = b"".join(line(number, "their") for number in range(data.draw(st.integers(0, 3))))
    if data.draw(st.booleans()):
        foreign += line(9, "their")[: data.draw(st.integers(1, 60))]
    if data.draw(st.booleans()):
        foreign = foreign.removesuffix(b"\n")
    found += foreign + bytes(data.draw(st.integers(0, 9)))

    with tempfile.TemporaryDirectory() as folder:
        _, after = put_back(Path(folder), made, found)

    assert after is not None
    assert [each for each in ours(after) if each.startswith("ours")] == all_of(made)
    # In their order, whole, and nothing of them twice.
    theirs = [each for each in whole(found) if str(each.get("message_id")).startswith("their")]
    assert [each for each in whole(after) if str(each.get("message_id")).startswith("their")] == theirs
    assert whole(after)[0] == whole(found)[0]
    # A file that nothing was missing in was not touched.
    assert b"\0" not in after or after == found


@given(data=st.data(), made=crashed())
@drawn(100)
def test_half_a_line_of_ours_behind_a_new_header_is_cut(data: st.DataObject, made: Crashed) -> None:
    """It stands where no row had it."""
    head, body = header(their="x" * 9), made.data.removeprefix(header())
    moved = head + body
    at = data.draw(st.integers(len(moved) - len(made.data) + max(made.synced, len(header())), len(moved)))

    with tempfile.TemporaryDirectory() as folder:
        assert put_back(Path(folder), made, moved[:at])[1] == moved


@given(made=crashed(), at=st.integers(0, 10))
@drawn(50)
def test_a_line_that_a_person_edited_stays_as_it_is(made: Crashed, at: int) -> None:
    number = at % len(all_of(made))
    edited = made.data.replace(f'ours é {number}"'.encode(), b'edited"')

    with tempfile.TemporaryDirectory() as folder:
        assert put_back(Path(folder), made, edited)[1] == edited


@given(made=crashed(), lines=st.integers(0, 3))
@drawn(50)
def test_the_lines_of_a_session_that_was_replaced_are_not_brought_back(made: Crashed, lines: int) -> None:
    other = header("01BX5ZZKBKACTAV9WEVGEMMVRZ") + b"".join(line(each, "their") for each in range(lines))

    with tempfile.TemporaryDirectory() as folder:
        assert put_back(Path(folder), made, other)[1] == other


@given(made=crashed())
@drawn(50)
def test_a_file_that_is_gone_is_remade_only_by_rows_that_hold_its_header(made: Crashed) -> None:
    """A power cut takes the name of a new file; of an older one only a person does."""
    with tempfile.TemporaryDirectory() as folder:
        assert put_back(Path(folder), made, None)[1] == (None if made.flushed else made.data)
