"""Conversations in a store, for the tests: who talks, what is said, where it lies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from session.models.model import Vector
from session.store import rollover
from session.store.derived import Passage, Vectors
from session.store.rollover import Swap, roll_over
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.dying import victims

ADA = SessionKey("telegram:1")
AT = "2026-03-01T10:00:00.000001+00:00"
NOW = datetime.now(UTC).isoformat(timespec="microseconds")
Make = Callable[..., Store]


def turn(id_: str, answer: str = "yes", **fields: Any) -> list[dict[str, Any]]:
    return [
        make_line("user", f"q {id_}", AT, message_id=id_),
        make_line("assistant", answer, AT, message_id=id_, final=True, **fields),
    ]


def path_of(tmp_path: Path, stem: str = "telegram_1") -> Path:
    return tmp_path / "sessions" / f"{stem}.jsonl"


async def talk(session: Session, *ids: str) -> None:
    """Have a message of each id asked and answered now."""
    for id_ in ids:
        await session.append(
            [
                make_line("user", id_, NOW, message_id=id_),
                make_line("assistant", f"re: {id_}", NOW, message_id=id_, final=True),
            ]
        )


def worker_of(gateway: Store, workspace: Path) -> Store:
    """Open the store of a worker of the same workspace, which the gateway tells what it changes."""
    worker = Store(workspace, zone=UTC)

    async def changed(key: str, cleared: bool) -> None:
        worker.forget(SessionKey(key), cleared=cleared)

    gateway.shared_with(changed)
    return worker


async def survivors(module: str, workspace: Path, *work: str) -> AsyncIterator[Store]:
    """Have some work die at each of its steps, on copies of a workspace; yield the store of each copy."""
    count = victims(module, workspace, *work)
    assert count > 10
    for number in range(1, count + 1):
        left = Store(workspace.with_name(f"{workspace.name}-{number}"), zone=UTC)
        yield left
        await left.aclose()


def archives_in(store: Store) -> list[Path]:
    """The files of all ended sessions."""
    return list(store.layout.sessions.glob("archive/*/*"))


async def two(store: Store, key: SessionKey = ADA) -> tuple[str, str]:
    """Leave an ended session with a and b, and an active one with c; return their ULIDs."""
    async with store.open(key) as session:
        await talk(session, "a", "b")
        await session.checkpoint(metadata={"name": "First"}, last_consolidated=2)
        old = session.session_id
        await session.end(metadata={"summary": "s"})
        await talk(session, "c")
        return old, session.session_id


async def reopen(store: Store, session_id: str, key: SessionKey = ADA, by: str = "") -> Swap:
    async with store.open(key) as session:
        return await session.change(lambda *writers: rollover.reopen(*writers, session_id=session_id, by=by))


def texts(session: Session) -> list[str]:
    return [line["content"] for line in session.lines()]


async def state(store: Store) -> dict[str, tuple[bool, int]]:
    rows = await store.rows()
    found = {row.id: (row.active, row.message_count) for row in rows}
    assert len(found) == len(rows)
    return found


async def part(store: Store, by: str = "late", *, due: bool = True) -> bool:
    async with store.open(ADA) as session:
        return await session.change(
            lambda *writers: rollover.split_after_idle(*writers, by=by, due=lambda _: due)
        )


async def apart(store: Store) -> tuple[str, str]:
    """Leave an ended session with a and b, and the one that began for ``late`` with that and c."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b")
        old = session.session_id
    assert await part(store)
    async with store.open(ADA) as session:
        await talk(session, "late", "c")
        return old, session.session_id


def compact(archive: str, kept: int) -> Mapping[str, Any]:
    more = {"type": "compact", "previousSession": archive}
    return make_line("system", "S", AT, kind="compact", compacted_turns=2, kept=kept or None, metadata=more)


async def roll(session: Session, first_kept: int) -> str | None:
    """Let a compaction end the session; return its ULID."""
    count = len(session)
    return await session.change(
        lambda *writers: roll_over(
            *writers, first_kept=first_kept, record=compact, still=lambda now: len(now.messages) >= count
        )
    )


def keep(vectors: Vectors, model: str, stem: str, found: Mapping[str, Vector]) -> None:
    """Keep the vectors of a conversation's texts."""
    vectors.keep(model, [Passage(stem, text) for text in found], found)
