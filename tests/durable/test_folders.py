"""A folder that was made, or found, is on disk under its name before ``make_folder`` returns."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import durable
from tests.gateway.service_place import as_root
from tests.support.guarantee import guarantee

pytestmark = guarantee("storage", "A new folder is on disk before anything in it counts as stored.")


def syncs(work: Callable[[], object]) -> list[str]:
    """Do some work, and list the folders that it synced, in order."""
    found: list[str] = []

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and called is os.fsync:
            synced = frame.f_locals.get("fd", frame.f_locals.get("folder"))
            found.append(str(Path(f"/proc/self/fd/{synced}").readlink()))

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_each_folder_is_synced_into_its_parent_from_the_top_down(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"

    found = syncs(lambda: durable.make_folder(path))

    assert found[-3:] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_folder_in_an_open_one_is_synced_into_it(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert syncs(lambda: durable.make_below(top, "new")) == [str(tmp_path)]
    finally:
        os.close(top)

    assert (tmp_path / "new").is_dir()


def test_a_folder_that_another_one_left_is_synced_once(tmp_path: Path) -> None:
    """Its maker may have been killed before he had synced it."""
    path = tmp_path / "left"
    path.mkdir()

    assert syncs(lambda: durable.make_folder(path)) == [str(tmp_path)]
    assert syncs(lambda: durable.make_folder(path)) == []
    # Made while the first one is still there: a folder made after it might get its number.
    another = tmp_path / "another"
    another.mkdir()
    path.rmdir()
    another.rename(path)
    assert syncs(lambda: durable.make_folder(path)) == [str(tmp_path)]


def test_a_file_in_the_way_is_named_by_whoever_writes_there(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")

    with pytest.raises(NotADirectoryError) as refused:
        durable.replace(tmp_path / "state" / "x.json", b"{}")
    assert str(refused.value.filename).startswith(str(tmp_path / "state"))


@as_root
@pytest.mark.parametrize("mode", [0o711, 0o733])
def test_a_parent_that_may_be_passed_but_not_read_bars_nothing(mode: int) -> None:
    """As the folder is in which systemd keeps those of its dynamic users."""
    with tempfile.TemporaryDirectory() as top:
        barred = Path(top)
        own = barred / "own"
        own.mkdir()
        os.chown(own, 12345, 12345)
        barred.chmod(mode)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)
            try:
                durable.make_folder((own if mode == 0o711 else barred / "new") / "state")
            except OSError as error:
                os.write(2, f"{error}\n".encode())
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
