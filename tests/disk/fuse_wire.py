"""The kernel's FUSE calls as they are, by the number of a file and not by its path.

A library that hands on paths would hide the difference between a name and the file that it stood for, and
with it all that goes wrong on a network. So the bytes of /dev/fuse are read here. Of names and attributes the
kernel is told to keep nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.disk.model import Node

_HEAD = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_BUFFER = 2**20 + 4096
_MAX_WRITE = 2**17
_POSIX_LOCKS, _BIG_WRITES, _FLOCK_LOCKS = 1 << 1, 1 << 5, 1 << 10
_DIRECT_IO = 1
_FLOCK_UNLOCK = 2
_SIZE, _MTIME, _MODE, _UID, _GID = 8, 32 | 256, 1, 2, 4
LOOKUP, FORGET, GETATTR, SETATTR, SYMLINK, MKNOD, MKDIR = 1, 2, 3, 4, 6, 8, 9
UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS = 10, 11, 12, 13, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 18, 20, 25, 26, 27, 28, 29, 30
SETLK, SETLKW, ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 32, 33, 34, 35, 36, 38, 42, 45
Answer = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Look:
    number: int
    mode: int
    size: int
    mtime_ns: int
    links: int


def look_of(node: Node) -> Look:
    links = 2 if node.is_folder else node.links
    return Look(node.number, node.mode, len(node.content), node.mtime_ns, links)


class Client(Protocol):
    """What answers the calls; each raises OSError as the system call would.

    ``kernel_keeps``: pages and locks are the kernel's, as on a disk of this machine alone.
    """

    kernel_keeps: bool

    def lookup(self, folder: int, name: str) -> Look: ...
    def look(self, number: int) -> Look: ...
    def make(self, folder: int, name: str, mode: int) -> Look: ...
    def link(self, number: int, folder: int, name: str) -> Look: ...
    def unlink(self, folder: int, name: str) -> None: ...
    def rename(self, folder: int, name: str, to: int, new: str) -> None: ...
    def names(self, folder: int) -> list[tuple[str, int, int]]: ...
    def open(self, number: int) -> None: ...
    def read(self, number: int, at: int, size: int) -> bytes: ...
    def write(self, number: int, at: int, data: bytes) -> None: ...
    def cut(self, number: int, size: int) -> None: ...
    def touch(self, number: int, mtime_ns: int) -> None: ...
    def flush(self, number: int) -> None: ...
    def sync(self, number: int) -> None: ...
    def lock(self, number: int, owner: int, kind: int) -> bool: ...


def mount(folder: Path, source: str, kind: str = "fuse") -> int:
    """Mount at a folder; return what the calls are read from."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), os.fsencode(folder), kind.encode(), 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    return fd


def serve(fd: int, client: Client) -> None:
    """Answer the calls of one mount until it is gone."""
    while True:
        try:
            raw = os.read(fd, _BUFFER)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue
            raise
        _, code, unique, node, *_ = _HEAD.unpack_from(raw)
        if code in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        try:
            found, number = _call(client, code, node, raw[_HEAD.size :]), 0
        except OSError as error:
            found, number = b"", -(error.errno or errno.EIO)
        try:
            os.write(fd, _ANSWER.pack(_ANSWER.size + len(found), number, unique) + found)
        except OSError as error:
            # Whoever asked was killed meanwhile.
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise


def _call(client: Client, code: int, node: int, body: bytes) -> bytes:
    if code in _NAMES:
        return _NAMES[code](client, node, body)
    if code in _BYTES:
        return _BYTES[code](client, node, body)
    raise OSError(errno.ENOSYS, "no such call")


def _text(raw: bytes) -> str:
    return os.fsdecode(raw.split(b"\0")[0])


def _attr(look: Look) -> bytes:
    seconds, rest = divmod(look.mtime_ns, 10**9)
    blocks = -(-look.size // 512)
    owner = (os.geteuid(), os.getegid())
    return _ATTR.pack(
        look.number, look.size, blocks, *[seconds] * 3, *[rest] * 3, look.mode, look.links, *owner, 0, 4096, 0
    )  # fmt: skip


def _entry(look: Look) -> bytes:
    # The generation keeps the kernel from taking a file for another one; times of 0: it may keep nothing.
    return struct.pack("<QQQQII", look.number, 1, 0, 0, 0, 0) + _attr(look)


def _looked(look: Look) -> bytes:
    return struct.pack("<QII", 0, 0, 0) + _attr(look)


def _init(client: Client, node: int, body: bytes) -> bytes:
    flags = _BIG_WRITES | (0 if client.kernel_keeps else _POSIX_LOCKS | _FLOCK_LOCKS)
    return struct.pack("<IIIIHHIIHHII6I", 7, 31, 0, flags, 16, 12, _MAX_WRITE, 1, 0, 0, 0, 0, *[0] * 6)


def _make(skip: int, kind: int) -> Callable[[Client, int, bytes], bytes]:
    def make(client: Client, node: int, body: bytes) -> bytes:
        mode = struct.unpack_from("<I", body)[0]
        return _entry(client.make(node, _text(body[skip:]), kind or mode))

    return make


def _mkdir(client: Client, node: int, body: bytes) -> bytes:
    mode = struct.unpack_from("<I", body)[0]
    return _entry(client.make(node, _text(body[8:]), stat.S_IFDIR | stat.S_IMODE(mode)))


def _create(client: Client, node: int, body: bytes) -> bytes:
    mode = struct.unpack_from("<II", body)[1]
    look = client.make(node, _text(body[16:]), stat.S_IFREG | stat.S_IMODE(mode))
    return _entry(look) + _opened(client, look.number)


def _rename(skip: int) -> Callable[[Client, int, bytes], bytes]:
    def rename(client: Client, node: int, body: bytes) -> bytes:
        to = struct.unpack_from("<Q", body)[0]
        old, new = body[skip:].split(b"\0")[:2]
        client.rename(node, os.fsdecode(old), to, os.fsdecode(new))
        return b""

    return rename


def _link(client: Client, node: int, body: bytes) -> bytes:
    return _entry(client.link(struct.unpack_from("<Q", body)[0], node, _text(body[8:])))


def _unlink(client: Client, node: int, body: bytes) -> bytes:
    client.unlink(node, _text(body))
    return b""


def _setattr(client: Client, node: int, body: bytes) -> bytes:
    valid, _, _, size, _, _, mtime, _, _, nanos = struct.unpack_from("<IIQQQQQQII", body)
    if valid & _SIZE:
        client.cut(node, size)
    if valid & _MTIME:
        client.touch(node, mtime * 10**9 + nanos)
    return _looked(client.look(node))


def _open(client: Client, node: int, body: bytes) -> bytes:
    client.open(node)
    return _opened(client, node)


def _opened(client: Client, node: int) -> bytes:
    return struct.pack("<QIi", node, 0 if client.kernel_keeps else _DIRECT_IO, 0)


def _readdir(client: Client, node: int, body: bytes) -> bytes:
    _, at, size = struct.unpack_from("<QQI", body)
    found = b""
    for index, (name, number, mode) in enumerate(client.names(node)):
        if index < at:
            continue
        raw = os.fsencode(name)
        entry = struct.pack("<QQII", number, index + 1, len(raw), mode >> 12) + raw
        entry += bytes(-len(entry) % 8)
        if len(found) + len(entry) > size:
            break
        found += entry
    return found


def _read(client: Client, node: int, body: bytes) -> bytes:
    _, at, size = struct.unpack_from("<QQI", body)
    return client.read(node, at, size)


def _write(client: Client, node: int, body: bytes) -> bytes:
    _, at, size = struct.unpack_from("<QQI", body)
    client.write(node, at, body[40 : 40 + size])
    return struct.pack("<II", size, 0)


def _flush(client: Client, node: int, body: bytes) -> bytes:
    client.flush(node)
    return b""


def _release(client: Client, node: int, body: bytes) -> bytes:
    _, _, flags, owner = struct.unpack_from("<QIIQ", body)
    if flags & _FLOCK_UNLOCK:
        client.lock(node, owner, 2)
    return b""


def _sync(client: Client, node: int, body: bytes) -> bytes:
    client.sync(node)
    return b""


def _setlk(client: Client, node: int, body: bytes) -> bytes:
    _, owner, _, _, kind = struct.unpack_from("<QQQQI", body)
    if not client.lock(node, owner, kind):
        raise OSError(errno.EAGAIN, "locked")
    return b""


def _statfs(client: Client, node: int, body: bytes) -> bytes:
    return struct.pack("<5Q4I6I", *[2**26] * 5, 4096, 255, 4096, 0, *[0] * 6)


def _nothing(client: Client, node: int, body: bytes) -> bytes:
    return b""


_NAMES: dict[int, Callable[[Client, int, bytes], bytes]] = {
    INIT: _init,
    LOOKUP: lambda client, node, body: _entry(client.lookup(node, _text(body))),
    GETATTR: lambda client, node, _: _looked(client.look(node)),
    SETATTR: _setattr,
    MKNOD: _make(16, 0),
    MKDIR: _mkdir,
    CREATE: _create,
    LINK: _link,
    UNLINK: _unlink,
    RMDIR: _unlink,
    RENAME: _rename(8),
    RENAME2: _rename(16),
    ACCESS: _nothing,
    DESTROY: _nothing,
}
_BYTES: dict[int, Callable[[Client, int, bytes], bytes]] = {
    OPEN: _open,
    OPENDIR: lambda client, node, _: struct.pack("<QIi", node, 0, 0),
    READDIR: _readdir,
    READ: _read,
    WRITE: _write,
    STATFS: _statfs,
    FLUSH: _flush,
    RELEASE: _release,
    RELEASEDIR: _nothing,
    FSYNC: _sync,
    FSYNCDIR: _sync,
    SETLK: _setlk,
    # Who waits would be kept waiting by one thread that serves all: it is refused, and asks again.
    SETLKW: _setlk,
}
