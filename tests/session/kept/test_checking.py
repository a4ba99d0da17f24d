"""What can be damaged in a workspace is found, mended where it can be, and the original kept beside it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.kept.checking import verify
from session.store.store import Store
from session.transcript.key import SessionKey
from tests.session.store_place import talk

KEY = SessionKey("web:a")


async def talked(workspace: Path) -> None:
    """Have one ended session and an active one."""
    store = Store(workspace, zone=UTC)
    async with store.open(KEY) as session:
        await talk(session, "hello")
        await session.end()
        await talk(session, "again")
    await store.aclose()


async def verified(workspace: Path, *, repair: bool = False) -> list[dict[str, Any]]:
    store = Store(workspace, zone=UTC)
    try:
        return await verify(store, repair=repair)
    finally:
        await store.aclose()


def journal(workspace: Path) -> Path:
    path = workspace / "state" / "keys" / "web_a.log"
    path.write_bytes(b'{"v":1,"key":"web:a"}\n{"done":"x"\n{"m":1}\n{"torn')
    return path


def notes(workspace: Path) -> Path:
    path = workspace / "memory" / "chats" / "web_a" / "MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"likes \xff tea\0\n")
    return path


def facts(workspace: Path) -> Path:
    path = workspace / "memory" / "people" / "ada" / "facts.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"id": "1", "mine": true}\nnot json\n{"id": "2"')
    return path


def archive(workspace: Path) -> Path:
    (path,) = (workspace / "sessions" / "archive" / "web_a").glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"role": "us\n')
    return path


def transcript(workspace: Path) -> Path:
    path = workspace / "sessions" / "web_a.jsonl"
    with path.open("ab") as file:
        file.write(b'{"role": "us\n')
    return path


Spoil = Callable[[Path], Path]
KINDS: list[tuple[Spoil, list[bytes], bytes]] = [
    (journal, [b'"web:a"', b'{"m":1}'], b"torn"),
    (notes, ["likes \ufffd tea\n".encode()], b"\0"),
    (facts, [b'{"id": "1", "mine": true}'], b"not json"),
    (archive, [b"hello"], b'"us\n'),
    (transcript, [b"again"], b'"us\n'),
]


@pytest.mark.parametrize(("spoil", "stays", "goes"), KINDS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_damaged_file_is_told_then_repaired(
    tmp_path: Path, spoil: Spoil, stays: list[bytes], goes: bytes
) -> None:
    """It is only read without ``repair``; repaired it is sound, with the original beside it."""
    await talked(tmp_path)
    assert await verified(tmp_path) == []
    path = spoil(tmp_path)
    was = path.read_bytes()

    told = await verified(tmp_path)
    untouched = path.read_bytes()
    repaired = await verified(tmp_path, repair=True)

    assert [(row["file"], row["repaired"]) for row in told] == [(str(path.relative_to(tmp_path)), False)]
    assert untouched == was
    assert [(row["file"], row["repaired"]) for row in repaired] == [(str(path.relative_to(tmp_path)), True)]
    assert all(part in path.read_bytes() for part in stays)
    assert goes not in path.read_bytes()
    (copy,) = path.parent.glob(f"{path.name}.corrupt-*")
    assert copy.read_bytes() == was
    assert await verified(tmp_path) == []


@pytest.mark.parametrize("name", ["index/web_a.idx", "vectors.db", "recall/chats/" + "a" * 32 + ".db"])
async def test_a_damaged_index_is_removed(tmp_path: Path, name: str) -> None:
    """It is derived: nothing of it is kept."""
    path = tmp_path / "state" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no index " * 1000)

    assert [row["repaired"] for row in await verified(tmp_path)] == [False]
    assert [row["repaired"] for row in await verified(tmp_path, repair=True)] == [True]
    assert not path.exists()
    assert await verified(tmp_path, repair=True) == []


@pytest.mark.parametrize("name", ["pairing.json", "queue.db", "delivery-telegram.db"])
async def test_what_a_person_has_to_decide_is_told_and_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"neither JSON nor a database " * 100)

    (row,) = await verified(tmp_path, repair=True)

    assert (row["file"], row["repaired"]) == (f"state/{name}", False)
    assert path.read_bytes().startswith(b"neither")
