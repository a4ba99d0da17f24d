"""The promises of ``durable``, each a generator as ``promises`` has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import durable

Holds = Callable[[Path], bool]
Promise = Callable[[Path], Iterator[Holds | None]]


def is_(name: str, data: bytes) -> Holds:
    return lambda folder: (folder / name).exists() and (folder / name).read_bytes() == data


def is_gone(name: str) -> Holds:
    return lambda folder: not (folder / name).exists()


def replaced(folder: Path) -> Iterator[Holds | None]:
    (folder / "a").write_bytes(b"old")
    yield None
    durable.replace(folder / "a", b"new")
    yield is_("a", b"new")


def replaced_piece_by_piece(folder: Path) -> Iterator[Holds | None]:
    yield None
    with durable.replacing(folder / "a", temp=folder / ".t", new=True) as fd:
        os.write(fd, b"new")
    yield is_("a", b"new")


def replaced_in_an_open_folder(folder: Path) -> Iterator[Holds | None]:
    yield None
    fd = os.open(folder, os.O_RDONLY)
    durable.make_below(fd, "f")
    durable.replace_below(fd, "a", b"new", temp=".t")
    os.close(fd)
    yield is_("a", b"new")


def a_folder_below(folder: Path) -> Iterator[Holds | None]:
    yield None
    fd = os.open(folder, os.O_RDONLY)
    durable.make_below(fd, "f")
    os.close(fd)
    yield lambda after: (after / "f").is_dir()


def settled(folder: Path) -> Iterator[Holds | None]:
    yield None
    (folder / ".t").write_bytes(b"new")
    durable.settle(folder / ".t", folder / "a")
    yield is_("a", b"new")


def folders_of_others(folder: Path) -> Iterator[Holds | None]:
    yield None
    # Whoever made it was killed before the sync.
    (folder / "f").mkdir()
    durable.make_folder(folder / "f")
    durable.make_folder(folder / "g" / "h")
    yield lambda after: (after / "f").is_dir() and (after / "g" / "h").is_dir()


def committed(folder: Path) -> Iterator[Holds | None]:
    yield None
    schema = durable.Schema(["CREATE TABLE numbers (n INTEGER UNIQUE)"], 1, 2**20)

    def opened(where: Path) -> durable.Database:
        database = durable.Database(where / "n.db", schema, down=lambda error: error, alone=True)
        database.open()
        return database

    database = opened(folder)
    database.commit([durable.Job(lambda: database.file.execute("INSERT INTO numbers VALUES (7)"))])

    def holds(after: Path) -> bool:
        again = opened(after)
        rows = again.file.execute("SELECT n FROM numbers").fetchall()
        again.close()
        database.close()
        return rows == [(7,)]

    yield holds
