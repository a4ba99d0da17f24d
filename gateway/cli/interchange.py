"""``sessions import|export``: sessions in the formats of other programs, and whole nanobot workspaces."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import durable
from channels.cron import nanobot_jobs
from channels.cron.jobs_file import CronFile
from channels.cron.nanobot_jobs import merged
from channels.errors import ChannelError
from channels.message import key_fault
from gateway.app.wiring_session import SessionServices
from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions
from gateway.config import edit
from gateway.config.finding import PREFIX, file_to_change
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.background.adoption import adopt, check, is_busy, make_way, of_view
from session.context.context_parts import PERSONA_FILES
from session.context.profile import PROFILE_FILE
from session.context.scopes import WORKSPACE
from session.disk.state import replace_file
from session.errors import LineTooLong
from session.interchange.conversation import BadFormat, Conversation, Files, check_size, stem_of
from session.interchange.formats import FORMATS, SOURCES
from session.interchange.nanobot import history_text, with_pictures
from session.library.library import Bad, read_skill
from session.store.store import Store
from session.transcript.attachments import open_beneath
from session.transcript.key import SessionKey, derived_id
from session.transcript.line import is_ulid

# What was not taken over, and the cure.
Refused = tuple[str, str]
SCOPE = ("memory", "scope")
_HASH = re.compile(r"[0-9a-f]{32}")
_JOBS_FILES = ("jobs.json", "action.jsonl")
_OTHERS = ("SOUL.md", "TOOLS.md", "IDENTITY.md", "HEARTBEAT.md")


@dataclass(frozen=True, slots=True)
class NanobotWorkspace:
    """What a nanobot workspace holds: session files by path, notes, the folders of jobs, and what stays.

    ``roots`` are the folders in which all of that was looked for.
    """

    sessions: dict[str, bytes] = field(default_factory=dict)
    notes: tuple[Path, ...] = ()
    cron: tuple[Path, ...] = ()
    others: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()


def files_of(path: Path) -> dict[str, bytes]:
    """Read a file, or those of a folder and the folders in it, by path from that folder's own name on."""
    if path.is_file():
        return {path.name: edit.read(path)}
    top = path.resolve()
    found = sorted(one for pattern in ("*", "*/*") for one in top.glob(pattern))
    return {
        one.relative_to(top.parent).as_posix(): edit.read(one)
        for one in found
        if one.is_file() and one.suffix in (".json", ".jsonl") and not one.name.startswith(".")
    }


def look(path: Path, own: Path) -> NanobotWorkspace:
    """Look at a workspace, at the folder above it, or at a folder of sessions; nothing is changed.

    Raises:
        GatewayError: there is nothing of nanobot in it, or it is this gateway's own workspace.
    """
    if path.resolve() == own.resolve():
        raise GatewayError(
            f"{path} is this gateway's own workspace", hint="choose the workspace of another program"
        )
    roots = [root for root in (path, path / "workspace") if root.is_dir()]
    sessions = _read_all(path, (one for root in roots for one in _sessions(root)))
    if not sessions:
        sessions = _read_all(path, _jsonl(path))
    notes = tuple(one for root in roots for one in _notes(root / "memory"))
    cron = tuple(
        root / "cron" for root in roots if any((root / "cron" / name).is_file() for name in _JOBS_FILES)
    )
    others = tuple(
        str((root / name).relative_to(path)) for root in roots for name in _OTHERS if (root / name).exists()
    )
    if not (sessions or notes or cron):
        raise GatewayError(
            f"{path} contains no nanobot sessions, notes or jobs", hint="choose the folder above sessions/"
        )
    return NanobotWorkspace(sessions, notes, cron, others, tuple(roots))


def read_inside(top: Path, path: Path) -> bytes | None:
    """Read a regular file of a workspace; None where a link leaves it, or it cannot be read."""
    try:
        real_top, real = (Path(os.path.realpath(one, strict=True)) for one in (top, path))
        if not real.is_relative_to(real_top):
            return None
        with os.fdopen(open_beneath(real_top, str(real.relative_to(real_top))), "rb") as file:
            return file.read()
    except OSError:
        return None


def left_out(path: Path) -> Refused:
    """Say that a file was not taken over because it is not one of the source."""
    problem = f"{path} is skipped: it points outside the imported folder, or cannot be read"
    return problem, "copy it by hand if you need it"


def _differs(path: Path, workspace: Path, place: str) -> Refused:
    ours = workspace / place
    cure = f"merge {path} into {ours} by hand, or move {ours} away and import again"
    return f"{place} already exists here with different text and was kept", cure


def _read_all(top: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    """Read session files by their path from ``top`` on; one that leads elsewhere is named and left out."""
    found = {}
    for path in paths:
        if (data := read_inside(top, path)) is None:
            output.error(*left_out(path))
        else:
            found[str(path.relative_to(top))] = data
    return found


def take_pictures(place: NanobotWorkspace, conversation: Conversation) -> Conversation:
    """Bring along the pictures that messages name by their path, from the imported folder alone.

    nanobot keeps them in ``media/`` beside its workspace.
    """
    tops = {*place.roots, *(root.parent / "media" for root in place.roots if root.name == "workspace")}

    def read(path: str) -> bytes | None:
        found = (read_inside(top, top / path) for top in tops)
        return next((data for data in found if data is not None), None)

    return with_pictures(conversation, read)


def _sessions(root: Path) -> Iterator[Path]:
    folder = root / "sessions"
    yield from _jsonl(folder)
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        if inner.is_dir() and _HASH.fullmatch(inner.name):
            yield from _jsonl(inner)


def _jsonl(folder: Path) -> list[Path]:
    return sorted(one for one in folder.glob("*.jsonl") if one.is_file() and not one.name.startswith("."))


def _notes(folder: Path) -> list[Path]:
    return sorted(one for one in folder.glob("*") if one.is_file() and not one.name.startswith("."))


def take_memory(place: NanobotWorkspace, settings: Settings) -> list[Refused]:
    """Copy the notes where there are none of that name yet."""
    refused: list[Refused] = []
    taken = []
    for note, data in _notes_read(place, refused):
        target = settings.workspace / "memory" / note.name
        if put(target, data):
            taken.append(note.name)
        elif edit.read(target) != data:
            refused.append(_differs(note, settings.workspace, f"memory/{note.name}"))
    if taken:
        output.words(f"memory: {', '.join(taken)}")
    return refused


def _notes_read(place: NanobotWorkspace, refused: list[Refused]) -> Iterator[tuple[Path, bytes]]:
    """Yield the notes; the history of 0.3.5, which is JSON lines, as HISTORY.md behind an older one."""
    read: dict[Path, bytes] = {}
    for note in place.notes:
        data = next((found for root in place.roots if (found := read_inside(root, note)) is not None), None)
        if data is None:
            refused.append(left_out(note))
        elif note.name == "history.jsonl":
            history = note.with_name("HISTORY.md")
            read[history] = read.get(history, b"") + history_text(data)
        else:
            read[note] = data
    yield from read.items()


def say_scope(place: NanobotWorkspace, settings: Settings) -> None:
    """Say what keeps the notes in use."""
    profile = any((root / PROFILE_FILE).exists() for root in place.roots)
    if (place.notes or profile) and settings.memory.scope != WORKSPACE:
        output.words(
            "now each chat has its own memory; to use this one for all chats, set "
            'memory.scope = "workspace", or import with --write-config'
        )


def write_scope(file: Path, settings: Settings) -> list[Refused]:
    """Put ``memory.scope = "workspace"`` into the configuration file, where nothing else stands."""
    if settings.memory.scope == WORKSPACE:
        output.words('memory.scope is already "workspace"')
        return []
    found = edit.standing(file, SCOPE) if file.exists() else None
    if found is not None:
        problem = f'{file}:{found[1]}: memory.scope = "{found[0]}" is set there, and was not changed'
        return [(problem, 'change it to "workspace" if you want that')]
    if (variable := f"{PREFIX}MEMORY__SCOPE") in os.environ:
        return [(f"{variable} is set and overrides {file}", f"unset {variable}")]
    from gateway.config.edit import amend

    amend(file, {SCOPE: WORKSPACE})
    output.words(f'wrote memory.scope = "workspace" to {file}; restart the gateway if it is running')
    return []


def put(target: Path, data: bytes) -> bool:
    """Write a new file whole and durable; False where there is one of that name."""
    if os.path.lexists(target):
        return False
    durable.make_folder(target.parent)
    temp = target.with_name(f".{target.name[:200]}.import")
    try:
        with durable.replacing(target, temp=temp, new=True) as fd:
            durable.write_all(fd, data)
    except FileExistsError:
        return False
    except OSError as error:
        raise GatewayError(
            f"{target} cannot be written: {error.strerror}", hint="free some disk space, then import again"
        ) from error
    return True


def take_cron(place: NanobotWorkspace, settings: Settings) -> list[Refused]:
    """Add the jobs whose ids are free here; a job of ours is never changed."""
    refused: list[Refused] = []
    file = CronFile(settings.workspace, zone=settings.zone)
    taken = 0
    for folder in place.cron:
        path, left = (folder / name for name in _JOBS_FILES)
        written, waiting = (_optional(folder.parent, one, refused) for one in (path, left))
        document = nanobot_jobs.decode(written or b'{"version": 1, "jobs": []}')
        if document.fault is not None:
            refused.append((f"{path} is damaged: {document.fault.text}", document.fault.cure))
        refused += [(f"{path}: {lost.text}", lost.cure) for lost in document.lost]
        for row in merged(document.rows, waiting):
            problem = _take_job(file, row)
            taken += problem == ""
            if isinstance(problem, tuple):
                refused.append(problem)
    if taken:
        output.words(f"cron: {output.counted(taken, 'job')}")
    if file.kept is not None:
        output.words(f"cron/jobs.json was damaged; its original is kept as {file.kept}")
    return refused


def _optional(top: Path, path: Path, refused: list[Refused]) -> bytes:
    if not path.is_file():
        return b""
    if (data := read_inside(top, path)) is None:
        refused.append(left_out(path))
    return data or b""


def _take_job(file: CronFile, row: Any) -> Refused | str:
    """Add one job; return why not, a word where it is here already, nothing where it was taken."""
    job_id = row.get("id") if isinstance(row, dict) else None
    ours = file.read()
    known: dict[object, object] = {job.id: job.row for job in ours.jobs.values()}
    known |= {bad.id: bad.row for bad in ours.bad if bad.id is not None}
    if job_id in known:
        if _asks(known[job_id]) == _asks(row):
            return "here"
        cure = f"chat-gateway cron remove {job_id}, then import again"
        return f"the job {job_id} already exists here with different content and was kept", cure
    try:
        file.add(row if isinstance(row, dict) else {})
    except ChannelError as error:
        return f"the job {job_id} is skipped: {error}", error.hint
    return ""


def _asks(row: object) -> object:
    """Return of a job what a person decided, without what became of it."""
    return {name: row.get(name) for name in ("schedule", "payload")} if isinstance(row, dict) else row


def say_left(place: NanobotWorkspace) -> None:
    """Name what is not taken over."""
    if place.others:
        output.words(f"not imported: {', '.join(place.others)}; copy what you need into AGENTS.md")


SKILL_FILE = "SKILL.md"


class _Copies:
    """The files of one source that go into the workspace; what resists is noted and left."""

    def __init__(self, source: Path, workspace: Path) -> None:
        self.source = source
        self.workspace = workspace
        self.refused: list[Refused] = []

    def take(self, path: Path, place: str) -> bool:
        """Copy a file to ``place``, where none is; say whether it was.

        Raises:
            GatewayError: it cannot be written.
        """
        data = self.read(path)
        if data is None:
            return False
        target = self.workspace / place
        if not _is_barred(target) and put(target, data):
            return True
        if not _holds(target, data):
            self.refused.append(_differs(path, self.workspace, place))
        return False

    def read(self, path: Path) -> bytes | None:
        """Read a regular file of the source, no link followed that leaves it."""
        if (data := read_inside(self.source, path)) is None:
            self.refused.append(left_out(path))
        return data


def take_texts(place: NanobotWorkspace, workspace: Path) -> list[Refused]:
    """Copy persona, profile and skills to where the context reads them, and say so.

    Raises:
        GatewayError: a file cannot be written.
    """
    refused: list[Refused] = []
    for root in place.roots:
        copies = _Copies(root, workspace)
        _take_persona(copies)
        profile = f"memory/{PROFILE_FILE}"
        if os.path.lexists(root / PROFILE_FILE) and copies.take(root / PROFILE_FILE, profile):
            output.words(f"profile: {profile}")
        if skills := [folder.name for folder in _skills(copies) if _take_skill(copies, folder)]:
            output.words(f"skills: {', '.join(skills)}")
        refused += copies.refused
    return refused


def _take_persona(copies: _Copies) -> None:
    """Copy the file that would be read, unless another one is read here that it would put in the shade."""
    theirs = _persona_of(copies.source)
    if theirs is None:
        return
    path, ours = copies.source / theirs, _persona_of(copies.workspace)
    if ours is not None and ours != theirs:
        cure = f"merge {path} into {copies.workspace / ours} by hand"
        copies.refused.append((f"{path} is skipped: {ours} is the persona here, and is kept", cure))
    elif copies.take(path, theirs):
        output.words(f"persona: {theirs}")


def _persona_of(folder: Path) -> str | None:
    return next((name for name in PERSONA_FILES if os.path.lexists(folder / name)), None)


def _skills(copies: _Copies) -> Iterator[Path]:
    try:
        found = sorted((copies.source / "skills").iterdir())
    except FileNotFoundError:
        return
    except OSError:
        copies.refused.append(left_out(copies.source / "skills"))
        return
    for folder in found:
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if os.path.lexists(folder / SKILL_FILE):
            yield folder
        else:
            output.words(f"skills/{folder.name} has no {SKILL_FILE} and is skipped")


def _take_skill(copies: _Copies, folder: Path) -> bool:
    """Copy the files of a skill, its instructions last; of one that is another here, nothing."""
    instructions, place = copies.read(folder / SKILL_FILE), f"skills/{folder.name}"
    if instructions is None:
        return False
    own = copies.workspace / place / SKILL_FILE
    if _is_barred(own) or (os.path.lexists(own) and not _holds(own, instructions)):
        copies.refused.append(_differs(folder, copies.workspace, place))
        return False
    beside = [copies.take(path, f"{place}/{path.relative_to(folder)}") for path in _beside(copies, folder)]
    taken = copies.take(folder / SKILL_FILE, f"{place}/{SKILL_FILE}")
    found = read_skill(own, instructions)
    if taken and isinstance(found, Bad):
        output.words(f"{place}/{SKILL_FILE} is not used: {found.problem}")
    return taken or any(beside)


def _beside(copies: _Copies, folder: Path) -> Iterator[Path]:
    """Yield the files of a skill but its instructions; links to folders are not followed."""

    def refused(error: OSError) -> None:
        copies.refused.append(left_out(Path(error.filename)))

    for here, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(here, name) for name in folders):
            if path.is_symlink():
                copies.refused.append(left_out(path))
        for path in (Path(here, name) for name in sorted(names)):
            if not path.name.startswith(".") and path != folder / SKILL_FILE:
                yield path


def _is_barred(target: Path) -> bool:
    return any(os.path.lexists(folder) and not folder.is_dir() for folder in target.parents)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.read_bytes() == data
    except OSError:
        return False


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
        found = _decoded(name, files_of(path))
        if name.startswith("nanobot"):
            # The pictures of a single file lie elsewhere; they are named.
            found = [with_pictures(one, lambda _: None) for one in found]
        if not found:
            raise GatewayError(
                f"{path} contains no session in the format {name}",
                hint="choose a session file, or its folder",
            )
        asyncio.run(_import(settings, found, key=key))
        return 0
    source = look(path, settings.workspace)
    found = [take_pictures(source, one) for one in _sound(source.sessions, name)]
    asyncio.run(_import(settings, found, again=True))
    refused = take_memory(source, settings)
    refused += take_texts(source, settings.workspace)
    refused += take_cron(source, settings)
    if write_config:
        refused += write_scope(file_to_change(opts.config), settings)
    else:
        say_scope(source, settings)
    say_left(source)
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
    written = FORMATS[name].encode(asyncio.run(work(settings)))
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
        put(store.layout.workspace / ref, data)
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
