"""``sessions`` and its verbs: conversations as files, daemon or not."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.root import COUNT, FILE, GlobalOptions, as_json, complete_ended, complete_keys, group, key
from gateway.errors import GatewayError, Unreachable
from session.transcript.key import SessionKey

if TYPE_CHECKING:
    from gateway.app.wiring_session import SessionServices
    from gateway.config.settings import Settings
    from session.store.listing import SearchResult
    from session.store.media import AwaitedFiles
    from session.store.rollover import Swap
    from session.store.store import Store, View

T = TypeVar("T")
sessions = group("sessions")
_target = click.argument(
    "target", metavar="KEY|ULID", help="a chat, or the id of a session", shell_complete=complete_keys
)
COLUMNS = ("key", "id", "name", "agent", "last_message_at", "message_count", "active")
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@sessions.command("list")
@as_json
def list_(opts: GlobalOptions, as_json: bool) -> None:
    """List all sessions, newest message first."""
    rows = _in_store(settings_of(opts), lambda store: store.rows())
    output.listed([row.as_dict() for row in rows], COLUMNS, "no sessions yet", as_json=as_json)


@sessions.command()
@_target
@as_json
def show(opts: GlobalOptions, target: str, as_json: bool) -> None:
    """Show all messages, oldest first."""

    async def work(store: Store) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        view = await _find(store, target)
        rows = [row for row in await store.rows() if row.id == view.session_id]
        session = rows[0].as_dict() if rows else {"id": view.session_id, "key": view.key}
        return session, view.lines()

    session, messages = _in_store(settings_of(opts), work)
    if as_json:
        output.document({"session": session, "messages": messages})
        return
    count = session.get("message_count", len(messages))
    # The ids are those that ``trace`` takes.
    output.words(f"{session['key']} · {session['id']} · {output.counted(count, 'message')}")
    for line in messages:
        output.shown(_shown(line))


@sessions.command()
@key
def new(opts: GlobalOptions, key: str) -> None:
    """Close the session and start a new one, like /new."""
    from channels.message import key_fault
    from gateway.app.erasure import end_all

    settings = settings_of(opts)

    async def work(services: SessionServices) -> bool:
        async with services.store.open(SessionKey(key)) as session:
            # One that was taken over keeps its key, whatever that is; no chat ever gets to a new one.
            if (fault := key_fault(key)) and not session.path.exists():
                raise GatewayError(
                    f"{key[:80]!r} is not a valid chat key: {fault}",
                    hint="chat-gateway sessions list shows all keys",
                )
            archived = await session.end()
            await end_all(None, settings.state, key)
            await services.jobs.ended(session)
            created = archived is None and not session.path.exists()
            if created:
                await session.checkpoint()
            return created or archived is not None

    begins = _in_services(settings, work)
    output.words("a new session is open" if begins else "the session has no messages yet and stays open")


@sessions.command()
@key
def close(opts: GlobalOptions, key: str) -> None:
    """Close the session of a chat."""
    from gateway.app.erasure import end_all
    from session.store import rollover

    settings = settings_of(opts)

    async def work(services: SessionServices) -> str | None:
        await _check_known(services.store, key)
        async with services.store.open(SessionKey(key)) as session:
            closed = await session.change(lambda *hands: rollover.close(*hands, of=None))
        if closed is not None:
            await end_all(None, settings.state, key)
            await services.jobs.left(key, closed)
        return closed

    closed = _in_services(settings, work)
    output.words(f"session {closed} is closed" if closed else f"{key} has no open session with messages")


@sessions.command()
@key
@click.argument(
    "ulid",
    metavar="ULID",
    help="id of a closed session, from `sessions list`",
    shell_complete=complete_ended,
)
def resume(opts: GlobalOptions, key: str, ulid: str) -> None:
    """Reopen a closed session.

    The active session is archived first, and can be reopened later.
    """
    from gateway.app.erasure import end_all
    from session.store import rollover

    settings = settings_of(opts)
    if not _ULID.fullmatch(ulid):
        raise GatewayError(f"{ulid!r} is not a valid session id", hint="chat-gateway sessions list")

    async def work(services: SessionServices) -> Swap:
        async with services.store.open(SessionKey(key)) as session:
            await services.follow_agent(session, ulid)
            swap = await session.change(lambda *hands: rollover.reopen(*hands, session_id=ulid))
        if swap.left:
            await end_all(None, settings.state, key)
            await services.jobs.left(key, swap.left)
        return swap

    swap = _in_services(settings, work)
    ended = f"; {swap.left} is closed" if swap.left else ""
    output.words(f"{key} continues with session {swap.session}{ended}")


@sessions.command()
@key
@click.argument(
    "words", metavar="WORD...", nargs=-1, required=True, help="a message must contain all of them"
)
@click.option(
    "--limit", metavar="N", type=COUNT, default=20, show_default=True, help="show at most N messages"
)
@click.option("--tools", is_flag=True, help="search tool results, too")
@as_json
def search(
    opts: GlobalOptions, key: str, words: tuple[str, ...], limit: int, tools: bool, as_json: bool
) -> None:
    """Search the sessions of a chat for words, newest match first."""
    from session.store.listing import search as search_in

    text = " ".join(words)

    async def work(store: Store) -> SearchResult:
        await _check_known(store, key)
        session_key = SessionKey(key)
        stem = await store.stem(session_key)
        return await asyncio.to_thread(
            search_in, store.layout, stem, session_key, text, limit=limit, tools=tools
        )

    found = _in_store(settings_of(opts), work)
    hits = [hit.as_dict() for hit in found.hits]
    if as_json:
        output.document(hits)
    else:
        output.rows(hits, ("id", "seq", "role", "timestamp", "text"))
    if not hits:
        output.words(f"no message of {key} contains {text!r}")
    if not found.all:
        output.words("there may be older matches: add words, or raise --limit")


@sessions.command()
@click.option("--dry-run", is_flag=True, help="only show what would be done")
@as_json
def prune(opts: GlobalOptions, dry_run: bool, as_json: bool) -> None:
    """Delete or archive sessions older than session.retention_days.

    A running gateway does this at start and daily.
    """
    settings = settings_of(opts)
    days = settings.session.retention_days

    async def work(services: SessionServices) -> list[dict[str, Any]]:
        services.retention.awaited = partial(_awaited, settings)
        return [step.as_dict() for step in await services.retention.prune(dry_run=dry_run, sweeps=False)]

    steps = _in_services(settings, work)
    if as_json:
        output.document(steps)
    else:
        output.rows(steps, ("do", "id", "key", "since"))
    due = f" older than session.retention_days = {days:g}"
    if not days:
        output.words("session.retention_days is 0: everything is kept")
    elif dry_run:
        output.words(f"would delete or archive {output.counted(len(steps), 'session')}{due}")
    else:
        output.words(f"deleted or archived {output.counted(len(steps), 'session')}{due}")


@sessions.command()
@key
@click.option("--everything", is_flag=True, help="also closed sessions, memory, facts, journal, media")
def clear(opts: GlobalOptions, key: str, everything: bool) -> None:
    """Delete the active session without archiving or summarising it.

    Stops the answer in progress. Messages that wait in the queue are still answered.
    """
    from gateway.cli import memory

    settings = settings_of(opts)
    found = asyncio.run(memory.erased(settings, key=key)) if everything else None
    cleared = found["cleared"] if found else _in_store(settings, partial(_clear, settings, SessionKey(key)))
    output.words(f"{key} is cleared" if cleared else f"{key} had no active session")
    if found:
        memory.tell(found)


@sessions.command()
@click.option("--repair", is_flag=True, help="repair them, and keep each original")
@as_json
def verify(opts: GlobalOptions, repair: bool, as_json: bool) -> int:
    """Check all transcripts and their index files; exit 1 if one is damaged."""
    from gateway.doctor.workspace import integrity
    from session.store.listing import brief

    problems = _in_store(settings_of(opts), partial(integrity, repair=repair))
    if as_json:
        output.document(problems)
    else:
        shown = [problem | {"problem": brief(problem["problem"])} for problem in problems]
        output.rows(shown, ("file", "problem", "repaired"))
    if not problems:
        output.words("all transcripts and their index files can be read in full")
    return 1 if any(not problem["repaired"] for problem in problems) else 0


# The formats of ``session.interchange.formats``, those that can only be imported last.
_FORMATS = ("nanobot", "nanobot-b64", "annabelle", "overlay", "archive", "rows", "pi", "openclaw")


@sessions.command("import")
@click.option(
    "--from", "name", metavar="FORMAT", type=click.Choice(_FORMATS), required=True, help=", ".join(_FORMATS)
)
@click.argument("path", metavar="PATH", type=FILE, help="a file or a folder of files")
@click.option(
    "--key",
    metavar="KEY",
    help="import as this chat (default: the source's, else cli:<id or file name>)",
    shell_complete=complete_keys,
)
@click.option(
    "--write-config",
    is_flag=True,
    help='with a whole workspace: write memory.scope = "workspace" to the configuration file',
)
def import_(opts: GlobalOptions, name: str, path: Path, key: str | None, write_config: bool) -> int:
    """Import sessions from another program.

    An active session of the same chat is archived first; the source is not changed. With --from nanobot, PATH
    may be a whole workspace: sessions, memory and jobs are imported.
    """
    from gateway.cli import interchange

    return interchange.import_(opts, name, path, key=key, write_config=write_config)


@sessions.command()
@click.option(
    "--to",
    "name",
    metavar="FORMAT",
    type=click.Choice(_FORMATS),
    required=True,
    help=", ".join(_FORMATS[:-2]),
)
@_target
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=FILE,
    help="file or folder (default: stdout; overlay needs a folder)",
)
def export(opts: GlobalOptions, name: str, target: str, output: Path | None) -> int:
    """Export a session in another program's format."""
    from gateway.cli import interchange

    return interchange.export(opts, name, target, output)


def _in_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return what ``work`` does with the conversations of the workspace."""
    from session.store.store import Store

    async def run() -> T:
        async with aclosing(Store(settings.workspace, zone=settings.zone)) as store:
            return await work(store)

    return asyncio.run(run())


def _in_services(settings: Settings, work: Callable[[SessionServices], Awaitable[T]]) -> T:
    """Return what ``work`` does with the whole session side of the workspace."""
    from gateway.app.wiring_session import SessionServices

    async def run() -> T:
        async with aclosing(SessionServices(settings, status=lambda *_: [])) as services:
            return await work(services)

    return asyncio.run(run())


async def _awaited(settings: Settings) -> AwaitedFiles:
    """Name the files that parked letters need; what else waits is known to the daemon alone."""
    from session.store.media import AwaitedFiles

    return AwaitedFiles(await attach.parked_files(settings))


async def _check_known(store: Store, key: str) -> None:
    if all(row.key != key for row in await store.rows()):
        raise GatewayError(f"there is no chat {key!r}", hint="chat-gateway sessions list")


async def _find(store: Store, target: str) -> View:
    if _ULID.fullmatch(target):
        view = await store.look_up(target)
        if view is not None:
            return view
    else:
        view = await store.look(SessionKey(target))
        if len(view) or view.path.exists():
            return view
    raise GatewayError(f"there is no chat or session {target!r}", hint="chat-gateway sessions list")


async def _clear(settings: Settings, key: SessionKey, store: Store) -> bool:
    from gateway.app import erasure
    from gateway.cli import memory

    async with attach.daemon(settings) as client:
        if client is not None and memory.can_be_sent(key):
            # A daemon that ends just now ends its turns with it.
            with contextlib.suppress(Unreachable):
                return await client.clear(key)
    return await erasure.clear(key, store, state=settings.state)


def _shown(line: dict[str, Any]) -> str:
    content = line.get("content")
    text = content if isinstance(content, str) else "" if content is None else repr(content)
    found = line.get("tool_calls")
    # Another program may have written anything there.
    functions = (
        [_mapping(_mapping(call).get("function")) for call in found] if isinstance(found, list) else []
    )
    calls = [str(function["name"]) for function in functions if "name" in function]
    at = str(line.get("timestamp", ""))[:19]
    message_id = line.get("message_id")
    named = f" {message_id}" if isinstance(message_id, str) else ""
    called = f" [{', '.join(calls)}]" if calls else ""
    kind = f" ({line['kind']})" if line.get("role") == "system" and "kind" in line else ""
    return f"{at} {line.get('role')}{kind}{called}{named}: {text}"


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
