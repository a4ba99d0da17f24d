"""The distribution as others get it: built from a copy of the checkout, so that nothing is left in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.harness import ROOT

GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false")


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    """Run a program and return what it prints; its errors are the test's."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(cwd), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_of_checkout(folder: Path) -> Path:
    """Copy what git would have of this checkout, as an archive of it holds it: without any history."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def commit(folder: Path, *, tag: str = "") -> None:
    """Make a copy a repository with one commit, perhaps a tagged one."""
    run(*GIT, "init", "--quiet", "--initial-branch=main", cwd=folder)
    run(*GIT, "add", "--all", cwd=folder)
    run(*GIT, "commit", "--quiet", "--message=all", cwd=folder)
    if tag:
        run(*GIT, "tag", tag, cwd=folder)


def hook(source: Path, name: str, into: Path) -> Path:
    """Build a wheel (``build_wheel``) or an archive (``build_sdist``) of a source tree."""
    into.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print('built', build_meta.{name}({str(into)!r}))"
    said = run(sys.executable, "-c", code, cwd=source)
    return into / said.rpartition("built ")[2].strip()


def environment_with(wheel: Path, folder: Path) -> Path:
    """Make a fresh environment with the wheel, which finds all other packages where they are; its ``bin``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    run(
        *(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python"),
        *(folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel),
        cwd=folder.parent,
    )
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"
