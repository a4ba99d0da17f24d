"""Rows of what models cost, put into the state database of a workspace and read from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any

from durable import Change
from session.models.model import Payer, Usage
from session.models.usage_rows import UsageRow, add_row
from session.store.state import StoreState


def usage_row(
    at: datetime, key: str, person: str, usage: Usage, *, turn: bool = True, model: str = "", id_: str = ""
) -> UsageRow:
    return UsageRow(at, Payer(key, person, id=id_), usage, turn=turn, model=model)


async def spent(workspace: Path, rows: Sequence[UsageRow]) -> None:
    async with aclosing(StoreState(workspace / "state")) as state:
        await state.write([add_row(row) for row in rows])


async def called(workspace: Path, minute: int) -> None:
    """Count a call of the background."""
    async with aclosing(StoreState(workspace / "state")) as state:
        await state.write([Change("INSERT INTO background_calls VALUES (?, 1)", (minute,))])


async def usage_in(workspace: Path) -> list[dict[str, Any]]:
    """Return all rows, oldest first; a gateway may run."""
    names = ("key", "person", "id", "turn", "cost_nano", "prompt", "model")
    async with aclosing(StoreState(workspace / "state")) as state:
        found = await state.read(f"SELECT {', '.join(names)} FROM usage ORDER BY at_ms, n")
    rows = [dict(zip(names, row, strict=True)) for row in found]
    return [row | {"cost_usd": row["cost_nano"] / 1e9} for row in rows]
