"""``doctor --fix`` mends what needs no person's decision, tells each in a line, and twice nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from gateway.app.daemons import DaemonRegistry
from gateway.config.settings import Settings
from gateway.doctor.workspace import fix


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("sessions", "memory", "state/keys"):
        (tmp_path / name).mkdir(parents=True, mode=0o700)
    for folder, _, _ in os.walk(tmp_path):
        Path(folder).chmod(0o700)
    return Settings.model_validate({"workspace": tmp_path})


def mended(settings: Settings) -> list[str]:
    """Mend, and once more, which has nothing to do."""
    told = [text for text, cure in fix(settings) if not cure]
    assert list(fix(settings)) == []
    return told


def test_folders_and_files_become_the_owners_alone(settings: Settings) -> None:
    """What tools and people put into files/ keeps its mode, a link what it leads to."""
    sessions, shared = settings.workspace / "sessions", settings.workspace / "files"
    (sessions / "a.jsonl").touch()
    (sessions / "a.jsonl").chmod(0o644)
    (sessions / "b.jsonl").touch()
    (sessions / "b.jsonl").chmod(0o000)
    sessions.chmod(0o755)
    shared.mkdir(mode=0o700)
    (shared / "shown.txt").touch()
    (shared / "shown.txt").chmod(0o644)
    outside = settings.workspace.parent / f"{settings.workspace.name}-outside"
    outside.touch()
    outside.chmod(0o644)
    (settings.state / "link").symlink_to(outside)

    (line,) = mended(settings)

    assert line.startswith("permissions: ")
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (sessions, sessions / "a.jsonl", sessions / "b.jsonl")
    ]
    assert modes == [0o700, 0o600, 0o600]
    assert stat.S_IMODE((shared / "shown.txt").stat().st_mode) & 0o044
    assert stat.S_IMODE(outside.stat().st_mode) & 0o044


def test_missing_folders_are_made(settings: Settings) -> None:
    (settings.workspace / "sessions").rmdir()

    assert mended(settings) == ["folders: created sessions"]
    assert stat.S_IMODE((settings.workspace / "sessions").stat().st_mode) == 0o700


def test_daemons_that_are_gone_leave_the_list(settings: Settings) -> None:
    """Those that live stay in it."""
    with DaemonRegistry(settings.workspace).entry(url="http://127.0.0.1:1/", role="all"):
        path = settings.state / "daemon.json"
        content = orjson.loads(path.read_bytes())
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        content["daemons"].append(content["daemons"][0] | {"pid": gone.pid, "birth": "1"})
        path.write_bytes(orjson.dumps(content))
        path.chmod(0o600)

        assert mended(settings) == ["daemons: removed crashed processes from state/daemon.json: 1"]
        assert [one.pid for one in DaemonRegistry(settings.workspace).running()] == [os.getpid()]


def test_what_killed_writers_left_goes(settings: Settings) -> None:
    (settings.state / ".tokens.json.0.tmp").touch(mode=0o600)
    (settings.workspace / "sessions" / ".web_a.jsonl.3.tmp").touch(mode=0o600)

    (line,) = mended(settings)

    assert line.startswith("leftovers: removed ")
    assert ".tokens.json.0.tmp" in line
    assert not list(settings.workspace.rglob("*.tmp"))


def test_what_is_being_written_stays(settings: Settings) -> None:
    """A writer holds the lock of its temporary file."""
    temp = settings.workspace / "sessions" / ".web_a.jsonl.3.tmp"
    temp.touch(mode=0o600)
    holder = subprocess.Popen(
        ["flock", str(temp), "sh", "-c", "echo held; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()

    assert mended(settings) == []
    assert temp.exists()
    holder.communicate(b"\n")


def test_a_file_in_the_place_of_a_folder_is_named_and_no_matter_for_root(settings: Settings) -> None:
    (settings.workspace / "sessions").rmdir()
    (settings.workspace / "sessions").touch()

    told = [(text, cure) for text, cure in fix(settings) if cure]

    sessions = settings.workspace / "sessions"
    assert told
    assert all(f"{sessions}: Not a directory" in text for text, _ in told)
    assert {cure for _, cure in told} == {f"check {sessions}"}
