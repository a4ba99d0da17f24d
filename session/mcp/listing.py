"""The tools that a server lists: what of them can be offered, what is wrong, and what was approved.

The operator named the server in the configuration, so its first list counts as approved. What it adds or
changes afterwards does not, unless the server is trusted or the operator approves it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from durable import make_folder
from session.disk.state import locked, read_state, write_state
from session.mcp.schema import fault_of

MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128
MAX_DESCRIPTION_CHARS: Final = 2_000
MAX_LIST_BYTES: Final = 256 * 1024
TOO_LONG: Final = "the list is too long"
# An annotation in a schema that tells another program where to look is of no use to a model.
_DROPPED = ("$schema", "$id")


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it.

    ``output`` is the schema of its structured results, None where it gives none; ``read_only`` says that the
    server calls it harmless to repeat.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    output: Mapping[str, Any] | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server, and what was left out of its list, and why; ``is_full``: it may hold no more."""

    tools: Sequence[ListedTool] = ()
    problems: Sequence[str] = ()
    is_full: bool = False


def read_listing(rows: Sequence[object]) -> Listing:
    """Read what a server lists, in its order; a row that cannot be a tool is a problem, and spoils none."""
    tools: list[ListedTool] = []
    problems: list[str] = []
    times = Counter(row["name"] for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str))
    for row in rows:
        fault = _fault(row, times)
        if not fault and isinstance(row, dict):
            tools.append(_tool(row))
        else:
            name = row.get("name") if isinstance(row, dict) else None
            problems.append(f"{shown(name if isinstance(name, str) else '?')}: {fault}")
    return bounded(tools, problems)


def bounded(tools: Iterable[ListedTool], problems: Iterable[str]) -> Listing:
    """Return the tools that a list may hold, in their order; the others are problems of it as well."""
    kept: list[ListedTool] = []
    too_long: list[str] = []
    left = MAX_LIST_BYTES
    for tool in tools:
        size = len(json.dumps(asdict(tool)))
        if size > left or len(kept) == MAX_TOOLS:
            too_long.append(f"{shown(tool.name)}: {TOO_LONG}")
            continue
        left -= size
        kept.append(tool)
    # A name that is listed twice is one problem.
    told = list(dict.fromkeys([*problems, *too_long]))
    return Listing(kept, told, is_full=bool(too_long) or len(kept) == MAX_TOOLS)


def from_row(row: object) -> ListedTool | None:
    """Read a tool that was written down; None where it is damaged."""
    kinds = {"name": str, "description": str, "parameters": dict, "output": dict | None, "read_only": bool}
    if not isinstance(row, dict) or row.keys() != kinds.keys():
        return None
    return ListedTool(**row) if all(isinstance(row[name], kind) for name, kind in kinds.items()) else None


def shown(text: str) -> str:
    """Return a name of a server's own for a line of words: printable, not too long."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])


def withheld(problems: Sequence[str]) -> str:
    """Say in one line what is not offered of a list, and why; empty where all of it is."""
    words = "; ".join([*map(shown, problems[:10]), *(["…"] if len(problems) > 10 else [])])
    return f"{len(problems)} of its tools not offered: {words}" if problems else ""


def _fault(row: object, times: Mapping[str, int]) -> str:
    if not isinstance(row, dict):
        return "not an object"
    name = row.get("name")
    if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
        return "its name is not valid"
    if len(name) > MAX_NAME_CHARS:
        return f"its name has {len(name)} characters; the limit is {MAX_NAME_CHARS}"
    if times[name] > 1:
        return "listed more than once"
    return fault_of(row.get("inputSchema")) or _output_fault(row)


def _output_fault(row: Mapping[str, Any]) -> str:
    output = row.get("outputSchema")
    # Its root may be anything in the newer protocol.
    fault = fault_of({**output, "type": "object"}) if isinstance(output, dict) else ""
    return f"its result: {fault}" if fault else ""


def _tool(row: Mapping[str, Any]) -> ListedTool:
    description, notes = row.get("description"), row.get("annotations")
    text = description if isinstance(description, str) else ""
    schema = {name: value for name, value in row["inputSchema"].items() if name not in _DROPPED}
    output = row.get("outputSchema")
    return ListedTool(
        row["name"],
        text if len(text) <= MAX_DESCRIPTION_CHARS else f"{text[:MAX_DESCRIPTION_CHARS]} […]",
        {**schema, "type": "object", "properties": schema.get("properties", {})},
        output if isinstance(output, dict) else None,
        isinstance(notes, dict) and notes.get("readOnlyHint") is True,
    )


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
    """The record of one server, ``state/mcp/<name>.json``; for threads, and for several processes.

    Raises NewerFormat and StoreError; nothing was written then.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.json"

    def read(self) -> Record:
        """Return what is known; an empty record where there is none."""
        found = read_state(self.path)
        approved = found.get("approved")
        identity = found.get("identity")
        return Record(
            identity if isinstance(identity, str) else "",
            None if approved is None else _read(approved),
            _read(found.get("listed")),
        )

    def settle(self, listing: Listing, *, identity: str, trusted: bool) -> Record:
        """Record a list that a server gave."""
        return self._change(partial(settled, listing=listing, identity=identity, trusted=trusted))

    def approve(self) -> Record:
        """Approve of everything that the server listed last."""
        return self._change(approve)

    def _change(self, change: Callable[[Record], Record]) -> Record:
        make_folder(self.path.parent)
        with locked(self.path.with_suffix(".lock")):
            before = self.read()
            after = change(before)
            if after != before:
                self._write(after)
        return after

    def _write(self, record: Record) -> None:
        rows = {
            "approved": None if record.approved is None else [*map(asdict, record.approved.values())],
            "listed": [*map(asdict, record.listed.values())],
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
