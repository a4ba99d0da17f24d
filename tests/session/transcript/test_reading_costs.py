"""What it costs to read a file of very many very short lines: a small multiple of its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = b'{"_type": "metadata", "key": "cli:x", "last_consolidated": 0}\n'
SIZE_BYTES = 10_000_000
MOST_BYTES = 60 * 2**20
READ = """
import resource, sys
from pathlib import Path
from session.transcript.loading import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = load(Path(sys.argv[1]), "cli_x")
print(len(found[0].messages), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    ("head", "line", "messages"),
    [
        (HEAD, b"{}\n", 0),
        (HEAD, b"{}\r\n", 0),
        (HEAD, b'{"role":"user"}\n', 1),
        (b"", b'{"role":"user"}\r\n', 1),
        (HEAD, b'{"role":"user"}\n{}\n{}\n', 1),
    ],
)
def test_short_lines_cost_a_small_multiple_of_the_file(
    tmp_path: Path, head: bytes, line: bytes, messages: int
) -> None:
    """Peak of a process that reads 10 MB of them, whatever stands in them."""
    times = SIZE_BYTES // len(line)
    path = tmp_path / "cli_x.jsonl"
    path.write_bytes(head + line * times)

    told = subprocess.run(
        [sys.executable, "-c", READ, str(path)], check=True, capture_output=True, text=True
    ).stdout.split()

    assert int(told[0]) == messages * times
    assert int(told[1]) * (1024 if sys.platform != "darwin" else 1) < MOST_BYTES
