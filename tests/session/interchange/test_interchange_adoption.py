"""A conversation from elsewhere takes the place of an active session: whole, fenced, told to nobody."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ulid import ULID

from session.background.adoption import adopt, check, is_busy, of_view
from session.errors import Fenced, LineTooLong, StoreError
from session.interchange.conversation import Conversation, Line
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import MAX_LINE_BYTES, make_line
from tests.session.store_place import worker_of
from tests.support.guarantee import guarantee

pytestmark = guarantee("storage", "An import is complete or absent, and overwrites nothing.")

ADA = SessionKey("telegram:1")
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
NEW = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"


def exchange(id_: str) -> list[Line]:
    at = AT.isoformat()
    return [
        make_line("user", f"question {id_}", at, message_id=id_),
        make_line("assistant", f"answer {id_}", at, message_id=id_, final=True),
    ]


def foreign(*ids: str) -> Conversation:
    lines = tuple(line for id_ in ids for line in exchange(id_))
    return Conversation(lines, created_at=AT, inner={"name": "cat", "ended_at": "x"}, last_consolidated=1)


async def test_it_stands_there_as_it_came(store: Store) -> None:
    taken = await adopt(store, ADA, foreign("a", "b"), session_id=NEW)

    view = await store.look(ADA)
    found = of_view(view)
    assert taken
    assert found.lines == foreign("a", "b").lines
    assert (found.session_id, found.created_at, found.last_consolidated) == (NEW, AT, 1)
    assert found.inner == {"name": "cat"}
    assert view.path.stat().st_mode & 0o777 == 0o600


async def test_a_session_with_messages_is_never_merged_or_overwritten(store: Store) -> None:
    async with store.open(ADA) as session:
        await session.append(exchange("own"))
    before = (await store.look(ADA)).path.read_bytes()

    assert not await adopt(store, ADA, foreign("a"), session_id=NEW)

    assert (await store.look(ADA)).path.read_bytes() == before


async def test_the_archived_session_is_named_as_the_one_before(store: Store) -> None:
    async with store.open(ADA) as session:
        await session.append(exchange("own"))
        own = session.session_id
        await session.end()

    await adopt(store, ADA, foreign("a"), session_id=NEW)

    assert (await store.look(ADA)).metadata["previous_session"] == own
    ended = await store.look_up(own)
    assert ended is not None
    assert [line["message_id"] for line in ended.lines()] == ["own", "own"]


async def test_imported_answers_are_told_to_nobody(store: Store) -> None:
    """Who listens for replies hears of the next one alone, under the next number."""
    async with store.open(ADA) as session:
        await session.append(exchange("own"))
        seq = session.seq
        await session.end()

    await adopt(store, ADA, foreign("a", "b"), session_id=NEW)

    assert seq == 1
    assert (await store.look(ADA)).told(seq) == []
    async with store.open(ADA) as session:
        await session.append(exchange("next"))
    assert [(told.seq, told.id) for told in (await store.look(ADA)).told(seq)] == [(2, "next")]


@pytest.mark.parametrize("same", [True, False], ids=["of this process", "of another"])
async def test_a_turn_that_ran_meanwhile_writes_nothing_into_it(
    store: Store, tmp_path: Path, same: bool
) -> None:
    other = store if same else worker_of(store, tmp_path / "w")
    async with other.open(ADA) as turn:
        await adopt(store, ADA, foreign("a"), session_id=NEW)

        with pytest.raises(Fenced):
            await turn.append(exchange("late"))

    assert (await store.look(ADA)).lines() == list(foreign("a").lines)
    await other.aclose()


async def test_a_message_without_its_answer_keeps_a_session_busy(store: Store) -> None:
    async with store.open(ADA) as session:
        assert not is_busy(session)
        await session.append(exchange("a")[:1])
        assert is_busy(session)
        await session.append(exchange("a")[1:])
        assert not is_busy(session)


async def test_two_imports_at_once_leave_one_whole(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "w", zone=UTC)

    done = await asyncio.gather(
        *(
            adopt(each, ADA, foreign(name), session_id=str(ULID()))
            for each, name in ((store, "a"), (other, "b"))
        ),
        return_exceptions=True,
    )

    won = [name for name, result in zip("ab", done, strict=True) if result is True]
    assert len(won) == 1
    assert (await store.look(ADA)).lines() == list(foreign(*won).lines)
    await other.aclose()


async def test_a_full_disk_leaves_nothing(store: Store) -> None:
    await adopt(store, SessionKey("cli:other"), foreign("a"), session_id=str(ULID()))
    long = Conversation((make_line("user", "x" * 2**20, AT.isoformat()),))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, hard))
    try:
        with pytest.raises(StoreError, match=os.strerror(errno.EFBIG)):
            await adopt(store, ADA, long, session_id=NEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    view = await store.look(ADA)
    assert (len(view), view.path.exists()) == (0, False)
    assert [path.name for path in view.path.parent.iterdir()] == ["cli_other.jsonl"]
    assert await adopt(store, ADA, long, session_id=NEW)


async def test_a_line_that_is_too_long_is_known_before_anything_is_archived() -> None:
    with pytest.raises(LineTooLong):
        check(Conversation((make_line("user", "x" * MAX_LINE_BYTES, AT.isoformat()),)))
