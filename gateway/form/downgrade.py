"""Brings a workspace back into the form before, for the version before: the copy takes its place again.

What came since is told. Files that the copy has in another state are put aside first, so that nothing is
lost by it; all others stay, and the version before reads them as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gateway.errors import GatewayError
from gateway.form import copies, holding, number
from gateway.form.copies import Copy
from gateway.form.migration import Migration
from gateway.form.migrations import MIGRATIONS
from gateway.form.number import Form
from session.disk.local_files import local_state
from session.store.places import kind_of

WHY = "a downgrade puts files of {} back"
STAYS = "stay as they are, and are read by the version before"


@dataclass(frozen=True, slots=True)
class Since:
    """What came since the upgrade: so many files of a kind, and what becomes of them."""

    kind: str
    files: int
    then: str


@dataclass(frozen=True, slots=True)
class Downgrade:
    """What a downgrade does, or did.

    Args:
        form: the form before it.
        copy: what was put aside before the upgrade.
        restored: files that got their content of then, by name below the workspace; ``removed``: those that
            were not there.
        since: what came since.
        aside: where files lie that came since and gave way; None: none did.
    """

    form: int
    copy: Copy
    restored: Sequence[str]
    removed: Sequence[str]
    since: Sequence[Since]
    aside: Copy | None = None


def downgrade(
    workspace: Path,
    *,
    beside: holding.Beside,
    dry_run: bool = False,
    migrations: Sequence[Migration] = MIGRATIONS,
    at: Callable[[str], None] = lambda _: None,
) -> Downgrade:
    """Go one form back; nobody may work on the workspace. After a kill the next call goes on.

    Raises:
        NewerState: a newer version worked on it.
        StateInUse: somebody works on it.
        Unfinished: an upgrade was begun.
        GatewayError: there is no copy to go back to.
        OSError: the disk refused; call it again.
    """
    state = workspace / "state"
    if (place := local_state(state)) != state:
        raise GatewayError(
            f"queue and send logs are in {place}, where the previous version may not find them",
            hint='set state.local_dir = "" and start once to move them back; then run this again',
        )
    if number.read(state, migrations).number == 0:
        raise _nothing(workspace)
    with holding.lock_file(state) as lock:
        holding.alone(lock, beside, why=WHY.format(workspace))
        form = number.read(state, migrations)
        if form.change == "upgrade":
            raise number.unfinished(form.change)
        step = next((step for step in migrations if step.to == form.number), None)
        copy = copies.found(workspace, "upgrade", form.number - 1) if step is not None else None
        if step is None or copy is None:
            raise _nothing(workspace)
        plan = _plan(workspace, step, copy, form)
        return plan if dry_run else _done(workspace, plan, form, at)


def _nothing(workspace: Path) -> GatewayError:
    return GatewayError(
        f"nothing to downgrade: {workspace} has no copy of an earlier format",
        hint="install the previous version: it can use the workspace as it is",
    )


def _plan(workspace: Path, step: Migration, copy: Copy, form: Form) -> Downgrade:
    # Of one that a kill cut short the files that gave way are aside already.
    aside = copies.found(workspace, "downgrade", form.number) if form.change == "downgrade" else None
    now = step.files(workspace)
    restored = [name for name in copy.files if not copies.is_same(copy, workspace, name)]
    removed = [name for name in now if name not in copy.files]
    came = [*_changed(workspace, step, copy, {*copy.files, *now})]
    return Downgrade(form.number, copy, restored, removed, came, aside)


def _changed(workspace: Path, step: Migration, copy: Copy, given: set[str]) -> Iterator[Since]:
    """Count what is newer than the copy, by kind."""
    unknown = {
        path.relative_to(workspace).as_posix(): words
        for pattern, words in step.unknown
        for path in workspace.glob(f"{pattern}/*" if pattern.endswith("**") else pattern)
    }
    counted: Counter[tuple[str, str]] = Counter()
    for path in workspace.rglob("*"):
        name = path.relative_to(workspace).as_posix()
        kind = kind_of(name)
        # What is made anew from the rest, and what belongs to processes, is nobody's loss.
        if not kind and name not in unknown:
            continue
        if name in given or name.endswith(".lock") or path.is_dir():
            continue
        if path.lstat().st_mtime >= copy.made_at.timestamp():
            counted[kind or name.partition("/")[0], unknown.get(name, STAYS)] += 1
    yield from (Since(kind, files, then) for (kind, then), files in sorted(counted.items()))


def _done(workspace: Path, plan: Downgrade, form: Form, at: Callable[[str], None]) -> Downgrade:
    state, copy, aside = workspace / "state", plan.copy, plan.aside
    if form.change is None:
        present = [name for name in (*plan.restored, *plan.removed) if (workspace / name).exists()]
        at("begun")
        aside = copies.put_aside(
            workspace, present, change="downgrade", form=form.number, now=datetime.now(UTC)
        )
        at("aside")
        # From here on no program works on it: half of its files are of the one form, half of the other.
        number.write(state, Form(form.number, form.program, "downgrade"))
        at("announced")
    for name in plan.restored:
        copies.put_back(copy, workspace, name)
        at("put back")
    for name in plan.removed:
        copies.take_away(workspace, name)
    at("all back")
    number.write(state, Form(copy.form, form.program if copy.form else ""))
    at("ended")
    # The next upgrade copies anew: the version before works on these files from now on.
    copies.discard(workspace, "upgrade", copy.form)
    return Downgrade(plan.form, copy, plan.restored, plan.removed, plan.since, aside)
