"""The file of a backup: a tar whose last member, the manifest, names all others with their digests."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

import orjson

import durable
from durable import begin_sync
from gateway.errors import GatewayError, NewerState

VERSION: Final = 1
NAME: Final = "MANIFEST.json"
# Below these names a backup has the workspace, and what was asked for of the configuration.
WORKSPACE: Final = "workspace/"
CONFIG: Final = "config/"


class NoBackup(GatewayError):
    """It is no backup of ours, or not whole."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as it is in the backup; ``sha256`` of its bytes, of a link those of where it leads.

    ``path`` is the text of its name, as ``text_of`` writes it.
    """

    path: str
    size: int
    sha256: str


@dataclass(slots=True)
class Manifest:
    """What a backup says of itself.

    Args:
        program: the version of chat-gateway that wrote it.
        began_at: everything that was accepted or answered by then is in it (ISO 8601 UTC).
        broker: ``embedded`` or ``rabbitmq``.
        left_out: what is not in it, in words.
    """

    program: str
    began_at: str
    broker: str
    left_out: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def to_bytes(self) -> bytes:
        """Write it with one file a line."""
        head = {
            "v": VERSION,
            "program": self.program,
            "began_at": self.began_at,
            "broker": self.broker,
            "left_out": self.left_out,
        }
        rows = b",\n".join(orjson.dumps([each.path, each.size, each.sha256]) for each in self.entries)
        return orjson.dumps(head)[:-1] + b',\n"files":[\n' + rows + b"\n]}\n"


def decode(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        NoBackup: it is damaged.
        NewerState: a newer version wrote it.
    """
    try:
        content: dict[str, Any] = orjson.loads(data)
        durable.check_version(content["v"], VERSION, "the backup", error=NewerState)
        entries = [Entry(_text(path), int(size), str(digest)) for path, size, digest in content["files"]]
        words = [str(each) for each in content["left_out"]]
        return Manifest(
            str(content["program"]), str(content["began_at"]), str(content["broker"]), words, entries
        )
    except (ValueError, TypeError, KeyError) as error:
        raise NoBackup("its manifest is damaged", hint="take another backup") from error


def text_of(path: str) -> str:
    """Write a name as JSON can have it, whatever its bytes are; two names may become one text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def unused(name: str, used: Container[str]) -> str:
    """Return a name of the configuration, with a number behind it where it is used."""
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in used)


def _text(path: object) -> str:
    if not isinstance(path, str):
        raise TypeError
    return path


_BLOCK: Final = 2**20
# So much is handed to the disk at once: a large heap would stand in the way of the syncs of turns.
_SYNC_BYTES: Final = 16 * 2**20


class TarWriter:
    """Writes files one after the other, then the manifest; a context."""

    def __init__(self, fd: int) -> None:
        """Write to an empty file, which stays open."""
        self._file = open(fd, "wb", closefd=False)  # noqa: SIM115 - by its descriptor
        self._tar = tarfile.TarFile(
            fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_BLOCK
        )
        self._entries: list[tuple[str, Entry]] = []
        self._synced = 0

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def mark(self) -> tuple[int, int]:
        """Return where it stands, for ``back_to``."""
        return self._tar.offset, len(self._entries)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Take back what was written since."""
        self._tar.offset, count = mark
        del self._entries[count:]
        self._file.seek(self._tar.offset)
        self._file.truncate()
        self._synced = min(self._synced, self._tar.offset)

    def add(self, name: str, file: BinaryIO, size: int | None = None) -> None:
        """Add the first ``size`` bytes of a file, or all that it has now; raises OSError."""
        found = os.fstat(file.fileno())
        info = _info(name, found)
        info.size = found.st_size if size is None else size
        mark = self.mark()
        source = _Digested(file)
        try:
            self._tar.addfile(info, source)
        except OSError as error:
            # Of ``tarfile`` itself, which has no number: the file has become shorter.
            if error.errno is not None:
                raise
            self.back_to(mark)
            file.seek(0)
            self.add(name, file, source.size)
            return
        self._ended(name, info.size, source.digest.hexdigest())

    def add_link(self, name: str, found: os.stat_result, target: str) -> None:
        """Add a link as one; raises OSError."""
        info = _info(name, found)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)
        self._ended(name, 0, hashlib.sha256(os.fsencode(target)).hexdigest())

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, whose entries are what was added.

        Raises:
            GatewayError: a name was added twice.
        """
        count = Counter(name for name, _ in self._entries)
        if twice := [name for name in count if count[name] > 1]:
            raise GatewayError(f"{text_of(twice[0])} stands in it twice", hint="call it again")
        manifest.entries = [entry for _, entry in self._entries]
        data = manifest.to_bytes()
        info = tarfile.TarInfo(NAME)
        info.size, info.mode = len(data), 0o600
        self._tar.addfile(info, BytesIO(data))
        self._tar.close()
        self._file.flush()

    def _ended(self, name: str, size: int, digest: str) -> None:
        self._entries.append((name, Entry(text_of(name), size, digest)))
        # It keeps what it wrote, for a list that nobody asks for.
        self._tar.members.clear()  # type: ignore[attr-defined]
        if self._tar.offset - self._synced >= _SYNC_BYTES:
            self._file.flush()
            begin_sync(self._file.fileno(), self._synced)
            self._synced = self._tar.offset


class _Digested:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self, count: int = -1, /) -> bytes:
        data = self._file.read(count)
        self.digest.update(data)
        self.size += len(data)
        return data


def read(path: Path, take: Callable[[str, tarfile.TarInfo, IO[bytes] | None], str]) -> Manifest:
    """Read a backup to its end, and hand each file to ``take``, which returns the digest of what it read.

    Returns:
        What the backup says of itself, once every file of it was met, and met as it says.

    Raises:
        NoBackup: it is none, not whole, or a file is not what the manifest says.
        NewerState: a newer version wrote it.
        OSError: it cannot be read, or ``take`` could not write.
    """
    found: list[Entry] = []
    manifest: Manifest | None = None
    try:
        with tarfile.open(path, "r:") as tar:
            while (info := tar.next()) is not None:
                file = tar.extractfile(info) if info.isreg() else None
                if info.name == NAME and file is not None:
                    manifest = decode(file.read())
                    continue
                _check(info)
                found.append(Entry(text_of(info.name), info.size, take(info.name, info, file)))
                tar.members.clear()  # type: ignore[attr-defined]
    except (tarfile.TarError, EOFError) as error:
        raise NoBackup(f"{path} is no whole backup: {error}", hint="take another backup") from error
    if manifest is None:
        raise NoBackup(f"{path} is no whole backup", hint="take another backup")
    for wanted, got in itertools.zip_longest(manifest.entries, found):
        if wanted != got:
            name = (wanted or got).path
            raise NoBackup(f"{name} is not what its manifest says", hint="take another backup")
    return manifest


def _check(info: tarfile.TarInfo) -> None:
    inside = info.name.startswith((WORKSPACE, CONFIG)) and not {"", ".", ".."} & set(info.name.split("/"))
    if not inside or not (info.isreg() or info.issym()):
        raise NoBackup(f"{info.name!r} is nothing that a backup has", hint="it was written by somebody else")


def _info(name: str, found: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
    return info
