"""``memory``: what is remembered of a chat, and all data about a chat or person."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

import durable
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.root import COUNT, FILE, GlobalOptions, as_json, complete_keys, group, key
from gateway.errors import GatewayError, Unreachable
from session.errors import ModelAway

if TYPE_CHECKING:
    from gateway.app.erasure import Erasure
    from gateway.app.wiring_session import SessionServices
    from gateway.config.settings import Settings
    from session.background.report import Report
    from session.kept.subject import Subject
    from session.memory.fact_store import Fact
    from session.memory.memory_commands import Restored
    from session.recall.recall import SearchResults


memory = group("memory")
T = TypeVar("T")
# As of ``POST /clear-session``.
Erased = dict[str, Any]
_VERSIONS = ("version", "file", "at", "cause", "bytes", "changed")
_agent = click.option("--agent", metavar="NAME", help="whose memory (default: the agent of the chat)")


@memory.command()
@key
@_agent
@as_json
def show(opts: GlobalOptions, key: str, agent: str | None, as_json: bool) -> None:
    """Show the memory of a chat."""
    from session.memory.notes import Notes

    scope = _asked(settings_of(opts), lambda services: services.scope_with(key, agent))
    notes = Notes(scope.memory)
    memory, history = (text.decode("utf-8", "replace") for text in (notes.memory(), notes.history()))
    if as_json:
        output.document({"key": key, "memory": memory, "history": history})
        return
    if memory.strip():
        output.data(memory.rstrip("\n"))
    else:
        output.words(f"no memory of {key} yet")
    if history:
        output.words(f"history: {notes.history_path}")


@memory.command()
@key
@click.argument("words", metavar="TEXT...", nargs=-1, required=True, help="a question, or a few words")
@click.option(
    "--limit", metavar="N", type=COUNT, default=10, show_default=True, help="show at most N results"
)
@click.option(
    "--neighbours", metavar="N", type=COUNT, default=None, help="also show N messages before and after each"
)
@_agent
@as_json
def search(
    opts: GlobalOptions,
    key: str,
    words: tuple[str, ...],
    limit: int,
    neighbours: int | None,
    agent: str | None,
    as_json: bool,
) -> None:
    """Search messages, notes and facts of a chat, best match first.

    Closed sessions are searched, too.
    """
    text = " ".join(words)

    async def work(services: SessionServices) -> SearchResults:
        scope = await services.scope_with(key, agent)
        return await services.recall.search(
            scope, key, text, limit=limit, neighbours=neighbours or 0, within_s=None
        )

    found = _asked(settings_of(opts), work)
    hits = [hit.as_dict(neighbours=bool(neighbours)) for hit in found.hits]
    if as_json:
        output.document(hits)
        return
    for hit in hits:
        said = f"{hit['kind']} {hit['session_id']} {hit['seq']}" if hit["kind"] == "message" else hit["kind"]
        output.shown(
            f"[{hit['at'] or ''} {hit['speaker'] or ''}] {hit['key']} ({said})".replace("[ ]", "[-]")
        )
        around = [*hit.get("before", ()), {"text": hit["text"], "speaker": ""}, *hit.get("after", ())]
        for each in around:
            said = f"{each['speaker']}: {each['text']}" if each["speaker"] else each["text"]
            output.shown("    " + said.replace("\n", "\n    "))
    if not hits:
        output.words(f"nothing in {key} matches {text!r}")
    if not found.all:
        output.words("the search is incomplete; try again in a moment")


@memory.command()
@key
@as_json
def consolidate(opts: GlobalOptions, key: str, as_json: bool) -> None:
    """Summarise older messages into memory now."""

    async def work(services: SessionServices) -> Report:
        if (await services.memory.of_session(key, None)).model.plain:
            raise GatewayError(
                "no language model is configured, and echo cannot write summaries",
                hint="set model.name in the configuration",
            )
        try:
            return await services.jobs.at_once(key)
        except ModelAway as error:
            raise Unreachable(f"the language model is not available: {error}", hint=error.hint) from error

    settings = settings_of(opts)
    report = _asked(settings, work)
    if as_json:
        output.document({"key": key, **asdict(report)})
        return
    for line in _said(report, newest=settings.memory.window // 2):
        output.shown(line)


@memory.command()
@key
@_agent
@as_json
def facts(opts: GlobalOptions, key: str, agent: str | None, as_json: bool) -> None:
    """List the facts of a chat."""
    from session.memory.fact_store import active

    async def work(services: SessionServices) -> Sequence[Fact]:
        return await services.known_facts.facts(await services.scope_with(key, agent))

    found = _asked(settings_of(opts), work)
    if as_json:
        output.document([fact.as_dict() for fact in found])
        return
    rows = [{**fact.as_dict(), "text": fact.told} for fact in active(found)]
    output.rows(rows, ("id", "category", "confidence", "text"))
    if not rows:
        output.words(f"no facts are known about {key}")


@memory.command()
@key
@click.argument("id", metavar="ID", help="its id, from `memory facts`")
@_agent
def forget(opts: GlobalOptions, key: str, id: str, agent: str | None) -> None:
    """Delete a fact for good."""

    async def work(services: SessionServices) -> Fact | None:
        return await services.known_facts.forget(key, await services.scope_with(key, agent), id)

    gone = _asked(settings_of(opts), work)
    if gone is None:
        raise GatewayError(f"{key} has no fact {id}", hint=f"chat-gateway memory facts {key} lists them")
    output.words(f"deleted: {gone.text}")


def _subject(function: Any) -> Any:
    function = click.option("--person", metavar="NAME", help="all chats of this person in [people]")(function)
    return click.argument(
        "key",
        metavar="[KEY]",
        required=False,
        help="the chat, such as telegram:12345678",
        shell_complete=complete_keys,
    )(function)


def _check_subject(key: str | None, person: str | None) -> None:
    if (key is None) == (person is None):
        raise click.UsageError("exactly one of KEY and --person is needed", click.get_current_context())


@memory.command()
@_subject
@click.option(
    "-o", "--output", "path", metavar="PATH", type=FILE, help="output file, private to you (default: stdout)"
)
def export(opts: GlobalOptions, key: str | None, person: str | None, path: Path | None) -> None:
    """Export all data about a chat or person as a tar file.

    Transcripts, archives, notes, facts, files, media, journal and jobs; manifest.json lists them.
    """
    _check_subject(key, person)
    _export_all(opts, key=key or "", person=person or "", path=path)


@memory.command()
@_subject
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@as_json
def erase(opts: GlobalOptions, key: str | None, person: str | None, yes: bool, as_json: bool) -> None:
    """Delete all data about a chat or person for good.

    Asks first. Lists what was deleted, and what cannot be deleted.
    """
    _check_subject(key, person)
    found = erase_all(settings_of(opts), key=key or "", person=person or "", asks=not yes)
    if as_json:
        output.document(found["erased"])
    else:
        tell(found)


@memory.command()
@key
@click.option("--file", type=click.Choice(("MEMORY.md", "USER.md", "facts.jsonl")), help="only this file")
@_agent
@as_json
def history(opts: GlobalOptions, key: str, file: str | None, agent: str | None, as_json: bool) -> None:
    """List earlier versions of a chat's memory, newest first.

    Each row is a replaced version: when, by what, and what changed.
    """

    async def work(services: SessionServices) -> list[dict[str, Any]]:
        scope = await services.scope_with(key, agent)
        return await services.memory_history.history(key, scope, file=file or "")

    rows = _asked(settings_of(opts), work)
    output.listed(rows, _VERSIONS, f"no earlier versions of the memory of {key}", as_json=as_json)


@memory.command()
@key
@click.argument("version", metavar="VERSION", help="its id, from `memory history`")
@_agent
@as_json
def restore(opts: GlobalOptions, key: str, version: str, agent: str | None, as_json: bool) -> None:
    """Restore an earlier version.

    The current text is kept as a version.
    """

    async def work(services: SessionServices) -> Restored | None:
        scope = await services.scope_with(key, agent)
        return await services.memory_history.restore(key, scope, version.upper())

    done = _asked(settings_of(opts), work)
    if done is None:
        raise GatewayError(
            f"{key} has no version {version}",
            hint=f"chat-gateway memory history {key} lists them",
        )
    if as_json:
        output.document(done.as_dict())
    elif not done.changed:
        output.words(f"{done.file} already has this text")
    else:
        kept = f"; the previous text is version {done.former}" if done.former else ""
        output.words(f"restored {done.file}{kept}")


def _said(report: Report, *, newest: int) -> list[str]:
    if not report.messages:
        return [f"nothing to summarise: the newest {newest} messages stay in the session"]
    calls = output.counted(report.calls, "model call")
    lines = [f"{output.counted(report.messages, 'message')} summarised into memory with {calls}"]
    if report.raw:
        lines.append(f"{report.raw} of them copied unchanged, because the model gave no usable answer")
    lines += [
        f"{name}: {before} → {after} bytes"
        for name, before, after in (
            ("MEMORY.md", report.memory_bytes_before, report.memory_bytes),
            ("HISTORY.md", report.history_bytes_before, report.history_bytes),
        )
    ]
    return lines


def _asked(settings: Settings, work: Callable[[SessionServices], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _services(settings) as services:
            return await work(services)

    return asyncio.run(run())


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[SessionServices]:
    from gateway.app.wiring_session import SessionServices

    services = SessionServices(settings, status=lambda *_: [])
    try:
        yield services
    finally:
        close: Any = getattr(services.model, "close", None)
        if close is not None:
            await close()
        await services.aclose()


LETTERS_WAIT = "messages that wait in the queue: they are answered, and then appear in the transcript"


class NotSure(GatewayError):
    """Nobody said that it is meant."""


def _export_all(opts: GlobalOptions, *, key: str, person: str, path: Path | None) -> None:
    """Write one tar, to the file or to stdout; a file that is there already stays."""
    if path is None and sys.stdout.isatty():
        raise GatewayError("a tar file cannot be printed to a terminal", hint="use -o PATH or a pipe")
    parts = asyncio.run(_write_export(settings_of(opts), key, person, path))
    counted = output.counted(len(parts), "file")
    output.words(f"{counted}, {sum(part.size for part in parts)} bytes; manifest.json lists them")


async def _write_export(settings: Settings, key: str, person: str, path: Path | None) -> Sequence[Any]:
    # Only here is a tar written.
    from gateway.app.erasure import extras as rows_of
    from session.disk.threads import start_thread
    from session.kept.export import write
    from session.kept.rows import usage_of

    async with _erasure(settings, queue=False) as (erasure, services):
        subject = await erasure.subject(key=key, person=person)
        letters = await _parked(settings, subject)
        journals = await services.store.state.journals(subject.lanes)
        usage = await usage_of(services.store.state, subject)
        extras = [*usage, *rows_of(settings.workspace, subject, letters, journals)]

        def work(out: IO[bytes]) -> Sequence[Any]:
            return write(
                out,
                subject,
                services.store.layout,
                at=durable.now(),
                extras=extras,
                left_out=[LETTERS_WAIT],
            )

        if path is None:
            return await start_thread(lambda: work(sys.stdout.buffer), name="export")
        return await start_thread(lambda: _into(path, work), name="export")


def _into(path: Path, work: Any) -> Sequence[Any]:
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with durable.replacing(path, temp=temp, new=True) as fd, os.fdopen(os.dup(fd), "wb") as out:
            parts: Sequence[Any] = work(out)
    except FileExistsError:
        raise GatewayError(f"{path} already exists", hint="choose another file") from None
    except OSError as error:
        raise GatewayError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file"
        ) from error
    return parts


async def _parked(settings: Settings, subject: Subject) -> list[Mapping[str, Any]]:
    from gateway.cli.parked import queue_here

    if not attach.has_queue(settings):
        return []
    async with attach.daemon_or(settings, queue_here) as letters:
        rows = [row for row in await letters.parked() if row["key"] in subject.lanes]
        return [await letters.parked_one(row["id"], row["key"]) for row in rows]


def erase_all(settings: Settings, *, key: str, person: str, asks: bool) -> Erased:
    """Remove what is kept, once it was said that this is meant; return what that was."""
    from session.kept.subject import check_text

    check_text(person or key)
    if asks:
        _confirm(f"Delete all data about {person or key} for good? [y/N] ")
    return asyncio.run(erased(settings, key=key, person=person))


def tell(found: Erased) -> None:
    """Say for people what was removed, and what stays."""
    for each in found["erased"]:
        output.rows(each["removed"], ("kind", "count", "bytes"))
        if not each["removed"]:
            output.words(f"there was no data about {each['name']}")
        for line in each["stays"]:
            output.words(f"kept: {line}")


async def erased(settings: Settings, *, key: str = "", person: str = "") -> Erased:
    """Have the daemon erase, which ends the turns too; without one, do it here.

    Raises:
        NoText: the key or the name is not UTF-8.
        Unreachable, StateInUse, SessionError, ChannelError: it did not end; call it again.
    """
    from gateway.config.agents import scopes_of

    async with attach.daemon(settings) as client:
        keys = [key] if key else list(scopes_of(settings).keys_of_person(person))
        if client is not None and all(map(can_be_sent, keys)):
            try:
                if key:
                    return await client.erase(key=key)
                return {"cleared": [], "erased": (await client.erase(person=person))["erased"]}
            except Unreachable:
                # A daemon that ends just now ends its turns with it; one that answers refused, and says why.
                if await client.alive():
                    raise
    async with _erasure(settings) as (erasure, _):
        if person:
            return {"cleared": [], "erased": [(await erasure.person(person)).as_dict()]}
        report, there = await erasure.key(key)
        return {"cleared": [key] if there else [], "erased": [report.as_dict()]}


def can_be_sent(key: str) -> bool:
    """Say whether a letter can have this key; files may have others."""
    from gateway.service.client_message import NoAddress, inbound

    try:
        inbound(key, "", kept=True)
    except (NoAddress, UnicodeError):
        return False
    return True


@asynccontextmanager
async def _erasure(
    settings: Settings, *, queue: bool = True
) -> AsyncIterator[tuple[Erasure, SessionServices]]:
    from gateway.app.erasure import Erasure

    async with AsyncExitStack() as stack:
        mailbox = None
        if queue and attach.has_queue(settings):
            mailbox = await stack.enter_async_context(attach.queue(settings))
        services = await stack.enter_async_context(_services(settings))
        yield Erasure(settings, services, mailbox=mailbox), services


def _confirm(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotSure("there is no terminal to ask for confirmation", hint="add --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotSure("nothing was deleted", hint="answer y, or add --yes")
