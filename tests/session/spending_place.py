"""The state database in memory, for what counts cost without a workspace."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from durable import Change, Commit, Conflict, StateUnavailable, state_schema
from session.errors import StoreError
from session.models.caps import Caps
from session.models.spending import Spending


class MemoryRows:
    """Each job is done at once; ``refuses`` says whether the disk refuses all of them."""

    def __init__(self) -> None:
        self.file = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.refuses = False
        for statement in state_schema().statements:
            self.file.execute(statement)

    async def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.file.execute(statement, values).fetchall()

    async def write(self, changes: Sequence[Change]) -> None:
        # Another task may come in between, as where the writer is another thread.
        await asyncio.sleep(0)
        if self.refuses:
            raise StoreError("the disk is full")
        self._run(changes)

    def submit(self, changes: Sequence[Change]) -> Commit:
        commit = Commit()
        commit.done = asyncio.get_running_loop().create_future()
        if self.refuses:
            commit.done.set_exception(StateUnavailable("the disk is full"))
        else:
            self._run(changes)
            commit.done.set_result([])
        return commit

    def _run(self, changes: Sequence[Change]) -> None:
        self.file.execute("BEGIN")
        for change in changes:
            if self.file.execute(change.statement, change.values).rowcount < 1 and change.required:
                self.file.execute("ROLLBACK")
                raise Conflict(change.statement)
        self.file.execute("COMMIT")


def spending_in(
    rows: MemoryRows | None = None,
    *,
    clock: Callable[[], datetime],
    caps: Caps = Caps(),  # noqa: B008 - frozen
) -> Spending:
    return Spending(rows or MemoryRows(), clock=clock, caps=caps)
