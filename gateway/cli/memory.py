"""``memory`` and its verbs: what is remembered of a chat, and what is done with it now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli import attach, known, output
from gateway.cli.config import settings_of
from gateway.cli.root import COUNT, FILE, GlobalOptions, as_json, group, key
from gateway.errors import GatewayError, Unreachable
from session.errors import ModelAway

if TYPE_CHECKING:
    from gateway.app.wiring_session import SessionServices
    from gateway.config.settings import Settings
    from session.background.report import Report
    from session.memory.facts import Fact
    from session.memory.former import Restored
    from session.recall.recall import Found

memory = group("memory")
_VERSIONS = ("version", "file", "at", "cause", "bytes", "changed")
_agent = click.option("--agent", metavar="NAME", help="whose memory (default: the agent of the chat)")


@memory.command()
@key
@_agent
@as_json
def show(opts: GlobalOptions, key: str, agent: str | None, as_json: bool) -> None:
    """Show the memory of a chat."""
    from session.memory.notes import Notes

    async def work(settings: Settings) -> tuple[Path, str, str]:
        async with _services(settings) as services:
            scope = await services.scope_with(key, agent)
            notes = Notes(scope.memory)
            memory, history = notes.memory(), notes.history()
            return notes.history_path, memory.decode("utf-8", "replace"), history.decode("utf-8", "replace")

    path, memory, history = attach.complete(work(settings_of(opts)))
    if as_json:
        output.document({"key": key, "memory": memory, "history": history})
        return
    if memory.strip():
        output.data(memory.rstrip("\n"))
    else:
        output.words(f"no memory of {key} yet")
    if history:
        output.words(f"history: {path}")


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

    async def work(settings: Settings) -> Found:
        async with _services(settings) as services:
            return await services.recall.search(
                await services.scope_with(key, agent),
                key,
                text,
                limit=limit,
                neighbours=neighbours or 0,
                within_s=None,
            )

    found = attach.complete(work(settings_of(opts)))
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

    async def work(settings: Settings) -> Report:
        async with _services(settings) as services:
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
    report = attach.complete(work(settings))
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
    from session.memory.facts import active

    async def work(settings: Settings) -> Sequence[Fact]:
        async with _services(settings) as services:
            return await services.known_facts.facts(await services.scope_with(key, agent))

    found = attach.complete(work(settings_of(opts)))
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

    async def work(settings: Settings) -> Fact | None:
        async with _services(settings) as services:
            return await services.known_facts.forget(key, await services.scope_with(key, agent), id)

    gone = attach.complete(work(settings_of(opts)))
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
        shell_complete=known.complete_keys,
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
    from gateway.cli import whole

    _check_subject(key, person)
    whole.export(opts, key=key or "", person=person or "", path=path)


@memory.command()
@_subject
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@as_json
def erase(opts: GlobalOptions, key: str | None, person: str | None, yes: bool, as_json: bool) -> None:
    """Delete all data about a chat or person for good.

    Asks first. Lists what was deleted, and what cannot be deleted.
    """
    from gateway.cli import whole

    _check_subject(key, person)
    found = whole.erase(settings_of(opts), key=key or "", person=person or "", asks=not yes)
    if as_json:
        output.document(found["erased"])
    else:
        whole.tell(found)


@memory.command()
@key
@click.option("--file", type=click.Choice(("MEMORY.md", "USER.md", "facts.jsonl")), help="only this file")
@_agent
@as_json
def history(opts: GlobalOptions, key: str, file: str | None, agent: str | None, as_json: bool) -> None:
    """List earlier versions of a chat's memory, newest first.

    Each row is a replaced version: when, by what, and what changed.
    """

    async def work(settings: Settings) -> list[dict[str, Any]]:
        async with _services(settings) as services:
            scope = await services.scope_with(key, agent)
            return await services.former.history(key, scope, file=file or "")

    rows = attach.complete(work(settings_of(opts)))
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

    async def work(settings: Settings) -> Restored | None:
        async with _services(settings) as services:
            scope = await services.scope_with(key, agent)
            return await services.former.restore(key, scope, version.upper())

    done = attach.complete(work(settings_of(opts)))
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
