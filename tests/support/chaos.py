"""``python -m tests.chaos`` as a process, whose scratch folders lie in one of the test's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import harness

# On a busy machine the imports alone, of which the processes are forked, take two minutes.
PATIENCE_S = 340


def chaos(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end; return what it said."""
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words],
        cwd=harness.ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def kept(done: subprocess.CompletedProcess[str]) -> Path:
    """Return the folder of its first batch."""
    found = re.search(r"are kept in (.*)", done.stdout)
    assert found is not None
    return min(Path(found[1]).glob("seed-*"))
