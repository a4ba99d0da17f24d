"""What the machine gives a workspace: versions, room, the file system with its syncs, open files."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from gateway.app import descriptors

Level = Literal["ok", "warn", "fail"]
Finding = tuple[str, Level, str, str]
FREE_FILES: Final = 10_000
OPEN_FILES: Final = 1024
SYNCS: Final = 5
# No rotating disk, and hardly a network, has written anything within so short a time.
TOO_QUICK_S: Final = 0.0005
NETWORKS: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|glusterfs|lustre|fuse\.(sshfs|s3fs|rclone|glusterfs)"
)
IN_MEMORY: Final = ("tmpfs", "ramfs")


def versions() -> tuple[Level, str, str]:
    """Say which Python runs, and which packages are not of a version that the gateway was made for."""
    python = (
        f"Python {'.'.join(map(str, sys.version_info[:3]))}, chat-gateway {metadata.version('chat-gateway')}"
    )
    wrong = list(_out_of_range())
    if not wrong:
        return "ok", python, ""
    return (
        "warn",
        f"{python}; {'; '.join(wrong)}",
        "install it anew: make install, or pipx reinstall chat-gateway",
    )


def _out_of_range() -> Iterator[str]:
    for line in metadata.requires("chat-gateway") or ():
        wanted, _, condition = line.partition(";")
        name = re.split(r"[<>=!~\[ ]", wanted)[0]
        if condition.strip():
            # Of an extra, or of another system.
            continue
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"{name} is missing"
            continue
        bounds = re.findall(r"(>=|<)\s*([\d.]+)", wanted)
        if any((_number(found) >= _number(bound)) != (sign == ">=") for sign, bound in bounds):
            yield f"{name} is {found}, not {wanted.strip().removeprefix(name)}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", version)[0].split("."))  # type: ignore[index]


def check(workspace: Path) -> Iterator[Finding]:
    """Yield name, level, text and cure of each finding; a nameless file is written, and gone at the end."""
    if workspace.is_dir():
        yield _inodes(workspace)
        yield _file_system(workspace)
    limit = descriptors.limit()
    if limit < OPEN_FILES:
        cure = "raise it: ulimit -n, or LimitNOFILE= of the unit"
        yield "open files", "warn", f"this user's processes may hold {limit} open", cure
    else:
        yield "open files", "ok", f"up to {limit}", ""


def _inodes(workspace: Path) -> Finding:
    found = os.statvfs(workspace)
    # Some file systems make them as they are needed, and count none.
    if found.f_files and found.f_favail < FREE_FILES:
        text = f"the disk has room for {found.f_favail} files, whatever their size"
        return "inodes", "warn", text, "remove small files there: turns wait while no file can be made"
    return "inodes", "ok", f"room for {found.f_favail} files" if found.f_files else "the disk counts none", ""


def _file_system(workspace: Path) -> Finding:
    kind = kind_of(workspace, mounts())
    if NETWORKS.fullmatch(kind):
        text = (
            f"{kind} is a network's: locks and SQLite's log do not hold between machines there,"
            " and a server that is away stops every turn"
        )
        return "file system", "warn", text, "put the workspace on a disk of this machine"
    if kind in IN_MEMORY:
        return "file system", "warn", f"{kind} is memory: a restart of the machine loses all", "use a disk"
    try:
        took_s = sync_s(workspace)
    except OSError as error:
        return "file system", "fail", f"{kind}: a sync failed: {error.strerror}", "look into the system's log"
    text = f"{kind or 'unknown'}, a sync takes {took_s * 1000:.2f} ms"
    if kind == "overlay":
        cure = "mount a volume, unless the container's own layer shall hold everything"
        return "file system", "warn", f"{text}; it goes with the container", cure
    if took_s < TOO_QUICK_S and rotates(workspace):
        text += ", on a disk that says it rotates: maybe a cache answers for it, maybe it is a virtual one"
    return "file system", "ok", text, ""


def mounts() -> list[tuple[str, str]]:
    """List mount points with the kind of their file systems; nothing where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), left.split(" ")[4])
        found.append((point, right.split(" ")[0]))
    return found


def kind_of(path: Path, mounted: list[tuple[str, str]]) -> str:
    """Name the file system on which a path lies; empty where nothing is known of it."""
    real = path.resolve()
    # Of two at one point the later one covers the other.
    fits = [(len(point), n, kind) for n, (point, kind) in enumerate(mounted) if real.is_relative_to(point)]
    return max(fits)[2] if fits else ""


def sync_s(folder: Path) -> float:
    """Measure how long one small write takes to be on disk, as the disk says.

    Raises:
        OSError: the disk refused.
    """
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            begun = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return statistics.median(took)


def rotates(path: Path) -> bool:
    """Say whether the disk below calls itself a rotating one; False where it says nothing."""
    device = path.stat().st_dev
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for each in (disk, disk.parent):
        try:
            return (each / "queue" / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return False
