"""The sandboxes hold for a user that is not root as well: a service runs as one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from session.tools.sandbox.rules import Limits, Rules
from session.tools.sandbox.sandbox import sandbox_here
from tests.session.tools.sandbox_place import KINDS, processes_with
from tests.support.until import until

NOBODY = 65534
LIMITS = Limits(memory_bytes=256 * 2**20, processes=64)
# One that every user may start: that of the tests may lie in root's home.
PYTHON = "/usr/bin/python3"
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason="the other tests run as such a user then"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder of nobody's where nobody gets to."""
    path = Path(tempfile.mkdtemp(prefix="chat-gateway-nobody-"))
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


async def started(kind: str, folder: Path, command: str) -> subprocess.Popen[str]:
    """Start a command as nobody; the process becomes the launcher, whose parent has to be who wrapped it."""
    sandbox = (await sandbox_here(kind)).sandbox  # type: ignore[arg-type]
    wrapped = sandbox.wrap(["/bin/sh", "-c", command], Rules(folder, limits=LIMITS))
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*user, PYTHON, *wrapped.argv[1:]],
        env=dict(wrapped.env),
        cwd=folder,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_it_writes_its_folder_and_nothing_else(kind: str, folder: Path) -> None:
    with tempfile.NamedTemporaryFile() as other:
        os.chown(other.name, NOBODY, NOBODY)
        words = (
            f"echo x > mine; cat {other.name}; chmod 777 {other.name}; touch {other.name}; kill -9 -1; exit 4"
        )
        running = await started(kind, folder, words)
        _, said = running.communicate(timeout=60)
        mode = Path(other.name).stat().st_mode & 0o777

    # Whoever watches over it is of the same user, and was not reached.
    assert running.returncode == 4
    assert (folder / "mine").read_text() == "x\n"
    assert mode == 0o600
    assert said.count(other.name) >= 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fork_bomb_ends_alone(kind: str, folder: Path) -> None:
    tag = f"98765.{uuid.uuid4().int % 10**12}"

    running = await started(kind, folder, f"bomb() {{ bomb | bomb & }}; bomb; sleep 1; sleep {tag} & exit 5")
    _, said = running.communicate(timeout=60)

    assert "Cannot fork" in said or "temporarily unavailable" in said
    assert list(processes_with(tag)) == []
    assert not [path for path in Path("/proc").glob("[0-9]*") if _owner(path) == NOBODY]


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_outlives_it(kind: str, folder: Path) -> None:
    """Landlock has no namespace that ends with its first process: whoever left the group is looked for."""
    tag = f"98765.{uuid.uuid4().int % 10**12}"
    left = f"(setsid sh -c '(trap \"\" TERM; sleep {tag} &)' &); setsid sleep {tag} & sleep {tag}"
    running = await started(kind, folder, left)
    await until(lambda: len([pid for pid in processes_with(tag) if _is_sleep(pid)]) == 3)

    running.terminate()

    running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert list(processes_with(tag)) == []


def _is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")
    except OSError:
        return False


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1
