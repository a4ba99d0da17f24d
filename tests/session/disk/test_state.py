"""A file that is replaced whole is one writer's or the other's, whoever writes at once and whoever dies."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.disk.state import let_go, read_state, replace_file, try_lock, write_state
from session.errors import SessionError, StoreError

SESSION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Stepped:
    """Some work in a thread, which stops before it calls ``step`` and waits there until it is let go."""

    def __init__(self, work: Callable[[], Any], step: Callable[..., Any]) -> None:
        self._work = work
        self._step = step
        self._there = threading.Event()
        self._go = threading.Event()
        self.error: SessionError | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        sys.setprofile(self._watch)
        try:
            self._work()
        except SessionError as error:
            self.error = error
        finally:
            sys.setprofile(None)
            self._there.set()

    def _watch(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called is self._step and not self._there.is_set():
            self._there.set()
            self._go.wait(30)

    def begin(self) -> Stepped:
        """Go as far as the step."""
        self._thread.start()
        assert self._there.wait(30)
        return self

    def end(self) -> None:
        """Go on to the end, which must be a good one."""
        self._go.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("step", [os.write, os.fsync, os.rename], ids=["write", "fsync", "rename"])
def test_a_writer_does_not_disturb_one_that_is_half_done(tmp_path: Path, step: Callable[..., Any]) -> None:
    """Both succeed, and the one that comes last to its end stays."""
    path = tmp_path / "x.json"
    slow = Stepped(lambda: replace_file(path, b"slow"), step).begin()

    replace_file(path, b"quick")
    assert path.read_bytes() == b"quick"
    slow.end()

    assert path.read_bytes() == b"slow"
    assert names_in(tmp_path) == ["x.json"]


def test_nobody_puts_the_empty_file_of_another_in_place(tmp_path: Path) -> None:
    """What is reported as durable is what was given, also while another has only begun."""
    path = tmp_path / "x.json"
    first = Stepped(lambda: replace_file(path, b"first"), os.rename).begin()
    second = Stepped(lambda: replace_file(path, b"second"), os.write).begin()

    first.end()
    assert path.read_bytes() == b"first"
    second.end()

    assert path.read_bytes() == b"second"
    assert names_in(tmp_path) == ["x.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
from session.background.job_files import BackgroundJob, JobFiles

def watch(frame, event, called):
    if event == "c_call" and called is os.fsync:
        os.kill(os.getpid(), signal.SIGKILL)

state, key = Path(sys.argv[1]), sys.argv[2]
JobFiles(state).keep(BackgroundJob("cli:first", "01ARZ3NDEKTSV4RRFFQ69G5FAV"))
sys.setprofile(watch)
JobFiles(state).keep(BackgroundJob(key, "01ARZ3NDEKTSV4RRFFQ69G5FAV"))
"""


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    """However often, and however long it was."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "cli:ada"], check=False)
    assert len(names_in(tmp_path / "jobs")) == 2

    [rest] = (tmp_path / "jobs").glob(".*")
    rest.write_bytes(b"x" * 999)
    JobFiles(tmp_path).keep(BackgroundJob("cli:ada", SESSION))

    assert BackgroundJob("cli:ada", SESSION) in JobFiles(tmp_path).left()
    names = names_in(tmp_path / "jobs")
    assert len(names) == 2
    assert not [name for name in names if name.startswith(".")]


def test_whoever_reads_the_jobs_sweeps_away_what_killed_writers_left(tmp_path: Path) -> None:
    """And nothing that is being written."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "cli:ada"], check=False)
    files = JobFiles(tmp_path)
    writer = Stepped(lambda: files.keep(BackgroundJob("cli:bob", SESSION)), os.rename).begin()
    assert len(names_in(tmp_path / "jobs")) == 3

    assert [job.key for job in files.left()] == ["cli:first"]
    assert len(names_in(tmp_path / "jobs")) == 2
    writer.end()

    assert {job.key for job in files.left()} == {"cli:bob", "cli:first"}
    assert len(names_in(tmp_path / "jobs")) == 2


def test_a_writer_whose_file_was_swept_away_before_it_was_locked_begins_again(tmp_path: Path) -> None:
    files, job = JobFiles(tmp_path), BackgroundJob("cli:ada", SESSION)
    writer = Stepped(lambda: files.keep(job), fcntl.flock).begin()

    assert files.left() == []
    assert names_in(tmp_path / "jobs") == []
    writer.end()

    assert files.left() == [job]


def test_a_lock_that_was_let_go_is_free_while_a_process_is_being_started(tmp_path: Path) -> None:
    """Between fork and exec the new process has all descriptors, and with them the locks."""
    lock = tmp_path / "x.lock"
    fd = try_lock(lock)
    assert fd is not None
    copied = os.dup(fd)
    let_go(fd)

    again = try_lock(lock)
    assert again is not None
    let_go(again)
    os.close(copied)


def test_a_name_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 125 + ".json")
    replace_file(path, b"x")
    assert path.read_bytes() == b"x"


@contextmanager
def no_room() -> Iterator[None]:
    """Let this process write no file longer than 3 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_the_write_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    replace_file(path, b"old")
    with pytest.raises(StoreError) as caught, no_room():
        replace_file(path, b"longer")

    assert caught.value.hint.startswith("free some disk space")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["x.json"]


def test_what_is_no_full_disk_is_not_told_as_one(tmp_path: Path) -> None:
    """Where the folder goes away meanwhile, or cannot be written, the hint names it."""
    folder = tmp_path / "gone"
    writer = Stepped(lambda: write_state(folder / "x.json", {}), os.rename).begin()
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()
    with pytest.raises(StoreError) as caught:
        writer.end()

    assert os.strerror(errno.ENOENT) in str(caught.value)
    assert "disk space" not in caught.value.hint
    assert str(folder) in caught.value.hint
    assert read_state(folder / "x.json") == {}
