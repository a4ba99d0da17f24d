"""The table of places: each path is of one kind, and of the right key and scope alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.store import places
from session.store.derived import index_path
from session.store.places import kind_of
from session.transcript.key import mark_of
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.support.place import write

pytestmark = guarantee("privacy", "Export and erasure cover every kind of file in a workspace.")

KEY, STEM = "telegram:1", "telegram_1"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("sessions/telegram_1.jsonl", "transcript"),
        (f"sessions/telegram_1.jsonl.corrupt-{ULID}", "original"),
        (f"sessions/archive/telegram_1/20260101T000000Z-{ULID}.jsonl.corrupt-{ULID}", "archive"),
        ("sessions/.01234567.0.tmp", "left by half"),
        ("memory/people/ada/versions/MEMORY.md/3", "memory"),
        ("memory/people/ada/.MEMORY.md.0.tmp", "memory"),
        ("state/memory/chats/.telegram_1.json.0.tmp", "memory state"),
        ("state/gateway.db-wal", "letter"),
        ("media/ab/abc.jpg", "media"),
        ("memory/MEMORY.md", ""),
        ("state/daemon.json", ""),
        ("state/notes.json", None),
        ("state/new/telegram_1.json", None),
        ("memory/groups/x/MEMORY.md", None),
        ("sessions/telegram_1.txt", None),
        ("secrets.txt", None),
    ],
)
def test_a_path_is_of_one_kind_or_of_none(path: str, kind: str | None) -> None:
    assert kind_of(path) == kind


def test_every_file_of_an_old_workspace_is_of_a_known_kind() -> None:
    old = ROOT / "tests" / "data" / "old-workspace"

    names = [path.relative_to(old).as_posix() for path in old.rglob("*") if path.is_file()]

    # What an earlier version had in ``state/`` is moved aside before this one starts.
    assert [name for name in names if kind_of(name) is None and not name.startswith("state/")] == []


def test_the_files_of_a_key_are_its_own_alone(tmp_path: Path) -> None:
    """Another key may have a name that begins alike, or one that a pattern would match."""
    layout = Layout(tmp_path)
    mark = mark_of(KEY)
    ours = [
        "sessions/telegram_1.jsonl",
        f"sessions/telegram_1.jsonl.corrupt-{ULID}",
        f"sessions/archive/telegram_1/20260101T000000Z-{ULID}.jsonl",
        f"sessions/.{mark}.0.tmp",
        "state/index/telegram_1.idx",
        "state/facts/telegram_1.json",
        f"state/jobs/{ULID}-{mark}.json",
        f"state/jobs/{ULID}-{mark}.facts.json",
        "state/approvals/a/b.json",
    ]
    others = [
        "sessions/telegram_10.jsonl",
        "sessions/telegram_1.x.jsonl",
        "sessions/telegram_1.jsonl.corrupt-x.jsonl",
        "sessions/archive/telegram_1.x/a.jsonl",
        "state/index/telegram_1.x.idx",
        "state/facts/telegram_1.x.json",
        f"state/jobs/{ULID}-00000000.json",
    ]
    for name in ours:
        write(tmp_path / name, f'{{"key": "{KEY}", "call": {{"key": "{KEY}"}}}}')
    for name in others:
        write(tmp_path / name, "{}")
    # Two keys may share the eight digits: the file says whose it is.
    write(tmp_path / f"state/jobs/{ULID}-{mark}.name.json", '{"key": "telegram:2"}')
    write(tmp_path / "state/approvals/c.json", '{"call": {"key": "telegram:2"}}')

    found = [each.path.relative_to(tmp_path).as_posix() for each in places.of_key(layout, KEY, STEM)]

    assert sorted(found) == sorted(ours)


@pytest.mark.parametrize("own", ["telegram_1", "a[b]*c", "x~0123abcd", "Ada (old)"])
def test_the_files_of_a_scope_are_its_own_alone(tmp_path: Path, own: str) -> None:
    """Whatever is in its name; the folders of tools and their depths are its, too."""
    layout, scope = Layout(tmp_path), f"chats/{own}"
    index = index_path(tmp_path, scope).relative_to(tmp_path).as_posix()
    ours = [f"memory/{scope}/MEMORY.md", f"files/{scope}/a/b/c.txt", f"state/memory/{scope}.json", index]
    for name in [*ours, f"memory/{scope}x/MEMORY.md", "memory/people/ada/MEMORY.md"]:
        write(tmp_path / name, "x")

    found = [each.path.relative_to(tmp_path).as_posix() for each in places.of_scope(layout, scope)]

    assert sorted(found) == sorted(ours)
