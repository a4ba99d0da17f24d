"""Runs tests as an ordinary user where root runs the others: a gateway of root's runs no command.

What it is for has the mark ``ordinary_user``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UID = 12345
ROOT = Path(__file__).resolve().parent.parent.parent
MARK = "ordinary_user"
# What the tests consist of may lie in folders that only root can pass: these become copies that all can.
_OPEN = """\
mount -t tmpfs box "$BOX"
while [ "$1" != -- ]; do
  layer=$(mktemp -d "$BOX/XXXXXX")
  mkdir "$layer/upper" "$layer/work"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$layer/upper,workdir=$layer/work" "$1"
  chmod a+x "$1"
  shift
done
shift
exec "$@"
"""


def _files() -> list[str]:
    """Name the files with tests that need such a user, from the checkout on."""
    word = f"pytest.mark.{MARK}"
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if word in path.read_text())
    return sorted(str(path.relative_to(ROOT)) for path in found)


def run(within_s: float) -> subprocess.CompletedProcess[str]:
    with _folder() as home, tempfile.TemporaryDirectory() as box:
        pytest = (sys.executable, "-m", "pytest", "-m", MARK, "-p", "no:cacheprovider", *_files())
        user = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all")
        # pytest names a folder by the name of the user.
        own = {"HOME": str(home), "TMPDIR": str(home), "USER": "ordinary", "LOGNAME": "ordinary", "BOX": box}
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", _OPEN, "sh", *_barred(), "--", *user, *pytest],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if "PYTEST" not in name}
            | {**own, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="user-") as name:
        os.chown(name, UID, UID)
        yield Path(name)


def _barred() -> list[str]:
    """Name the folders above what the tests consist of that others cannot pass, the uppermost first."""
    needed = (Path(sys.base_prefix), Path(sysconfig.get_path("purelib")), ROOT)
    above = {folder for path in needed for folder in (path.resolve(), *path.resolve().parents)}
    return [str(folder) for folder in sorted(above) if not folder.stat().st_mode & 0o001]
