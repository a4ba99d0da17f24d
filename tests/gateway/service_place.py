"""A workspace that belongs to the user of a service, and the service that runs as that user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Daemon

UID = 12345

as_root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can be beside a service of another user"
)


@contextmanager
def workspace_of_the_service() -> Iterator[Path]:
    """Make the folder where others may pass, which they may not in pytest's own."""
    assert os.geteuid() == 0
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        workspace = Path(top) / "workspace"
        workspace.mkdir(mode=0o700)
        os.chown(workspace, UID, UID)
        yield workspace


def file_of_the_service(workspace: Path, path: str, text: str = "sesame") -> Path:
    """Make a file of the service, in folders of the service, whatever the umask says."""
    file = workspace / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    for each in (file, *file.relative_to(workspace).parents):
        os.chown(workspace / each, UID, UID)
    return file


def service(workspace: Path, config: Mapping[str, Any] | None = None) -> Daemon:
    """The gateway in this workspace, as its owner."""
    return Daemon(workspace, config=config, program=("tests.support.service_victim", str(UID)))


def strangers_files(workspace: Path) -> list[str]:
    """List what the service's user does not own."""
    return [str(path) for path in (workspace, *workspace.rglob("*")) if path.lstat().st_uid != UID]
