"""A backup of a workspace at rest: all of it, bit for bit; whole or not there; refused where it must be."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
from pathlib import Path

import pytest

from gateway.backup.creation import Stage, stage_of
from tests.support import forked
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, command, environment

pytestmark = guarantee("storage", "A backup or a restore is complete or absent, wherever it is killed.")

OLD = ROOT / "tests" / "data" / "old-workspace"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def files(workspace: Path) -> dict[str, bytes]:
    """The content of every file that a backup has, by its path."""
    paths = (path for path in workspace.rglob("*") if path.is_file())
    named = {path.relative_to(workspace).as_posix(): path.read_bytes() for path in paths}
    return {name: data for name, data in named.items() if stage_of(name) is not Stage.LEFT_OUT}


async def made(workspace: Path, target: Path, *more: str) -> Path:
    code, printed = await command(workspace, "backup", "create", str(target), *more)
    assert code == 0
    return Path(printed.strip())


async def said(workspace: Path, *words: str) -> tuple[int, str]:
    """Run a verb; return its exit code and what it wrote to stderr."""
    process = await forked.spawn(
        *(sys.executable, "-m", "gateway", "--workspace", str(workspace), *words),
        cwd=ROOT,
        env=environment({}),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode()


async def test_a_backup_comes_back_bit_for_bit_and_is_its_owners_alone(old: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (old / "files").mkdir()
    (old / "files" / ("long " * 40 + "ü")).write_bytes(b"")
    (old / "somebody's.txt").write_text("no table knows it")
    (old / "state" / ".retention.json.0.tmp").write_text("half of it")

    backup = await made(old, folder)
    code, _ = await command(tmp_path / "new", "backup", "restore", str(backup))

    assert code == 0
    assert backup.parent == folder
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [backup]
    databases = {name for name in files(old) if name.endswith(".db")}
    new = files(tmp_path / "new")
    assert {name: data for name, data in new.items() if name not in databases} == {
        name: data for name, data in files(old).items() if name not in databases
    }
    assert databases <= set(new)
    left = {path.name for path in (tmp_path / "new").rglob("*")} & {"lock", "daemon.json", "vectors.db"}
    assert left == set()
    with tarfile.open(backup) as tar:
        assert tar.getnames()[-1] == "MANIFEST.json"
    code, printed = await command(tmp_path, "backup", "verify", str(backup), "--json")
    report = json.loads(printed)
    assert code == 0
    assert report["problems"] == []
    assert (report["messages"], report["waiting"], report["replies"], report["parked"]) == (61, 6, 1, 1)
    assert report["open"] == 0


async def test_the_configuration_is_in_it_where_that_is_asked_for(old: Path, tmp_path: Path) -> None:
    """With the files of its secrets; they come back beside, for somebody to put in place."""
    config = tmp_path / "my.toml"
    config.write_text('[http]\ntoken_file = "token"\n')
    (tmp_path / "token").write_text("a-secret-of-twenty-four-letters")
    (old / "chat-gateway.toml").write_text("# a secret, perhaps")

    plain = await made(old, tmp_path / "plain.tar")
    whole = await made(old, tmp_path / "whole.tar", "--with-config", "--config", str(config))
    code, _ = await command(tmp_path / "new", "backup", "restore", str(whole))

    assert code == 0
    assert b"a secret" not in plain.read_bytes()
    found = tmp_path / "new" / "config-of-backup"
    assert {path.name: path.read_text() for path in found.iterdir()} == {
        "my.toml": config.read_text(),
        "token": "a-secret-of-twenty-four-letters",
    }
    assert not (tmp_path / "new" / "chat-gateway.toml").exists()


async def test_what_is_there_stays(old: Path, tmp_path: Path) -> None:
    backup = await made(old, tmp_path / "a.tar")
    before = backup.read_bytes()

    again = await said(old, "backup", "create", str(backup))
    inside = await said(old, "backup", "create", str(old / "a.tar"))
    onto = await said(old, "backup", "restore", str(backup))
    async with Daemon(tmp_path / "run") as daemon:
        beside = await said(tmp_path / "run", "backup", "restore", str(backup))
        assert daemon.alive

    assert again[0] == 1
    assert "is there already" in again[1]
    assert inside[0] == 1
    assert onto[0] == 1
    assert "is not empty" in onto[1]
    assert f"mv {old} {old}.old" in onto[1]
    assert beside[0] == 73
    assert "stop it" in beside[1]
    assert backup.read_bytes() == before


@pytest.mark.parametrize("harm", ["bit", "cut", "end", "other", "newer", "outside", "empty"])
async def test_a_backup_that_is_damaged_or_foreign_restores_nothing(
    old: Path, tmp_path: Path, harm: str
) -> None:
    backup = await made(old, tmp_path / "a.tar")
    data = bytearray(backup.read_bytes())
    match harm:
        case "bit":
            data[data.rindex(b"Happy new year")] ^= 1
        case "cut":
            del data[len(data) // 2 :]
        case "end":
            # Where one file ends and the next would begin: the tar itself is sound.
            with tarfile.open(backup) as tar:
                last = tar.getmembers()[-1]
            del data[last.offset :]
        case "newer":
            at = data.rindex(b'{"v":1,')
            data[at : at + 7] = b'{"v":9,'
        case "outside":
            data = data.replace(b"workspace/AGENTS.md", b"workspace/../oh.md0")
        case "empty":
            data.clear()
        case "other":
            data[:] = b"no tar at all" * 1000
    backup.write_bytes(data)

    checked = await said(tmp_path, "backup", "verify", str(backup))
    restored = await said(tmp_path / "new", "backup", "restore", str(backup))

    code = 78 if harm == "newer" else 1
    assert (checked[0], restored[0]) == (code, code), checked[1]
    assert "Traceback" not in checked[1] + restored[1]
    assert "try: " in checked[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "old"]


@pytest.mark.parametrize("point", ["rename.before:1", "rename.after:1"])
async def test_a_kill_leaves_a_whole_backup_or_none_and_the_next_one_cleans_up(
    old: Path, tmp_path: Path, point: str
) -> None:
    """So does one of a restore."""
    folder, new = tmp_path / "backups", tmp_path / "new"
    folder.mkdir()

    await killed(old, point, "backup", "create", str(folder / "a.tar"))
    there = (folder / "a.tar").exists()
    if there:
        code, _ = await command(old, "backup", "verify", str(folder / "a.tar"))
        assert code == 0
        (folder / "a.tar").unlink()
    for left in folder.iterdir():
        os.utime(left, (1, 1))
    backup = await made(old, folder / "a.tar")
    await killed(new, point, "backup", "restore", str(backup))
    restored = new.exists()
    code, _ = await command(new, "backup", "restore", str(backup))

    assert there == restored == point.startswith("rename.after")
    assert code == int(restored)
    assert set(files(new)) == set(files(old))
    assert [path.name for path in folder.iterdir()] == ["a.tar"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backups", "new", "old"]


async def killed(workspace: Path, point: str, *words: str) -> None:
    """Run a verb that kills itself at a point."""
    process = await forked.spawn(
        *(sys.executable, "-m", "tests.support.killable", point, "--workspace", str(workspace), *words),
        cwd=ROOT,
        env=environment({}),
    )
    assert await process.wait() == -signal.SIGKILL


async def test_a_link_is_kept_as_one_and_nothing_is_written_through_it(old: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("not the workspace's")
    (old / "files").mkdir()
    (old / "files" / "there").symlink_to(outside)
    os.mkfifo(old / "files" / "pipe")

    backup = await made(old, tmp_path / "a.tar")
    code, _ = await command(tmp_path / "new", "backup", "restore", str(backup))

    assert code == 0
    assert (tmp_path / "new" / "files" / "there").readlink() == outside
    assert not (tmp_path / "new" / "files" / "pipe").exists()
    assert b"not the workspace's" not in backup.read_bytes()
