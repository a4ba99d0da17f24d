"""Sessions that had ended elsewhere come in as ended when they did, not as ended today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from session.disk.layout import Layout
from session.transcript.archive import Archived, of_stem
from tests.gateway.cli_place import Ran, import_into, listed, session_file, shown

FIRST, SECOND = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A", "01KN2Q3Q3BZ63Q2JQ3VM15EA2B"
KEY = "web:old"
ENDED = datetime(2026, 2, 19, 18, 30, tzinfo=UTC)


def session(id_: str, began: str, **fields: str) -> dict[str, Any]:
    return {"id": id_, "status": "active", "started_at": began, "updated_at": began, **fields}


def row(id_: str, number: int, role: str, content: str, **fields: str) -> dict[str, Any]:
    return {"session_id": id_, "sequence_number": number, "role": role, "content": content, **fields}


def document(path: Path, *sessions: Mapping[str, Any]) -> Path:
    rows = [
        found
        for one in sessions
        for found in (row(one["id"], 1, "user", f"q {one['id']}"), row(one["id"], 2, "assistant", "a"))
    ]
    path.write_text(json.dumps({"chat_sessions": sessions, "session_messages": rows}))
    return path


OLD = session(
    FIRST,
    "2026-02-18T09:00:00Z",
    status="archived",
    ended_at="2026-02-19T18:30:00Z",
    summary="They planned a trip.",
)
NEW = session(SECOND, "2026-03-01T09:00:00Z")


def taken(workspace: Path, *paths: Path) -> Ran:
    for path in paths:
        done = import_into(workspace, path, "--key", KEY, name="rows")
        assert done.code == 0, done.err
    return done


def ended(workspace: Path, stem: str = "web_old") -> list[Archived]:
    return of_stem(Layout(workspace), stem)


def head(found: Archived) -> dict[str, Any]:
    inner: dict[str, Any] = json.loads(found.path.read_bytes().split(b"\n")[0])["metadata"]
    return inner


@pytest.mark.parametrize(
    "documents",
    [[[OLD, NEW]], [[session(SECOND, "2026-01-01T09:00:00Z"), OLD]], [[OLD], [NEW]]],
    ids=["began first", "was opened again", "came by an earlier import"],
)
def test_it_keeps_the_end_that_the_source_names(tmp_path: Path, documents: list[list[Any]]) -> None:
    """Of several the one that had not ended stays active, also where it began first."""
    paths = [document(tmp_path / f"{at}.json", *each) for at, each in enumerate(documents)]
    done = taken(tmp_path / "w", *paths)

    (found,) = ended(tmp_path / "w")
    assert (found.session_id, found.ended_at) == (FIRST, ENDED)
    assert head(found)["summary"] == "They planned a trip."
    assert datetime.fromisoformat(head(found)["ended_at"]) == ENDED
    assert {one["id"]: one["active"] for one in listed(tmp_path / "w")} == {FIRST: False, SECOND: True}
    assert "goes on here" not in done.err


def test_without_a_named_end_the_last_line_says_when(tmp_path: Path) -> None:
    first, second = dict(OLD), session(SECOND, "2026-03-01T09:00:00Z")
    del first["ended_at"]
    path = document(tmp_path / "a.json", first, second)
    content = json.loads(path.read_text())
    content["session_messages"][1]["created_at"] = "2026-02-18T21:00:00Z"
    path.write_text(json.dumps(content))

    taken(tmp_path / "w", path)

    assert [found.ended_at for found in ended(tmp_path / "w")] == [datetime(2026, 2, 18, 21, tzinfo=UTC)]


def test_the_last_of_several_that_had_ended_goes_on_and_is_named(tmp_path: Path) -> None:
    later = {**NEW, "status": "archived", "ended_at": "2026-03-02T09:00:00Z"}

    done = taken(tmp_path / "w", document(tmp_path / "a.json", OLD, later))

    assert [found.session_id for found in ended(tmp_path / "w")] == [FIRST]
    assert done.err.count("was closed at its source") == 1
    assert f"{KEY}: {SECOND} was closed at its source, and is open here" in done.err


SPOKEN = ("chat", "-m", "and now?", "--key", KEY)
STEPS: dict[str, list[Any]] = {
    "somebody spoke since": [[OLD], SPOKEN, [NEW]],
    "it is one of ours": [SPOKEN, [NEW]],
    "a person set a boundary later": [[OLD], ("sessions", "new", KEY)],
    "nobody names its end": [[{"id": FIRST, "status": "active"}], [NEW]],
    "its end is yet to come": [[{**OLD, "ended_at": "2999-01-01T00:00:00Z"}, NEW]],
}


@pytest.mark.parametrize("why", STEPS)
def test_it_ended_now(tmp_path: Path, why: str) -> None:
    """So that ``/resume`` finds what was left."""
    begun = datetime.now(UTC) - timedelta(seconds=2)
    for number, step in enumerate(STEPS[why]):
        if isinstance(step, tuple):
            assert Ran(tmp_path / "w", *step).code == 0
        else:
            taken(tmp_path / "w", document(tmp_path / f"{number}.json", *step))

    assert [begun < found.ended_at <= datetime.now(UTC) for found in ended(tmp_path / "w")] == [True]


def test_the_older_file_of_a_workspace_ended_with_its_last_line(tmp_path: Path) -> None:
    root = tmp_path / "nanobot"
    session_file(root / "sessions" / "telegram_1.jsonl", "telegram:1", "old")
    path = session_file(root / "workspace" / "sessions" / "telegram_1.jsonl", "telegram:1", "new")
    path.write_text(path.read_text().replace("2026-02-01", "2026-03-01"))

    import_into(tmp_path / "w", root)

    (found,) = ended(tmp_path / "w", "telegram_1")
    assert found.ended_at == datetime.fromisoformat("2026-02-01T09:00:00").astimezone()
    assert [line["content"] for line in shown(tmp_path / "w", "telegram:1")] == ["new"]


def test_what_says_so_is_no_loss_of_an_export(tmp_path: Path) -> None:
    taken(tmp_path / "w", document(tmp_path / "a.json", OLD))

    out = Ran(tmp_path / "w", "sessions", "export", "--to", "nanobot", KEY)

    assert json.loads(out.bytes.split(b"\n")[0])["metadata"].keys() & {"imported"} == set()
    assert "imported" not in Ran(tmp_path / "w", "sessions", "export", "--to", "rows", KEY).err
    assert Ran(tmp_path / "w", "sessions", "new", KEY).code == 0
    active = json.loads((tmp_path / "w" / "sessions" / "web_old.jsonl").read_bytes().split(b"\n")[0])
    assert "imported" not in active["metadata"]
