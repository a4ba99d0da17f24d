"""The first `make run` of a fresh clone says what it does before pip is silent for minutes."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = ("deploy/locks/build.txt", "deploy/locks/runtime.txt")


def words(venv: Path) -> str:
    done = subprocess.run(
        [ROOT / "deploy" / "first-install.sh", venv, *LOCKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


def test_the_first_time_is_announced_and_no_other(tmp_path: Path) -> None:
    """How many packages, how large and how long; nothing once they are installed."""
    lines = [line for lock in LOCKS for line in (ROOT / lock).read_text().splitlines()]
    locked = sum("==" in line and line[0].isalnum() for line in lines)

    first = words(tmp_path / ".venv")
    (tmp_path / ".runtime").touch()

    assert f"installs {locked} locked packages" in first
    assert "minutes" in first
    assert words(tmp_path) == ""


def test_make_says_it_before_anything_is_installed() -> None:
    """A dry run of a clone without `.venv` begins with the words."""
    # Under `make test` another make would begin with the folder that it enters.
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run", "VENV=/nowhere/.venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[0].startswith("deploy/first-install.sh /nowhere/.venv ")
