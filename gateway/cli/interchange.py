"""``sessions import|export``: conversations in the formats of other programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import durable
from channels.message import key_fault
from gateway.app.wiring_session import SessionServices
from gateway.cli import attach, output, takeover, takeover_texts
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions
from gateway.config.finding import file_to_change
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.background.adoption import adopt, check, is_busy, make_way, of_view
from session.disk.state import replace_file
from session.errors import LineTooLong
from session.interchange.conversation import BadFormat, Conversation, Files
from session.interchange.formats import FORMATS, SOURCES
from session.interchange.nanobot import with_pictures
from session.interchange.records import check_size, stem_of
from session.store.store import Store
from session.transcript.key import SessionKey, derived_id
from session.transcript.line import is_ulid

USAGE = 2


def import_(opts: GlobalOptions, name: str, path: Path, *, key: str | None, write_config: bool) -> int:
    """Take over every session that PATH holds; of a nanobot workspace all that we use."""
    if key is not None and (fault := key_fault(key)):
        output.error(
            f"{key[:80]!r} is not a valid chat key: {fault}",
            "--key channel:chat_id, such as telegram:12345678",
        )
        return USAGE
    whole = name.startswith("nanobot") and path.is_dir()
    if whole and key is not None:
        output.error("--key works only with a single file", "choose a file of the workspace")
        return USAGE
    if write_config and not whole:
        output.error("--write-config needs a whole workspace", "--from nanobot FOLDER --write-config")
        return USAGE
    if not path.exists():
        raise GatewayError(f"{path} does not exist", hint="check the path")
    settings = settings_of(opts)
    if not whole:
        found = _decoded(name, takeover.files_of(path))
        if name.startswith("nanobot"):
            # The pictures of a single file lie elsewhere; they are named.
            found = [with_pictures(one, lambda _: None) for one in found]
        if not found:
            raise GatewayError(
                f"{path} contains no session in the format {name}",
                hint="choose a session file, or its folder",
            )
        attach.complete(_import(settings, found, key=key))
        return 0
    source = takeover.look(path, settings.workspace)
    found = [takeover.take_pictures(source, one) for one in _sound(source.sessions, name)]
    attach.complete(_import(settings, found, again=True))
    refused = takeover.take_memory(source, settings)
    refused += takeover_texts.take_texts(source, settings.workspace)
    refused += takeover.take_cron(source, settings)
    if write_config:
        refused += takeover.write_scope(file_to_change(opts.config), settings)
    else:
        takeover.say_scope(source, settings)
    takeover.say_left(source)
    for problem, cure in refused:
        output.error(problem, cure)
    return 1 if refused else 0


def export(opts: GlobalOptions, name: str, target: str, path: Path | None) -> int:
    """Write one session, active or ended, to stdout or a file."""
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        output.error(f"{name} can only be imported", f"use --to with one of {known}")
        return USAGE
    if name == "overlay" and path is None:
        output.error("the format overlay is a folder with two files", f"--to overlay {target} -o FOLDER")
        return USAGE

    async def work(settings: Settings) -> Conversation:
        async with aclosing(Store(settings.workspace, zone=settings.zone)) as store:
            view = await (store.look_up(target) if is_ulid(target) else store.look(SessionKey(target)))
            if view is None or not (len(view) or view.path.exists()):
                raise GatewayError(f"no session {target!r}", hint="chat-gateway sessions list")
            return of_view(view)

    settings = settings_of(opts)
    written = FORMATS[name].encode(attach.complete(work(settings)))
    if path is None:
        _print(b"".join(written.files.values()))
    else:
        for file, data in written.files.items():
            # A conversation that root exports into somebody's folder is not for that person's eyes by itself.
            replace_file(_target(path, file, settings), data, inherit=False)
    _say_lost("not supported by this format", written.lost)
    return 0


def _print(data: bytes) -> None:
    """Write a file to stdout: its bytes, but for a terminal, which shows them as text."""
    if sys.stdout.isatty():
        output.data(data.decode("utf-8", "replace").rstrip("\n"))
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _target(where: Path, name: str, settings: Settings) -> Path:
    """Return where a file goes: under its name in a folder, else where the person says."""
    folder, _, file = name.rpartition("/")
    if folder:
        path = (where if where.name == folder else where / folder) / file
    else:
        path = where / name if where.is_dir() else where
    if path.exists() and not path.is_file():
        raise GatewayError(f"{path} is not a file", hint="choose another one with -o")
    for own in ("sessions", "state", "memory", "cron"):
        if path.resolve().is_relative_to((settings.workspace / own).resolve()):
            raise GatewayError(
                f"{path} is inside the gateway's workspace", hint="choose a path outside of it"
            )
    return path


def _decoded(name: str, files: Files) -> list[Conversation]:
    """Read the sessions in the files, before anything here makes way. Raises BadFormat, LineTooLong."""
    check_size(files)
    found = SOURCES[name].decode(files)
    for conversation in found:
        check(conversation)
    return found


def _sound(files: dict[str, bytes], name: str) -> list[Conversation]:
    """Read the files of a workspace, the newest conversation last; a bad one stops no other."""
    found = []
    for path, data in files.items():
        try:
            found += _decoded(name, {path: data})
        except (BadFormat, LineTooLong) as error:
            output.words(f"{path} is skipped: {error.hint or error}")
    return sorted(found, key=lambda one: one.last_at.timestamp() if one.last_at else 0.0)


async def _import(
    settings: Settings, found: Sequence[Conversation], *, key: str | None = None, again: bool = False
) -> None:
    """Import sessions in their order, of a key those first that had ended, so that one that had not goes on.

    ``again``: pass over those that an earlier import took.
    """
    # The archive that each file of the source became.
    names: dict[str, str] = {}
    last: dict[str, Conversation] = {}
    ids: dict[str, str] = {}
    async with aclosing(SessionServices(settings, status=lambda *_: [])) as services:
        for conversation in sorted(found, key=lambda one: not one.has_ended):
            target = SessionKey(key or _key_of(conversation))
            if (again or not conversation.lines) and await _is_here(services.store, target, conversation):
                output.words(f"{conversation.origin}: {target} already has its messages")
                continue
            archive = await _make_way(services, target)
            if archive is not None and target in last:
                names[last[target].origin.rpartition("/")[2]] = archive.name
            last[target] = conversation
            ids[target] = await _import_one(services, target, _renamed(conversation, names))
    for active in (one for one in last if last[one].has_ended):
        output.words(f"{active}: {ids[active]} was closed at its source, and is open here")


def _key_of(conversation: Conversation) -> str:
    """Return the key of the source, with a colon or without one, such as ``heartbeat``."""
    if ":" in conversation.key.strip(":") or (conversation.key and ":" not in conversation.key):
        return conversation.key
    return f"cli:{conversation.key or conversation.session_id or stem_of(conversation.origin)}"


async def _is_here(store: Store, key: SessionKey, conversation: Conversation) -> bool:
    """Say whether a session begins with these lines under this key, or there is nothing to take over."""
    count = len(conversation.lines)
    for row in await store.rows():
        # Of a session without messages line 1 is all there is: any session of the key has one.
        if row.key == key and not count:
            return True
        view = await store.look_up(row.id) if row.key == key else None
        if view is not None and len(view) >= count and view.lines(0, count) == list(conversation.lines):
            return True
    return False


async def _make_way(services: SessionServices, key: SessionKey) -> Path | None:
    """Archive the active session of a key as ``/new`` does; return the archive, None where there was none."""
    async with services.store.open(key) as session:
        if is_busy(session):
            raise GatewayError(
                f"a message of {key} is being answered; nothing was imported", hint="try again later"
            )
        ended = session.session_id
        archive = await make_way(session)
        await services.jobs.ended(session)
    if archive is not None:
        output.words(f"{key}: the active session {ended} is archived")
    return archive


def _renamed(conversation: Conversation, names: dict[str, str]) -> Conversation:
    """Let a summary name the archive that came along, and say where it did not."""
    lines, lost = list(conversation.lines), list(conversation.lost)
    for at, line in enumerate(lines):
        metadata = line.get("metadata")
        if line.get("kind") != "compact" or not isinstance(metadata, dict):
            continue
        before = metadata.get("previousSession")
        if before in names:
            lines[at] = {**line, "metadata": {**metadata, "previousSession": names[before]}}
        elif before:
            lost.append(f"the archive {before} that its summary names")
    return replace(conversation, lines=tuple(lines), lost=tuple(lost))


async def _import_one(services: SessionServices, key: SessionKey, conversation: Conversation) -> str:
    """Let a key go on with a conversation; return the ULID that it has here."""
    store, source = services.store, conversation.session_id
    wanted = source or (conversation.created_at and derived_id(key, conversation.created_at)) or ""
    free = is_ulid(wanted) and await store.look_up(wanted) is None
    session_id = wanted if free else durable.new_id()
    for ref, data in conversation.media.items():
        takeover.put(store.layout.workspace / ref, data)
    # Whoever answers in that chat goes on with it.
    agent = services.scopes.agents.of(key, (await store.look(key)).journal_state.agent)
    if not await adopt(store, key, conversation, session_id=session_id, agent=agent):
        raise GatewayError(
            f"{key} got a message just now; its previous session is archived, nothing was imported",
            hint="try again",
        )
    output.data(f"{key} {session_id}")
    output.words(f"{key}: {output.counted(len(conversation.lines), 'message')} from {conversation.origin}")
    if source and not free:
        reason = "belongs to a session here" if is_ulid(source) else "is not a valid session id"
        output.words(f"{source} {reason}; this one is {session_id}")
    _say_lost("not imported", conversation.lost)
    return session_id


def _say_lost(what: str, lost: Sequence[str]) -> None:
    if lost:
        output.words(f"{what}: {'; '.join(lost)}")
