"""Whatever the names, links and depths of files are: what was written as a backup can be brought back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.backup import creation, restoring
from gateway.backup.tar import Manifest, TarWriter
from gateway.errors import GatewayError
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.support.place import write

pytestmark = guarantee(
    "storage",
    "A backup can be restored, whatever names, links and permissions a chat's commands leave behind.",
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "w" / "files").mkdir(parents=True)
    return tmp_path / "w"


async def again(workspace: Path, tmp_path: Path, *, config: Sequence[Path] = ()) -> tuple[Path, Manifest]:
    """Back a workspace up, verify that and restore it; return where, and what the backup says of itself."""
    backup, new = tmp_path / "a.tar", tmp_path / "new"
    manifest = creation.create(workspace, backup, embedded=True, config=config)
    report = await restoring.verify(backup)
    assert report.problems == []
    assert restoring.restore(backup, new) == manifest
    return new, manifest


async def test_a_name_that_is_no_utf_8_comes_back_as_it_was(workspace: Path, tmp_path: Path) -> None:
    """So does one that is spelt as the manifest spells the other."""
    folder = os.fsencode(workspace / "files")
    for name, text in (
        (b"caf\xe9.txt", b"latin"),
        (rb"caf\xe9.txt", b"spelt"),
        ("café.txt".encode(), b"utf"),
    ):
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(text)

    new, _ = await again(workspace, tmp_path)

    assert {os.fsencode(path.name): path.read_bytes() for path in (new / "files").iterdir()} == {
        b"caf\xe9.txt": b"latin",
        rb"caf\xe9.txt": b"spelt",
        "café.txt".encode(): b"utf",
    }


async def test_a_link_whose_name_is_no_utf_8_is_named(workspace: Path, tmp_path: Path) -> None:
    (workspace / "files" / os.fsdecode(b"\xff")).symlink_to(os.fsdecode(b"to\xfe"))

    new, manifest = await again(workspace, tmp_path)

    assert os.fsencode((new / "files" / os.fsdecode(b"\xff")).readlink()) == b"to\xfe"
    assert r"what the link files/\xff leads to" in manifest.left_out


def test_a_locale_without_utf_8_changes_no_name(workspace: Path, tmp_path: Path) -> None:
    (workspace / "files" / "ü.txt").write_text("ü")
    code = (
        "import sys; from pathlib import Path; from gateway.backup import creation, restoring\n"
        "old, backup, new = map(Path, sys.argv[1:])\n"
        "assert sys.getfilesystemencoding() == 'ascii'\n"
        "creation.create(old, backup, embedded=True)\n"
        "restoring.restore(backup, new)\n"
    )
    paths = [workspace, tmp_path / "a.tar", tmp_path / "new"]
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    subprocess.run([sys.executable, "-c", code, *map(str, paths)], cwd=ROOT, env=env, check=True)

    assert [path.name for path in (paths[2] / "files").iterdir()] == ["ü.txt"]
    restoring.restore(paths[1], tmp_path / "beside")
    assert (tmp_path / "beside" / "files" / "ü.txt").read_text() == "ü"


async def test_secrets_of_one_name_come_back_apart_and_say_where_they_belong(
    workspace: Path, tmp_path: Path
) -> None:
    config = tmp_path / "cg" / "my.toml"
    secrets = [config.parent / name for name in ("dc/token", "my.toml.d/my.toml", "other", "tg/token")]
    for path in (config, *secrets):
        write(path, str(path))

    new, _ = await again(workspace, tmp_path, config=[config, *secrets])

    head = "-".join(config.parent.parts[1:])
    found = {path.name: path.read_text() for path in (new / restoring.CONFIG_FOLDER).iterdir()}
    assert found == {
        "my.toml": str(config),
        f"{head}-dc-token": str(secrets[0]),
        f"{head}-my.toml.d-my.toml": str(secrets[1]),
        "other": str(secrets[2]),
        f"{head}-tg-token": str(secrets[3]),
    }


async def test_secrets_whose_whole_names_are_one_come_back_apart_too(workspace: Path, tmp_path: Path) -> None:
    """A path is long, or has the sign that joins its parts."""
    config = tmp_path / "my.toml"
    long = Path(*["ö" * 60] * 3)
    secrets = [
        tmp_path / name for name in ("a-b/token", "a/b/token", "1" / long / "token", "2" / long / "token")
    ]
    for path in (config, *secrets):
        write(path, str(path))

    new, _ = await again(workspace, tmp_path, config=[config, *secrets])

    found = {path.name: path.read_text() for path in (new / restoring.CONFIG_FOLDER).iterdir()}
    assert sorted(found.values()) == sorted(str(path) for path in (config, *secrets))
    assert all(path == str(config) or name.endswith(("-token", "-token-2")) for name, path in found.items())


def test_nothing_is_called_a_backup_in_which_a_name_stands_twice(tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("w+b") as file, TarWriter(file.fileno()) as tar:
        for _ in range(2):
            with (tmp_path / "a.tar").open("rb") as one:
                tar.add("workspace/files/a", one, 0)

        with pytest.raises(GatewayError, match="workspace/files/a stands in it twice"):
            tar.finish(Manifest("1", "2026-01-01T00:00:00+00:00", "embedded"))


async def test_any_number_of_links_has_room(workspace: Path, tmp_path: Path) -> None:
    """Each is kept; of what they lead to the first are named, and the others counted."""
    for number in range(6000):
        (workspace / "files" / f"{number:0180}").symlink_to("nowhere")

    new, manifest = await again(workspace, tmp_path)

    assert len(list((new / "files").iterdir())) == 6000
    named = [line for line in manifest.left_out if line.startswith("what the link ")]
    assert 100 < len(named) < 6000
    assert (
        manifest.left_out[-1]
        == f"{6000 - len(named)} others, links for the most part or files without rights"
    )


async def test_a_folder_that_lies_too_deep_is_named_and_the_rest_is_there(
    workspace: Path, tmp_path: Path
) -> None:
    """A command of a chat can make one that no path can name."""
    home, before = workspace / "files", Path.cwd()
    (home / "plain.txt").write_text("plain")
    try:
        os.chdir(home)
        for _ in range(1500):
            Path("deep").mkdir()
            os.chdir("deep")
    finally:
        os.chdir(before)

    try:
        new, manifest = await again(workspace, tmp_path)
    finally:
        # Neither pytest nor shutil removes it.
        subprocess.run(["rm", "-rf", home / "deep"], check=True)

    assert (new / "files" / "plain.txt").read_text() == "plain"
    assert [line[:24] for line in manifest.left_out if "deep" in line] == ["what lies in files/deep/"]


def test_a_link_to_an_empty_folder_stays_and_leads_to_the_workspace(workspace: Path, tmp_path: Path) -> None:
    (workspace / "files" / "a.txt").write_text("a")
    creation.create(workspace, tmp_path / "a.tar", embedded=True)
    disk, link = tmp_path / "disk" / "cg", tmp_path / "link"
    disk.mkdir(parents=True)
    link.symlink_to(disk)

    restoring.restore(tmp_path / "a.tar", link)

    assert link.readlink() == disk
    assert (disk / "files" / "a.txt").read_text() == "a"
    assert [path.name for path in disk.parent.iterdir()] == ["cg"]
    with pytest.raises(GatewayError, match="is not empty"):
        restoring.restore(tmp_path / "a.tar", link)
