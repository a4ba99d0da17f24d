"""What a command of a chat shut stops no backup: folders are opened, files without rights are named."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.backup import restoring
from tests.gateway.service_place import UID, as_root, file_of_the_service, workspace_of_the_service
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = [
    as_root,
    guarantee(
        "storage",
        "A backup can be restored, whatever names, links and permissions a chat's commands leave behind.",
    ),
]
CODE = (
    "import os, sys; from pathlib import Path\n"
    "from gateway.backup import creation\n"
    # Who is not root may not read what Python imports late.
    "import encodings.ascii\n"
    "os.setuid(int(sys.argv[3]))\n"
    "try:\n"
    "    found = creation.create(Path(sys.argv[1]), Path(sys.argv[2]), embedded=True)\n"
    "    print(*found.left_out, sep='\\n')\n"
    "except PermissionError as error:\n"
    "    print('refused', error.filename)\n"
)


@pytest.fixture
def workspace() -> Iterator[Path]:
    with workspace_of_the_service() as folder:
        folder.parent.chmod(0o777)
        yield folder


def made(workspace: Path, path: str, mode: int, *, uid: int = UID) -> Path:
    """Make a file and give it and its folders to the service, its folder or, of a file, itself this mode."""
    file = file_of_the_service(workspace, f"{path}in.txt" if path.endswith("/") else path, path)
    target = file.parent if path.endswith("/") else file
    os.chown(target, uid, uid)
    target.chmod(mode)
    return file


def taken(workspace: Path) -> list[str]:
    """Take a backup as the user of the service; return what it says was left out."""
    words = [sys.executable, "-c", CODE, str(workspace), str(workspace.parent / "a.tar"), str(UID)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def brought_back(workspace: Path) -> Path:
    backup, new = workspace.parent / "a.tar", workspace.parent / "new"
    assert asyncio.run(restoring.verify(backup)).problems == []
    restoring.restore(backup, new)
    return new


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
@pytest.mark.parametrize(
    "home", ["files/chats/cli_direct/d/", "agents/coder/files/chats/a/d/", "files/mine/"]
)
def test_a_folder_that_a_command_shut_is_in_it(workspace: Path, home: str, mode: int) -> None:
    made(workspace, home, mode)
    made(workspace, "files/chats/cli_direct/read-only/", 0o500)

    left_out = taken(workspace)

    assert (brought_back(workspace) / home / "in.txt").read_text() == home
    assert not [line for line in left_out if home.strip("/") in line]
    assert (workspace / "files/chats/cli_direct/read-only").stat().st_mode & 0o777 == 0o500


def test_what_cannot_be_read_is_named_and_the_rest_is_in_it(workspace: Path) -> None:
    """Files of mode 000, folders of somebody else, and what is no place of the program's."""
    made(workspace, "files/chats/cli_direct/shut.txt", 0o000)
    made(workspace, "files/chats/cli_direct/open.txt", 0o600)
    made(workspace, "files/chats/cli_direct/strange/", 0o700, uid=0)
    made(workspace, "lost+found/", 0o700, uid=0)

    left_out = taken(workspace)

    assert sorted(line for line in left_out if line.endswith("nobody gave rights to it")) == [
        "files/chats/cli_direct/shut.txt: nobody gave rights to it",
        "what lies in files/chats/cli_direct/strange/: nobody gave rights to it",
        "what lies in lost+found/: nobody gave rights to it",
    ]
    new = brought_back(workspace)
    assert [path.name for path in (new / "files/chats/cli_direct").iterdir()] == ["open.txt"]


@pytest.mark.parametrize("path", ["sessions/cli_direct.jsonl", "memory/chats/cli_direct/", "media/aa/"])
def test_a_file_of_the_program_itself_is_not_passed_over(workspace: Path, path: str) -> None:
    """A transcript that is missing is nothing that anybody may find out at a restore."""
    made(workspace, path, 0o000)

    said = taken(workspace)

    assert said[0].startswith(f"refused {workspace / path.rstrip('/')}")
    assert not (workspace.parent / "a.tar").exists()
