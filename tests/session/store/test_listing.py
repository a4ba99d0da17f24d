"""What a listing says of a session: its messages, never the gateway's own records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from session.models.model import Usage
from session.store.listing import SessionRow, said_since
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.store_place import ADA, AT, Make, turn

KEY = SessionKey("telegram:1")
START = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS: tuple[dict[str, Any], ...] = (
    {"kind": "overlay", "first_kept": 1},
    {"kind": "note", "edits": "a"},
    {"kind": "undo", "from": 2},
)


def at(minutes: int) -> str:
    return (START + timedelta(minutes=minutes)).isoformat(timespec="microseconds")


async def listed(store: Store) -> SessionRow:
    [row] = await store.rows()
    return row


async def test_records_are_no_messages_and_their_time_is_none_of_a_message(store: Store) -> None:
    async with store.open(KEY) as session:
        await session.append([make_line("user", "hi", at(0), message_id="a")])
        await session.append([make_line("assistant", "ho", at(1), message_id="a", final=True)])
        for minute, record in enumerate(RECORDS, 2):
            await session.append([make_line("system", "", at(minute), **record)])

    row = await listed(store)
    assert (row.message_count, row.last_message_at, row.updated_at >= at(4)) == (2, at(1), True)

    async with store.open(KEY) as session:
        await session.append([make_line("user", "again", at(9), message_id="b")])
    row = await listed(store)
    assert (row.message_count, row.last_message_at) == (3, at(9))


async def test_withdrawn_and_deleted_messages_are_not_counted(store: Store) -> None:
    """What /undo took back counts no more, nor does an exchange whose question was deleted."""
    async with store.open(KEY) as session:
        for minute, name in enumerate("abc"):
            await session.append([make_line("user", "hi", at(minute), message_id=name)])
            await session.append([make_line("assistant", "ho", at(minute), message_id=name, final=True)])
        await session.append([make_line("system", "", at(5), kind="undo", **{"from": 4})])
        assert (await listed(store)).message_count == 4
        await session.append([make_line("system", "", at(6), kind="note", edits="a", deleted=True)])
        assert (await listed(store)).message_count == 2
        await session.append([make_line("system", "", at(7), kind="undo", **{"from": 0})])

    assert (await listed(store)).message_count == 0


@pytest.mark.parametrize(("fields", "count", "last"), [({}, 1, True), ({"kind": "compact"}, 0, False)])
async def test_system_messages_of_others_are_messages_and_a_summary_alone_is_none(
    store: Store, fields: dict[str, Any], count: int, last: bool
) -> None:
    async with store.open(KEY) as session:
        await session.append([make_line("system", "Be brief.", at(0), **fields)])

    row = await listed(store)
    assert (row.message_count, row.as_dict()["last_message_at"]) == (count, at(0) if last else None)


async def test_rows_tell_what_is_in_the_files(make: Make) -> None:
    """A row is true after each turn: counts, tokens, price, times."""
    store = make()
    async with store.open(SessionKey("cron:job")) as session:
        await session.append(turn("a", usage={"prompt": 10, "completion": 5, "cost_usd": 0.5}))
        await store.rows()
        await session.append(turn("b", usage={"prompt": 1, "completion": 1, "cost_usd": 0.25}))
        await session.checkpoint(metadata={"name": "n", "model": "m", "cron_job_id": "job"})

        [row] = await store.rows()

        assert row.as_dict() == {
            "id": session.session_id,
            "key": "cron:job",
            "name": "n",
            "created_at": row.created_at,
            "last_message_at": AT,
            "message_count": 4,
            "model": "m",
            "source": "cron",
            "cron_job_id": "job",
            "active": True,
            "agent": "default",
            "metrics": Usage(11, 6, 0.75).shown() | {"turns": 2},
        }
        assert (view := await store.look_up(row.id)) is not None
        assert view.key == "cron:job"


async def test_listing_times_are_in_the_zone(tmp_path: Path, make: Make) -> None:
    """Rows show their times in the configured zone."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
    store = Store(tmp_path, zone=timezone(timedelta(hours=2)))

    [row] = await store.rows()

    assert row.last_message_at == "2026-03-01T12:00:00.000001+02:00"
    await store.aclose()


async def test_what_cannot_be_looked_at_hides_no_other(tmp_path: Path, make: Make) -> None:
    """A link to itself, and a file whose folder does not say what it is."""
    opened = make()
    async with opened.open(ADA) as session:
        await session.append(turn("m-1"))
    loop = opened.layout.transcript("loop")
    loop.symlink_to(loop.name)

    assert [row.key for row in await opened.rows()] == [ADA]
    assert said_since(opened.layout, 0, 10) == [opened.layout.transcript("telegram_1")]
