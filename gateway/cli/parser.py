"""The tree of verbs and their options; it names the code of each verb and imports none of it."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from gateway.cli.backup_verbs import add_backup, add_downgrade
from gateway.cli.cron_verbs import add_cron
from gateway.cli.memory_verbs import add_memory
from gateway.cli.queues_verbs import add_queues
from gateway.cli.run_verbs import add_run
from gateway.cli.systemd_verbs import add_systemd
from gateway.cli.terminal_verbs import CHAT, add_terminal
from gateway.cli.trace_verbs import add_trace, message_id

PROGRAM = "chat-gateway"
IMPORTED_ONLY = ("pi", "openclaw")
DESCRIPTION = "Connects chat channels to language models through a durable queue."
EPILOG = f"""\
first steps:
  {PROGRAM} onboard        set up a model and a bot, step by step
  {PROGRAM} run            start the gateway, with a web console on http://127.0.0.1:8006/
  {PROGRAM} chat           talk to it in this terminal
  {PROGRAM} doctor         check everything and suggest fixes

`{PROGRAM} COMMAND --help` explains each command.
"""
# Commands of other programs, and what does the same here.
MEANT = {
    "init": f"{PROGRAM} onboard",
    "logs": "journalctl -u chat-gateway; without a service they stand in the terminal of the gateway",
    "restart": "sudo systemctl restart chat-gateway; without a service Ctrl-C in its terminal, then run it",
    "setup": f"{PROGRAM} onboard",
    "start": f"{PROGRAM} run",
    "stop": "sudo systemctl stop chat-gateway; without a service Ctrl-C in the terminal of the gateway",
    "update": "docs/install.md, Upgrading",
    "upgrade": "docs/install.md, Upgrading",
    "version": f"{PROGRAM} --version",
}


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose mistakes read like every other error."""

    def error(self, message: str) -> NoReturn:
        """Write ``error: …`` and ``try: …`` to stderr, exit 2."""
        if self.prog == PROGRAM and message.endswith("are required: COMMAND"):
            self.exit(2, f"{DESCRIPTION}\n\n{EPILOG}")
        advice = f"{self.prog} --help"
        if found := re.fullmatch(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message):
            choices = [choice.strip("'") for choice in found[3].split(", ")]
            what = "unknown command" if found[1] == "COMMAND" else f"unknown {found[1]}"
            message = f"{what} {found[2]}"
            if len(choices) < 12:
                message += f"; choose from {', '.join(choices)}"
            if found[1] == "COMMAND" and self.prog == PROGRAM and found[2].strip("'") in MEANT:
                advice = MEANT[found[2].strip("'")]
            elif near := get_close_matches(found[2].strip("'"), choices, 1):
                is_option = found[1].startswith("-")
                advice = f"{self.prog} {found[1]} {near[0]}" if is_option else f"{self.prog} {near[0]}"
        self.exit(2, f"error: {message}\ntry: {advice}\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line.

    Returns:
        Its options; ``handler`` is the verb's code as ``module:function``; ``config`` and ``workspace`` are
        paths or None.

    Raises:
        SystemExit: 0 after ``--help`` or ``--version``, 2 for a usage that makes no sense.
    """
    parser = build()
    options, rest = parser.parse_known_args(argv)
    if rest:
        message = f"unrecognized arguments: {' '.join(rest)}"
        if options.handler == CHAT and options.message is None and not rest[0].startswith("-"):
            parser.exit(2, f"error: {message}\ntry: {PROGRAM} chat -m {shlex.quote(' '.join(rest))}\n")
        parser.error(message)
    return options


def build() -> argparse.ArgumentParser:
    """Return the parser of the whole tree."""
    shared = _Parser(add_help=False)
    _add_globals(shared, default=argparse.SUPPRESS)
    parser = _Parser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_globals(parser, default=None)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    tree = _Tree(parser, shared)
    _add_daemon(tree)
    _add_sessions(tree.noun("sessions", "list, show, search, close and repair sessions"))
    add_memory(tree.noun("memory", "what the gateway remembers about a chat"), count=_count)
    _add_parked(tree.noun("parked", "messages that could not be answered or delivered"))
    add_queues(tree.noun("queues", "the inbound queues on RabbitMQ"), count=_count)
    _add_pairing(tree.noun("pairing", "approve people and groups that ask for access"))
    add_cron(tree.noun("cron", "scheduled jobs"))
    _add_tokens(tree.noun("tokens", "API tokens and their permissions"))
    _add_mcp(tree.noun("mcp", "MCP servers and the tools that they offer"))
    add_backup(tree.noun("backup", "back up, verify and restore the workspace"))
    add_downgrade(tree)
    _add_config(tree.noun("config", "show and check the configuration"))
    add_systemd(tree.noun("systemd", "systemd units for the gateway"))
    return parser


class _Version(argparse.Action):
    """Prints the installed version; looks it up only then, since that costs more than all the parsing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"{PROGRAM} {version(PROGRAM)}")
        parser.exit(0)


class _Tree:
    """One level of verbs."""

    def __init__(self, parser: argparse.ArgumentParser, shared: _Parser) -> None:
        self._shared = shared
        self._verbs = parser.add_subparsers(
            metavar="COMMAND", required=True, parser_class=_Parser, title="commands"
        )

    def noun(self, name: str, help_text: str) -> _Tree:
        """Add a noun, which has verbs of its own."""
        parser = self._verbs.add_parser(
            name, help=help_text, description=_sentence(help_text), allow_abbrev=False
        )
        return _Tree(parser, self._shared)

    def verb(
        self, name: str, code: str, text: str, *, more: str = "", keyed: bool = False, as_json: bool = False
    ) -> argparse.ArgumentParser:
        """Add a verb, done by ``code``; ``keyed`` gives it a KEY, ``as_json`` gives it ``--json``."""
        parser = self._verbs.add_parser(
            name,
            help=text,
            description=f"{_sentence(text)} {more}".rstrip(),
            parents=[self._shared],
            allow_abbrev=False,
        )
        parser.set_defaults(handler=code)
        if keyed:
            parser.add_argument("key", metavar="KEY", help="the chat, such as telegram:12345678")
        if as_json:
            parser.add_argument("--json", action="store_true", help="print one JSON document")
        return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_globals(parser: argparse.ArgumentParser, default: str | None) -> None:
    group = parser.add_argument_group("global options")
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=default,
        help="configuration file (default: the first of $CHAT_GATEWAY_CONFIG, ./chat-gateway.toml, "
        "~/.config/chat-gateway/config.toml, /etc/chat-gateway/config.toml)",
    )
    group.add_argument("--workspace", metavar="DIR", type=Path, default=default, help="folder for all data")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _count(text: str) -> int:
    with contextlib.suppress(ValueError):
        if int(text) > 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")


def _add_daemon(tree: _Tree) -> None:
    add_run(tree)
    add_terminal(tree, seconds=_seconds)
    status = tree.verb(
        "status", "gateway.cli.status:status", "show what runs, what waits and today's cost", as_json=True
    )
    status.add_argument(
        "--alive",
        action="store_true",
        help="print nothing; exit 0 if a gateway on this machine is ready, else 69 (for health checks)",
    )
    add_trace(tree, count=_count)
    doctor = tree.verb(
        "doctor",
        "gateway.cli.doctor:doctor",
        "check configuration, queue, model, disk, transcripts and more",
        more="Each check reports ok, warn or fail, and what to do. Exit 1 if a check failed.",
        as_json=True,
    )
    doctor.add_argument(
        "--fix", action="store_true", help="first fix whatever is safe to fix, and say what was fixed"
    )
    doctor.add_argument(
        "--within",
        metavar="SECONDS",
        type=_seconds,
        help="time limit of each check of a disk or process (default: 20, more where all files are read)",
    )


def _add_sessions(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.sessions:list_", "list all sessions, newest message first", as_json=True)
    show = tree.verb("show", "gateway.cli.sessions:show", "show all messages, oldest first", as_json=True)
    show.add_argument("target", metavar="KEY|ULID", help="a chat, or the id of a session")
    tree.verb(
        "new", "gateway.cli.sessions:new", "close the session and start a new one, like /new", keyed=True
    )
    tree.verb("close", "gateway.cli.sessions:close", "close the session of a chat", keyed=True)
    resume = tree.verb(
        "resume",
        "gateway.cli.sessions:resume",
        "reopen a closed session",
        more="The active session is archived first, and can be reopened later.",
        keyed=True,
    )
    resume.add_argument("ulid", metavar="ULID", help="id of a closed session, from `sessions list`")
    _add_ageing(tree)
    clear = tree.verb(
        "clear",
        "gateway.cli.sessions:clear",
        "delete the active session without archiving or summarizing it",
        more="Stops the answer in progress. Messages that wait in the queue are still answered.",
        keyed=True,
    )
    clear.add_argument(
        "--everything", action="store_true", help="also closed sessions, memory, facts, journal, media"
    )
    verify = tree.verb(
        "verify",
        "gateway.cli.sessions:verify",
        "check all transcripts and their index files; exit 1 if one is damaged",
        as_json=True,
    )
    verify.add_argument("--repair", action="store_true", help="repair them, and keep each original")
    _add_interchange(tree)


def _add_interchange(tree: _Tree) -> None:
    formats = ("nanobot", "nanobot-b64", "annabelle", "overlay", "archive", "rows")
    sources = (*formats, *IMPORTED_ONLY)
    take = tree.verb(
        "import",
        "gateway.cli.interchange:import_",
        "import sessions from another program",
        more="An active session of the same chat is archived first; the source is not changed. "
        "With --from nanobot, PATH may be a whole workspace: sessions, memory and jobs are imported.",
    )
    take.add_argument(
        "--from", dest="format", metavar="FORMAT", choices=sources, required=True, help=", ".join(sources)
    )
    take.add_argument("path", metavar="PATH", type=Path, help="a file or a folder of files")
    take.add_argument("--key", help="import as this chat (default: the source's, else cli:<id or file name>)")
    take.add_argument(
        "--write-config",
        action="store_true",
        help='with a whole workspace: write memory.scope = "workspace" to the configuration file',
    )
    give = tree.verb(
        "export", "gateway.cli.interchange:export", "export a session in another program's format"
    )
    give.add_argument(
        "--to", dest="format", metavar="FORMAT", choices=sources, required=True, help=", ".join(formats)
    )
    give.add_argument("target", metavar="KEY|ULID", help="a chat, or the id of a session")
    give.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        type=Path,
        help="file or folder (default: stdout; overlay needs a folder)",
    )


def _add_ageing(tree: _Tree) -> None:
    search = tree.verb(
        "search",
        "gateway.cli.sessions:search",
        "search the sessions of a chat for words, newest match first",
        as_json=True,
        keyed=True,
    )
    search.add_argument("words", metavar="WORD", nargs="+", help="a message must contain all of them")
    search.add_argument(
        "--limit",
        metavar="N",
        type=_count,
        default=20,
        help="show at most N messages (default: %(default)s)",
    )
    search.add_argument("--tools", action="store_true", help="search tool results, too")
    prune = tree.verb(
        "prune",
        "gateway.cli.sessions:prune",
        "delete or archive sessions older than session.retention_days",
        more="A running gateway does this at start and daily.",
        as_json=True,
    )
    prune.add_argument("--dry-run", action="store_true", help="only show what would be done")


def _add_parked(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.parked:list_", "list parked messages, oldest first", as_json=True)
    for name, words, as_json in (
        ("show", "show a parked message in full", True),
        ("retry", "put a parked message back at the end of its queue", False),
        ("drop", "delete a parked message for good", False),
    ):
        verb = tree.verb(name, f"gateway.cli.parked:{name}", words, as_json=as_json)
        verb.add_argument("id", metavar="ID", type=message_id, help="its id, from `parked list`")
        verb.add_argument("--key", help="its chat, if several chats have a message with this id")


def _add_pairing(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.pairing:list_", "list requests and approvals", as_json=True)
    approve = tree.verb("approve", "gateway.cli.pairing:approve", "approve whoever got a code")
    approve.add_argument("code", metavar="CODE", help="the code that the bot sent; valid for an hour")
    revoke = tree.verb("revoke", "gateway.cli.pairing:revoke", "revoke the access of a person or group")
    revoke.add_argument("who", metavar="WHO", help="telegram:<id>, or <id> for all channels")


def _add_tokens(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.tokens:list_", "list API tokens and their permissions", as_json=True)
    add = tree.verb(
        "add",
        "gateway.cli.tokens:add",
        "create an API token and print it; it is shown only once",
        more="Tokens take effect if http.token is set; http.token itself has all permissions.",
    )
    add.add_argument("name", metavar="NAME", help="a-z, 0-9, - and _")
    add.add_argument(
        "--right",
        choices=("read", "write", "admin"),
        default="write",
        help="read: view; write: also chat, and change chats, memory and jobs; admin: everything "
        "(default: %(default)s)",
    )
    revoke = tree.verb("revoke", "gateway.cli.tokens:revoke", "revoke an API token at once")
    revoke.add_argument("name", metavar="NAME", help="its name, from `tokens list`")


def _add_mcp(tree: _Tree) -> None:
    tree.verb(
        "list", "gateway.cli.mcp:list_", "list MCP servers, their tools, and unapproved changes", as_json=True
    )
    approve = tree.verb(
        "approve", "gateway.cli.mcp:approve", "approve the tools of a server as it lists them now"
    )
    approve.add_argument("name", metavar="NAME", help="its name, from [mcp.NAME] of the configuration")


def _add_config(tree: _Tree) -> None:
    tree.verb(
        "show", "gateway.cli.config:show", "print the effective configuration without secrets", as_json=True
    )
    tree.verb("check", "gateway.cli.config:check", "list all problems of the configuration", as_json=True)
    tree.verb("schema", "gateway.cli.config:schema", "print a JSON Schema of the configuration, for editors")
    tree.verb("path", "gateway.cli.config:path", "print which file is used", as_json=True)
