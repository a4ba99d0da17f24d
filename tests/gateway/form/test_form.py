"""A workspace is brought into the form of a program after a copy, and back: whole at every kill."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.errors import GatewayError, NewerState, StateInUse
from gateway.form import copies, number
from gateway.form.downgrade import downgrade
from gateway.form.migration import Migration
from gateway.form.migrations import MIGRATIONS
from gateway.form.upgrade import entered
from tests.gateway.form.declared import FORMS, FURTHER, LOUD
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = guarantee(
    "storage", "An upgrade copies the files that it changes, survives a kill at any step, and can be undone."
)

Content = dict[str, object]
UPGRADE = ("begun", "copied", "announced", "changed", "ended")
DOWNGRADE = ("begun", "aside", "announced", "put back", "all back", "ended")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace of form 1 with files that form 2 has otherwise."""
    (tmp_path / "state").mkdir()
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "cli_ann.jsonl").write_text("{}\n")
    (tmp_path / "notes").mkdir()
    for name in ("a.txt", "b.txt", "spare"):
        (tmp_path / "notes" / name).write_text(f"hello {name}\n")
    with contextlib.closing(sqlite3.connect(tmp_path / "notes" / "rows.db")) as file, file:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("CREATE TABLE rows (text TEXT)")
        file.execute("INSERT INTO rows VALUES ('one')")
    number.write(tmp_path / "state", number.Form(1, "0.1"))
    return tmp_path


def content(workspace: Path) -> Content:
    """Read the notes: texts by name, and the rows of the database."""
    notes = workspace / "notes"
    with contextlib.closing(sqlite3.connect(notes / "rows.db")) as file:
        rows = file.execute("SELECT * FROM rows").fetchall()
    return {path.name: path.read_text() for path in notes.iterdir() if ".db" not in path.name} | {
        "rows": rows
    }


def upgrade(workspace: Path, forms: Sequence[Migration] = FORMS) -> None:
    with entered(workspace, beside=list, migrations=forms):
        pass


def run(change: str, workspace: Path, *point: str) -> int:
    words = [sys.executable, "-m", "tests.gateway.form.declared", change, str(workspace), *point]
    return subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, check=False, timeout=60).returncode


LOUDLY = {"a.txt": "HELLO A.TXT\n", "b.txt": "HELLO B.TXT\n", "list.json": "['a.txt', 'b.txt']"}


def test_an_upgrade_copies_first_and_a_downgrade_puts_back_and_tells(workspace: Path) -> None:
    """What came since is counted; what gives way lies aside; a second upgrade copies anew."""
    before = content(workspace)
    upgrade(workspace)
    loud = content(workspace)
    (workspace / "notes" / "a.txt").write_text("written by the new version\n")
    (workspace / "sessions" / "cli_ann.jsonl").write_text("{}\n{}\n")

    told = downgrade(workspace, beside=list, migrations=FORMS, dry_run=True)
    assert number.read(workspace / "state", FORMS).number == 2
    done = downgrade(workspace, beside=list, migrations=FORMS)

    assert loud == LOUDLY | {"rows": [("one", 1)]}
    assert content(workspace) == before
    assert (
        done.restored == told.restored == [f"notes/{name}" for name in ("a.txt", "b.txt", "rows.db", "spare")]
    )
    assert done.removed == ["notes/list.json"]
    assert [(each.kind, each.files) for each in done.since] == [("transcript", 1)]
    assert done.aside is not None
    assert done.aside.path("notes/a.txt").read_text() == "written by the new version\n"
    assert number.read(workspace / "state", FORMS).number == 1

    (workspace / "notes" / "a.txt").write_text("written by the old version\n")
    upgrade(workspace)
    assert content(workspace)["a.txt"] == "WRITTEN BY THE OLD VERSION\n"
    downgrade(workspace, beside=list, migrations=FORMS)
    assert content(workspace)["a.txt"] == "written by the old version\n"


def test_a_kill_at_any_instant_of_an_upgrade_is_gone_on_with(workspace: Path) -> None:
    """The copy holds what was there before the first try; the step ends once; the way back stays."""
    before = content(workspace)
    for instant in UPGRADE:
        assert run("upgrade", workspace, instant) == -signal.SIGKILL, instant
        if instant in ("announced", "changed"):
            # The version before would read half of it wrongly.
            with pytest.raises(NewerState, match="version 2, not 1"):
                number.check(workspace / "state", MIGRATIONS)
            with pytest.raises(number.Unfinished):
                number.check(workspace / "state", FORMS)
        upgrade(workspace)
        assert content(workspace) == LOUDLY | {"rows": [("one", 1)]}, instant
        downgrade(workspace, beside=list, migrations=FORMS)
        assert content(workspace) == before, instant


def test_a_kill_at_any_instant_of_a_downgrade_is_gone_on_with(workspace: Path) -> None:
    """Nobody works on files of which half are put back; what gave way lies aside."""
    before = content(workspace)
    for instant in DOWNGRADE:
        upgrade(workspace)
        (workspace / "notes" / "a.txt").write_text(f"new {instant}\n")
        assert run("downgrade", workspace, instant) == -signal.SIGKILL, instant
        if instant in ("announced", "put back", "all back"):
            with pytest.raises(number.Unfinished, match="downgrade"):
                upgrade(workspace)
        if instant != "ended":
            downgrade(workspace, beside=list, migrations=FORMS)
        assert content(workspace) == before, instant
        aside = copies.found(workspace, "downgrade", 2)
        assert aside is not None
        assert aside.path("notes/a.txt").read_text() == f"new {instant}\n"


def test_several_steps_go_one_by_one_and_each_can_be_gone_back(workspace: Path) -> None:
    before = content(workspace)
    upgrade(workspace, FURTHER)
    assert number.read(workspace / "state", FURTHER).number == 3

    forms = [downgrade(workspace, beside=list, migrations=FURTHER).copy.form for _ in range(2)]

    assert forms == [2, 1]
    assert content(workspace) == before
    with pytest.raises(GatewayError, match="nothing to downgrade"):
        downgrade(workspace, beside=list, migrations=FURTHER)


def test_of_several_that_start_at_once_one_changes_the_form(workspace: Path) -> None:
    """All of them go on in the new form, beside each other, and nobody goes back meanwhile."""
    words = [sys.executable, "-m", "tests.gateway.form.declared", "upgrade", str(workspace)]
    started = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        assert [each.stdout and each.stdout.readline() for each in started] == ["entered\n"] * 4
        assert content(workspace) == LOUDLY | {"rows": [("one", 1)]}
        assert len(list((workspace / "state").glob("before-upgrade-1-*"))) == 1
        with pytest.raises(StateInUse, match="pid 7"):
            downgrade(workspace, beside=lambda: ["pid 7"], migrations=FORMS)
    finally:
        for each in started:
            each.communicate(timeout=60)


def test_a_verb_beside_a_start_that_changes_the_form_waits_for_it(workspace: Path) -> None:
    """It is a matter of moments: what a kill cut short is told, and not what goes on."""
    announced, looked = threading.Event(), threading.Event()

    def at(instant: str) -> None:
        if instant == "announced":
            announced.set()
            looked.wait(20)

    def start() -> None:
        with entered(workspace, beside=list, migrations=FORMS, at=at):
            pass

    with ThreadPoolExecutor() as threads:
        starting = threads.submit(start)
        assert announced.wait(20)
        verb = threads.submit(number.check, workspace / "state", FORMS)
        with pytest.raises(TimeoutError):
            verb.result(0.2)
        looked.set()

        assert verb.result(20) is None
        assert starting.result(20) is None


def test_processes_of_the_form_before_are_seen(workspace: Path) -> None:
    """A step that bears none beside it refuses and names them; one that does goes on."""
    before = content(workspace)
    entering = entered(workspace, beside=lambda: ["pid 7 (role session)"], migrations=FORMS)
    with pytest.raises(StateInUse, match=r"notes are loud.*but pid 7 \(role session\)"), entering:
        pass
    assert content(workspace) == before
    assert not list((workspace / "state").glob("before-*"))

    upgrade(workspace)
    with entered(workspace, beside=lambda: ["pid 7"], migrations=FURTHER):
        assert number.read(workspace / "state", FURTHER).number == 3


def test_a_damaged_copy_is_no_way_back(workspace: Path) -> None:
    upgrade(workspace)
    copy = copies.found(workspace, "upgrade", 1)
    assert copy is not None
    copy.path("notes/a.txt").write_text("something else")

    with pytest.raises(GatewayError, match=r"is damaged: notes/a\.txt"):
        downgrade(workspace, beside=list, migrations=FORMS)

    assert content(workspace) == LOUDLY | {"rows": [("one", 1)]}


def test_a_new_workspace_has_nothing_to_change(tmp_path: Path) -> None:
    upgrade(tmp_path)

    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["workspace.lock"]


def test_the_steps_of_this_program_have_no_gap() -> None:
    assert [step.to for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    assert LOUD.to == len(MIGRATIONS) + 1


def test_marks_of_menus_move_into_files_with_a_version(tmp_path: Path) -> None:
    """A platform that was shown a menu by a program without numbers is not shown it again."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "daemon.json").write_text('{"v": 1, "daemons": []}')
    (state / "telegram-commands").write_text("3ae1b5e04be382eb")
    (state / "discord-commands").write_text("of long ago")
    (state / "discord-commands.json").write_text('{"v":1,"menu":"newer"}')

    upgrade(tmp_path, MIGRATIONS)

    assert json.loads((state / "telegram-commands.json").read_bytes()) == {"v": 1, "menu": "3ae1b5e04be382eb"}
    assert json.loads((state / "discord-commands.json").read_bytes())["menu"] == "newer"
    assert not list(state.glob("*-commands"))
    done = downgrade(tmp_path, beside=list)
    assert (state / "telegram-commands").read_text() == "3ae1b5e04be382eb"
    assert (state / "discord-commands").read_text() == "of long ago"
    assert done.removed == ["state/telegram-commands.json"]
    assert not (state / "workspace.json").exists()
