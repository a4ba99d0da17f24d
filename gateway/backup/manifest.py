"""The first file of a backup: what is in it, with the digest of each, and what is not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

import durable
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


def row_bytes(path: str) -> int:
    """Return how long the row of a file becomes at most."""
    return len(orjson.dumps(text_of(path))) + 96


def decode(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        NoBackup: it is damaged.
        NewerState: a newer version wrote it.
    """
    try:
        content: dict[str, Any] = orjson.loads(data)
        durable.check_version(content["v"], VERSION, "the backup", error=NewerState)
        entries = [Entry(_path(path), int(size), str(digest)) for path, size, digest in content["files"]]
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


def _path(path: object) -> str:
    if not isinstance(path, str):
        raise TypeError
    return path
