"""``config show|check|schema|path``: the configuration in force, its problems, its keys, its place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli import output
from gateway.cli.root import GlobalOptions, as_json, group
from gateway.config.finding import SERVICE_FILE, find_file, unread_files
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.config.settings import Settings

NO_FILE = "none; defaults and environment variables"

config = group("config")


def settings_of(opts: GlobalOptions, *, named: bool = False) -> Settings:
    """Read the configuration for a one-shot verb, and let the log show only warnings and worse.

    With ``named`` stderr names the file and the workspace that are used.

    Raises:
        ConfigError: with all problems.
        EarlierState: an earlier development version wrote the state folder.
    """
    from gateway.app import logging, state_folder
    from gateway.config.load import load

    settings = load(opts.config, opts.workspace)
    logging.setup(settings, at_least="warning")
    name_place(opts, settings if named else None)
    state_folder.check(settings.state)
    return settings


def name_place(
    opts: GlobalOptions,
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
    for file, why in unread_files(opts.config):
        if file == SERVICE_FILE and settings_file(opts) is None:
            output.words(
                f"{file} is not read: {why}; to use the service's configuration: sudo chat-gateway …"
            )
        elif shadowed:
            output.words(f"{file} is not read: {why}")


def settings_file(opts: GlobalOptions) -> Path | None:
    """Return the file that is read, absolute."""
    file = find_file(opts.config)
    return file.absolute() if file is not None else None


def shown_file(settings: Settings) -> str:
    """Name the file that the settings were read from."""
    return str(settings.file.absolute()) if settings.file is not None else NO_FILE


@config.command()
@as_json
def show(opts: GlobalOptions, as_json: bool) -> None:
    """Print the effective configuration without secrets."""
    import tomlkit

    from gateway.config.load import load
    from gateway.config.redact import shown_settings

    shown = shown_settings(load(opts.config, opts.workspace))
    if as_json:
        output.document(shown)
    else:
        output.data(tomlkit.dumps(shown).rstrip("\n"))


@config.command()
@as_json
def check(opts: GlobalOptions, as_json: bool) -> int:
    """List all problems of the configuration."""
    from gateway.app.wiring_model import model_warnings
    from gateway.app.wiring_tools import MCP_CURE, MCP_MISSING, lacks_mcp
    from gateway.config import checking
    from gateway.config.load import load

    file = settings_file(opts)
    name = str(file) if file is not None else NO_FILE
    if not as_json:
        name_place(opts, None, shadowed=True)
    try:
        settings = load(opts.config, opts.workspace, also=checking.faults)
    except ConfigError as error:
        if as_json:
            output.document({"file": str(file) if file else None, "problems": error.problems, "warnings": []})
            return error.exit_code
        count = f"{len(error.problems)} problems" if len(error.problems) > 1 else "the problem"
        where = f" in {file}" if file is not None else ""
        cure = f"correct {count}{where}; docs/configuration.md lists every key"
        raise ConfigError(error.problems, hint=cure) from None
    warnings = [f"mcp: {MCP_MISSING}; {MCP_CURE}"] if lacks_mcp(settings) else []
    warnings += _commands_of_root(settings)
    warnings += [f"model: {text}; {cure}" for text, cure in model_warnings(settings)]
    with contextlib.suppress(OSError):
        warnings += [f"{text}; {cure}" for text, cure in checking.exposed_files(settings)]
    if as_json:
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
    from session.tools.sandbox import AS_ROOT, AS_ROOT_CURE

    return [f"tools: {AS_ROOT}; {AS_ROOT_CURE}"]


@config.command()
def schema(_: GlobalOptions) -> None:
    """Print a JSON Schema of the configuration, for editors."""
    from channels import plugins
    from gateway.config.load import with_tables
    from gateway.config.schema import json_schema

    output.document(json_schema(with_tables(plugins.installed().tables())))


@config.command()
@as_json
def path(opts: GlobalOptions, as_json: bool) -> None:
    """Print which file is used."""
    file = settings_file(opts)
    absolute = str(file) if file is not None else None
    if not as_json:
        name_place(opts, None, shadowed=True)
    if as_json:
        output.document({"file": absolute, "exists": file is not None and file.is_file()})
        return
    if absolute is None:
        output.words("no configuration file; defaults and environment variables apply")
        return
    output.data(absolute)
    if file is not None and not file.is_file():
        output.words("this file does not exist")
