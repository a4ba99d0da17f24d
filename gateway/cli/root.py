"""The root of the command line: its commands by name, the options that all share, usage errors.

Help and completion import a noun's module and run none of its verbs, so such a module imports at its top only
what is quick; a verb imports the rest itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from gateway.cli import known

PROGRAM = "chat-gateway"
# The variable by which a shell asks what may follow.
COMPLETES = "_CHAT_GATEWAY_COMPLETE"
# Commands of other programs, and what does the same here.
MEANT = {
    "init": f"{PROGRAM} onboard",
    "logs": "journalctl -u chat-gateway; without a service, see the terminal of the gateway",
    "restart": "sudo systemctl restart chat-gateway; without a service Ctrl-C in its terminal, then run it",
    "setup": f"{PROGRAM} onboard",
    "start": f"{PROGRAM} run",
    "stop": "sudo systemctl stop chat-gateway; without a service Ctrl-C in the terminal of the gateway",
    "update": "docs/install.md, Upgrading",
    "upgrade": "docs/install.md, Upgrading",
    "version": f"{PROGRAM} --version",
}
FIRST_STEPS = f"""\
First steps:
  {PROGRAM} onboard        set up a model and a bot, step by step
  {PROGRAM} run            start the gateway, with a web console on http://127.0.0.1:8006/
  {PROGRAM} chat           talk to it in this terminal
  {PROGRAM} doctor         check everything and suggest fixes

`{PROGRAM} COMMAND --help` explains each command.
"""
# Each command with its module in this package and its line in the list of commands.
COMMANDS = {
    "run": ("run", "run the gateway in the foreground"),
    "chat": ("chat", "talk to the gateway in this terminal"),
    "onboard": ("onboard", "set up a model and a bot, up to the first answer in your chat"),
    "completion": ("completion", "print the completion script for a shell"),
    "status": ("status", "show what runs, what waits and today's cost"),
    "trace": ("trace", "show what happened to one message, step by step"),
    "usage": ("trace", "show tokens and cost by day, model, person and chat"),
    "doctor": ("doctor", "check configuration, queue, model, disk, transcripts and more"),
    "sessions": ("sessions", "list, show, search, close and repair sessions"),
    "memory": ("memory", "what the gateway remembers about a chat"),
    "parked": ("parked", "messages that could not be answered or delivered"),
    "pairing": ("pairing", "approve people and groups that ask for access"),
    "cron": ("cron", "scheduled jobs"),
    "tokens": ("tokens", "API tokens and their rights"),
    "mcp": ("mcp", "MCP servers and the tools that they offer"),
    "backup": ("backup", "back up, verify and restore the workspace"),
    "config": ("config", "show and check the configuration"),
    "systemd": ("systemd", "systemd units for the gateway"),
}


COUNT = click.IntRange(min=1)


class AnyPath(click.Path):
    """A path as it is typed: nothing looks at its disk, which may not answer, before a verb uses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return Path(value)


FILE = AnyPath()
FOLDER = AnyPath(file_okay=False)


class Misused(click.UsageError):
    """A command line that makes no sense, and what to type instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass
class GlobalOptions:
    """The options of all commands: the configuration file and the workspace."""

    config: Path | None = None
    workspace: Path | None = None


def _note(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Keep the value of a global option; the last one on the command line wins."""
    if value is not None:
        setattr(ctx.obj, str(param.name), value)


_config = click.option(
    "--config",
    metavar="FILE",
    type=FILE,
    help="configuration file (default: the first of $CHAT_GATEWAY_CONFIG, ./chat-gateway.toml, "
    "~/.config/chat-gateway/config.toml, /etc/chat-gateway/config.toml)",
    expose_value=False,
    callback=_note,
)
_workspace = click.option(
    "--workspace", metavar="DIR", type=FOLDER, help="folder for all data", expose_value=False, callback=_note
)


class Verb(click.Command):
    """A command whose function gets the ``GlobalOptions`` first, and returns the exit code or None for 0."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _config(self)
        _workspace(self)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help in whole, as it reads in a list."""
        first = " ".join((self.help or "").partition("\n\n")[0].split()).removesuffix(".")
        return first[:1].lower() + first[1:]

    def invoke(self, ctx: click.Context) -> int:
        """Run it; whatever is made in a workspace is its owner's alone."""
        from gateway.config.finding import adopt_environment

        assert self.callback is not None
        os.umask(0o077)
        adopt_environment(ctx.obj.config)
        return ctx.invoke(self.callback, ctx.obj, **ctx.params) or 0


class Group(click.Group):
    """Commands that are listed as they are declared."""

    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Keep the order."""
        return list(self.commands)


def group(name: str) -> Group:
    """Make one of ``COMMANDS`` that has verbs of its own."""
    text = COMMANDS[name][1]
    help_text = f"{text[0].upper()}{text[1:]}."
    return Group(name, help=help_text, subcommand_metavar="COMMAND ...", no_args_is_help=False)


class _Root(Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the module of the command that is asked for."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = getattr(import_module(f"gateway.cli.{COMMANDS[name][0]}"), name)
        return name, command, rest


@click.group(
    PROGRAM,
    cls=_Root,
    commands=[click.Command(name, short_help=text) for name, (_, text) in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    subcommand_metavar="COMMAND ...",
    epilog=f"\b\n{FIRST_STEPS}",
)
@_config
@_workspace
@click.version_option(package_name=PROGRAM, message="%(prog)s %(version)s", help="print the version and exit")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Connects chat channels to language models through a durable queue."""
    if ctx.invoked_subcommand is None:
        click.echo(f"{ctx.command.help}\n\n{FIRST_STEPS}", err=True)
        ctx.exit(2)


def execute(words: Sequence[str], opts: GlobalOptions) -> int:
    """Run a command line and return the exit code: 2 for one that makes no sense, with the cure on stderr."""
    try:
        if instruction := os.environ.get(COMPLETES):
            from gateway.cli import completion

            return completion.answer(instruction)
        with cli.make_context(PROGRAM, list(words), obj=opts) as ctx:
            code: int = cli.invoke(ctx)
            return code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        message, advice = _explained(error)
        print(f"error: {message}\ntry: {advice}", file=sys.stderr)
        return error.exit_code


def _explained(error: click.UsageError) -> tuple[str, str]:
    path = error.ctx.command_path if error.ctx is not None else PROGRAM
    if isinstance(error, click.exceptions.NoSuchCommand) and path == PROGRAM and error.command_name in MEANT:
        return error.message, MEANT[error.command_name]
    if isinstance(error, click.exceptions.NoSuchCommand | click.NoSuchOption) and error.possibilities:
        return error.message, f"{path} {error.possibilities[0]}"
    return error.format_message(), error.hint if isinstance(error, Misused) else f"{path} --help"


class Seconds(click.ParamType[float]):
    """A number of seconds above 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse what is no such number."""
        with contextlib.suppress(ValueError):
            if 0 < float(value) < math.inf:
                return float(value)
        raise click.BadParameter(f"{value!r} is not a number of seconds above 0", ctx, param)


class MessageId(click.ParamType[str]):
    """The id of a message, which goes into addresses and queries: these hold text alone."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what is no text."""
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{value!r} is not UTF-8 text", ctx, param) from None
        return str(value)


key = click.argument(
    "key", metavar="KEY", help="the chat, such as telegram:12345678", shell_complete=known.complete_keys
)
as_json = click.option("--json", "as_json", is_flag=True, help="print one JSON document")
