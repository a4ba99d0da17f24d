"""The root of the command line: commands by name, shared options, usage errors, shell completion.

Help and completion import a noun's module and run none of its verbs, so such a module imports at its top only
what is quick; a verb imports the rest itself. What is offered comes from the small files of a workspace, in a
few milliseconds; what cannot be read is left out, and no name steers a terminal.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from gateway.config.finding import glance

# Of more conversations those written last are known.
KEYS_MAX = 500
_HEAD_BYTES = 64 * 1024
# Begins a line of the terminal chat that names a file.
FILE_WORD = "!file"
# A name as it is typed, and what it stands for.
Names = dict[str, str]
_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def keys(workspace: Path) -> Names:
    """Return the conversations with their names, the one written last first."""
    paths = nlargest(KEYS_MAX, (workspace / "sessions").glob("*.jsonl"), key=_written)
    heads = (_head(path) for path in paths)
    return _typed({str(head["key"]): _name_of(head) for head in heads if head.get("key")})


def ended(workspace: Path, key: str | None) -> Names:
    """Return the ended sessions of a conversation, or of all, by ULID, the newest first."""
    paths = nlargest(KEYS_MAX, (workspace / "sessions" / "archive").glob("*/*-*.jsonl"), key=_written)
    offers = {path.stem.rpartition("-")[2]: _head(path) for path in paths}
    return {ulid: _name_of(head) for ulid, head in offers.items() if key in (None, head.get("key"))}


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


def _name_of(head: dict[str, Any]) -> str:
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
    "completion": ("root", "print the completion script for a shell"),
    "status": ("status", "show what runs, what waits and today's cost"),
    "trace": ("status", "show what happened to one message, step by step"),
    "usage": ("status", "show tokens and cost by day, model, person and chat"),
    "doctor": ("doctor", "check configuration, queue, model, disk, transcripts and more"),
    "sessions": ("sessions", "list, show, search, close and repair sessions"),
    "memory": ("memory", "what the gateway remembers about a chat"),
    "parked": ("parked", "messages that could not be answered or delivered"),
    "pairing": ("access", "approve people and groups that ask for access"),
    "cron": ("cron", "scheduled jobs"),
    "tokens": ("access", "API tokens and their rights"),
    "mcp": ("mcp", "MCP servers and the tools that they offer"),
    "backup": ("backup", "back up, verify and restore the workspace"),
    "config": ("config", "show and check the configuration"),
    "systemd": ("run", "systemd units for the gateway"),
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
            return shell_complete(cli, {"obj": GlobalOptions()}, PROGRAM, COMPLETES, instruction)
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
    "key", metavar="KEY", help="the chat, such as telegram:12345678", shell_complete=complete_keys
)
as_json = click.option("--json", "as_json", is_flag=True, help="print one JSON document")


@add_completion_class
class _Bash(BashComplete):
    """Puts words such as ``cli:garden`` together, of which bash completes what follows the colon alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and what is there of that one."""
        at = int(os.environ["COMP_CWORD"])
        given = split_arg_string(os.environ["COMP_WORDS"])[1 : at + 1]
        words: list[str] = []
        for word in [*given, ""] if len(given) < at else given:
            if words and (word.startswith(":") or (words[-1].endswith(":") and word)):
                words[-1] += word
            else:
                words.append(word)
        self._begun = words.pop()
        return words, self._begun

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Leave out what stands before the last colon that is typed."""
        return f"{item.type},{str(item.value)[self._begun.rfind(':') + 1 :]}"


@click.command(cls=Verb)
@click.argument("shell", metavar="SHELL", type=click.Choice(("bash", "zsh", "fish")), help="bash, zsh, fish")
def completion(_: GlobalOptions, shell: str) -> None:
    """Print the completion script for a shell.

    bash: source <(chat-gateway completion bash); zsh: the same, after compinit; fish: chat-gateway completion
    fish | source.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, PROGRAM, COMPLETES).source().strip("\n"))
