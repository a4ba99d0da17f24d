"""A folder that a chat's command made deeper than any path is listed as far as that goes, and removed."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.kept import export
from session.kept.erasing import Erased, count
from session.kept.subject import Conversation, Subject
from session.store import places
from session.store.trees import DEEP_MAX, folders, open_up, remove_tree
from tests.support.place import write

KEY, SCOPE = "telegram:1", "chats/telegram_1"
SUBJECT = Subject(KEY, False, (Conversation(KEY, "telegram_1"),), (SCOPE,), (), {})


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
        parts = export.write(out, SUBJECT, layout, owner="me", at=datetime.now(UTC))

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
