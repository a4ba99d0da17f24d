"""Brings a backup back into a new folder, or into a scratch folder to look at all of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tarfile
import tempfile
from collections import Counter
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import durable
from channels.errors import Unreadable
from channels.message import Outbound, read_outbound
from gateway.app.daemons import DaemonRegistry
from gateway.backup import tar
from gateway.backup.tar import CONFIG, WORKSPACE, Manifest, unused
from gateway.doctor.workspace import integrity
from gateway.errors import GatewayError, StateInUse
from gateway.queue.embedded.table import QueueRow, QueueTable
from gateway.queue.mailbox import INBOUND
from session.store.state import workspace_state
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import read_time

# Where files of the configuration lie after a restore, for somebody to look at and put in their place.
CONFIG_FOLDER: Final = "config-of-backup"
_BLOCK: Final = 2**20


def restore(backup: Path, workspace: Path) -> Manifest:
    """Make ``workspace`` of a backup; it is there whole, or as it was before.

    A link stays, and what it leads to becomes the workspace.

    Raises:
        StateInUse: a daemon runs on it.
        NoBackup, NewerState: it cannot be brought back.
        GatewayError: something is there already, or its folder cannot take the new one.
        OSError: the disk refused.
    """
    if workspace.is_symlink():
        # A folder cannot be renamed over a link.
        workspace = Path(os.path.realpath(workspace))
    _check_place(workspace)
    durable.make_folder(workspace.parent)
    _sweep(workspace)
    scratch = workspace.with_name(f".{workspace.name}.restoring-{os.getpid()}")
    durable.make_private(scratch)
    try:
        _as_owner_of(workspace, scratch)
        manifest = extract(backup, scratch)
        # One call for thousands of files: their bytes and names are on disk before the folder has its own.
        os.sync()
        _check_place(workspace)
        _rename(scratch, workspace)
    except BaseException:
        durable.discard(scratch)
        raise
    durable.sync_folder(workspace.parent)
    return manifest


def extract(backup: Path, folder: Path) -> Manifest:
    """Write the files of a backup below ``folder``, which is empty; nothing is synced.

    Raises:
        NoBackup, NewerState, OSError: as ``tar.read``.
    """
    links: list[tuple[Path, str]] = []
    of_config: set[str] = set()

    def take(name: str, info: tarfile.TarInfo, data: IO[bytes] | None) -> str:
        below = name.removeprefix(WORKSPACE)
        if name.startswith(CONFIG):
            # Some backups have several secrets of one name.
            below = unused(f"{CONFIG_FOLDER}/{name.removeprefix(CONFIG)}", of_config)
            of_config.add(below)
        path = folder / below
        if data is None:
            links.append((path, info.linkname))
            return hashlib.sha256(os.fsencode(info.linkname)).hexdigest()
        _make_parents(folder, path.parent)
        return _write(path, info, data)

    manifest = tar.read(backup, take)
    # Last of all: nothing may be written through one.
    for path, target in links:
        _make_parents(folder, path.parent)
        path.symlink_to(target)
    return manifest


def _write(path: Path, info: tarfile.TarInfo, data: IO[bytes]) -> str:
    digest = hashlib.sha256()
    with durable.new_file(path) as fd:
        while block := data.read(_BLOCK):
            digest.update(block)
            durable.write_all(fd, block)
        os.fchmod(fd, info.mode & 0o777 | 0o600)
        os.utime(fd, (info.mtime, info.mtime))
    return digest.hexdigest()


def _make_parents(top: Path, folder: Path) -> None:
    missing = []
    while folder != top and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        durable.make_private(each)


def _check_place(workspace: Path) -> None:
    if running := DaemonRegistry(workspace).running():
        pids = ", ".join(str(each.pid) for each in running)
        raise StateInUse(
            f"a daemon (pid {pids}) runs on {workspace}",
            hint="stop it, move that folder away, and call this again",
        )
    try:
        is_empty = not any(workspace.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        is_empty = False
    if not is_empty:
        raise GatewayError(
            f"{workspace} is not empty; nothing was changed",
            hint=f"mv {workspace} {workspace}.old, or name another folder by --workspace",
        )


def _sweep(workspace: Path) -> None:
    head = f".{workspace.name}.restoring-"
    for scratch in workspace.parent.glob(f"{head}*"):
        pid = scratch.name.removeprefix(head)
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            durable.discard(scratch)


def _as_owner_of(workspace: Path, scratch: Path) -> None:
    """Give the new folder to whom the empty one belongs in whose place it comes, where root restores."""
    if os.geteuid() == 0 and workspace.is_dir():
        found = workspace.stat()
        os.chown(scratch, found.st_uid, found.st_gid)


def _rename(scratch: Path, workspace: Path) -> None:
    try:
        # An empty folder gives way; one in which something is by now does not.
        scratch.rename(workspace)
    except OSError as error:
        raise GatewayError(
            f"{workspace} cannot be put in place: {error.strerror}",
            hint="a mount point cannot be replaced: set workspace to a folder below it",
        ) from error


@dataclass(slots=True)
class Report:
    """What a backup holds, and what is wrong with it.

    Args:
        messages: those that were asked, by the transcripts.
        answered: those of them that have an answer.
        waiting: those that wait in the queue, with those of them that no transcript has yet.
        open: those that have neither: they came when the backup was being taken, or were broken off.
        replies: those that wait for their platform.
        problems: files and what is wrong with them, as ``sessions verify`` says it.
    """

    began_at: str
    program: str
    files: int
    bytes: int
    sessions: int = 0
    messages: int = 0
    answered: int = 0
    waiting: int = 0
    open: int = 0
    replies: int = 0
    parked: int = 0
    left_out: list[str] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return asdict(self)

    def add(self, file: str, problem: str) -> None:
        """Note what is wrong."""
        self.problems.append({"file": file, "problem": problem})


async def verify(backup: Path, *, scratch: Path | None = None) -> Report:
    """Bring a backup back into a folder of its own, look at it, and remove that folder.

    Args:
        backup: the file.
        scratch: where that folder is made; None: where temporary files are.

    Raises:
        NoBackup: it is none, not whole, or a file is not what the manifest says.
        NewerVersion, NewerFormat: a newer version wrote it, or a file in it.
        OSError: it cannot be read, or the scratch folder is full.
    """
    with tempfile.TemporaryDirectory(prefix="chat-gateway-verify-", dir=scratch) as name:
        workspace = Path(name)
        manifest = await asyncio.to_thread(extract, backup, workspace)
        return await _looked_at(workspace, manifest)


async def _looked_at(workspace: Path, manifest: Manifest) -> Report:
    report = Report(manifest.began_at, manifest.program, len(manifest.entries), manifest.size)
    report.left_out = manifest.left_out
    began = datetime.fromisoformat(manifest.began_at)
    for path in sorted((workspace / "state").glob("*.db")):
        try:
            durable.settle_copy(path)
        except durable.Damaged as error:
            report.add(path.relative_to(workspace).as_posix(), str(error))
            return report
    async with aclosing(Store(workspace, zone=UTC, clock=lambda: began)) as store:
        await store.state.open()
        for found in await integrity(store):
            report.add(found["file"], found["problem"])
        rows, parked = await _letters(workspace / "state")
        report.parked = parked
        asked, answered = await _messages(store, report)
        await _count(store, report, rows, asked, answered)
    return report


async def _messages(store: Store, report: Report) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    asked: set[tuple[str, str]] = set()
    answered: set[tuple[str, str]] = set()
    rows = await store.rows()
    report.sessions = len(rows)
    for row in rows:
        view = await store.look(SessionKey(row.key)) if row.active else await store.look_up(row.id)
        if view is None:
            continue
        ids = {line.get("message_id") for line in view.lines() if line.get("role") == "user"}
        for id_ in ids:
            if not isinstance(id_, str):
                continue
            asked.add((row.key, id_))
            exchange = view.find(id_)
            ended = exchange is not None and exchange.final is not None
            if ended or view.journal.known(id_) is not None:
                answered.add((row.key, id_))
    return asked, answered


async def _count(
    store: Store,
    report: Report,
    rows: dict[str, list[QueueRow]],
    asked: set[tuple[str, str]],
    answered: set[tuple[str, str]],
) -> None:
    waiting = {(row.key, row.id) for row in rows.get(INBOUND, [])}
    report.messages, report.answered = len(asked), len(answered)
    report.waiting = len(waiting - answered)
    report.open = len(asked - answered - waiting)
    known = Counter(id_ for _, id_ in answered)
    for box, letters in rows.items():
        if box == INBOUND:
            continue
        report.replies += len(letters)
        for letter in letters:
            reply = _reply(letter)
            if reply is not None and not known[reply.in_reply_to or ""] and await _is_lost(store, reply):
                report.add(
                    f"state/{durable.STATE_FILE}",
                    f"the reply {reply.id} waits, and its answer is in no transcript",
                )


async def _is_lost(store: Store, reply: Outbound) -> bool:
    """Say whether the session to which a reply belongs is there, and does not know of it."""
    view = await store.look(SessionKey(reply.key))
    created, put = view.created_at, read_time(reply.created_at)
    # One that began later took the place of a session that was deleted.
    if not view.path.exists() or created is None or put is None or created > put:
        return False
    return view.journal.known(reply.in_reply_to or "") is None


def _reply(letter: QueueRow) -> Outbound | None:
    try:
        reply = read_outbound(letter.body)
    except Unreadable:
        return None
    return reply if reply.kind == "reply" and reply.in_reply_to else None


async def _letters(state: Path) -> tuple[dict[str, list[QueueRow]], int]:
    """Read the queue of an open state database: what waits by box, and how much is parked."""
    writer = workspace_state(state)
    assert isinstance(writer.database, durable.StateDatabase)
    table = QueueTable(writer.database)

    def look() -> tuple[dict[str, list[QueueRow]], int]:
        boxes = table.load_counts()
        rows = {box: table.load(box, 0, limit=count, max_bytes=2**62)[0] for box, count in boxes.items()}
        return rows, table.parked_depth()[0]

    rows, parked = await writer.ask(durable.Job(look, writes=False))
    return rows, parked
