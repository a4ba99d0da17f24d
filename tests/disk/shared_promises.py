"""What several machines share, and what is one machine's own, as ``promises`` has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.app import local_dir
from gateway.outbound.ledger_log import LedgerLog, Note
from session.disk.local_files import homes_of, local_state
from tests.disk.durable_promises import Holds, Promise
from tests.gateway.app.local_victim import ROWS, fill, rows


def noted_for_other_machines(folder: Path) -> Iterator[Holds | None]:
    yield None
    log = LedgerLog(folder / "telegram", "one")
    log.append([Note("done", {"key": "telegram:1", "out_id": "a"})], 0)
    log.close()
    yield lambda after: len(list(LedgerLog(after / "telegram", "another").others({}))) == 1


def _settle(folder: Path, wanted: Path | None) -> None:
    local_dir.settle(folder / "w", wanted, embedded=True, beside=list)


def moved_to_the_machine(folder: Path) -> Iterator[Holds | None]:
    state = folder / "w" / "state"
    state.mkdir(parents=True)
    fill(state)
    yield None
    _settle(folder, folder / "d")

    def holds(after: Path) -> bool:
        # A file that comes back beside the one in use is older than that, and a start would refuse both.
        left = list((after / "w" / "state").rglob("*.db"))
        home = Path(homes_of(after / "w" / "state")[0].path).relative_to(folder)
        return not left and rows(after / home) == ROWS

    yield holds


def moved_back_to_the_workspace(folder: Path) -> Iterator[Holds | None]:
    state = folder / "w" / "state"
    state.mkdir(parents=True)
    fill(state)
    _settle(folder, folder / "d")
    yield None
    place = local_state(state).relative_to(folder)
    _settle(folder, None)

    def holds(after: Path) -> bool:
        state = after / "w" / "state"
        # Without its note nobody would find a folder again that comes back; its note would have it emptied.
        return not (after / place).exists() and not homes_of(state) and rows(state) == ROWS

    yield holds


SHARED_PROMISES: list[Promise] = [
    noted_for_other_machines,
    moved_to_the_machine,
    moved_back_to_the_workspace,
]
