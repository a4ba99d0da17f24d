"""Answers a shell that asks what may follow on a command line: by the parser, and from a few small files."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter, SuppressCompleter

from gateway.cli import known
from gateway.cli.known import Names
from gateway.config.finding import glance

_Complete = Callable[..., Names]


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
    if action.dest == "key" or action.metavar in ("KEY", "KEY|ULID"):
        return _in_workspace(known.keys)
    if action.metavar == "ULID":
        return lambda parsed_args, **_: known.ended(
            _glance(parsed_args)[0], getattr(parsed_args, "key", None)
        )
    if noun == "mcp" and action.dest == "name":
        return _servers
    sources = {("cron", "id"): known.jobs, ("pairing", "code"): known.codes, ("pairing", "who"): known.people}
    source = sources.get((noun, action.dest))
    return None if source is None else _in_workspace(source)


def _in_workspace(source: Callable[[Path], Names]) -> _Complete:
    return lambda parsed_args, **_: source(_glance(parsed_args)[0])


def _servers(parsed_args: argparse.Namespace, **_: object) -> Names:
    table = _glance(parsed_args)[1].get("mcp")
    return dict.fromkeys(map(str, table), "") if isinstance(table, dict) else {}


def _glance(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    return glance(getattr(options, "config", None), getattr(options, "workspace", None))
