"""Names that a person may mean, from the small files of a workspace, in a few milliseconds.

What cannot be read is left out, and no name steers a terminal. ``complete_…`` offer them to a shell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from heapq import nlargest
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from gateway.config.finding import glance

# Of more conversations those written last are known.
KEYS_MAX = 500
_HEAD_BYTES = 64 * 1024
# A name as it is typed, and what it stands for.
Names = dict[str, str]
_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def keys(workspace: Path) -> Names:
    """Return the conversations with their names, the one written last first."""
    paths = nlargest(KEYS_MAX, (workspace / "sessions").glob("*.jsonl"), key=_written)
    heads = (_head(path) for path in paths)
    return _typed({str(head["key"]): _name(head) for head in heads if head.get("key")})


def ended(workspace: Path, key: str | None) -> Names:
    """Return the ended sessions of a conversation, or of all, by ULID, the newest first."""
    paths = nlargest(KEYS_MAX, (workspace / "sessions" / "archive").glob("*/*-*.jsonl"), key=_written)
    offers = {path.stem.rpartition("-")[2]: _head(path) for path in paths}
    return {ulid: _name(head) for ulid, head in offers.items() if key in (None, head.get("key"))}


def jobs(workspace: Path) -> Names:
    """Return the cron jobs by id."""
    rows = _rows(_document(workspace / "cron" / "jobs.json").get("jobs"))
    return _typed({str(row["id"]): plain(row.get("name")) for row in rows if "id" in row})


def codes(workspace: Path) -> Names:
    """Return the pairing codes that wait, with who asked."""
    return {row["code"]: plain(row["name"]) for row in _asked(workspace) if row["code"]}


def people(workspace: Path) -> Names:
    """Return who asked for access or has it, as ``channel:id``."""
    return _typed({row["who"]: plain(row["name"]) for row in _asked(workspace)})


def plain(name: object) -> str:
    """Return a name on one line, without what would steer a terminal; nothing for what is no text."""
    return "".join(c if c.isprintable() else " " for c in name) if isinstance(name, str) else ""


def _typed(names: Names) -> Names:
    """Leave out what nobody can type: half of a surrogate pair, which cannot be written, or a line break."""
    return {name: meant for name, meant in names.items() if name.isprintable()}


def _asked(workspace: Path) -> list[dict[str, Any]]:
    # Other verbs start sooner without them.
    from channels.errors import ChannelError
    from channels.pairing import Pairing

    try:
        return Pairing(workspace / "state").rows()
    except ChannelError:
        return []


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rows(value: object) -> Iterator[dict[str, Any]]:
    yield from (row for row in value if isinstance(row, dict)) if isinstance(value, list) else ()


def _head(path: Path) -> dict[str, Any]:
    """Read line 1 of a transcript; nothing where it is no whole line of its kind."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline(_HEAD_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(head: dict[str, Any]) -> str:
    inner = head.get("metadata")
    return plain(inner.get("name")) if isinstance(inner, dict) else ""


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _from(source: Callable[[Path], Names]) -> _Complete:
    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
        return _items(source(_glance(ctx)[0]), begun)

    return complete


def complete_ended(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Offer the closed sessions of the chat that is named before."""
    return _items(ended(_glance(ctx)[0], ctx.params.get("key")), begun)


def complete_servers(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Offer the MCP servers of the configuration."""
    table = _glance(ctx)[1].get("mcp")
    return _items(dict.fromkeys(map(str, table), "") if isinstance(table, dict) else {}, begun)


def _glance(ctx: click.Context) -> tuple[Path, dict[str, Any]]:
    return glance(ctx.obj.config, ctx.obj.workspace)


def _items(names: Names, begun: str) -> list[CompletionItem[str]]:
    return [CompletionItem(name, help=meant) for name, meant in names.items() if name.startswith(begun)]


complete_keys, complete_jobs, complete_codes, complete_people = map(_from, (keys, jobs, codes, people))
