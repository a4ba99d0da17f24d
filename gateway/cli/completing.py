"""Answers a shell that asks what may follow on a command line: by the parser, and from a few small files.

Whatever cannot be read offers nothing: a shell has no place for words.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from heapq import nlargest
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter, SuppressCompleter

from gateway.config.finding import glance

# Of more conversations those written last are offered.
KEYS_MAX = 500
_HEAD_BYTES = 64 * 1024
Offers = dict[str, str]
_Complete = Callable[..., Offers]


def answer(parser: argparse.ArgumentParser) -> None:
    """Write what may follow to the shell that asked by its variables, and end this process."""
    _equip(parser)
    argcomplete.autocomplete(parser, always_complete_options="long", default_completer=SuppressCompleter())


def _equip(parser: argparse.ArgumentParser) -> None:
    """Tell each option of the tree where its words come from."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _equip(inner)
            continue
        found = _source(parser, action)
        if found is not None:
            action.completer = found  # type: ignore[attr-defined]
        elif action.type is Path:
            action.completer = FilesCompleter()  # type: ignore[attr-defined]


def _source(parser: argparse.ArgumentParser, action: argparse.Action) -> _Complete | None:
    noun = parser.prog.split()[1] if len(parser.prog.split()) > 1 else ""
    if action.dest in ("key", "to") or action.metavar in ("KEY", "KEY|ULID"):
        return _keys
    if action.metavar == "ULID":
        return _ended
    if noun == "cron" and action.dest == "id":
        return _jobs
    if noun == "mcp" and action.dest == "name":
        return _servers
    return {"code": _codes, "who": _people}.get(action.dest) if noun == "pairing" else None


def _keys(parsed_args: argparse.Namespace, **_: object) -> Offers:
    """Offer the conversations, with their names."""
    workspace, _file = _glance(parsed_args)
    paths = nlargest(KEYS_MAX, (workspace / "sessions").glob("*.jsonl"), key=_written)
    heads = (_head(path) for path in paths)
    return {str(head["key"]): _name(head) for head in heads if head.get("key")}


def _ended(parsed_args: argparse.Namespace, **_: object) -> Offers:
    """Offer the ended sessions of the conversation that stands before."""
    workspace, _file = _glance(parsed_args)
    key = getattr(parsed_args, "key", None)
    paths = nlargest(KEYS_MAX, (workspace / "sessions" / "archive").glob("*/*-*.jsonl"), key=_written)
    offers = {path.stem.rpartition("-")[2]: _head(path) for path in paths}
    return {ulid: _name(head) for ulid, head in offers.items() if key in (None, head.get("key"))}


def _jobs(parsed_args: argparse.Namespace, **_: object) -> Offers:
    rows = _document(parsed_args, "cron/jobs.json").get("jobs")
    return {str(row["id"]): _plain(row.get("name")) for row in _rows(rows) if "id" in row}


def _codes(parsed_args: argparse.Namespace, **_: object) -> Offers:
    rows = _rows(_document(parsed_args, "state/pairing.json").get("entries"))
    return {str(row["code"]): _plain(row.get("name")) for row in rows if row.get("code")}


def _people(parsed_args: argparse.Namespace, **_: object) -> Offers:
    rows = _rows(_document(parsed_args, "state/pairing.json").get("entries"))
    return {f"{row.get('channel')}:{row['id']}": _plain(row.get("name")) for row in rows if row.get("id")}


def _servers(parsed_args: argparse.Namespace, **_: object) -> Offers:
    _workspace, file = _glance(parsed_args)
    table = file.get("mcp")
    return dict.fromkeys(map(str, table), "") if isinstance(table, dict) else {}


def _glance(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    return glance(getattr(options, "config", None), getattr(options, "workspace", None))


def _document(options: argparse.Namespace, name: str) -> dict[str, Any]:
    try:
        found = json.loads((_glance(options)[0] / name).read_bytes())
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
    return _plain(inner.get("name")) if isinstance(inner, dict) else ""


def _plain(name: object) -> str:
    """Return a name on one line, without what would steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in name) if isinstance(name, str) else ""


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
