"""What the disk may refuse while a transcript is read, and what very short lines cost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from session.errors import StoreError
from session.transcript import loading
from session.transcript.transcript import Transcript

HEAD = b'{"_type":"metadata","key":"web:ada","created_at":"2026-01-01T09:00:00","metadata":{}}\n'


class Refused:
    """Refuses so many looks at an open file."""

    def __init__(self, code: int, times: int) -> None:
        self.code, self.left = code, times

    def __call__(self, fd: int) -> os.stat_result:
        if self.left:
            self.left -= 1
            raise OSError(self.code, os.strerror(self.code))
        return os.stat(fd)


def read(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> Transcript | None:
    path.write_bytes(HEAD + b'{"role":"user","content":"hi"}\n')
    with monkeypatch.context() as patched:
        patched.setattr(loading.os, "fstat", Refused(code, times))
        found = loading.load(path, "web_ada")
    return found[0] if found is not None else None


def test_a_file_that_was_replaced_since_it_was_opened_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's disk says so of the file that was there before."""
    found = read(tmp_path / "web_ada.jsonl", monkeypatch, errno.ESTALE, 1)

    assert found is not None
    assert len(found.messages) == 1


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_what_the_disk_refuses_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As a bare error it would count as a crash of the turn, and park its message."""
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path / "web_ada.jsonl", monkeypatch, code, 9)


def test_one_that_is_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(tmp_path / "web_ada.jsonl", monkeypatch, errno.ENOENT, 9) is None


LINE_1 = b'{"_type": "metadata", "key": "cli:x", "last_consolidated": 0}\n'
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
        (LINE_1, b"{}\n", 0),
        (LINE_1, b"{}\r\n", 0),
        (LINE_1, b'{"role":"user"}\n', 1),
        (b"", b'{"role":"user"}\r\n', 1),
        (LINE_1, b'{"role":"user"}\n{}\n{}\n', 1),
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
