"""Which tools of a server may be used: what it listed when somebody approved of it, and what it lists now.

The operator named the server in the configuration, so that what it lists at first sight counts as approved.
What it adds or changes afterwards does not, unless the server is trusted or the operator says so again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from durable import make_folder
from session.disk.state import locked, read_state, write_state
from session.mcp.listing import ListedTool, Listing, as_row, from_row

Change = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a server: the tools that were approved, and those that it listed last, by name.

    ``identity`` says which server it is: another command or address is another server. ``approved`` is None
    as long as it listed nothing.
    """

    identity: str = ""
    approved: Mapping[str, ListedTool] | None = None
    listed: Mapping[str, ListedTool] = field(default_factory=dict)

    @property
    def usable(self) -> Sequence[ListedTool]:
        """The tools that it has and that were approved as they are, by name."""
        approved = self.approved or {}
        return [tool for name, tool in sorted(self.listed.items()) if approved.get(name) == tool]

    @property
    def changes(self) -> Sequence[tuple[Change, str, str]]:
        """What is not as it was approved: the kind of change, the tool, and what of it is different."""
        approved = self.approved or {}
        found: list[tuple[Change, str, str]] = []
        for name in sorted({*approved, *self.listed}):
            before, now = approved.get(name), self.listed.get(name)
            if before is None:
                found.append(("added", name, ""))
            elif now is None:
                found.append(("removed", name, ""))
            elif before != now:
                found.append(("changed", name, _difference(before, now)))
        return found


def settled(record: Record, listing: Listing, *, identity: str, trusted: bool) -> Record:
    """Return what is known of a server once it has given a list."""
    listed = {tool.name: tool for tool in listing.tools}
    approved = record.approved if record.identity == identity else None
    if trusted or (approved is None and listed):
        approved = listed
    return Record(identity, approved, listed)


def approve(record: Record) -> Record:
    """Return a record in which everything that the server listed last is approved."""
    return Record(record.identity, record.listed, record.listed)


class RecordFile:
    """The record of one server, ``state/mcp/<name>.json``; for threads, and for several processes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.json"

    def read(self) -> Record:
        """Return what is known; an empty record where there is none.

        Raises:
            NewerFormat: a newer version wrote it.
            StoreError: it cannot be read.
        """
        found = read_state(self.path)
        approved = found.get("approved")
        identity = found.get("identity")
        return Record(
            identity if isinstance(identity, str) else "",
            None if approved is None else _read(approved),
            _read(found.get("listed")),
        )

    def settle(self, listing: Listing, *, identity: str, trusted: bool) -> Record:
        """Record a list that a server gave.

        Raises:
            NewerFormat, StoreError: nothing was written.
        """
        make_folder(self.path.parent)
        with locked(self.path.with_suffix(".lock")):
            before = self.read()
            after = settled(before, listing, identity=identity, trusted=trusted)
            if after != before:
                self._write(after)
        return after

    def approve(self) -> Record:
        """Approve of everything that the server listed last.

        Raises:
            NewerFormat, StoreError: nothing was written.
        """
        make_folder(self.path.parent)
        with locked(self.path.with_suffix(".lock")):
            after = approve(self.read())
            self._write(after)
        return after

    def _write(self, record: Record) -> None:
        rows = {
            "approved": None if record.approved is None else [*map(as_row, record.approved.values())],
            "listed": [*map(as_row, record.listed.values())],
        }
        write_state(self.path, {"identity": record.identity, **rows})


def _read(rows: Any) -> dict[str, ListedTool]:
    tools = [from_row(row) for row in rows] if isinstance(rows, list) else []
    return {tool.name: tool for tool in tools if tool is not None}


def _difference(before: ListedTool, now: ListedTool) -> str:
    words = {
        "description": "description",
        "parameters": "arguments",
        "output": "results",
        "read_only": "whether it only reads",
    }
    return ", ".join(word for name, word in words.items() if getattr(before, name) != getattr(now, name))
