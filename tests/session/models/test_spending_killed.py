"""A process that is killed while it writes what was spent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.session.models.test_spending import ONE, daemon
from tests.support.kept import verified
from tests.support.prepared import ROOT

# Half of what it is to write goes in; where there is no end, the kill comes before the last byte.
_DIES_IN_ITS_WRITE = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from session.models.model import Usage
from session.models.usage_files import DayFiles
from session.models.usage_lines import SpendingRow

files, noon, write = DayFiles(Path(sys.argv[1])), datetime(2027, 1, 1, 12, tzinfo=UTC), os.write
row = SpendingRow(noon, "a:1", "a:1", Usage(10, 2, 0.5))
files.exchange([row], noon)

def half(fd, data):
    write(fd, data[: len(data) // 2 if sys.argv[2] == "half" else -1])
    os.kill(os.getpid(), signal.SIGKILL)

os.write = half
files.exchange([row], noon)
"""


@pytest.mark.parametrize("most", ["half", "all but its end"])
async def test_what_a_writer_left_that_was_killed_in_its_write_is_no_damage(
    most: str, tmp_path: Path
) -> None:
    """The next one marks it and goes on behind it; each further one counts the same."""
    folder = tmp_path / "state" / "usage"
    died = subprocess.run(
        [sys.executable, "-c", _DIES_IN_ITS_WRITE, str(folder), most], cwd=ROOT, timeout=60, check=False
    )
    left = (folder / "2027-01-01.jsonl").read_bytes()

    assert died.returncode == -signal.SIGKILL
    assert not left.endswith(b"\n")
    assert await verified(tmp_path) == []
    async with daemon(folder) as again:
        again.spending.record("a:1", "a:1", ONE)
        await again.spending.refresh()
    assert (folder / "2027-01-01.jsonl").read_bytes().startswith(left + b"\x18\n")
    assert await verified(tmp_path) == []
    async with daemon(folder) as third:
        await third.spending.refresh()
        assert third.spending.today().turns == 2
