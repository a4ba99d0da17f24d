"""``sessions`` and its verbs: conversations as files, daemon or not."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from contextlib import aclosing
from functools import partial
from typing import Any

from channels.message import key_fault
from gateway.app import clearing
from gateway.app.sessions import SessionServices, build_session_services
from gateway.app.subagents import end_all
from gateway.cli import attach, output, whole
from gateway.cli.config import settings_of
from gateway.config.settings import Settings
from gateway.doctor.cron import damage as jobs_damage
from gateway.errors import GatewayError, Unreachable
from session.kept import checking
from session.store import switch_session
from session.store.enclosed import AwaitedFiles
from session.store.listing import brief
from session.store.search import SearchResult
from session.store.search import search as search_in
from session.store.store import Store, View
from session.store.switch_session import Swap
from session.transcript.key import SessionKey

COLUMNS = ("key", "id", "name", "agent", "last_message_at", "message_count", "active")
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


def list_(args: argparse.Namespace) -> int:
    """Print one row for each session, newest message first."""

    async def work(settings: Settings) -> list[dict[str, Any]]:
        async with _store(settings) as store:
            return [row.as_dict() for row in await store.rows()]

    rows = attach.complete(work(settings_of(args)))
    if args.json:
        output.document(rows)
        return 0
    output.rows(rows, COLUMNS)
    if not rows:
        output.words("no sessions yet")
    return 0


def show(args: argparse.Namespace) -> int:
    """Print every message line of a session, oldest first."""

    async def work(settings: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with _store(settings) as store:
            view = await _find(store, args.target)
            rows = [row for row in await store.rows() if row.id == view.session_id]
            session = rows[0].as_dict() if rows else {"id": view.session_id, "key": view.key}
            return session, view.lines()

    session, messages = attach.complete(work(settings_of(args)))
    if args.json:
        output.document({"session": session, "messages": messages})
        return 0
    count = session.get("message_count", len(messages))
    # The ids are those that ``trace`` takes.
    output.words(f"{session['key']} · {session['id']} · {output.counted(count, 'message')}")
    for line in messages:
        output.shown(_shown(line))
    return 0


def new(args: argparse.Namespace) -> int:
    """End the session of a key, as ``/new`` does, and begin another; a key that has none gets its first."""

    async def work(settings: Settings) -> bool:
        async with _services(settings) as services, services.store.open(SessionKey(args.key)) as session:
            # One that was taken over keeps its key, whatever that is; no chat ever gets to a new one.
            if (fault := key_fault(args.key)) and not session.path.exists():
                raise GatewayError(
                    f"{args.key[:80]!r} is not a valid chat key: {fault}",
                    hint="chat-gateway sessions list shows all keys",
                )
            archived = await session.end()
            await end_all(None, settings.state, args.key)
            await services.jobs.ended(session)
            created = archived is None and not session.path.exists()
            if created:
                await session.checkpoint()
            return created or archived is not None

    begins = attach.complete(work(settings_of(args)))
    output.words("a new session is open" if begins else "the session has no messages yet and stays open")
    return 0


def close(args: argparse.Namespace) -> int:
    """End the session of a key without beginning another."""

    async def work(settings: Settings) -> str | None:
        async with _services(settings) as services:
            await _check_known(services.store, args.key)
            async with services.store.open(SessionKey(args.key)) as session:
                closed = await session.change(lambda *hands: switch_session.close(*hands, of=None))
            if closed is not None:
                await end_all(None, settings.state, args.key)
                await services.jobs.left(args.key, closed)
            return closed

    closed = attach.complete(work(settings_of(args)))
    output.words(f"session {closed} is closed" if closed else f"{args.key} has no open session with messages")
    return 0


def resume(args: argparse.Namespace) -> int:
    """Open an ended session of a key again; the active one is archived."""

    async def work(settings: Settings) -> Swap:
        if not _ULID.fullmatch(args.ulid):
            raise GatewayError(f"{args.ulid!r} is not a valid session id", hint="chat-gateway sessions list")
        async with _services(settings) as services:
            async with services.store.open(SessionKey(args.key)) as session:
                await services.follow_agent(session, args.ulid)
                swap = await session.change(
                    lambda *hands: switch_session.reopen(*hands, session_id=args.ulid)
                )
            if swap.left:
                await end_all(None, settings.state, args.key)
                await services.jobs.left(args.key, swap.left)
            return swap

    swap = attach.complete(work(settings_of(args)))
    ended = f"; {swap.left} is closed" if swap.left else ""
    output.words(f"{args.key} continues with session {swap.session}{ended}")
    return 0


def search(args: argparse.Namespace) -> int:
    """Print the messages of a key's sessions that hold all words, newest first."""
    words = " ".join(args.words)

    async def work(settings: Settings) -> SearchResult:
        async with _store(settings) as store:
            await _check_known(store, args.key)
            key, layout = SessionKey(args.key), store.layout
            stem = await store.stem(key)
            return await asyncio.to_thread(
                search_in, layout, stem, key, words, limit=args.limit, tools=args.tools
            )

    found = attach.complete(work(settings_of(args)))
    hits = [hit.as_dict() for hit in found.hits]
    if args.json:
        output.document(hits)
    else:
        output.rows(hits, ("id", "seq", "role", "timestamp", "text"))
    if not hits:
        output.words(f"no message of {args.key} contains {words!r}")
    if not found.all:
        output.words("there may be older matches: add words, or raise --limit")
    return 0


def prune(args: argparse.Namespace) -> int:
    """Do what retention does: delete old ended sessions, archive active ones that nobody uses."""

    async def work(settings: Settings) -> tuple[float, list[dict[str, Any]]]:
        async with _services(settings) as services:
            services.retention.awaited = partial(_awaited, settings)
            steps = await services.retention.prune(dry_run=args.dry_run, sweeps=False)
            return settings.session.retention_days, [step.as_dict() for step in steps]

    days, steps = attach.complete(work(settings_of(args)))
    if args.json:
        output.document(steps)
    else:
        output.rows(steps, ("do", "id", "key", "since"))
    if not days:
        output.words("session.retention_days is 0: everything is kept")
    elif args.dry_run:
        output.words(
            f"older than {days:g} days: {output.counted(len(steps), 'session')}; nothing was changed"
        )
    else:
        output.words(f"older than {days:g} days: {output.counted(len(steps), 'session')} deleted or archived")
    return 0


def clear(args: argparse.Namespace) -> int:
    """Delete the active transcript of a key; a running turn ends, unwritten, and is not begun again."""

    async def work(settings: Settings) -> bool:
        async with _store(settings) as store:
            return await _clear(settings, store, SessionKey(args.key))

    settings = settings_of(args)
    if args.everything:
        found = attach.complete(whole.erased(settings, key=args.key))
        output.words(f"{args.key} is cleared" if found["cleared"] else f"{args.key} had no active session")
        whole.tell(found)
        return 0
    cleared = attach.complete(work(settings))
    output.words(f"{args.key} is cleared" if cleared else f"{args.key} had no active session")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Check every transcript and what lies beside them, repair where asked; exit 1 while a problem stands."""

    async def work(settings: Settings) -> list[dict[str, Any]]:
        async with _store(settings) as store:
            found = await checking.verify(store, repair=args.repair)
        return [*found, *await asyncio.to_thread(jobs_damage, settings.workspace, repair=args.repair)]

    problems = attach.complete(work(settings_of(args)))
    if args.json:
        output.document(problems)
    else:
        shown = [problem | {"problem": brief(problem["problem"])} for problem in problems]
        output.rows(shown, ("file", "problem", "repaired"))
    if not problems:
        output.words("all transcripts and their index files can be read in full")
    return 1 if any(not problem["repaired"] for problem in problems) else 0


def _store(settings: Settings) -> aclosing[Store]:
    return aclosing(Store(settings.workspace, zone=settings.zone))


def _services(settings: Settings) -> aclosing[SessionServices]:
    return aclosing(build_session_services(settings, status=lambda *_: []))


async def _awaited(settings: Settings) -> AwaitedFiles:
    """Name the files that parked letters need; what else waits is known to the daemon alone."""
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


async def _clear(settings: Settings, store: Store, key: SessionKey) -> bool:
    """Have the daemon that works on the key clear it, which ends the turn too; without one, do it here."""
    async with attach.daemons(settings) as clients:
        if clients and whole.can_be_sent(key):
            client = await whole.working_on(key, clients)
            # A daemon that ends just now ends its turns with it.
            with contextlib.suppress(Unreachable):
                return await client.clear(key)
    return await clearing.clear(key, store, state=settings.state)


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
