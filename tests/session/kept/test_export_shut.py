"""What a command of a chat shut: an export opens it, names what stays shut, and tells whose error it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from session.transcript.agent import home_of, parted
from tests.gateway.service_place import UID, as_root, file_of_the_service, workspace_of_the_service
from tests.support.harness import ROOT

pytestmark = as_root
SCOPES = ("chats/telegram_1", "agents/coder/chats/telegram_1")
CODE = (
    "import os, sys; from datetime import UTC, datetime; from pathlib import Path\n"
    "from session.disk.layout import Layout\n"
    "from session.kept.export import write\n"
    "from session.kept.subject import Conversation, Subject\n"
    "from session.errors import StoreError\n"
    "os.setuid(int(sys.argv[2]))\n"
    "key, scopes = 'telegram:1', ('chats/telegram_1', 'agents/coder/chats/telegram_1')\n"
    "subject = Subject(key, False, (Conversation(key, 'telegram_1'),), scopes, (), {})\n"
    "try:\n"
    "    with open(sys.argv[3], 'wb') as out:\n"
    "        write(out, subject, Layout(Path(sys.argv[1])), at=datetime.now(UTC))\n"
    "except StoreError as error:\n"
    "    print(error)\n"
)


@pytest.fixture
def workspace() -> Iterator[Path]:
    with workspace_of_the_service() as folder:
        folder.parent.chmod(0o777)
        yield folder


def exported(workspace: Path, out: str | None = None) -> str:
    """Export the chat as the user of the service; return which words that ended with."""
    target = out or str(workspace.parent / "e.tar")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(workspace), str(UID), target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]


def manifest(workspace: Path) -> dict[str, Any]:
    with tarfile.open(workspace.parent / "e.tar") as tar:
        file = tar.extractfile("telegram_1/manifest.json")
        assert file is not None
        found: dict[str, Any] = json.load(file)
        return found


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_folder_that_a_command_shut_is_in_it(workspace: Path, scope: str, mode: int) -> None:
    agent, own = parted(scope)
    home = home_of(workspace, agent).relative_to(workspace) / "files" / own
    shut = file_of_the_service(workspace, f"{home}/d/in/ner.txt").parent
    free = file_of_the_service(workspace, f"{home}/read-only/in.txt").parent
    for folder in (shut, shut.parent):
        folder.chmod(mode)
    free.chmod(0o500)

    assert exported(workspace) == ""

    sources = {row["source"] for row in manifest(workspace)["files"]}
    assert sources == {f"{home}/d/in/ner.txt", f"{home}/read-only/in.txt"}
    assert not [line for line in manifest(workspace)["left_out"] if "permission" in line]


def test_what_cannot_be_read_is_named_and_the_rest_is_in_it(workspace: Path) -> None:
    home = "files/chats/telegram_1"
    file_of_the_service(workspace, f"{home}/open.txt")
    file_of_the_service(workspace, f"{home}/shut.txt").chmod(0o000)
    for name, mode in (("strange", 0o700), ("seen", 0o744)):
        folder = file_of_the_service(workspace, f"{home}/{name}/in.txt").parent
        os.chown(folder, 0, 0)
        folder.chmod(mode)

    assert exported(workspace) == ""

    found = manifest(workspace)
    assert [row["source"] for row in found["files"]] == [f"{home}/open.txt"]
    assert sorted(line for line in found["left_out"] if "permission" in line) == [
        f"contents of {home}/seen/: no permission to read it",
        f"contents of {home}/strange/: no permission to read it",
        f"{home}/shut.txt: no permission to read it",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "sessions/telegram_1.jsonl",
        "sessions/archive/telegram_1/1.jsonl",
        "memory/chats/telegram_1/MEMORY.md",
    ],
)
def test_a_file_of_the_program_itself_is_blamed_by_its_name(workspace: Path, path: str) -> None:
    file_of_the_service(workspace, "state/keys/other.log")
    file_of_the_service(workspace, path, "{}\n").chmod(0o000)

    assert exported(workspace) == f"{path} cannot be read: Permission denied"


def test_what_the_output_refuses_is_told_apart(workspace: Path) -> None:
    file_of_the_service(workspace, "files/chats/telegram_1/large.bin", "x" * 2**20)

    assert exported(workspace, "/dev/full") == "OSError: [Errno 28] No space left on device"
