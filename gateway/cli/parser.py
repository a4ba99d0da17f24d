"""The tree of verbs and their options; it names the code of each verb and imports none of it."""

from __future__ import annotations

import argparse
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
  {PROGRAM} run            the daemon, with a console page on http://127.0.0.1:8006/
  {PROGRAM} chat           talk to it in this terminal
  {PROGRAM} doctor         check everything and say what to do

`{PROGRAM} VERB --help` explains each verb.
"""


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose mistakes read like every other error."""

    def error(self, message: str) -> NoReturn:
        """Write ``error: …`` and ``try: …`` to stderr, exit 2."""
        if self.prog == PROGRAM and message.endswith("are required: VERB"):
            self.exit(2, f"{DESCRIPTION}\n\n{EPILOG}")
        advice = f"{self.prog} --help"
        if found := re.fullmatch(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message):
            choices = [choice.strip("'") for choice in found[3].split(", ")]
            is_verb = found[1] == "VERB"
            what = "there is no verb" if is_verb else f"{found[1]} cannot be"
            message = f"{what} {found[2]}; known are {', '.join(choices)}"
            if near := get_close_matches(found[2].strip("'"), choices, 1):
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
    _add_sessions(tree.noun("sessions", "list, show, end and check conversations"))
    add_memory(tree.noun("memory", "what is remembered of a chat"), count=_count)
    _add_parked(tree.noun("parked", "letters that were set aside, inbound and outbound"))
    add_queues(tree.noun("queues", "the queues of a broker"), count=_count)
    _add_pairing(tree.noun("pairing", "strangers and groups that ask for access"))
    add_cron(tree.noun("cron", "what is asked by the clock"))
    _add_tokens(tree.noun("tokens", "who may use the API, and what for"))
    _add_mcp(tree.noun("mcp", "servers of tools, and which of their tools may be used"))
    add_backup(tree.noun("backup", "the whole workspace in one file, and back"))
    add_downgrade(tree)
    _add_config(tree.noun("config", "the configuration and its problems"))
    add_systemd(tree.noun("systemd", "the units of the service"))
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
            metavar="VERB", required=True, parser_class=_Parser, title="verbs"
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
            parser.add_argument("key", metavar="KEY", help="conversation, as channel:chat_id")
        if as_json:
            parser.add_argument("--json", action="store_true", help="print one JSON document")
        return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_globals(parser: argparse.ArgumentParser, default: str | None) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=default,
        help="configuration file (else $CHAT_GATEWAY_CONFIG, ./chat-gateway.toml, "
        "~/.config/chat-gateway/config.toml, /etc/chat-gateway/config.toml)",
    )
    group.add_argument(
        "--workspace", metavar="DIR", type=Path, default=default, help="folder of everything that is kept"
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


# argparse names it in its error.
_seconds.__name__ = "number of seconds"


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_count.__name__ = "number from 1 on"


def _add_daemon(tree: _Tree) -> None:
    add_run(tree)
    add_terminal(tree, seconds=_seconds)
    status = tree.verb(
        "status", "gateway.cli.status:status", "show lanes, queues, channels and cost", as_json=True
    )
    status.add_argument(
        "--alive",
        action="store_true",
        help="say nothing, and exit 69 where no daemon of this machine or container is ready and answers",
    )
    add_trace(tree, count=_count)
    doctor = tree.verb(
        "doctor",
        "gateway.cli.doctor:doctor",
        "check configuration, broker, model, locks, transcripts and more",
        more="Each check says ok, warn or fail, with a cure.",
        as_json=True,
    )
    doctor.add_argument(
        "--fix", action="store_true", help="first mend what needs nobody's decision, a line for each"
    )
    doctor.add_argument(
        "--within",
        metavar="SECONDS",
        type=_seconds,
        help="how long each look at a disk or a process may take; else 20 s, and more where all is read",
    )


def _add_sessions(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.sessions:list_", "list conversations, newest first", as_json=True)
    show = tree.verb("show", "gateway.cli.sessions:show", "show every message, oldest first", as_json=True)
    show.add_argument("target", metavar="KEY|ULID", help="a conversation, or one session of it")
    tree.verb(
        "new", "gateway.cli.sessions:new", "end the session and begin another, as /new does", keyed=True
    )
    tree.verb("close", "gateway.cli.sessions:close", "end the session without beginning another", keyed=True)
    resume = tree.verb(
        "resume",
        "gateway.cli.sessions:resume",
        "open an ended session again",
        more="The active one is archived for it, and can be opened again in turn.",
        keyed=True,
    )
    resume.add_argument("ulid", metavar="ULID", help="one of its ended sessions, as `sessions list` shows it")
    _add_ageing(tree)
    clear = tree.verb(
        "clear",
        "gateway.cli.sessions:clear",
        "delete the active transcript, without archive or summary",
        more="Stops the running turn; letters that wait in the queue stay.",
        keyed=True,
    )
    clear.add_argument(
        "--everything", action="store_true", help="also its archive, memory, facts, journal and media"
    )
    verify = tree.verb(
        "verify",
        "gateway.cli.sessions:verify",
        "check transcripts and what lies beside them; exit 1 while one is damaged",
        as_json=True,
    )
    verify.add_argument("--repair", action="store_true", help="repair them; the original is kept beside each")
    _add_interchange(tree)


def _add_interchange(tree: _Tree) -> None:
    formats = ("nanobot", "nanobot-b64", "annabelle", "overlay", "archive", "rows")
    sources = (*formats, *IMPORTED_ONLY)
    take = tree.verb(
        "import",
        "gateway.cli.interchange:import_",
        "take over conversations of another program",
        more="An active session of the same key is archived first; the original stays as it is. "
        "With --from nanobot PATH may be a whole workspace: sessions, memory and cron jobs are taken over.",
    )
    take.add_argument(
        "--from", dest="format", metavar="FORMAT", choices=sources, required=True, help=", ".join(sources)
    )
    take.add_argument("path", metavar="PATH", type=Path, help="a file, or a folder of them")
    take.add_argument(
        "--key", help="conversation it becomes (default: the source's, else cli:<id or file stem>)"
    )
    take.add_argument(
        "--write-config",
        action="store_true",
        help='of a whole workspace: put memory.scope = "workspace" into the configuration file',
    )
    give = tree.verb(
        "export", "gateway.cli.interchange:export", "write a session in the format of another program"
    )
    give.add_argument(
        "--to", dest="format", metavar="FORMAT", choices=sources, required=True, help=", ".join(formats)
    )
    give.add_argument("target", metavar="KEY|ULID", help="a conversation, or one session of it")
    give.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        type=Path,
        help="file or folder (default: stdout; overlay needs one)",
    )


def _add_ageing(tree: _Tree) -> None:
    search = tree.verb(
        "search",
        "gateway.cli.sessions:search",
        "find words in the sessions of a conversation, newest first",
        as_json=True,
        keyed=True,
    )
    search.add_argument("words", metavar="WORD", nargs="+", help="a message must hold all of them")
    search.add_argument(
        "--limit",
        metavar="N",
        type=_count,
        default=20,
        help="how many messages at most (default: %(default)s)",
    )
    search.add_argument("--tools", action="store_true", help="in the results of tools, too")
    prune = tree.verb(
        "prune",
        "gateway.cli.sessions:prune",
        "delete and archive what is older than session.retention_days",
        more="The daemon does the same at its start and daily.",
        as_json=True,
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _add_parked(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.parked:list_", "list parked letters, oldest first", as_json=True)
    for name, words, as_json in (
        ("show", "show a parked letter whole", True),
        ("retry", "put a parked letter back at the end of its queue", False),
        ("drop", "remove a parked letter for good", False),
    ):
        verb = tree.verb(name, f"gateway.cli.parked:{name}", words, as_json=as_json)
        verb.add_argument("id", metavar="ID", type=message_id, help="as `parked list` shows it")
        verb.add_argument("--key", help="which one, where several chats have a letter of this id")


def _add_pairing(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.pairing:list_", "list who asks and who was let in", as_json=True)
    approve = tree.verb("approve", "gateway.cli.pairing:approve", "let in who was told a code")
    approve.add_argument("code", metavar="CODE", help="as the bot told it; valid for an hour")
    revoke = tree.verb("revoke", "gateway.cli.pairing:revoke", "let somebody in no more")
    revoke.add_argument("who", metavar="WHO", help="telegram:<id>, or <id> on every channel")


def _add_tokens(tree: _Tree) -> None:
    tree.verb("list", "gateway.cli.tokens:list_", "list the tokens and their rights", as_json=True)
    add = tree.verb(
        "add",
        "gateway.cli.tokens:add",
        "make a token and print it, this once",
        more="It counts where http.token is set, which has every right itself.",
    )
    add.add_argument("name", metavar="NAME", help="a-z, 0-9, - and _")
    add.add_argument(
        "--right",
        choices=("read", "write", "admin"),
        default="write",
        help="read: look; write: also talk and change chats, memory and jobs; admin: all "
        "(default: %(default)s)",
    )
    revoke = tree.verb("revoke", "gateway.cli.tokens:revoke", "let a token open nothing any more, at once")
    revoke.add_argument("name", metavar="NAME", help="as `tokens list` shows it")


def _add_mcp(tree: _Tree) -> None:
    tree.verb(
        "list", "gateway.cli.mcp:list_", "list servers, their tools, and what of them changed", as_json=True
    )
    approve = tree.verb(
        "approve", "gateway.cli.mcp:approve", "let the tools of a server be used as it lists them now"
    )
    approve.add_argument("name", metavar="NAME", help="as in [mcp.NAME] of the configuration")


def _add_config(tree: _Tree) -> None:
    tree.verb(
        "show", "gateway.cli.config:show", "print the configuration in force, secrets hidden", as_json=True
    )
    tree.verb(
        "check", "gateway.cli.config:check", "name every problem of the configuration at once", as_json=True
    )
    tree.verb("schema", "gateway.cli.config:schema", "print every key as a JSON Schema, for editors")
    tree.verb("path", "gateway.cli.config:path", "print which configuration file is read", as_json=True)
