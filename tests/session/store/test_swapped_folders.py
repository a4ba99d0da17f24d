"""Folders that a tool swaps for links, or made deeper than any path, mislead no erasure, export or backup."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pytest

from gateway.backup import creation
from session.disk.layout import Layout
from session.kept import export
from session.kept.erasing import Erased, count
from session.kept.subject import Conversation, Subject
from session.store import places
from session.store.trees import DEEP_MAX, folders, open_up, remove_tree
from tests.support.place import write

KEY, SCOPE = "telegram:1", "chats/telegram_1"
SUBJECT = Subject(KEY, False, (Conversation(KEY, "telegram_1"),), (SCOPE,), (), {})
SECRET = "sesame of another chat"
NAMES = [f"telegram_{at}.jsonl" for at in range(40)]
# As a command does it that goes on: the folder and the link take turns under one name, also below another.
SWAPPING = """
import os, sys
home, outside = sys.argv[1:]
while True:
    for place in (f"{home}/zz", f"{home}/deep/zz"):
        try:
            os.makedirs(place + ".d", exist_ok=True)
            for name in os.listdir(outside):
                open(f"{place}.d/{name}", "a").close()
            if not os.path.islink(place + ".l"):
                os.symlink(outside, place + ".l")
            for _ in range(200):
                os.rename(place + ".d", place)
                os.rename(place, place + ".d")
                os.rename(place + ".l", place)
                os.rename(place, place + ".l")
        except OSError:
            pass
"""


@contextmanager
def swapping(home: Path, outside: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", SWAPPING, str(home), str(outside)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files of another chat, under names that the chat's own folder has as well."""
    for name in NAMES:
        write(tmp_path / "w/sessions" / name, SECRET)
    return tmp_path / "w/sessions"


def test_a_folder_that_is_a_link_since_it_was_listed_is_not_entered(tmp_path: Path, outside: Path) -> None:
    """The erasure lists and then removes; between the two is all the time that a command needs."""
    layout, home = Layout(tmp_path / "w"), tmp_path / "w/files" / SCOPE
    for name in NAMES:
        write(home / "zz" / name, "")
    listed = list(places.of_scope(layout, SCOPE))
    (home / "zz").rename(home / "old")
    (home / "zz").symlink_to(outside)

    places.remove(iter(listed))
    places.remove_trees(layout, scope=SCOPE)

    assert sorted(path.name for path in outside.iterdir()) == sorted(NAMES)
    assert not home.exists()


def test_only_folders_of_the_chat_are_opened_up(tmp_path: Path, outside: Path) -> None:
    home = tmp_path / "w/files" / SCOPE
    (outside / "shut").mkdir(mode=0o500)
    with swapping(home, outside):
        for _ in range(15):
            open_up(home)
            open_up(home.parent, (home.name, "zz", "shut"))

    assert (outside / "shut").stat().st_mode & 0o777 == 0o500
    (outside / "shut").chmod(0o700)


class Swapped:
    """Takes an export, and puts a link in the place of the folder as soon as the first file is written."""

    def __init__(self, file: BinaryIO, folder: Path, outside: Path) -> None:
        self._file, self._folder, self._outside = file, folder, outside

    def write(self, data: bytes) -> int:
        if not self._folder.is_symlink():
            self._folder.rename(self._folder.with_name("old"))
            self._folder.symlink_to(self._outside)
        return self._file.write(data)


def test_an_export_holds_nothing_of_outside(tmp_path: Path, outside: Path) -> None:
    layout, home = Layout(tmp_path / "w"), tmp_path / "w/files" / SCOPE
    write(home / "first", "x" * 2**20)
    for name in NAMES:
        write(home / "zz" / name, "")
    (outside / NAMES[1]).unlink()
    os.mkfifo(home / "pipe")
    with (tmp_path / "e.tar").open("wb") as file:
        out = Swapped(file, home / "zz", outside)
        export.write(out, SUBJECT, layout, at=datetime.now(UTC))  # type: ignore[arg-type]

    assert (home / "zz").is_symlink()
    text = (tmp_path / "e.tar").read_bytes()
    assert b"x" * 2**20 in text
    assert SECRET.encode() not in text


def test_a_backup_holds_nothing_of_outside(tmp_path: Path) -> None:
    """Of a chat's folder, and of one of a server of tools, whose process lives all the time."""
    workspace, outside = tmp_path / "w", tmp_path / "outside"
    for name in NAMES:
        write(outside / name, SECRET)
    chat, server = workspace / "files" / SCOPE, workspace / "state/mcp/good"
    write(chat / "own.txt", "kept")
    with swapping(chat, outside), swapping(server, outside):
        os.mkfifo(chat / "pipe")
        for at in range(6):
            creation.create(workspace, tmp_path / f"{at}.tar", embedded=True)

    for at in range(6):
        with tarfile.open(tmp_path / f"{at}.tar") as tar:
            assert f"workspace/files/{SCOPE}/own.txt" in tar.getnames()
        assert SECRET.encode() not in (tmp_path / f"{at}.tar").read_bytes()


KEY, SCOPE = "telegram:1", "chats/telegram_1"


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """The folder of a chat, with 3,000 folders within each other in it, and files beside each."""
    home = tmp_path / "w/files" / SCOPE
    write(home / "top.txt", "x")
    write(tmp_path / "outside/kept.txt", "x")
    (home / "link").symlink_to(tmp_path / "outside")
    folder = os.open(home, os.O_RDONLY)
    for at in range(3000):
        os.mkdir("d", dir_fd=folder)
        if at % 100 == 0:
            os.mkdir("shut", 0o000, dir_fd=folder)
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
            os.symlink(tmp_path / "outside", "out", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    yield home
    # What pytest itself removes may not be that deep.
    if home.exists():
        remove_tree(home)


def test_it_is_erased_whole(deep: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")

    count(layout, SUBJECT, Erased(KEY))
    places.remove(places.of_scope(layout, SCOPE))
    places.remove_trees(layout, scope=SCOPE)

    assert not deep.exists()
    assert list(deep.parent.iterdir()) == []
    assert (tmp_path / "outside/kept.txt").read_text() == "x"


def test_an_export_says_what_lies_too_deep(deep: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")
    with (tmp_path / "e.tar").open("wb") as out:
        parts = export.write(out, SUBJECT, layout, at=datetime.now(UTC))

    home = f"files/{SCOPE}"
    assert [part.source for part in parts if part.kind == "file"] == [
        f"{home}/f",
        f"{home}/top.txt",
        f"{home}/{'d/' * 100}f",
        f"{home}/{'d/' * 200}f",
    ]
    with tarfile.open(tmp_path / "e.tar") as tar:
        manifest = tar.extractfile("telegram_1/manifest.json")
        assert manifest is not None
        said = manifest.read().decode()
    assert f"{home}/{'d/' * (DEEP_MAX + 1)}: nested too deeply, or its path is too long" in said


def test_opening_goes_as_deep_as_files_are_listed(deep: Path) -> None:
    (deep / "d").chmod(0o000)

    open_up(deep)

    assert (deep / "d").stat().st_mode & 0o700 == 0o700
    assert len([folder for folder, _ in folders(deep) if folder.name != "shut"]) == DEEP_MAX + 1
    assert (deep / "shut").stat().st_mode & 0o700 == 0o700
