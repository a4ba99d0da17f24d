"""A machine's own files are moved to ``state.local_dir`` and back: whole at every kill, in one place."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import durable
from gateway.app import local_dir, state_folder
from gateway.backup import creation, restoring, verifying
from gateway.errors import ConfigError, GatewayError, StateInUse
from gateway.outbound.ledger import DeliveryLedger
from gateway.queue.embedded.table import QueueTable
from gateway.queue.mailbox import Post
from session.disk.local_files import homes_of, local_state, note_of
from session.errors import StoreError
from tests.gateway.app.local_victim import ROWS, fill, rows
from tests.gateway.cli_place import Ran
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = guarantee(
    "storage", "A move of a machine's own files to or from `state.local_dir` survives a kill at any step."
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with files that a killed gateway left."""
    (tmp_path / "w" / "state").mkdir(parents=True)
    fill(tmp_path / "w" / "state")
    return tmp_path / "w"


def start(workspace: Path, wanted: Path | None) -> Path:
    local_dir.settle(workspace, wanted, beside=list)
    return local_state(workspace / "state")


def as_another_machine(folder: Path) -> None:
    """Take a folder from this machine, as if it had always been another's."""
    folder.rename(folder.with_name(f"{folder.name}-of-another"))


@pytest.mark.parametrize("way", ["there", "back", "onward"])
def test_a_kill_at_any_instant_of_a_move_is_gone_on_with(tmp_path: Path, way: str) -> None:
    """At each moment all files are in one place; after the next start where they are wanted, nowhere else."""
    words = [sys.executable, "-m", "tests.gateway.app.local_victim", str(tmp_path), way]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)

    found = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line]
    assert len(found) >= 8
    for number, one in enumerate(found):
        assert one.pop("elsewhere") == [], (number, done.stdout)
        assert all(one.values()), (number, done.stdout)


def test_without_the_key_nothing_is_moved_and_nothing_made(workspace: Path) -> None:
    before = sorted(path.name for path in (workspace / "state").iterdir())

    assert start(workspace, None) == workspace / "state"
    assert sorted(path.name for path in (workspace / "state").iterdir()) == before


def test_the_folder_is_private_and_made_with_those_above_it(workspace: Path, tmp_path: Path) -> None:
    place = start(workspace, tmp_path / "a" / "b")

    assert rows(place) == ROWS
    for folder in (place, place.parent, place.parent.parent, place / "recall"):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert not list((workspace / "state").rglob("*.db*"))
    assert not (workspace / "state" / "recall").exists()


def test_two_workspaces_share_a_folder_and_no_file(workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    first, second = start(workspace, tmp_path / "d"), start(other, tmp_path / "d")

    assert first != second
    assert (rows(first), rows(second)) == (ROWS, {})


def test_a_file_in_both_places_is_told_with_both_names(workspace: Path, tmp_path: Path) -> None:
    """Nothing is changed, so that a person can choose; what only the workspace has is moved as well."""
    place = start(workspace, tmp_path / "d")
    with sqlite3.connect(workspace / "state" / "delivery-discord.db") as file:
        file.execute("CREATE TABLE rows (text TEXT)")

    with pytest.raises(ConfigError) as refused:
        start(workspace, tmp_path / "d")

    assert f"{workspace}/state/delivery-discord.db and {place}/delivery-discord.db" in str(refused.value)
    assert "move" in refused.value.hint
    assert refused.value.exit_code == 78
    assert rows(place) == ROWS
    (workspace / "state" / "delivery-discord.db").rename(workspace / "state" / "delivery-web.db")
    start(workspace, tmp_path / "d")
    assert (place / "delivery-web.db").exists()
    assert not (workspace / "state" / "delivery-web.db").exists()


def test_files_of_another_machine_are_not_begun_anew(workspace: Path, tmp_path: Path) -> None:
    """A machine on which the key is not set is told where they are."""
    place = start(workspace, tmp_path / "d")
    (note,) = homes_of(workspace / "state")
    as_another_machine(tmp_path / "d")

    with pytest.raises(ConfigError, match=str(place)) as refused:
        start(workspace, None)
    assert str(note_of(workspace / "state", note.id)) in refused.value.hint
    with pytest.raises(ConfigError):
        local_dir.check(workspace, None)
    assert not list((workspace / "state").rglob("*.db"))


def test_each_machine_that_shares_a_broker_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """A new machine begins; one that has not set the key is told which has."""
    first = start(tmp_path / "w", tmp_path / "d")
    as_another_machine(tmp_path / "d")
    second = start(tmp_path / "w", tmp_path / "d")

    assert first != second
    assert len(homes_of(tmp_path / "w" / "state")) == 2
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(ConfigError, match=r"state\.local_dir is not set"):
        start(tmp_path / "w", None)


def test_a_copy_of_a_workspace_leaves_the_files_to_the_first(workspace: Path, tmp_path: Path) -> None:
    """A workspace that was moved keeps them; so does one that is seen under a second name."""
    place = start(workspace, tmp_path / "d")
    shutil.copytree(workspace, tmp_path / "copy")

    with pytest.raises(ConfigError, match="is a copy of"):
        start(tmp_path / "copy", tmp_path / "d")

    shutil.rmtree(tmp_path / "copy")
    workspace.rename(tmp_path / "moved")
    assert start(tmp_path / "moved", tmp_path / "d") == place
    (tmp_path / "linked").symlink_to(tmp_path / "moved")
    assert start(tmp_path / "linked", tmp_path / "d") == place


def test_who_works_there_is_not_moved_away_from(workspace: Path, tmp_path: Path) -> None:
    """Nothing is changed while any process of the workspace runs."""
    with state_folder.lock_file(workspace / "state") as lock:
        state_folder.share(lock)
        with pytest.raises(StateInUse, match=r"state\.local_dir moves files of"):
            local_dir.settle(workspace, tmp_path / "d", beside=lambda: ["pid 12"], wait_s=0.1)

    assert rows(workspace / "state") == ROWS
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
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError) as refused:
        start(workspace, tmp_path / "file" / "d")

    assert f"{tmp_path}/file/d cannot be used" in str(refused.value)
    assert "writable" in refused.value.hint
    assert start(workspace, None) == workspace / "state"
    assert rows(workspace / "state") == ROWS


def test_a_damaged_send_log_is_not_moved_and_a_damaged_index_is_let_go(
    workspace: Path, tmp_path: Path
) -> None:
    for name in ("vectors.db", "delivery-discord.db"):
        (workspace / "state" / name).write_bytes(b"no database " * 1000)
        (workspace / "state" / f"{name}-wal").unlink()
    with pytest.raises(GatewayError, match=r"delivery-discord\.db cannot be moved: .*damaged"):
        start(workspace, tmp_path / "d")
    (workspace / "state" / "delivery-discord.db").unlink()

    place = start(workspace, tmp_path / "d")

    assert set(rows(place)) == set(ROWS) - {"vectors.db", "delivery-discord.db"}


def test_a_damaged_note_hides_no_file(workspace: Path, tmp_path: Path) -> None:
    place = start(workspace, tmp_path / "d")
    note = note_of(workspace / "state", place.name)
    content = note.read_bytes()
    note.write_bytes(content[:-9])

    with pytest.raises(StoreError, match=f"{place.name}.json is damaged"):
        start(workspace, tmp_path / "d")

    note.write_bytes(content)
    assert start(workspace, tmp_path / "d") == place


async def test_a_backup_holds_them_and_a_restored_workspace_moves_them_again(tmp_path: Path) -> None:
    """Under the names that they have in the workspace, as of what is in use and not of what lies beside."""
    workspace, again = tmp_path / "w", tmp_path / "again"
    place = start(workspace, tmp_path / "d")
    table = QueueTable(workspace / "state")
    table.open()
    table.commit([durable.Job(lambda: table.insert(Post("in", "web:a", "m1", b"{}"), datetime.now(UTC)))])
    table.close()
    async with DeliveryLedger(place / "delivery-telegram.db") as ledger:
        await ledger.done("telegram:1", "t:1#reply")

    manifest = creation.create(workspace, tmp_path / "backup.tar", embedded=True)
    restoring.restore(tmp_path / "backup.tar", again)

    names = {entry.path.removeprefix("workspace/") for entry in manifest.entries}
    assert {"state/gateway.db", "state/delivery-telegram.db"} <= names
    assert not [name for name in names if "state/local" in name or place.name in name]
    assert (await verifying.verify(tmp_path / "backup.tar")).problems == []
    second = start(again, tmp_path / "d")
    assert second not in (place, again / "state")
    table = QueueTable(again / "state")
    assert table.open() == {"in": 1}
    table.close()
    async with DeliveryLedger(second / "delivery-telegram.db") as ledger:
        assert (await ledger.progress("telegram:1", "t:1#reply")).done


def test_verify_names_a_damaged_file_as_if_it_lay_in_the_workspace(tmp_path: Path) -> None:
    place = start(tmp_path / "w", tmp_path / "d")
    for path in (tmp_path / "w" / "state" / "gateway.db", place / "vectors.db"):
        path.write_bytes(b"no database " * 1000)

    done = Ran(tmp_path / "w", "sessions", "verify", "--repair", "--json")

    assert {row["file"]: row["repaired"] for row in json.loads(done.out)} == {
        "state/gateway.db": False,
        "state/vectors.db": True,
    }
    assert not (place / "vectors.db").exists()
