"""Conversations in a store, for the tests: who talks, what is said, where it lies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.support.dying import victims

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
