"""A tar whose first file is written last: room is left for it, and filled once all others are known."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO, Final

from durable import begin_sync, write_all
from gateway.backup.manifest import CONFIG, NAME, WORKSPACE, Entry, Manifest, NoBackup, decode, text_of
from gateway.errors import GatewayError

_TAR_BLOCK: Final = tarfile.BLOCKSIZE
_BLOCK: Final = 2**20
# So much is handed to the disk at once: a large heap would stand in the way of the syncs of turns.
_SYNC_BYTES: Final = 16 * 2**20
# Digests that may wait, in blocks.
_AHEAD: Final = 32


class TarWriter:
    """Writes files one after the other; a context, which ends the thread that reckons digests."""

    def __init__(self, fd: int, *, room: int) -> None:
        """Write to an empty file, with ``room`` bytes for the manifest."""
        self._fd = fd
        self._room = _padded(room)
        self._at = self._synced = _TAR_BLOCK + self._room
        os.lseek(fd, self._at, os.SEEK_SET)
        self._rows: list[tuple[str, int, Future[str]]] = []
        self._stack = ExitStack()
        self._digests = self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="digest"))
        self._ahead: list[Future[None]] = []

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def mark(self) -> tuple[int, int]:
        """Return where it stands, for ``back_to``."""
        return self._at, len(self._rows)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Take back what was written since."""
        self._at, count = mark
        del self._rows[count:]
        os.ftruncate(self._fd, self._at)
        os.lseek(self._fd, self._at, os.SEEK_SET)
        self._synced = min(self._synced, self._at)

    def add(self, name: str, file: BinaryIO, size: int | None = None) -> None:
        """Add the first ``size`` bytes of a file, or all that it has when it is read; raises OSError."""
        found = os.fstat(file.fileno())
        info = _info(name, found)
        wanted = found.st_size if size is None else size
        digest, left, length, began = hashlib.sha256(), wanted, 0, self._at
        head = len(_header(info))
        first = file.read(min(_BLOCK, left))
        info.size = length = len(first)
        left -= length
        if left and length:
            os.lseek(self._fd, began + head, os.SEEK_SET)
            block = first
            while block:
                self._reckon(digest, block)
                write_all(self._fd, block)
                block = file.read(min(_BLOCK, left))
                left -= len(block)
                info.size += len(block)
            length = info.size
            write_all(self._fd, bytes(_padded(length) - length))
            os.pwrite(self._fd, _header(info), began)
        else:
            self._reckon(digest, first)
            write_all(self._fd, b"".join((_header(info), first, bytes(_padded(length) - length))))
        self._ended(name, length, digest, began + head + _padded(length))

    def add_link(self, name: str, found: os.stat_result, target: str) -> None:
        """Add a link as one; raises OSError."""
        info = _info(name, found)
        info.type, info.linkname = tarfile.SYMTYPE, target
        data = _header(info)
        write_all(self._fd, data)
        digest = hashlib.sha256(os.fsencode(info.linkname))
        self._ended(name, 0, digest, self._at + len(data))

    def finish(self, manifest: Manifest) -> None:
        """Write the end and then the manifest, whose entries are what was added.

        Raises:
            GatewayError: it does not fit where room was left for it, or a name was added twice.
        """
        twice = [name for name, count in Counter(name for name, _, _ in self._rows).items() if count > 1]
        if twice:
            raise GatewayError(f"{text_of(twice[0])} stands in it twice", hint="call it again")
        manifest.entries = [Entry(text_of(name), size, digest.result()) for name, size, digest in self._rows]
        write_all(self._fd, bytes(2 * _TAR_BLOCK))
        data = manifest.to_bytes()
        if len(data) > self._room:
            raise GatewayError("more files came meanwhile than there was room for", hint="call it again")
        info = tarfile.TarInfo(NAME)
        info.size, info.mode = self._room, 0o600
        os.lseek(self._fd, 0, os.SEEK_SET)
        write_all(self._fd, _header(info) + data.ljust(self._room))

    def _reckon(self, digest: hashlib._Hash, block: bytes) -> None:
        if len(self._ahead) >= _AHEAD:
            self._ahead.pop(0).result()
        self._ahead.append(self._digests.submit(digest.update, block))

    def _ended(self, name: str, size: int, digest: hashlib._Hash, at: int) -> None:
        self._rows.append((name, size, self._digests.submit(digest.hexdigest)))
        self._at = at
        if self._at - self._synced >= _SYNC_BYTES:
            begin_sync(self._fd, self._synced)
            self._synced = self._at


def read(path: Path, take: Callable[[str, tarfile.TarInfo, IO[bytes] | None], str]) -> Manifest:
    """Read a backup to its end, and hand each file to ``take``, which returns the digest of what it read.

    Returns:
        What the backup says of itself, once every file of it was met, and met as it says.

    Raises:
        NoBackup: it is none, not whole, or a file is not what the manifest says.
        NewerState: a newer version wrote it.
        OSError: it cannot be read, or ``take`` could not write.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            manifest = _manifest(tar, path)
            # By the text of their names, which several may share: those come in the manifest's order.
            wanted: defaultdict[str, list[Entry]] = defaultdict(list)
            for entry in manifest.entries:
                wanted[entry.path].append(entry)
            for name, info in _members(tar):
                entries = wanted[text_of(name)]
                if not entries:
                    raise NoBackup(f"{name} is in it, and not in its manifest", hint="take another backup")
                entry = entries.pop(0)
                digest = take(name, info, tar.extractfile(info) if info.isreg() else None)
                if digest != entry.sha256 or (info.isreg() and info.size != entry.size):
                    raise NoBackup(f"{name} is damaged", hint="take another backup")
    except (tarfile.TarError, EOFError) as error:
        raise NoBackup(f"{path} is no whole backup: {error}", hint="take another backup") from error
    missing = [entry.path for entries in wanted.values() for entry in entries]
    if missing:
        raise NoBackup(
            f"{min(missing)} is missing, and {len(missing) - 1} others", hint="take another backup"
        )
    return manifest


def _manifest(tar: tarfile.TarFile, path: Path) -> Manifest:
    first = tar.next()
    data = tar.extractfile(first) if first is not None and first.name == NAME and first.isreg() else None
    if data is None:
        raise NoBackup(f"{path} is no backup of chat-gateway", hint="chat-gateway backup create PATH")
    return decode(data.read())


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    while (info := tar.next()) is not None:
        parts = info.name.split("/")
        inside = info.name.startswith((WORKSPACE, CONFIG)) and not {"", ".", ".."} & set(parts)
        if not inside or not (info.isreg() or info.issym()):
            raise NoBackup(
                f"{info.name!r} is nothing that a backup has", hint="it was written by somebody else"
            )
        yield info.name, info


def _info(name: str, found: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    # Its length depends on the name alone, not on the size. The name has the bytes that it has on disk.
    return info.tobuf(tarfile.GNU_FORMAT, tarfile.ENCODING, "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _TAR_BLOCK) * _TAR_BLOCK
