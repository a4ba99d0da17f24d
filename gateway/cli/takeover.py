"""Takes over a nanobot workspace beside its conversations: notes and cron jobs; the original is only read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import durable
from channels.cron import nanobot_jobs
from channels.cron.jobs_file import CronFile
from channels.cron.nanobot_jobs import merged
from channels.errors import ChannelError
from gateway.cli import output
from gateway.config import edit
from gateway.config.finding import PREFIX
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.context.profile import PROFILE_FILE
from session.context.scopes import WORKSPACE
from session.interchange.conversation import Conversation
from session.interchange.nanobot import history_text, with_pictures
from session.transcript.attachments import open_beneath

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
    """List session files: by old or base64 name, and those in the folders of later versions."""
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
    folder = settings.workspace / "memory"
    taken = []
    for note, data in _notes_read(place, refused):
        target = folder / note.name
        if put(target, data):
            taken.append(note.name)
        elif edit.read(target) != data:
            cure = f"merge {note} into {target} by hand, or move {target} away and import again"
            refused.append((f"memory/{note.name} already exists here with different text and was kept", cure))
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
    """Read a file of jobs; a program that never ran its clock has left only the one or the other."""
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
