"""Takes over a nanobot workspace beside its conversations: notes and cron jobs; the original is only read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import durable
from channels.cron import jobs_text
from channels.cron.actions_file import merged
from channels.cron.jobs_file import CronFile
from channels.errors import ChannelError
from gateway.cli import output
from gateway.config import edit
from gateway.config.load import PREFIX
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from session.context.profile import PROFILE_FILE
from session.context.scopes import WORKSPACE

# What was not taken over, and the cure.
Refused = tuple[str, str]
SCOPE = ("memory", "scope")
_HASH = re.compile(r"[0-9a-f]{32}")
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
        raise GatewayError(f"{path} is the workspace itself", hint="name another program's workspace")
    roots = [root for root in (path, path / "workspace") if root.is_dir()]
    sessions = {str(one.relative_to(path)): edit.read(one) for root in roots for one in _sessions(root)}
    if not sessions:
        sessions = {one.name: edit.read(one) for one in _jsonl(path)}
    notes = tuple(one for root in roots for one in _notes(root / "memory"))
    cron = tuple(root / "cron" for root in roots if (root / "cron" / "jobs.json").is_file())
    others = tuple(
        str((root / name).relative_to(path)) for root in roots for name in _OTHERS if (root / name).exists()
    )
    if not (sessions or notes or cron):
        raise GatewayError(
            f"{path} holds no sessions, notes or jobs of nanobot", hint="name the folder above sessions/"
        )
    return NanobotWorkspace(sessions, notes, cron, others, tuple(roots))


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
    for note in place.notes:
        data, target = edit.read(note), folder / note.name
        if put(target, data):
            taken.append(note.name)
        elif edit.read(target) != data:
            cure = f"join {note} to {target} by hand; or move that away and import again"
            refused.append((f"memory/{note.name} is another one here, and stays", cure))
    if taken:
        output.words(f"memory: {', '.join(taken)}")
    return refused


def say_scope(place: NanobotWorkspace, settings: Settings) -> None:
    """Say what keeps the notes in use."""
    profile = any((root / PROFILE_FILE).exists() for root in place.roots)
    if (place.notes or profile) and settings.memory.scope != WORKSPACE:
        output.words(
            'memory.scope = "workspace" in the configuration keeps this memory in use (now: one a chat); '
            "--write-config puts it there"
        )


def write_scope(file: Path, settings: Settings) -> list[Refused]:
    """Put ``memory.scope = "workspace"`` into the configuration file, where nothing else stands."""
    if settings.memory.scope == WORKSPACE:
        output.words("memory.scope is workspace already")
        return []
    found = edit.standing(file, SCOPE) if file.exists() else None
    if found is not None:
        problem = f'{file}:{found[1]}: memory.scope = "{found[0]}" stands there, and stays'
        return [(problem, 'change it to "workspace", if that is meant')]
    if (variable := f"{PREFIX}MEMORY__SCOPE") in os.environ:
        return [(f"{variable} is set, and goes before what {file} says", f"unset {variable}")]
    edit.put(file, SCOPE, f'"{WORKSPACE}"')
    output.words(
        f'{file}: memory.scope = "workspace" is written; a running daemon reads it when it starts anew'
    )
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
        path, left = folder / "jobs.json", folder / "action.jsonl"
        document = jobs_text.decode(edit.read(path))
        if document.fault is not None:
            refused.append((f"{path} is damaged: {document.fault.text}", document.fault.cure))
        refused += [(f"{path}: {lost.text}", lost.cure) for lost in document.lost]
        for row in merged(document.rows, edit.read(left) if left.is_file() else b""):
            problem = _take_job(file, row)
            taken += problem == ""
            if isinstance(problem, tuple):
                refused.append(problem)
    if taken:
        output.words(f"cron: {taken} jobs")
    if file.kept is not None:
        output.words(f"cron/jobs.json was damaged; its original is kept as {file.kept}")
    return refused


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
        return f"the cron job {job_id} is another one here, and stays", cure
    try:
        file.add(row if isinstance(row, dict) else {})
    except ChannelError as error:
        return f"the cron job {job_id} is left out: {error}", error.hint
    return ""


def _asks(row: object) -> object:
    """Return of a job what a person decided, without what became of it."""
    return {name: row.get(name) for name in ("schedule", "payload")} if isinstance(row, dict) else row


def say_left(place: NanobotWorkspace) -> None:
    """Name what is not taken over."""
    if place.others:
        output.words(f"not taken over: {', '.join(place.others)}; put what you want of it into AGENTS.md")
