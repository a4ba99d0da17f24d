"""What can be damaged in a workspace is found, mended where it can be, and the original kept beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ulid import ULID

from session.background.job_files import BackgroundJob, JobFiles
from session.transcript.loading import read_beginning
from tests.support.kept import KEY, talked, verified


def notes(workspace: Path) -> Path:
    path = workspace / "memory" / "chats" / "web_a" / "MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"likes \xff tea\0\n")
    return path


def facts(workspace: Path) -> Path:
    path = workspace / "memory" / "people" / "ada" / "facts.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"id": "1", "mine": true}\nnot json\n{"id": "2"')
    return path


def agents_facts(workspace: Path) -> Path:
    path = workspace / "agents" / "clerk" / "memory" / "facts.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"id": "1", "mine": true}\nnot json\n')
    return path


def of_a_subagent(workspace: Path) -> Path:
    path = workspace / "state" / "subagents" / "sessions" / "sub_x.jsonl"
    path.parent.mkdir(parents=True)
    shutil.copy(workspace / "sessions" / "web_a.jsonl", path)
    with path.open("ab") as file:
        file.write(b'{"role": "us\n')
    return path


def archive(workspace: Path) -> Path:
    (path,) = (workspace / "sessions" / "archive" / "web_a").glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"role": "us\n')
    return path


def transcript(workspace: Path) -> Path:
    path = workspace / "sessions" / "web_a.jsonl"
    with path.open("ab") as file:
        file.write(b'{"role": "us\n')
    return path


Spoil = Callable[[Path], Path]
KINDS: list[tuple[Spoil, list[bytes], bytes]] = [
    (notes, ["likes \ufffd tea\n".encode()], b"\0"),
    (facts, [b'{"id": "1", "mine": true}'], b"not json"),
    (agents_facts, [b'{"id": "1", "mine": true}'], b"not json"),
    (of_a_subagent, [b"again"], b'"us\n'),
    (archive, [b"hello"], b'"us\n'),
    (transcript, [b"again"], b'"us\n'),
]


@pytest.mark.parametrize(("spoil", "stays", "goes"), KINDS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_damaged_file_is_told_then_repaired(
    tmp_path: Path, spoil: Spoil, stays: list[bytes], goes: bytes
) -> None:
    """It is only read without ``repair``; repaired it is sound, with the original beside it."""
    await talked(tmp_path)
    assert await verified(tmp_path) == []
    path = spoil(tmp_path)
    was = path.read_bytes()

    told = await verified(tmp_path)
    untouched = path.read_bytes()
    repaired = await verified(tmp_path, repair=True)

    assert [(row["file"], row["repaired"]) for row in told] == [(str(path.relative_to(tmp_path)), False)]
    assert untouched == was
    assert [(row["file"], row["repaired"]) for row in repaired] == [(str(path.relative_to(tmp_path)), True)]
    assert all(part in path.read_bytes() for part in stays)
    assert goes not in path.read_bytes()
    (copy,) = path.parent.glob(f"{path.name}.corrupt-*")
    assert copy.read_bytes() == was
    assert await verified(tmp_path) == []


@pytest.mark.parametrize("name", ["index/web_a.idx", "vectors.db", "recall/chats/" + "a" * 32 + ".db"])
async def test_a_damaged_index_is_removed(tmp_path: Path, name: str) -> None:
    """It is derived: nothing of it is kept."""
    path = tmp_path / "state" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no index " * 1000)

    assert [row["repaired"] for row in await verified(tmp_path)] == [False]
    assert [row["repaired"] for row in await verified(tmp_path, repair=True)] == [True]
    assert not path.exists()
    assert await verified(tmp_path, repair=True) == []


async def test_a_job_is_made_anew_of_its_name(tmp_path: Path) -> None:
    """What is to be done for a session that is there, ended or not; without it there is nothing to do."""
    await talked(tmp_path)
    (ended,) = (tmp_path / "sessions" / "archive" / "web_a").glob("*.jsonl")
    old, active = (read_beginning(path, "web_a") for path in (ended, tmp_path / "sessions" / "web_a.jsonl"))
    assert old is not None
    assert active is not None
    files = JobFiles(tmp_path / "state")
    jobs = [BackgroundJob(KEY, old.session_id), BackgroundJob(KEY, active.session_id, "facts")]
    for job in [*jobs, BackgroundJob(KEY, str(ULID()), "name")]:
        files.keep(job)
    for path in (tmp_path / "state" / "jobs").iterdir():
        path.write_bytes(b"\0" * 40)

    told = await verified(tmp_path)
    repaired = await verified(tmp_path, repair=True)

    assert [row["repaired"] for row in told] == [False] * 3
    assert [row["repaired"] for row in repaired] == [True] * 3
    assert sum("its session is gone" in row["problem"] for row in told) == 1
    assert set(files.left()) == set(jobs)
    assert await verified(tmp_path) == []


async def test_an_approval_stays_while_its_turn_may_come(tmp_path: Path) -> None:
    """Without its file a person might be asked anew about a call that ran."""
    folder = tmp_path / "state" / "approvals"
    folder.mkdir(parents=True)
    young, old = (folder / f"{name * 16}.json" for name in "ab")
    young.write_bytes(b'{"v": 1, "id": "another"}')
    old.write_bytes(b"nothing")
    os.utime(old, (0, 0))

    rows = {Path(row["file"]).name: row for row in await verified(tmp_path, repair=True)}

    assert {name: row["repaired"] for name, row in rows.items()} == {young.name: False, old.name: True}
    assert "the call was not run" in rows[young.name]["problem"]
    assert list(folder.iterdir()) == [young]


PERSONS = (
    "retention.json",
    "gateway.db",
    "channels.db",
    "subagents/chats/web_a.json",
    "memory/chats/a.json",
)


@pytest.mark.parametrize("name", PERSONS)
async def test_what_a_person_has_to_decide_is_told_and_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"neither JSON nor a database " * 100)

    (row,) = await verified(tmp_path, repair=True)

    assert (row["file"], row["repaired"]) == (f"state/{name}", False)
    assert path.read_bytes().startswith(b"neither")
