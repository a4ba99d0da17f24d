"""Writes a backup beside running daemons; none of them waits for it, and a start goes on from it."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from enum import IntEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Final

import durable
from channels.storage import Positions, positions_of, set_positions
from gateway.backup.tar import CONFIG, WORKSPACE, Manifest, TarWriter, text_of, unused
from gateway.errors import GatewayError
from session.disk.layout import Layout
from session.disk.state import locked
from session.store import places
from session.store.places import pattern_of
from session.store.trees import open_plain, open_up


class Stage(IntEnum):
    """When a place is copied."""

    # How far platforms were read, and which runs of jobs were put: what came later is fetched or put again.
    SOURCES = 1
    # What waits, and the replies that were put. Whatever was settled by then has its outcome further below.
    QUEUE = 2
    # Transcript, journal and lock of a key are opened together under its lock, so that no session that is
    # being ended or opened again is missed where it was and where it goes.
    CONVERSATIONS = 3
    # Decisions and work that conversations have left to be done; what was done since is in what follows.
    WORK = 4
    # An answer that is on its way into memory stands here until it is in its files.
    MEMORY_STATE = 5
    REST = 6
    # What platforms accepted, as late as possible: nothing of it is sent again.
    SEND_LOG = 7
    # What is made anew, is of a process that runs, or is no part of the workspace's own content.
    LEFT_OUT = 8


def _of(stage: Stage, *patterns: str) -> dict[str, Stage]:
    return dict.fromkeys(patterns, stage)


# By the patterns of ``session.store.places``; a test holds that each of them stands here.
STAGES: Final = (
    _of(Stage.SOURCES, "cron/jobs.json", "cron/jobs.json.corrupt-*", "cron/action.jsonl")
    | _of(Stage.SOURCES, "cron/action.jsonl.corrupt-*")
    | _of(Stage.QUEUE, "state/gateway.db")
    | _of(Stage.CONVERSATIONS, *(place.pattern for place in places.OF_KEYS[:2]))
    | _of(Stage.CONVERSATIONS, "sessions/archive/{stem}/**", "state/keys/{stem}.lock")
    | _of(
        Stage.CONVERSATIONS,
        "state/subagents/sessions/{stem}.jsonl",
        "state/subagents/sessions/{stem}.jsonl.*",
    )
    | _of(Stage.CONVERSATIONS, "state/subagents/state/keys/{stem}.lock")
    | _of(Stage.WORK, "state/jobs/*-{mark}.json", "state/jobs/*-{mark}.*.json", "state/approvals/**")
    | _of(
        Stage.WORK, "state/subagents/chats/{marked}.json", "state/facts/{stem}.json", "state/erasing/*.json"
    )
    | _of(Stage.WORK, "state/failed_jobs.json", "state/retention.json")
    | _of(Stage.MEMORY_STATE, "state/memory/{home}{top}/{own}.json", "state/memory/workspace.*")
    | _of(Stage.MEMORY_STATE, "state/memory/agents/*/workspace.*")
    | _of(Stage.REST, "{home}memory/{top}/{own}/**", "{home}files/{top}/{own}/**")
    | _of(Stage.REST, "memory/*.md", "memory/facts.jsonl")
    | _of(Stage.REST, "agents/*/AGENTS.md", "agents/*/instructions.md", "agents/*/files/*")
    | _of(Stage.REST, "agents/*/memory/*.md", "agents/*/memory/facts.jsonl", "agents/*/memory/versions/**")
    | _of(Stage.REST, "memory/versions/**", "files/*", "media/*/*")
    | _of(Stage.REST, "AGENTS.md", "instructions.md", "HEARTBEAT.md", "playbooks/**", "skills/**")
    | _of(Stage.REST, "state/chat_history", "state/mcp/**", "state/tokens.json", "memory/*.corrupt-*")
    | _of(Stage.REST, "agents/*/memory/*.corrupt-*")
    | _of(Stage.SEND_LOG, "state/channels.db")
    | _of(Stage.LEFT_OUT, *(each.pattern for each in places.PLACES if each.use == "derived"))
    | _of(Stage.LEFT_OUT, *(each.pattern for each in places.OF_SCOPES if each.use == "guard"))
    # Their content is in the copy of the file itself.
    | _of(Stage.LEFT_OUT, "state/gateway.db-*", "state/channels.db-*")
    | _of(
        Stage.LEFT_OUT,
        "state/lock",
        "state/gateway.sock",
        "state/*.lock",
        "state/*.lease",
        "cron.lock",
        "state/daemon.json",
        "state/*.ready",
    )
    | _of(Stage.LEFT_OUT, "state/facts/workspace.lock", "state/recall/workspace.*")
    | _of(Stage.LEFT_OUT, "state/facts/agents/*/workspace.lock", "state/recall/agents/*/workspace.*")
    | _of(Stage.LEFT_OUT, "state/subagents/chats.lock", "state/chat.log", "state/chat.log.1", "media/.*")
    # Files on their way out: what is copied there lies in the workspace, too.
    | _of(Stage.LEFT_OUT, "state/outgoing/**")
    # It may hold secrets, and is asked for by a word of its own.
    | _of(Stage.LEFT_OUT, "chat-gateway.toml", "config-of-backup/*")
    # What ``run --reset-state`` moved aside.
    | _of(Stage.LEFT_OUT, "state-before-reset-*/**")
    # Where machines keep their indexes.
    | _of(Stage.LEFT_OUT, "state/local/*.json")
)
# What the workspace has right below it.
_TOPS: Final = frozenset(pattern.split("/")[0].removeprefix("{home}") for pattern in STAGES)


def stage_of(path: str) -> Stage:
    """Say when a path below the workspace is copied; what no table knows is somebody's, and copied."""
    name = path.rpartition("/")[2]
    # What a writer has not ended, or a kill left by half.
    if name.startswith(".") and name.endswith("tmp"):
        return Stage.LEFT_OUT
    if path.startswith("state/memory/") and name.endswith(".lock"):
        return Stage.LEFT_OUT
    found = pattern_of(path)
    return Stage.REST if found is None else STAGES[found]


def is_of_tools(path: str) -> bool:
    """Say whether a path lies where tools of a chat write, whatever they write."""
    match path.split("/"):
        case ["files", _, *_] | ["agents", _, "files", _, *_]:
            return True
        case _:
            return False


def is_somebodys(path: str) -> bool:
    """Say whether a path lies in no folder that the program knows."""
    return path.split("/")[0] not in _TOPS


_TRIES: Final = 20
# One call writes a line: an end without its newline is one under way, or of a file that has none.
_LINE_S: Final = 0.05
_QUEUE: Final = f"state/{durable.STATE_FILE}"
_SEND_LOG: Final = f"state/{durable.CHANNELS_FILE}"
# Of what was passed over so many are named, the others counted.
_NAMED_MAX: Final = 1000
_STALE_S: Final = 3600
# A command can make folders that no path names, or none of the longer ones that a restore needs.
_DEEP_MAX: Final = 200
_PATH_MAX: Final = 3000
_NAME_MAX: Final = 200
_DATABASE_CURE: Final = (
    "chat-gateway sessions verify says what is to be done; without a backup move it away while no daemon "
    "runs: what waits in it is lost"
)
_NO_RIGHTS: Final = "nobody gave rights to it"
_TOO_DEEP: Final = "it lies too deep, or its path is too long"
LEFT_OUT: Final = [
    "indexes and vectors: they are made anew of the rest",
    "locks, leases, and what running processes say of themselves",
    "the logs of the terminal chat",
]
NO_QUEUE: Final = "letters that wait in RabbitMQ: the broker keeps them"
NO_CONFIG: Final = "the configuration and the files of its secrets (--with-config puts them in)"


@dataclass(slots=True)
class Listed:
    """The paths of a workspace by stage, below it.

    Args:
        stems: of each store those of its conversations.
        unseen: what is said of folders whose content is not listed.
    """

    by_stage: dict[Stage, list[str]] = field(default_factory=dict)
    stems: dict[str, set[str]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


def create(
    workspace: Path,
    target: Path,
    *,
    embedded: bool,
    config: Sequence[Path] = (),
) -> Manifest:
    """Write the backup of a workspace to ``target``, which is there whole once it has its name.

    Args:
        workspace: the folder; its daemons may run.
        target: the file; nothing may stand there.
        embedded: whether the queue is the workspace's own.
        config: files of the configuration that are wanted, too.

    Raises:
        GatewayError: there is a file of this name, or no workspace.
        StoreError: a lock cannot be had.
        OSError: the disk refused; nothing is there.
    """
    began = durable.now().astimezone(UTC).isoformat(timespec="seconds")
    left_out = [*LEFT_OUT, *([] if embedded else [NO_QUEUE]), *([] if config else [NO_CONFIG])]
    manifest = Manifest(version("chat-gateway"), began, "embedded" if embedded else "rabbitmq", left_out)

    def free() -> None:
        if os.path.lexists(target):
            raise GatewayError(f"{target} is there already", hint="name another file")

    free()
    wanted = _named(config)
    if not workspace.is_dir():
        raise GatewayError(f"there is no workspace {workspace}", hint="--workspace DIR")
    _sweep(target.parent)
    temp = target.with_name(f".{target.name}.backup-{os.getpid()}.tmp")
    with (
        tempfile.TemporaryDirectory(prefix=temp.name, suffix=".d", dir=target.parent) as scratch,
        durable.replacing(target, temp=temp, check=free) as fd,
        TarWriter(fd) as tar,
    ):
        copy = _Copy(workspace, tar, Path(scratch))
        copy.run()
        for name, path in wanted.items():
            with path.open("rb") as file:
                tar.add(name, file)
        manifest.left_out += map(text_of, copy.passed_over[:_NAMED_MAX])
        if (more := len(copy.passed_over) - _NAMED_MAX) > 0:
            manifest.left_out.append(f"{more} others, links for the most part or files without rights")
        tar.finish(manifest)
    return manifest


def _named(config: Sequence[Path]) -> dict[str, Path]:
    """Name the files of the configuration, which comes first with its own name.

    Of secrets that have one name each is called by its whole path: it says to which of them it belongs.
    """
    count = Counter(each.name for each in config)
    found: dict[str, Path] = {}
    for path in config:
        is_plain = not found or count[path.name] == 1
        whole = os.fsencode("-".join(path.absolute().parts[1:]))[-_NAME_MAX:].decode("utf-8", "ignore")
        found[unused(CONFIG + (path.name if is_plain else whole), found)] = path
    return found


def _sweep(folder: Path) -> None:
    """Remove what killed backups left in a folder, and nothing that is being written."""
    for temp in folder.glob(".*.backup-*.tmp*"):
        with contextlib.suppress(OSError):
            if durable.wall_s() - temp.lstat().st_mtime > _STALE_S:
                durable.discard(temp)


class _Copy:
    def __init__(self, workspace: Path, tar: TarWriter, scratch: Path) -> None:
        self._workspace = workspace
        self._tar = tar
        self._scratch = scratch
        self.passed_over: list[str] = []

    def run(self) -> None:
        """Copy all stages, each as its files stand when it comes."""
        # What was accepted since then may be missing in the copied queue: a restored bot reads it again.
        positions = positions_of(self._workspace / "state")
        for stage in list(Stage)[:-1]:
            # Listed anew: what moved on since the last stage is found where it is now.
            listed = _list(self._workspace)
            if stage is Stage.CONVERSATIONS:
                self._conversations(listed)
            if stage is Stage.REST:
                self.passed_over += listed.unseen
            for path in listed.by_stage.get(stage, ()):
                self._database(path, positions) if path in (_QUEUE, _SEND_LOG) else self._file(path)

    def _database(self, path: str, positions: Positions) -> None:
        copy = self._scratch / "copy.db"
        with contextlib.suppress(FileNotFoundError):
            try:
                if path == _QUEUE:
                    durable.snapshot(self._workspace / path, copy)
                else:
                    durable.copy_database(self._workspace / path, copy, partial(set_positions, positions))
            except durable.Damaged as error:
                # Its words name the copy, of which nobody knows.
                words = str(error).replace(copy.name, path, 1)
                raise durable.Damaged(words, hint=_DATABASE_CURE) from error
            with copy.open("rb") as file:
                self._tar.add(WORKSPACE + path, file)
            copy.unlink()

    def _file(self, path: str) -> None:
        # Where it was removed since it was listed there is nothing to say.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                self._copied(path)
            except PermissionError as error:
                if not (is_of_tools(path) or is_somebodys(path)):
                    error.filename = os.fspath(self._workspace / path)
                    raise
                self.passed_over.append(f"{path}: {_NO_RIGHTS}")

    def _copied(self, path: str) -> None:
        *names, name = path.split("/")
        with _folder(self._workspace, names) as folder:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                self._tar.add_link(WORKSPACE + path, found, os.readlink(name, dir_fd=folder))
                self.passed_over.append(f"what the link {path} leads to")
                return
            file = open_plain(name, folder) if stat.S_ISREG(found.st_mode) else None
        if file is not None:
            with file:
                # Lines are appended to some of them; all others are replaced whole.
                size = _whole(file) if path.endswith((".jsonl", ".log")) else None
                self._tar.add(WORKSPACE + path, file, size)

    def _conversations(self, listed: Listed) -> None:
        done: set[tuple[str, str]] = set()
        while more := [(top, stem) for top, stems in listed.stems.items() for stem in stems]:
            more = sorted(set(more) - done)
            if not more:
                return
            for top, stem in more:
                self._conversation(top, stem)
            done.update(more)
            listed = _list(self._workspace)

    def _conversation(self, top: str, stem: str) -> None:
        """Copy a conversation as it stood at one moment between two writes."""
        mark = self._tar.mark()
        for _ in range(_TRIES):
            try:
                return self._as_it_stands(Layout(self._workspace / top), stem)
            except FileNotFoundError:
                # An ended session was opened again, or deleted, since its name was read.
                self._tar.back_to(mark)
        raise GatewayError(f"the conversation {stem} changes all the time", hint="call it again")

    def _as_it_stands(self, layout: Layout, stem: str) -> None:
        own = (layout.transcript(stem), layout.lock(stem))
        with contextlib.ExitStack() as opened:
            files: list[tuple[Path, BinaryIO, int]] = []
            # Only opened here: the turns of the chat wait for as long as this lock is held.
            with locked(layout.lock(stem)):
                for path in own:
                    with contextlib.suppress(FileNotFoundError):
                        file: BinaryIO = opened.enter_context(path.open("rb"))
                        files.append((path, file, os.fstat(file.fileno()).st_size))
                ended = _archived(layout, stem)
            for path, file, size in files:
                self._tar.add(self._name(path), file, size)
        for path in ended:
            with path.open("rb") as file:
                self._tar.add(self._name(path), file)

    def _name(self, path: Path) -> str:
        return WORKSPACE + path.relative_to(self._workspace).as_posix()


def _archived(layout: Layout, stem: str) -> list[Path]:
    folder = layout.archive(stem)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - a lock is held meanwhile
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if not name.endswith(".tmp")]


def _whole(file: BinaryIO) -> int:
    """Return how long a file is up to the end of its last line, unless that has no end at all."""
    size = os.fstat(file.fileno()).st_size
    if size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n":
        return size
    durable.pause(_LINE_S)
    if os.fstat(file.fileno()).st_size == size:
        return size
    at = size
    while at > 0:
        block = os.pread(file.fileno(), min(2**16, at), max(0, at - 2**16))
        if (end := block.rfind(b"\n")) >= 0:
            return max(0, at - 2**16) + end + 1
        at = max(0, at - 2**16)
    return 0


# ── what is there ─────────────────────────────────────────────────────────────────────────────────────────


def _list(workspace: Path) -> Listed:
    listed = Listed({stage: [] for stage in Stage}, {"": set(), "state/subagents": set()})
    for path in _walk(os.fspath(workspace), listed.unseen):
        found = _stem(path)
        if found is not None:
            listed.stems[found[0]].add(found[1])
        else:
            listed.by_stage[stage_of(path)].append(path)
    return listed


def _stem(path: str) -> tuple[str, str] | None:
    """Return the store and stem of a conversation's file, of those that are copied together."""
    top = "state/subagents" if path.startswith("state/subagents/") else ""
    match path.removeprefix(f"{top}/" if top else "").split("/"):
        case ["sessions", name] if name.endswith(".jsonl") and not name.startswith("."):
            return top, name.removesuffix(".jsonl")
        case ["sessions", "archive", stem, _]:
            return top, stem
        case ["state", "keys", name] if name.endswith(".lock") and not name.startswith("."):
            return top, name.rpartition(".")[0]
        case _:
            return None


def _walk(top: str, unseen: list[str]) -> Iterator[str]:
    """Yield what is no folder; a link to one is followed at the top alone."""
    left = _entries(top, "", unseen)
    while left:
        path = left.pop()
        if path.endswith("/"):
            left += _entries(top, path, unseen)
        else:
            yield path


def _entries(top: str, below: str, unseen: list[str]) -> list[str]:
    """List a folder, its last name first; those of folders end with a slash."""
    if below.count("/") > _DEEP_MAX or len(os.fsencode(below)) > _PATH_MAX:
        unseen.append(f"what lies in {below}: {_TOO_DEEP}")
        return []
    try:
        return _scanned(top, below)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        if not (is_of_tools(below) or is_somebodys(below)):
            error.filename = os.path.normpath(f"{top}/{below}")
            raise
    if is_of_tools(below):
        # A command shut it; of a tree that is too deep the upper part is opened.
        names = below.split("/")[:-1]
        open_up(Path(os.path.realpath(f"{top}/{names[0]}")), names[1:])
    try:
        return _scanned(top, below)
    except OSError:
        unseen.append(f"what lies in {below}: {_NO_RIGHTS}")
        return []


def _scanned(top: str, below: str) -> list[str]:
    with _folder(Path(top), below.split("/")[:-1]) as folder, os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name, reverse=True)
        # Some folders can be listed, and their files yet not be reached.
        os.stat(".", dir_fd=folder)
        return [f"{below}{each.name}{'/' * each.is_dir(follow_symlinks=not below)}" for each in entries]


def _folder(top: Path, names: Sequence[str]) -> contextlib.AbstractContextManager[int]:
    """Open a folder of the workspace; links are followed at its top alone, where no tool can make one."""
    return durable.opened_below(top.joinpath(*names[:1]), names[1:])
