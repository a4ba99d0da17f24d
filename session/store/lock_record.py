"""A lock file: where it lies, whose conversation it says it is, who wrote last, how often it moved on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import durable
from durable import check_version
from session.errors import NewerFormat, StoreError

VERSION = 1


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What a lock file says; ``renew``: epochs of overtaken writers whose files must be renewed yet."""

    key: str | None = None
    owner: str = ""
    epoch: int = 0
    renew: tuple[int, ...] = ()


class LockPlace:
    """Where the lock of a stem lies, and how the temporary files of its writers are named."""

    __slots__ = ("name", "stem")

    def __init__(self, path: Path, stem: str) -> None:
        self.name, self.stem = str(path), stem

    @property
    def path(self) -> Path:
        """The lock file; made when asked for: it takes three times the memory of its name."""
        return Path(self.name)

    @property
    def mark(self) -> str:
        """What the temporary files of the stem's writers are named by."""
        return temp_mark(self.stem)

    def temp(self, folder: Path, epoch: int) -> Path:
        """Name the temporary file that only a writer with this epoch uses."""
        return folder / f".{self.mark}.{epoch}.tmp"


def read_record(raw: bytes, name: str) -> LockRecord:
    """Read what a lock file says; an unreadable one has an epoch above every one that was ever counted.

    Raises:
        NewerFormat: a newer version wrote it.
    """
    raw = raw.strip(b"\0 \n")
    if not raw:
        return LockRecord()
    try:
        body: dict[str, Any] = json.loads(raw)
        version, epoch = body["v"], body["epoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        # A power cut may tear it: the seconds are above any epoch that was counted up from one.
        return LockRecord(epoch=int(durable.wall_s()))
    check_version(version, VERSION, name, error=NewerFormat)
    key, owner, renew = body.get("key"), body.get("owner"), body.get("renew", [])
    return LockRecord(
        key if isinstance(key, str) else None,
        # One process owns nearly all locks that it reads.
        sys.intern(owner) if isinstance(owner, str) else "",
        epoch if type(epoch) is int else int(durable.wall_s()),
        tuple(item for item in renew if type(item) is int) if isinstance(renew, list) else (),
    )


def write_record(fd: int, record: LockRecord) -> None:
    """Write in place, in one call, padded over what stood there.

    Raises:
        StoreError: the disk refused.
    """
    body: dict[str, Any] = {"v": VERSION, "key": record.key, "owner": record.owner, "epoch": record.epoch}
    if record.renew:
        body["renew"] = list(record.renew)
    raw = json.dumps(body).encode()
    old = os.fstat(fd).st_size
    try:
        if os.pwrite(fd, raw.ljust(old - 1) + b"\n", 0) < len(raw):
            raise StoreError("the lock could not be written")
    except OSError as error:
        raise StoreError(f"the lock could not be written: {error.strerror}") from error


def temp_mark(stem: str) -> str:
    """Return what the temporary files of a stem's writers are named by."""
    return hashlib.sha256(stem.encode("utf-8", "surrogatepass")).hexdigest()[:16]
