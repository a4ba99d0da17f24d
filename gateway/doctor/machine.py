"""What the machine gives a workspace: versions, room, the file system with its syncs, open files."""

from __future__ import annotations

import os
import re
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import durable
from gateway.app import daemons
from gateway.doctor.finding import Check
from session.disk.local_files import FUSE, MAGICS, magic_of
from session.store.derived import searches_texts

FREE_FILES: Final = 10_000
OPEN_FILES: Final = 1024
SYNCS: Final = 5
IN_MEMORY: Final = ("tmpfs", "ramfs")
AT_RISK: Final = "waiting messages (gateway.db) and the send log (channels.db)"
# Mounted so, a file system reports as written what its disk may still hold in a cache, or leaves syncs out.
UNSYNCED: Final = re.compile(r"nobarrier|barrier=(0|none)|volatile")
# Libraries that answer a sync without one, put before the system's own.
FAKES: Final = re.compile(r"\blib(eatmydata|nosync|fakesync)[\w.-]*\.so", re.IGNORECASE)
# The least that the queue needs: rows that a DELETE returns.
OLDEST_SQLITE: Final = (3, 35, 0)
# Those by which people are reached and answered.
PACKAGES: Final = (
    *("aiormq", "litellm", "python-telegram-bot", "discord.py", "fastapi", "uvloop"),
    *("mcp", "opentelemetry-sdk", "trafilatura"),
)


def versions() -> Check:
    """Say which Python, SQLite and packages run, and which are not of a version that works here."""
    python = ".".join(map(str, sys.version_info[:3]))
    wrong = [*_old_sqlite(), *_out_of_range()]
    packages = [f"{name} {found}" for name in PACKAGES if (found := _installed(name))]
    listed = f"{metadata.version('chat-gateway')}, Python {python}, SQLite {sqlite3.sqlite_version}"
    told = f"chat-gateway {listed}, {', '.join(packages)}"
    if not wrong:
        return Check("versions", "ok", told)
    cure = "reinstall it: make install, or pipx reinstall chat-gateway; SQLite comes with Python"
    return Check("versions", "warn", f"{'; '.join(wrong)} ({told})", cure)


def _old_sqlite() -> Iterator[str]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield f"SQLite is {sqlite3.sqlite_version}; {oldest} or newer is needed"
    if not searches_texts():
        yield "SQLite was built without FTS5, which searches need"


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _out_of_range() -> Iterator[str]:
    for line in metadata.requires("chat-gateway") or ():
        wanted, _, condition = line.partition(";")
        name = re.split(r"[<>=!~\[ ]", wanted)[0]
        found = _installed(name)
        if not found:
            # Of an extra, or of another system, it need not be there.
            if not condition.strip():
                yield f"{name} is missing"
            continue
        bounds = re.findall(r"(>=|<)\s*([\d.]+)", wanted)
        if any((_number(found) >= _number(bound)) != (sign == ">=") for sign, bound in bounds):
            yield f"{name} is {found}, not {wanted.strip().removeprefix(name)}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", version)[0].split("."))  # type: ignore[index]


def check(workspace: Path, local_dir: Path | None = None) -> Iterator[Check]:
    """Yield each finding; a nameless file is written, and gone at the end.

    ``local_dir`` is where the indexes of this machine are wanted; None: in the workspace.
    """
    if workspace.is_dir():
        yield _inodes(workspace)
        yield file_system(workspace, look_at(workspace))
    if local_dir is not None:
        yield local_files(local_dir)
    limit = daemons.limit()
    if limit < OPEN_FILES:
        cure = "raise it: ulimit -n, or LimitNOFILE= of the unit"
        yield Check("open files", "warn", f"each process of this user may have only {limit} open", cure)
    else:
        yield Check("open files", "ok", f"up to {limit}")


def _inodes(workspace: Path) -> Check:
    found = os.statvfs(workspace)
    # Some file systems make them as they are needed, and count none.
    if found.f_files and found.f_favail < FREE_FILES:
        text = f"the disk has room for only {found.f_favail} more files, whatever their size"
        cure = "delete small files there: messages wait while no file can be created"
        return Check("inodes", "warn", text, cure)
    return Check("inodes", "ok", f"room for {found.f_favail} files" if found.f_files else "no fixed limit")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the system tells of the disk on which a folder lies."""

    mount: Mount | None
    magic: int = 0

    @property
    def kind(self) -> str:
        """The kind of the mount; empty where nothing is known of it."""
        return self.mount.kind if self.mount is not None else ""

    @property
    def network(self) -> str:
        """The network's file system that it is, with its number; empty: none."""
        found = network_of(self.kind, self.magic)
        return f"{found} (0x{self.magic:X})" if found and self.magic else found


def look_at(path: Path) -> Seen:
    """Look at the disk on which a path lies. Raises OSError where it cannot be reached."""
    return Seen(mount_of(path, mounts()), magic_of(path))


def file_system(workspace: Path, seen: Seen) -> Check:
    """Say what the workspace's disk is worth, and what of it is at risk there."""
    name, mount, kind = "file system", seen.mount, seen.kind
    if seen.network:
        text = f"{seen.network} is a network file system, which SQLite cannot rely on; at risk: {AT_RISK}"
        return Check(name, "fail", text, "move the workspace to a disk of this machine")
    if kind in IN_MEMORY:
        text = f"{kind} is in memory: a restart of the machine loses everything"
        return Check(name, "warn", text, "use a disk")
    try:
        took_s = sync_s(workspace)
    except OSError as error:
        return Check(name, "fail", f"{kind}: a sync failed: {error.strerror}", "check the system log")
    text = f"{kind or 'unknown'}, a sync takes {took_s * 1000:.2f} ms"
    if may_be(kind, seen.magic):
        text += f", provided by a program; if it is a network drive, at risk: {AT_RISK}"
        return Check(name, "warn", text, "if it is, move the workspace to a disk of this machine")
    if (lie := lie_of(mount, _loaded())) is not None:
        return Check(name, "warn", f"{text}; {lie[0]}: a power cut may lose answers", lie[1])
    if kind == "overlay":
        cure = "mount a volume, unless you want to lose everything with the container"
        return Check(name, "warn", f"{text}; it is deleted with the container", cure)
    return Check(name, "ok", text)


def local_files(local_dir: Path, seen: Seen | None = None) -> Check:
    """Say what the disk of ``state.local_dir`` is worth; ``seen``: what the system tells of it."""
    there = next(path for path in (local_dir, *local_dir.parents) if path.exists())
    seen = look_at(there) if seen is None else seen
    name = "local files"
    if seen.network:
        text = f"state.local_dir {local_dir} is on {seen.network}, a network file system"
        return Check(name, "fail", text, "choose a folder on a disk of this machine")
    if seen.kind in IN_MEMORY:
        text = f"{local_dir} is in memory ({seen.kind}): a restart of the machine loses the indexes"
        return Check(name, "warn", text, "choose a folder on a disk")
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(
            name, "fail", f"{there} cannot be written", f"chown $USER {there}, or choose another folder"
        )
    return Check(name, "ok", f"{local_dir} on {seen.kind or 'a disk of this machine'}")


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, of which kind it is, and with which options."""

    point: str
    kind: str
    options: str = ""


def lie_of(mount: Mount | None, loaded: str) -> tuple[str, str] | None:
    """Say why a sync here keeps nothing, with the cure; None: nothing of that can be seen.

    ``loaded`` is the list of what is mapped into this process.
    """
    if (fake := FAKES.search(loaded)) is not None:
        return f"{fake[0]} skips syncs", "run the gateway without it: unset LD_PRELOAD"
    options = mount.options.split(",") if mount is not None else []
    bad = [option for option in options if UNSYNCED.fullmatch(option)]
    if mount is None or not bad:
        return None
    return f"it is mounted with {bad[0]}, which skips syncs", f"mount {mount.point} without {bad[0]}"


def _loaded() -> str:
    try:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def mounts() -> list[Mount]:
    """List what is mounted; nothing where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [read_mount(line) for line in lines]


def read_mount(line: str) -> Mount:
    """Read a line of ``mountinfo``: its options are those of the mount and those of the file system."""
    left, _, right = line.partition(" - ")
    fields, of_system = left.split(" "), right.split(" ")
    point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
    return Mount(point, of_system[0], ",".join([fields[5], *of_system[2:3]]))


def mount_of(path: Path, mounted: list[Mount]) -> Mount | None:
    """Return what is mounted where a path lies; None where nothing is known of it."""
    real = path.resolve()
    # Of two at one point the later one covers the other.
    fits = [(len(each.point), n) for n, each in enumerate(mounted) if real.is_relative_to(each.point)]
    return mounted[max(fits)[1]] if fits else None


def sync_s(folder: Path) -> float:
    """Measure how long one small write takes to be on disk, as the disk says.

    Raises:
        OSError: the disk refused.
    """
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            begun = durable.monotonic()
            os.write(file.fileno(), bytes(4096))
            os.fsync(file.fileno())
            took.append(durable.monotonic() - begun)
    return statistics.median(took)


# FUSE has one number for all that is written on it; the kind of the mount tells which.
_FUSES: Final = re.compile(
    r"fuse\.(sshfs|glusterfs|ceph(-fuse|fs)?|s3fs|s3ql|goofys|gcsfuse|blobfuse2?|rclone|juicefs|mfs|moosefs"
    r"|mfsmount|lizardfs|seaweedfs|davfs2?|curlftpfs|smbnetfs|gvfsd-fuse|nfs|lustre|vmhgfs-fuse|portal)"
)
# Where the number is not to be had, or a newer kernel has another one.
_KINDS: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|k?afs|ceph|glusterfs|lustre|gpfs|beegfs|ocfs2|gfs2|orangefs|coda"
)


def network_of(kind: str, magic: int) -> str:
    """Name the network's file system; empty where it is none.

    Args:
        kind: as ``mountinfo`` has it; empty where nothing is known.
        magic: as ``magic_of``.
    """
    if magic in MAGICS:
        return kind or MAGICS[magic]
    known = _FUSES if magic == FUSE or kind.startswith("fuse") else _KINDS
    return kind if known.fullmatch(kind) else ""


def may_be(kind: str, magic: int) -> bool:
    """Say whether a network may stand behind it, though nothing says so: FUSE shows what a program makes."""
    return (magic == FUSE or kind.startswith("fuse")) and not network_of(kind, magic) and kind != "fuseblk"
