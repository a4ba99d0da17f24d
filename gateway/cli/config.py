"""``config show|check|schema|path``: the configuration in force, its problems, its keys, its place."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from channels import registry
from gateway.app import log
from gateway.cli import output
from gateway.config import checking
from gateway.config.extras import CURE, MCP_MISSING, lacks_mcp
from gateway.config.finding import SERVICE_FILE, unread_files
from gateway.config.load import find_file, load, with_tables
from gateway.config.reference import json_schema
from gateway.config.settings import Settings
from gateway.config.shown import shown_settings
from gateway.errors import ConfigError
from gateway.form import local_dir, number

NO_FILE = "none; defaults and environment variables"


def settings_of(args: argparse.Namespace, *, any_form: bool = False, named: bool = False) -> Settings:
    """Read the configuration for a one-shot verb, and let the log show only warnings and worse.

    With ``any_form`` the verb is there for a workspace, too, on which no other may work. With ``named``
    stderr names the file and the workspace that are used.

    Raises:
        ConfigError: with all problems; or files of this machine lie where they are not looked for.
        NewerState, Unfinished: no verb may work on the files of this workspace now.
    """
    settings = load(args.config, args.workspace)
    log.setup(settings, at_least="warning")
    name_place(args, settings if named else None)
    if not any_form:
        number.check(settings.state)
        local_dir.check(settings.workspace, settings.local_dir, embedded=settings.broker.embedded)
    return settings


def name_place(
    args: argparse.Namespace,
    settings: Settings | None,
    write: Callable[[str], None] = output.words,
    *,
    shadowed: bool = False,
) -> None:
    """Name the file and the workspace that are used; on stderr, the usual files that are not read.

    Without ``settings`` only the latter, and of these only a file of the service that this user cannot read,
    unless others are wanted, too (``shadowed``).
    """
    if settings is not None:
        shadowed = True
        write(f"configuration: {shown_file(settings)}")
        write(f"workspace: {settings.workspace}")
    for file, why in unread_files(args.config):
        if file == SERVICE_FILE and settings_file(args) is None:
            output.words(
                f"{file} is not read: {why}; for the service of this machine use: sudo chat-gateway …"
            )
        elif shadowed:
            output.words(f"{file} is not read: {why}")


def settings_file(args: argparse.Namespace) -> Path | None:
    """Return the file that is read, absolute."""
    file = find_file(args.config)
    return file.absolute() if file is not None else None


def shown_file(settings: Settings) -> str:
    """Name the file that the settings were read from."""
    return str(settings.file.absolute()) if settings.file is not None else NO_FILE


def show(args: argparse.Namespace) -> int:
    """Print the configuration in force as TOML or JSON, with what the preset sets and without secrets."""
    settings = load(args.config, args.workspace)
    shown = shown_settings(settings)
    if args.json:
        output.document(shown)
    else:
        output.data("\n".join(_toml(shown)))
    return 0


def check(args: argparse.Namespace) -> int:
    """Name all problems at once (exit 78), or say that there are none, and what is not installed."""
    file = settings_file(args)
    name = str(file) if file is not None else NO_FILE
    if not args.json:
        name_place(args, None, shadowed=True)
    try:
        settings = load(args.config, args.workspace, also=checking.faults)
    except ConfigError as error:
        if args.json:
            output.document({"file": str(file) if file else None, "problems": error.problems, "warnings": []})
            return error.exit_code
        count = f"{len(error.problems)} problems" if len(error.problems) > 1 else "the problem"
        where = f" in {file}" if file is not None else ""
        cure = f"correct {count}{where}; docs/configuration.md lists every key"
        raise ConfigError(error.problems, hint=cure) from None
    # The other verbs, which all read their settings here, shall not wait for it.
    from gateway.app.model import model_warnings

    warnings = [f"mcp: {MCP_MISSING}; {CURE}"] if lacks_mcp(settings) else []
    warnings += _commands_of_root(settings)
    warnings += [f"model: {text}; {cure}" for text, cure in model_warnings(settings)]
    with contextlib.suppress(OSError):
        warnings += [f"{text}; {cure}" for text, cure in checking.exposed_files(settings)]
    if args.json:
        output.document({"file": str(file) if file else None, "problems": [], "warnings": warnings})
    else:
        for warning in warnings:
            output.words(f"warning: {warning}")
        output.data(f"{name}: no problems")
    return 0


def _commands_of_root(settings: Settings) -> list[str]:
    """Say that commands are refused where the gateway is root's, as its workspace is or will be."""
    asked = settings.tools.shell.enabled or any(server.command for server in settings.mcp.values())
    folder = settings.workspace
    if not asked or os.geteuid() or (folder.exists() and folder.stat().st_uid):
        return []
    # The other verbs shall not wait for what confines commands.
    from session.tools.sandbox.sandbox import AS_ROOT, AS_ROOT_CURE

    return [f"tools: {AS_ROOT}; {AS_ROOT_CURE}"]


def schema(args: argparse.Namespace) -> int:
    """Print the JSON Schema of a configuration file, with the tables of all channels that are installed."""
    output.document(json_schema(with_tables(registry.installed().tables())))
    return 0


def path(args: argparse.Namespace) -> int:
    """Print the file that is read, as an absolute path; exit 1 where there is none."""
    file = settings_file(args)
    absolute = str(file) if file is not None else None
    if not args.json:
        name_place(args, None, shadowed=True)
    if args.json:
        output.document({"file": absolute, "exists": file is not None and file.is_file()})
        return 0
    if absolute is None:
        output.words("no configuration file; defaults and environment variables apply")
        return 0
    output.data(absolute)
    if file is not None and not file.is_file():
        output.words("this file does not exist")
    return 0


def _toml(table: Mapping[str, object], above: str = "") -> Iterator[str]:
    """Write plain values before tables, as TOML asks."""
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            path = f"{above}{_key(name)}"
            if not value or not all(isinstance(item, Mapping) for item in value.values()):
                yield ""
                yield f"[{path}]"
            yield from _toml(value, f"{path}.")


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "_").isidentifier() else _value(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
