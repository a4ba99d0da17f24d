"""Earlier programs of this repository, taken out of its history: ``python -m gateway`` as it was then."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.harness import ROOT

PACKAGES = ("gateway", "channels", "session", "durable")


def earlier(commit: str, folder: Path) -> list[str]:
    """Unpack the program of a commit; return the ``prefix`` with which a ``Daemon`` is that one.

    It runs with the packages that are installed now. A clone without that commit skips the test.
    """
    there = subprocess.run(
        ["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"], check=False, capture_output=True
    )
    if there.returncode:
        pytest.skip(f"this clone has no commit {commit}: its history is not here")
    tree = subprocess.run(
        ["git", "-C", ROOT, "ls-tree", "--name-only", commit], check=True, capture_output=True, text=True
    )
    names = [name for name in PACKAGES if name in tree.stdout.splitlines()]
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit, *names], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(folder, filter="data")
    # ``-m`` looks into the working folder first, so that the installed program is not found.
    return ["env", "-C", str(folder)]
