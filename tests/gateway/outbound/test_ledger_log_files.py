"""The files in which machines note what they sent: begun, bounded, locked, and what is taken out of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import orjson
import pytest

import durable
from gateway.outbound.ledger_log import LedgerLog, Note, forget, notes_on
from gateway.outbound.ledger_rows import from_ms
from session.disk.local_files import Home, note
from tests.support.world import set_world

KEY, OUT, AT_MS = "fake:ada", "fake:1#reply", 1_800_000_000_000
MIB = 2**20


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def folder(state: Path) -> Path:
    return state / "deliveries" / "fake"


@contextmanager
def writing(folder: Path, machine: str = "one") -> Iterator[LedgerLog]:
    log = LedgerLog(folder, machine)
    try:
        yield log
    finally:
        log.close()


def done(out_id: str = OUT, key: str = KEY) -> Note:
    return Note("done", {"key": key, "out_id": out_id})


def lines(path: Path) -> list[tuple[int, str]]:
    """Return the number of each line and the letter of which it tells."""
    return [(row["n"], row["out_id"]) for row in map(orjson.loads, path.read_bytes().splitlines())]


def letters(folder: Path) -> list[str]:
    """Return the letters of which a machine that takes over learns, in order."""
    return [str(each.arguments.get("out_id")) for _, _, each, _ in LedgerLog(folder, "late").others({})]


def held_open(path: Path) -> int:
    """Count the descriptors that this process has of a file."""
    found, count = path.stat(), 0
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):
            count += os.path.samestat(os.fstat(int(each.name)), found)
    return count


def long_file(folder: Path, name: str, size: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.touch()
    os.truncate(path, size)
    return path


@pytest.mark.parametrize(("over", "in_first"), [(-1, 2), (0, 1)])
def test_a_new_file_is_begun_at_one_mebibyte(folder: Path, over: int, in_first: int) -> None:
    """The lines of each are counted from 1, and the one that is full is closed."""
    half = "x" * 2**19
    with writing(folder) as log:
        log.append([done(half)], AT_MS)
        (first,) = folder.iterdir()
        size = first.stat().st_size
        empty = size - len(half)
        log.append([done("y" * (MIB + over - size - empty))], AT_MS)
        assert first.stat().st_size == MIB + over
        log.append([done("a")], AT_MS)
        log.append([done("b"), done("c")], AT_MS)
        log.append([done("d")], AT_MS)

        (second,) = set(folder.iterdir()) - {first}
        told = [name for _, name in lines(second)]
        assert told == ["a", "b", "c", "d"][in_first - 1 :]
        for path in (first, second):
            assert [n for n, _ in lines(path)] == list(range(1, len(lines(path)) + 1))
        assert (held_open(first), held_open(second)) == (0, 1)
    assert held_open(second) == 0


def test_of_more_than_sixteen_mebibytes_the_oldest_go(folder: Path) -> None:
    """As many as are too many; what is longer than all of them are allowed to be is none of them."""
    older, old = long_file(folder, "one-00", MIB), long_file(folder, "one-01", 1)
    kept = [long_file(folder, f"other-{number + 10}", MIB) for number in range(16)]

    with writing(folder) as log:
        log.append([done()], AT_MS)

    assert not older.exists()
    assert not old.exists()
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize(("late_s", "stays"), [(0, True), (1, False)])
def test_a_file_stays_for_seven_days(
    folder: Path, monkeypatch: pytest.MonkeyPatch, late_s: int, stays: bool
) -> None:
    now_s = AT_MS // 1000
    set_world(monkeypatch, wall_ns=lambda: now_s * 1_000_000_000)
    old = long_file(folder, "other-00", 1)
    written_s = now_s - timedelta(days=7).total_seconds() - late_s
    os.utime(old, (written_s, written_s))

    with writing(folder) as log:
        log.append([done()], AT_MS)

    assert old.exists() == stays


def test_a_file_into_which_another_machine_writes_just_now_stays(folder: Path) -> None:
    """Its notes would else go into a file that nobody finds; one that cannot be opened keeps no other."""
    old, odd, older = (long_file(folder, f"other-{number:02}", 1) for number in (2, 1, 0))
    for path in (old, odd, older):
        os.utime(path, (1, 1))
    odd.unlink()
    odd.mkdir()

    with old.open("rb") as held, writing(folder) as log:
        assert durable.try_lock(held.fileno())
        log.append([done()], AT_MS)

    assert (old.exists(), older.exists()) == (True, False)


def test_a_file_that_was_replaced_just_now_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes something out does so between the opening of the old one and its lock."""
    old = long_file(folder, "other-00", 1)
    os.utime(old, (1, 1))
    lock = durable.try_lock

    def late(fd: int) -> bool:
        if os.path.samestat(os.fstat(fd), old.stat()):
            durable.replace(old, b"new")
        return lock(fd)

    with writing(folder) as log:
        monkeypatch.setattr(durable, "try_lock", late)
        log._tidy()
        monkeypatch.undo()

    assert old.read_bytes() == b"new"


class Clock:
    """Time that passes by being looked at and slept; at ``free_at_s`` whoever holds the lock lets go."""

    def __init__(self, let_go: Callable[[], None], free_at_s: float) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []
        self._let_go = let_go
        self._free_at_s = self.now_s + free_at_s

    def monotonic(self) -> float:
        self.now_s += 0.001
        if self.now_s >= self._free_at_s:
            self._let_go()
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.mark.parametrize("free_at_s", [9.9, 30.0])
def test_a_lock_is_waited_for_ten_seconds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free_at_s: float
) -> None:
    """A stopped process that takes something out costs an error, not a daemon that hangs; then it goes on."""
    with writing(folder) as log:
        log.append([done("first")], AT_MS)
        (path,) = folder.iterdir()
        with path.open("rb") as file:
            assert durable.try_lock(file.fileno())
            clock = Clock(lambda: durable.unlock(file.fileno()), free_at_s)
            set_world(monkeypatch, monotonic=clock.monotonic, pause=clock.pause)
            if free_at_s > 10:
                with pytest.raises(OSError, match="another process") as caught:
                    log.append([done("second")], AT_MS)
                assert caught.value.errno == errno.EBUSY
                assert 110.0 <= clock.now_s < 110.2
            else:
                log.append([done("second")], AT_MS)
        # It looks often: what is taken out takes milliseconds.
        assert clock.slept_s
        assert max(clock.slept_s) < 0.1
        if free_at_s > 10:
            log.append([done("second")], AT_MS)

    assert letters(folder) == ["first", "second"]


@pytest.mark.parametrize("step", ["sync_data", "sync_folder"])
def test_what_is_not_on_the_disk_is_refused_and_written_into_another_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A sync that failed once says nothing the second time: the lines before it are never seen to be safe."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with writing(folder) as log:
        with monkeypatch.context() as patch:
            patch.setattr(durable, step, fail)
            with pytest.raises(OSError, match="the disk is gone"):
                log.append([done("first")], AT_MS)
        (spoilt,) = folder.iterdir()
        assert held_open(spoilt) == 0
        log.append([done("first")], AT_MS)
        (whole,) = set(folder.iterdir()) - {spoilt}
        assert lines(whole) == [(1, "first")]


def test_a_file_that_was_taken_away_is_begun_anew(folder: Path) -> None:
    """Another machine tidied it up: what was written into it would be seen by nobody."""
    with writing(folder) as log:
        log.append([done("first")], AT_MS)
        (gone,) = folder.iterdir()
        gone.unlink()
        log.append([done("second")], AT_MS)

    assert letters(folder) == ["second"]


def test_files_are_read_in_the_order_in_which_they_were_begun(folder: Path) -> None:
    """Whichever machine wrote them: what came later counts."""
    machines = ["e", "a", "d", "b-b", "f", "c", "g"]
    for at in (3, 0, 5, 1, 6, 2, 4):
        path = long_file(folder, f"{machines[at]}-0{at}", 0)
        path.write_text(f'{{"n": 1, "at": 1, "do": "done", "out_id": "{at}"}}\n')

    assert letters(folder) == ["0", "1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize(("late_ms", "stays"), [(0, True), (1, False)])
def test_what_was_done_before_a_time_is_taken_out_to_the_millisecond(
    state: Path, folder: Path, late_ms: int, stays: bool
) -> None:
    with writing(folder) as log:
        log.append([done()], AT_MS)

    forget(state, [KEY], before=from_ms(AT_MS + late_ms))

    assert letters(folder) == ([OUT] if stays else [])


def test_a_file_that_tells_nothing_of_it_stays_the_same_file(state: Path, folder: Path) -> None:
    """The machine that writes it goes on in it, and syncs no file for nothing."""
    with writing(folder, "one") as one, writing(folder, "other") as other:
        one.append([done()], AT_MS)
        (theirs,) = folder.iterdir()
        other.append([done("fake:2#reply", "fake:bob")], AT_MS)
        (stays,) = set(folder.iterdir()) - {theirs}
        before = stays.stat()

        forget(state, [KEY], before=None)
        other.append([done("fake:3#reply", "fake:bob")], AT_MS)

    assert os.path.samestat(before, stays.stat())
    assert lines(stays) == [(1, "fake:2#reply"), (2, "fake:3#reply")]
    assert theirs.read_bytes() == b""


def test_of_two_who_forget_at_once_neither_brings_back_what_the_other_took_out(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for the lock has opened the file of before: the other one has replaced it."""
    with writing(folder) as log:
        log.append([done(), done("fake:2#reply", "fake:bob"), done("fake:3#reply", "fake:eve")], AT_MS)
    (path,) = folder.iterdir()
    with path.open("rb") as file:
        assert durable.try_lock(file.fileno())

        def take_out_another(_: float) -> None:
            kept = [line for line in file.readlines() if b"fake:bob" not in line]
            durable.replace(path, b"".join(kept))
            durable.unlock(file.fileno())

        set_world(monkeypatch, pause=take_out_another)
        forget(state, [KEY], before=None)

    assert letters(folder) == ["fake:3#reply"]


def keeps_its_own(state: Path, tmp_path: Path) -> str:
    """Have this machine keep its ledgers on a disk of its own; return its name."""
    home = Home("01MACHINE", str(tmp_path / "disk"), str(tmp_path), phase="", source="")
    home.path.mkdir(parents=True)
    (state / "local").mkdir(parents=True)
    note(state, home)
    return home.id


def test_the_others_are_told_to_forget_by_a_machine_with_a_ledger_of_its_own(
    state: Path, folder: Path, tmp_path: Path
) -> None:
    name = keeps_its_own(state, tmp_path)
    folder.mkdir(parents=True)

    forget(state, [KEY, "fake:bob"], before=None)
    forget(state, [KEY], before=from_ms(AT_MS))

    told = [each.arguments for _, _, each, _ in LedgerLog(folder, "other").others({}) if each.do == "forget"]
    assert told == [{"keys": [KEY, "fake:bob"], "before": None}, {"keys": [KEY], "before": AT_MS}]
    assert all(path.name.startswith(f"{name}-") for path in folder.iterdir())
    assert not any(held_open(path) for path in folder.iterdir())


def test_where_the_ledgers_are_shared_nothing_is_noted_and_nobody_told(state: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    assert not LedgerLog.of(state, "fake").writes

    forget(state, [KEY], before=None)

    assert list(folder.iterdir()) == []


def test_a_machine_with_a_ledger_of_its_own_notes_under_its_name(
    state: Path, folder: Path, tmp_path: Path
) -> None:
    name = keeps_its_own(state, tmp_path)
    log = LedgerLog.of(state, "fake")
    assert log.writes
    log.append([done()], AT_MS)
    log.close()

    (path,) = folder.iterdir()
    assert path.name.startswith(f"{name}-")
    assert list(log.others({})) == []


@pytest.mark.parametrize("id_", ["fake:1", 'fake:"\\\n\t\u2028ü😀', "x", '"'])
def test_what_goes_out_for_a_message_is_found_whatever_its_id_holds(
    state: Path, folder: Path, id_: str
) -> None:
    """A proactive letter has the id itself; one that only begins like it is another's."""
    mine = [id_, f"{id_}#reply"]
    with writing(folder) as log:
        log.append([done(each) for each in (*mine, f"{id_}2#reply", f"{id_}2", "fake:0")], AT_MS)
        log.append([Note("moved", {"old": id_, "new": "b"})], AT_MS)

    assert [(each.arguments["out_id"], at) for each, at in notes_on(state, id_)] == [
        (each, AT_MS) for each in mine
    ]
