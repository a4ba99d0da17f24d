"""The first `make run` of a fresh clone says what it installs, uses uv, and falls back to pip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("deploy/locks/build.txt", "deploy/locks/runtime.txt")
SCRIPT = ROOT / "deploy" / "install-packages.sh"


def installed(venv: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [SCRIPT, venv, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock of one small package, with its hashes."""
    found = re.search(r"^zipp==.*\\\n( +--hash=.*\n?)+", (ROOT / LOCKS[1]).read_text(), re.MULTILINE)
    assert found is not None
    path = tmp_path / "lock.txt"
    path.write_text(found.group())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["with pip", "as Debian's"])
def test_uv_installs_the_locked_packages(tmp_path: Path, lock: Path, alone: bool) -> None:
    """Uv and pip are there as well, also with python3-venv alone; the second run announces nothing."""
    venv = tmp_path / ".venv"
    python = tmp_path / "python"
    refused = "-m pip " if alone else "nothing of it"
    python.write_text(f'#!/bin/sh\ncase "$*" in "{refused}"*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    first = installed(venv, str(lock), PYTHON=str(python))
    (venv / ".runtime").touch()
    again = installed(venv, str(lock), PYTHON=str(python))

    assert "installing 1 locked packages" in first
    assert "pip installs them now" not in first
    assert "First run" not in again
    subprocess.run([venv / "bin" / "python", "-c", "import zipp"], check=True)
    assert {"uv", "pip"} <= {path.name for path in (venv / "bin").iterdir()}


@pytest.mark.slow
def test_pip_installs_them_where_uv_is_not_to_be_had(tmp_path: Path, lock: Path) -> None:
    """A registry without uv costs time and nothing else."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *uv.txt*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    venv = tmp_path / ".venv"

    said = installed(venv, str(lock), PYTHON=str(python))

    assert "pip installs them now" in said
    subprocess.run([venv / "bin" / "python", "-c", "import zipp"], check=True)
    assert not (venv / "bin" / "uv").exists()


def test_make_says_it_before_anything_is_installed() -> None:
    """A dry run of a clone without `.venv` begins with the script that announces the installation."""
    # Under `make test` another make would begin with the folder that it enters.
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run", "VENV=/nowhere/.venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[0].startswith("deploy/install-packages.sh /nowhere/.venv ")
