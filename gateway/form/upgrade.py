"""Brings a workspace into the form of this program at a start: under a lock, after a copy, step by step.

```
 a copy of what will change    state/before-upgrade-<form>-<time>/, whole once its list is there
 the change is announced       workspace.json: the new number, ``change: upgrade``; older programs refuse
 the step                      may be cut anywhere, and is done again
 the change has ended          workspace.json: the new number alone
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import structlog

from gateway.errors import GatewayError
from gateway.form import copies, holding, number
from gateway.form.migration import Migration
from gateway.form.migrations import MIGRATIONS
from gateway.form.number import Form

log = structlog.get_logger("workspace")

At = Callable[[str], None]


@contextlib.contextmanager
def entered(
    workspace: Path,
    *,
    beside: holding.Beside,
    single: bool = False,
    migrations: Sequence[Migration] = MIGRATIONS,
    at: At = lambda _: None,
    wait_s: float = holding.WAIT_S,
) -> Iterator[None]:
    """Work on a workspace while the context is open, in the form of this program.

    Of several that start at once one changes the form, and the others wait for it.

    Args:
        workspace: it may be new, or of any form up to that of this program.
        wait_s: how long another process that changes the form is waited for.
        migrations: those of this program.
        beside: names the other processes that say they work here.
        single: whether nobody else may work here at all, as with the embedded queue.
        at: called with the name of each instant, so that a test can end the process right there.

    Raises:
        NewerState: a newer version worked on it; nothing was touched.
        Unfinished: a downgrade was begun.
        StateInUse: processes of an older version work on it, and a step of the change bears none.
        OSError: the disk refused.
    """
    state = workspace / "state"
    # A workspace that this program must not touch gets not even a lock.
    number.read(state, migrations)
    with holding.lock_file(state) as lock:
        while True:
            holding.share(lock, wait_s=wait_s)
            # Read under the lock: whoever had it alone may have changed the form.
            form = number.read(state, migrations)
            if form.change == "downgrade":
                raise number.unfinished(form.change)
            if (form.number == number.known(migrations) and form.change is None) or number.is_new(state):
                break
            steps = [step for step in migrations if step.to > form.number - (form.change is not None)]
            _upgrade(lock, workspace, steps, beside, single=single, at=at, wait_s=wait_s)
        yield


def _upgrade(
    lock: int,
    workspace: Path,
    steps: Sequence[Migration],
    beside: holding.Beside,
    *,
    single: bool,
    at: At,
    wait_s: float,
) -> None:
    tolerant = not single and not any(step.alone for step in steps)
    why = f"this version has to convert files of {workspace} ({'; '.join(step.what for step in steps)})"
    # Its own share is in the way of nobody any more.
    if not holding.alone(lock, beside, why=why, wait_s=wait_s, tolerant=tolerant):
        # Whoever was quicker may have done it.
        return
    if others := beside():
        log.warning("workspace.upgraded_beside", processes=list(others))
    for step in steps:
        _take(workspace, step, at)


def _take(workspace: Path, step: Migration, at: At) -> None:
    state, former = workspace / "state", step.to - 1
    ours = version("chat-gateway")
    form = number.read(state, [step])
    if form.number != step.to:
        # Of this form there can only be what a kill cut short, or what a downgrade has put back.
        copies.discard(workspace, "upgrade", former)
        at("begun")
        names = step.files(workspace)
        copy = copies.put_aside(workspace, names, change="upgrade", form=former, now=datetime.now(UTC))
        at("copied")
        number.write(state, Form(step.to, form.program or ours, "upgrade"))
        at("announced")
    else:
        kept = copies.found(workspace, "upgrade", former)
        if kept is None:
            raise GatewayError(
                f"the upgrade to format {step.to} is incomplete, and the copy from before is missing",
                hint="restore the backup from before, see docs/upgrades.md; nothing was changed",
            )
        copy = kept
    step.run(workspace)
    at("changed")
    number.write(state, Form(step.to, ours))
    at("ended")
    log.info("workspace.upgraded", form=step.to, what=step.what, copy=copy.name, files=len(copy.files))
