"""Which form a workspace has: one number over all of its files, and what of a change of it is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

import orjson
import structlog

import durable
from gateway.errors import GatewayError, NewerState
from gateway.form import holding
from gateway.form.migration import Migration
from gateway.form.migrations import MIGRATIONS

log = structlog.get_logger("workspace")

FILE: Final = "workspace.json"
Change = Literal["upgrade", "downgrade"]


class Unfinished(GatewayError):
    """A change of the form was begun and did not end; whoever works on the files now would spoil them."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in ``state/workspace.json``.

    Args:
        number: 0 where there is no file, or a damaged one: older than the numbers.
        program: the version that worked on the workspace last.
        change: what was begun, empty for nothing: an upgrade to ``number``, or a downgrade from it.
    """

    number: int = 0
    program: str = ""
    change: Change | None = None


def known(migrations: Sequence[Migration]) -> int:
    """Return the form that a program with these migrations works in."""
    return migrations[-1].to


def read(state: Path, migrations: Sequence[Migration] = MIGRATIONS) -> Form:
    """Read the form of the workspace whose ``state/`` this is.

    Raises:
        NewerState: a newer version worked on it; nothing was touched.
        OSError: it cannot be read.
    """
    try:
        data = (state / FILE).read_bytes()
        found = durable.decode_state(data, known(migrations), "the workspace", error=NewerState)
    except (FileNotFoundError, NotADirectoryError, durable.Damaged):
        return Form()
    number, program, change = found.get("v"), found.get("program"), found.get("change")
    return Form(
        number if type(number) is int and number > 0 else 0,
        program if isinstance(program, str) else "",
        change if change in ("upgrade", "downgrade") else None,
    )


def write(state: Path, form: Form) -> None:
    """Write the form, durable; without a number there is no file.

    Raises:
        OSError: the disk refused; what stood there does so still.
    """
    path = state / FILE
    if form.number == 0:
        path.unlink(missing_ok=True)
        durable.sync_folder(state)
        return
    content: dict[str, object] = {"v": form.number, "program": form.program}
    durable.replace(path, orjson.dumps(content | ({"change": form.change} if form.change else {})))


def check(state: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Let pass what a verb may work on beside daemons, or without one; it changes no form.

    Raises:
        NewerState: a newer version worked on it.
        Unfinished: a change of the form has to end first, or to be made by a start.
        StateInUse: another process changes the form, and does not end.
    """
    form = read(state, migrations)
    if form.change is not None:
        # A start that changes it right now has the lock to itself, for a moment.
        with holding.lock_file(state) as lock:
            holding.share(lock)
            form = read(state, migrations)
    if form.change is not None:
        raise unfinished(form.change)
    if any(step.to > form.number and step.alone for step in migrations) and not is_new(state):
        raise Unfinished(
            f"the workspace has format {form.number}; this version needs format {known(migrations)}",
            hint="start the gateway once: it upgrades the files and keeps a copy",
        )


def unfinished(change: Change) -> Unfinished:
    """Say that a change was begun, and how it ends."""
    if change == "upgrade":
        cure = "start the gateway: it continues the upgrade"
        return Unfinished("an upgrade of the workspace is incomplete", hint=cure)
    cure = "chat-gateway downgrade continues it"
    return Unfinished("a downgrade of the workspace is incomplete", hint=cure)


def note(state: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Note the form and the program that works on the workspace from now on, where that is news."""
    ours = Form(known(migrations), version("chat-gateway"))
    try:
        if read(state, migrations) != ours:
            write(state, ours)
    except OSError as error:
        # A start that has the disk for nothing else goes on without; the next one notes it.
        log.warning("workspace.unnoted", error=str(error))


def is_new(state: Path) -> bool:
    """Say whether no daemon has worked here yet, so that there is nothing whose form could change."""
    seen = (state / FILE, state / "daemon.json", state.parent / "sessions")
    return not any(path.exists() for path in seen)
