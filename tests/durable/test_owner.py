"""What root makes in somebody's folder belongs to the owner of that folder, from its first moment on."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import durable
from tests.gateway.service_place import as_root
from tests.support.dying import die_at
from tests.support.guarantee import guarantee

OWNER = (12345, 54321)
STEPS = ("mkdir", "open", "chmod", "fchmod", "fchown", "rename", "link", "unlink", "fsync", "write")


def test_these_tests_run_as_root() -> None:
    """Only root can make files for others; where it does not run them, nothing here would be shown."""
    if os.environ.get("CI"):
        assert os.geteuid() == 0


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that others may pass: pytest's own are barred to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def theirs(place: Path) -> Path:
    folder = place / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, *OWNER)
    return folder


def owners(folder: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {str(path.relative_to(folder)): (stat.st_uid, stat.st_gid) for path, stat in found.items()}


def replace(folder: Path) -> None:
    durable.replace(folder / "deep" / "er" / "file.json", b"{}")


def lock(folder: Path) -> None:
    with durable.locked(folder / "deep" / "x.lock"):
        pass


def link(folder: Path) -> None:
    with durable.replacing(folder / "linked", temp=folder / ".linked.tmp", new=True) as fd:
        durable.write_all(fd, b"whole")


def touch(folder: Path) -> None:
    durable.touch(folder / "gateway.db")


def below(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    durable.make_below(fd, "made")
    durable.replace_below(fd, "file.txt", b"whole", temp=".chat-gateway-1.tmp")
    os.close(fd)


WRITERS = [replace, lock, link, touch, below]


@as_root
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_everything_new_belongs_to_the_owner_of_its_folder(
    theirs: Path, writer: Callable[[Path], None]
) -> None:
    writer(theirs)

    assert owners(theirs)
    assert set(owners(theirs).values()) == {OWNER}
    assert not list(theirs.rglob("*.tmp"))


@guarantee("operation", "A command that root runs never locks a service of another user out of its files.")
@as_root
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_killed_anywhere_it_leaves_no_name_that_the_owner_cannot_use(
    place: Path, theirs: Path, writer: Callable[[Path], None]
) -> None:
    """What is still root's has a temporary name, and its owner's next write gets past it."""
    deaths = 0
    while True:
        deaths += 1
        copy = place / f"killed-{deaths}"
        shutil.copytree(theirs, copy)
        os.chown(copy, *OWNER)
        child = os.fork()
        if child == 0:
            die_at(deaths, {name: getattr(os, name) for name in STEPS})
            writer(copy)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        names = {name for name, owner in owners(copy).items() if owner != OWNER}
        assert all(name.endswith(".tmp") for name in names), (deaths, names)
        assert _as_owner(lambda copy=copy: writer(copy)) == 0, (deaths, names)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert deaths > 5


@as_root
def test_the_files_that_sqlite_adds_belong_to_the_owner(theirs: Path) -> None:
    """SQLite gives its log and its shared memory to whom the database belongs, where root runs it."""
    durable.touch(theirs / "gateway.db")
    with sqlite3.connect(theirs / "gateway.db") as file:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("CREATE TABLE t (x)")
        file.execute("INSERT INTO t VALUES (1)")
        file.commit()

        assert set(owners(theirs)) == {"gateway.db", "gateway.db-wal", "gateway.db-shm"}
        assert set(owners(theirs).values()) == {OWNER}
    file.close()


@as_root
def test_a_folder_that_became_a_link_gets_nothing_of_its_former_owner(tmp_path: Path, theirs: Path) -> None:
    """Whoever owns a workspace has root make no file of his in a folder that is not his."""
    roots = tmp_path / "etc"
    roots.mkdir()
    (theirs / "state").symlink_to(roots)

    durable.replace(theirs / "state" / "tokens.json", b"{}")
    durable.touch(theirs / "state" / "x.lock")

    assert set(owners(roots).values()) == {(0, 0)}


@as_root
def test_what_lies_in_roots_own_folders_stays_roots(tmp_path: Path) -> None:
    durable.replace(tmp_path / "a" / "file", b"")

    assert set(owners(tmp_path).values()) == {(0, 0)}


@as_root
def test_what_is_not_to_inherit_stays_roots(theirs: Path) -> None:
    durable.replace(theirs / "exported.jsonl", b"{}", inherit=False)

    assert set(owners(theirs).values()) == {(0, 0)}


def _as_owner(work: Callable[[], None]) -> int:
    """Do some work in a child that is the owner; return its exit code."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(OWNER[1])
            os.setuid(OWNER[0])
            work()
        # The process that was killed may have come to its end before.
        except FileExistsError:
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a child of the test ends here, and says why
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_lock_is_its_holders_until_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "state" / "x.lock"
    held = durable.take_lock(path)
    assert held is not None

    assert durable.take_lock(path) is None
    with pytest.raises(durable.LockHeld), durable.locked(path, wait_s=0.02):
        pass
    os.close(held)
    with durable.locked(path):
        fd = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
