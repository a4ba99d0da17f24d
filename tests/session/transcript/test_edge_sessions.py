"""Files that other programs, crashes and hands left: read as far as possible, legal once written."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from session.errors import StoreError
from session.transcript.key import SessionKey, marked_stem
from session.transcript.transcript import ROLES, Transcript, make_line, parse
from tests.session.store_place import Make
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "storage", "A damaged transcript is read as far as possible, and the original is kept."
)

DATA = Path(__file__).parent.parent.parent / "data"
EDGE = DATA / "edge-sessions"
AT = "2026-03-01T10:00:00.000001+00:00"


class Edge(NamedTuple):
    messages: int
    offset: int = 0
    # None if either will do.
    damaged: bool | None = False
    copied: bool = False


EDGES = {
    "cli_e01-nokey": Edge(4),
    "cli_e03-nometa": Edge(4),
    "cli_d11-meta-twice": Edge(4, 2, copied=True),
    "cli_d13-torn-first": Edge(4, damaged=True, copied=True),
    "cli_e43-metadata-null": Edge(4),
    "cli_e33-unknown-type": Edge(4, copied=True),
    "cli_e04-langobot": Edge(0, damaged=None, copied=True),
    "cli_d01-two-on-a-line": Edge(3, damaged=True, copied=True),
    "cli_d02-torn-last": Edge(4, damaged=None),
    "cli_d03-no-final-newline": Edge(4),
    "cli_d05-bom": Edge(4),
    "cli_d07-nul-tail": Edge(4, damaged=None),
    "cli_d08-bad-utf8": Edge(2, damaged=True, copied=True),
    "cli_e29-u2028": Edge(2),
    "cli_e05-epoch-nul": Edge(2),
    "cli_d09-nondict": Edge(4, damaged=True, copied=True),
    "cli_d18-deep": Edge(1, damaged=None, copied=True),
    "cli_e23-content-null": Edge(5),
    "cli_e24-content-blocks": Edge(2),
    "cli_d15-bad-role": Edge(2, damaged=None, copied=True),
    "cli_e27-args-dict": Edge(4),
    "cli_e06-goport": Edge(4),
    "cli_e16-lc-mid-turn": Edge(6, 2),
    "cli_e18-lc-too-big": Edge(4, damaged=None),
    "cli_e20-lc-string": Edge(4, damaged=None),
    "cli_e10-dangling": Edge(5),
    "cli_e11-orphan-lead": Edge(4),
    "cli_e14-dup-result": Edge(5),
    "cli_e08-users-only": Edge(8),
    "telegram_-100123_topic_5": Edge(4),
    "heartbeat": Edge(4),
}
KEYS = {"telegram_-100123_topic_5": "telegram:-100123:topic:5", "heartbeat": "heartbeat"}
FOREIGN = "cli_e40-key-mismatch"


def key_of(stem: str) -> SessionKey:
    return SessionKey(KEYS.get(stem, stem.replace("_", ":", 1)))


def workspace_with(tmp_path: Path, *stems: str) -> Path:
    folder = tmp_path / "sessions"
    folder.mkdir(parents=True)
    for stem in stems:
        shutil.copyfile(EDGE / f"{stem}.jsonl", folder / f"{stem}.jsonl")
    return tmp_path


def assert_legal(path: Path, key: str) -> tuple[dict[str, Any], list[bytes]]:
    """Check what every nanobot asks of a file; return line 1 and the message lines."""
    data = path.read_bytes()
    data.decode()
    assert data.endswith(b"\n")
    raw_head, *messages = data[:-1].split(b"\n")
    head = json.loads(raw_head)
    assert list(head)[:6] == ["_type", "key", "created_at", "updated_at", "metadata", "last_consolidated"]
    assert head["key"] == key
    assert isinstance(head["metadata"], dict)
    assert type(head["last_consolidated"]) is int
    assert datetime.fromisoformat(head["created_at"]).tzinfo is None
    assert datetime.fromisoformat(head["updated_at"]).tzinfo is None
    for raw in messages:
        line = json.loads(raw)
        assert line["role"] in ROLES
        assert "_type" not in line
    return head, messages


def test_every_file_has_its_row() -> None:
    """No sample is left untested."""
    assert {path.stem for path in EDGE.glob("*.jsonl")} == {*EDGES, FOREIGN}


@pytest.mark.parametrize("stem", EDGES)
def test_reads(stem: str) -> None:
    """Messages, offset, key and damage are what the peculiarity leaves."""
    edge = EDGES[stem]

    transcript = parse((EDGE / f"{stem}.jsonl").read_bytes(), stem=stem)

    assert len(transcript.messages) == edge.messages
    assert transcript.last_consolidated == edge.offset
    assert transcript.key == key_of(stem)
    if edge.damaged is not None:
        assert transcript.damaged is edge.damaged
    assert transcript.needs_copy is edge.copied


def read_edge(stem: str) -> tuple[bytes, Transcript]:
    """Return the bytes of a damaged file, and what is read of it."""
    original = (EDGE / f"{stem}.jsonl").read_bytes()
    return original, parse(original, stem=stem)


@pytest.mark.parametrize("stem", EDGES)
async def test_first_write_makes_it_legal(stem: str, tmp_path: Path, make: Make) -> None:
    """The first append leaves line 1 and message lines, sound ones with their bytes; nothing is lost."""
    edge, workspace = EDGES[stem], workspace_with(tmp_path, stem)
    original, read = read_edge(stem)

    async with make().open(key_of(stem)) as session:
        assert session.stem == stem
        session_id = session.session_id
        assert await session.append([make_line("user", "next", AT, message_id="m")]) == edge.messages
        assert session.session_id == session_id

    path = workspace / "sessions" / f"{stem}.jsonl"
    head, messages = assert_legal(path, key_of(stem))
    assert messages[:-1] == read.messages
    assert json.loads(messages[-1])["content"] == "next"
    assert head["last_consolidated"] == edge.offset
    for raw in original.split(b"\n"):
        if raw in messages and b"\xff" not in raw:
            continue
        if (
            b'"metadata"' in raw
            or not raw.strip(b"\0")
            or edge.copied
            or stem in (FOREIGN, "cli_d02-torn-last")
        ):
            continue
        pytest.fail(f"lost: {raw[:80]!r}")
    copies = list(path.parent.glob("*.corrupt-*"))
    assert [copy.read_bytes() for copy in copies] == ([original] if edge.copied else [])
    assert (path.stat().st_mode & 0o777) == 0o600 or not read.needs_checkpoint
    async with make().open(key_of(stem)) as session:
        assert len(session) == edge.messages + 1
        assert session.session_id == session_id
        assert not session.transcript.needs_checkpoint


@pytest.mark.parametrize("stem", EDGES)
async def test_new_archives_it_legal(stem: str, tmp_path: Path, make: Make) -> None:
    """Ending a damaged session archives every message, and the original of what was damaged stays."""
    edge, workspace = EDGES[stem], workspace_with(tmp_path, stem)
    original, read = read_edge(stem)

    async with make().open(key_of(stem)) as session:
        archived = await session.end()

    if not edge.messages:
        assert archived is None
        return
    assert archived is not None
    head, messages = assert_legal(archived, key_of(stem))
    assert messages == read.messages
    assert head["metadata"]["session_id"] == read.session_id
    assert_legal(workspace / "sessions" / f"{stem}.jsonl", key_of(stem))
    copies = list((workspace / "sessions").glob("*.corrupt-*"))
    assert [copy.read_bytes() for copy in copies] == ([original] if edge.copied else [])


async def test_foreign_file_is_never_touched(tmp_path: Path, make: Make) -> None:
    """A file that names another key stays as it is; the conversation takes the marked name beside it."""
    workspace = workspace_with(tmp_path, FOREIGN)
    key = key_of(FOREIGN)

    async with make().open(key) as session:
        assert len(session) == 0
        assert session.stem == marked_stem(key)
        await session.append([make_line("user", "mine", AT)])

    assert (workspace / "sessions" / f"{FOREIGN}.jsonl").read_bytes() == (
        EDGE / f"{FOREIGN}.jsonl"
    ).read_bytes()
    assert_legal(workspace / "sessions" / f"{marked_stem(key)}.jsonl", key)


async def test_listing_shows_every_file(tmp_path: Path, make: Make) -> None:
    """One row a file, with true counts; unreadable neighbours hide nothing."""
    workspace = workspace_with(tmp_path, *EDGES, FOREIGN)
    (workspace / "sessions" / "a_folder.jsonl").mkdir()
    (workspace / "sessions" / "a_link.jsonl").symlink_to("nowhere")
    (workspace / "sessions" / "empty.jsonl").touch()
    (workspace / "sessions" / "binary.jsonl").write_bytes(bytes(range(256)) * 9)

    rows = {row.stem: row for row in await make().rows()}

    assert set(rows) == {*EDGES, FOREIGN, "empty", "binary"}
    for stem, edge in EDGES.items():
        assert rows[stem].message_count == edge.messages
        assert rows[stem].key == key_of(stem)
        assert rows[stem].active
    assert rows[FOREIGN].key == "telegram:42"


async def test_verify_names_and_repairs_the_damaged(tmp_path: Path, make: Make) -> None:
    """Damaged files are reported, sound ones not; after a repair nothing is left to report."""
    workspace = workspace_with(tmp_path, *EDGES, FOREIGN)
    store = make()

    found = {Path(row["file"]).stem for row in await store.verify()}

    assert found >= {stem for stem, edge in EDGES.items() if edge.damaged is True}
    assert (
        not found & {stem for stem, edge in EDGES.items() if edge.damaged is False} and FOREIGN not in found
    )
    repaired = await store.verify(repair=True)
    assert {Path(row["file"]).stem for row in repaired} == found
    assert all(row["repaired"] for row in repaired)
    assert await store.verify() == []
    for stem in found:
        assert_legal(workspace / "sessions" / f"{stem}.jsonl", key_of(stem))


async def test_unreadable_file_is_not_overwritten(tmp_path: Path, make: Make) -> None:
    """What cannot be read is never written over."""
    folder = tmp_path / "sessions"
    (folder / "cli_x.jsonl").mkdir(parents=True)

    with pytest.raises(StoreError):
        async with make().open(SessionKey("cli:x")):
            pass

    assert (folder / "cli_x.jsonl").is_dir()


def history(transcript: Transcript, limit: int) -> list[dict[str, Any]]:
    """Apply nanobot 0.1.4's own rule to what we read."""
    lines = [json.loads(raw) for raw in transcript.messages][transcript.last_consolidated :][-limit:]
    for at, line in enumerate(lines):
        if line["role"] == "user":
            lines = lines[at:]
            break
    named = ("tool_calls", "tool_call_id", "name")
    return [
        {"role": line["role"], "content": line.get("content", ""), **{n: line[n] for n in named if n in line}}
        for line in lines
    ]


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("nanobot-samples/v014/sessions/*.jsonl")), ids=lambda path: path.stem
)
def test_history_is_what_nanobot_makes_of_it(path: Path) -> None:
    """Read by us and cut by nanobot's rule, a session is what the real nanobot sends."""
    golden = json.loads((path.parent.parent / "expected" / f"{path.stem}.get_history.json").read_text())

    transcript = parse(path.read_bytes(), stem=path.stem)

    assert transcript.key == golden["key"]
    assert len(transcript.messages) == golden["n_messages"]
    assert transcript.last_consolidated == golden["last_consolidated"]
    assert not transcript.needs_checkpoint
    assert history(transcript, 500) == golden["get_history_default"]
    for limit in (3, 5, 100):
        assert history(transcript, limit) == golden[f"get_history_{limit}"]


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("nanobot-samples/*/sessions/*.jsonl")), ids=lambda path: path.stem
)
def test_reads_every_line_of_a_nanobot(path: Path) -> None:
    """Files of both generations are sound, and every line but line 1 is a message with its bytes."""
    transcript = parse(path.read_bytes(), stem=path.stem)

    assert transcript.messages == path.read_bytes().split(b"\n")[1:-1]
    assert not transcript.needs_copy
