"""Folders that a command of ``shell`` shut are opened and removed with their chat, by whoever owns them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.service_place import UID, as_root, service, workspace_of_the_service
from tests.support.harness import ROOT, ask, command

pytestmark = as_root
KEY = "web:ada"


@pytest.fixture
def workspace() -> Iterator[Path]:
    with workspace_of_the_service() as folder:
        yield folder


def shut(folder: Path, *, mode: int, links_to: Path) -> None:
    """Leave a file, and a link out of the workspace, in a folder of the service, and close it."""
    inner = folder / "in" / "ner"
    inner.mkdir(parents=True)
    (inner / "secret.txt").write_text("sesame")
    (inner / "link").symlink_to(links_to)
    for path in (folder, folder / "in", inner):
        os.chown(path, UID, UID)
    inner.chmod(mode)
    (folder / "in").chmod(mode)


@pytest.mark.parametrize("words", [("sessions", "clear", "--everything"), ("memory", "erase", "--yes")])
@pytest.mark.parametrize("mode", [0o000, 0o500])
async def test_what_a_command_shut_goes_with_its_chat(
    workspace: Path, tmp_path: Path, mode: int, words: tuple[str, ...]
) -> None:
    """The user of the service is not root; what a link leads to keeps its mode and its content."""
    other = tmp_path / "other"
    other.mkdir(mode=0o500)
    (other / "kept.txt").write_text("kept")
    async with service(workspace) as daemon:
        assert await ask(daemon, KEY, "1", "hello") is not None
        folder = workspace / "files" / "chats" / "web_ada"
        made = [path for path in (folder.parent.parent, folder.parent, folder) if not path.exists()]
        shut(folder, mode=mode, links_to=other)
        for path in made:
            os.chown(path, UID, UID)

        code, printed = await command(workspace, *words, KEY)

        assert code == 0
        assert not folder.exists()
        assert list(workspace.rglob("secret.txt")) == []
        assert list((workspace / "state" / "erasing").iterdir()) == []
        assert (other.stat().st_mode & 0o777, (other / "kept.txt").read_text()) == (0o500, "kept")
        assert {"kind": "file", "count": 2} in [
            {name: row[name] for name in ("kind", "count")} for row in removed(printed)
        ]
        assert await daemon.stop() == 0


def test_what_a_command_of_an_agent_shut_is_counted_too(workspace: Path, tmp_path: Path) -> None:
    """The files of an agent's chats lie in its own home."""
    folder = workspace / "agents" / "coder" / "files" / "chats" / "web_ada"
    shut(folder, mode=0o000, links_to=tmp_path)
    for made in (*folder.parents,)[: len(folder.relative_to(workspace).parts) - 1]:
        os.chown(made, UID, UID)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from session.disk.layout import Layout\n"
        "from session.kept.erasing import Erased, count\n"
        "from session.kept.subject import Subject\n"
        "os.setuid(int(sys.argv[2]))\n"
        "erased = Erased('web:ada')\n"
        "subject = Subject('web:ada', False, (), ('agents/coder/chats/web_ada',), (), {})\n"
        "count(Layout(Path(sys.argv[1])), subject, erased)\n"
        "print(sum(each.count for each in erased.removed.values()))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, workspace, str(UID)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "2\n"


def removed(printed: str) -> list[dict[str, object]]:
    """Read the rows that say what was removed, as they are printed for people."""
    rows = [line.split() for line in printed.splitlines()[1:]]
    return [{"kind": " ".join(row[:-2]), "count": int(row[-2])} for row in rows]
