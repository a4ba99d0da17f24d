"""A machine's indexes are kept in ``state.local_dir``; what lies elsewhere is deleted, and made anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gateway.app import state_folder
from gateway.errors import ConfigError, StateInUse
from session.disk.local_files import homes_of, local_path, local_state, note_of
from session.errors import StoreError
from tests.gateway.cli_place import Ran

INDEXES = ("vectors.db", "vectors.db-wal", "recall/workspace.db", "recall/chats/a.db")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with indexes, and with a database that no key moves."""
    fill(tmp_path / "w" / "state")
    (tmp_path / "w" / "state" / "channels.db").touch()
    return tmp_path / "w"


def fill(place: Path) -> None:
    for name in INDEXES:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()


def start(workspace: Path, wanted: Path | None) -> Path:
    state_folder.settle_indexes(workspace, wanted, beside=list)
    return local_state(workspace / "state")


def files(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}


def as_another_machine(folder: Path) -> None:
    """Take a folder from this machine, as if it had always been another's."""
    folder.rename(folder.with_name(f"{folder.name}-of-another"))


def test_without_the_key_nothing_is_deleted_and_nothing_made(workspace: Path) -> None:
    before = files(workspace)

    assert start(workspace, None) == workspace / "state"
    assert files(workspace) == before


def test_the_folder_is_private_and_indexes_elsewhere_are_deleted(workspace: Path, tmp_path: Path) -> None:
    """There, onward to another folder, and back; what is no index stays."""
    first = start(workspace, tmp_path / "a" / "b")
    for folder in (first, first.parent, first.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert "state/channels.db" in files(workspace)
    assert not any(name in files(workspace / "state") for name in INDEXES)
    assert [local_path(workspace, f"state/{name}") for name in INDEXES] == [first / name for name in INDEXES]
    assert local_path(workspace, "state/channels.db") == workspace / "state" / "channels.db"
    fill(first)
    assert start(workspace, tmp_path / "a" / "b") == first
    assert files(first) == {*INDEXES}

    second = start(workspace, tmp_path / "c")
    assert not first.exists()
    assert second.parent == tmp_path / "c"

    assert start(workspace, None) == workspace / "state"
    assert not second.exists()
    assert homes_of(workspace / "state") == ()


def test_two_workspaces_share_a_folder_and_no_index(workspace: Path, tmp_path: Path) -> None:
    assert start(workspace, tmp_path / "d") != start(tmp_path / "other", tmp_path / "d")


def test_each_machine_that_shares_a_workspace_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """One without the key has its indexes in the workspace."""
    first = start(tmp_path / "w", tmp_path / "d")
    as_another_machine(tmp_path / "d")
    assert start(tmp_path / "w", None) == tmp_path / "w" / "state"

    assert start(tmp_path / "w", tmp_path / "d") != first
    assert len(homes_of(tmp_path / "w" / "state")) == 2


def test_a_copy_of_a_workspace_leaves_the_indexes_to_the_first(workspace: Path, tmp_path: Path) -> None:
    """A workspace that was moved keeps them; so does one that is seen under a second name."""
    place = start(workspace, tmp_path / "d")
    shutil.copytree(workspace, tmp_path / "copy")
    assert local_state(tmp_path / "copy" / "state") == tmp_path / "copy" / "state"
    assert start(tmp_path / "copy", tmp_path / "d") != place
    assert start(workspace, tmp_path / "d") == place

    workspace.rename(tmp_path / "moved")
    assert start(tmp_path / "moved", tmp_path / "d") == place
    (tmp_path / "linked").symlink_to(tmp_path / "moved")
    assert start(tmp_path / "linked", tmp_path / "d") == place


def test_who_works_there_keeps_his_indexes(workspace: Path, tmp_path: Path) -> None:
    """Nothing is changed while any process of the workspace runs."""
    before = files(workspace)
    with state_folder.lock_file(workspace / "state") as lock:
        state_folder.share(lock)
        with pytest.raises(StateInUse, match=r"state\.local_dir moves the indexes of"):
            state_folder.settle_indexes(workspace, tmp_path / "d", beside=lambda: ["pid 12"], wait_s=0.1)

    assert before <= files(workspace)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("inside", ["state", "link"])
def test_a_folder_that_leads_into_the_workspace_is_refused(
    workspace: Path, tmp_path: Path, inside: str
) -> None:
    (tmp_path / "link").symlink_to(workspace)
    wanted = workspace / "state" / "x" if inside == "state" else tmp_path / "link" / "x"

    with pytest.raises(ConfigError, match="is inside the workspace"):
        start(workspace, wanted)


def test_a_folder_that_cannot_be_made_is_told_with_its_cure(workspace: Path, tmp_path: Path) -> None:
    before = files(workspace)
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError) as refused:
        start(workspace, tmp_path / "file" / "d")

    assert f"{tmp_path}/file/d cannot be used" in str(refused.value)
    assert "writable" in refused.value.hint
    assert before <= files(workspace)


def test_a_damaged_note_is_told_with_its_cure(workspace: Path, tmp_path: Path) -> None:
    place = start(workspace, tmp_path / "d")
    note = note_of(workspace / "state", place.name)
    note.write_bytes(note.read_bytes()[:-9])

    with pytest.raises(StoreError, match=f"{place.name}.json is damaged") as told:
        start(workspace, tmp_path / "d")
    assert f"delete {note}" in told.value.hint

    note.unlink()
    assert start(workspace, tmp_path / "d") != place


def test_verify_names_a_damaged_index_as_if_it_lay_in_the_workspace(tmp_path: Path) -> None:
    place = start(tmp_path / "w", tmp_path / "d")
    for path in (tmp_path / "w" / "state" / "gateway.db", place / "vectors.db"):
        path.write_bytes(b"no database " * 1000)

    done = Ran(tmp_path / "w", "sessions", "verify", "--repair", "--json")

    assert {row["file"]: row["repaired"] for row in json.loads(done.out)} == {
        "state/gateway.db": False,
        "state/vectors.db": True,
    }
    assert not (place / "vectors.db").exists()
