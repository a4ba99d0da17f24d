"""Ended sessions: their names, what they keep, and how they are found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.store.store import Exchange, Session, Store
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line

ADA = SessionKey("telegram:1")
NOW = datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
AT = "2026-03-01T11:00:00.000000+00:00"
OLD = "2026-02-01T11:00:00.000000+00:00"
Make = Callable[[], Store]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Store] = []

    def open_store() -> Store:
        made.append(Store(tmp_path, zone=UTC, clock=lambda: NOW))
        return made[-1]

    yield open_store
    for store in made:
        await store.aclose()


async def answer(session: Session, id_: str, at: str = AT) -> None:
    await session.append(
        [
            make_line("user", "q", at, message_id=id_),
            make_line("assistant", f"answer {id_}", at, message_id=id_, final=True),
        ]
    )


async def test_ended_session_is_archived_whole(make: Make, tmp_path: Path) -> None:
    """The archive holds every byte of the messages and when it ended; the fresh session names it."""
    async with make().open(ADA) as session:
        await answer(session, "a")
        await session.checkpoint(metadata={"name": "n", "model": "m"}, last_consolidated=1)
        old_id = session.session_id
        messages = [session.raw(at) for at in range(len(session))]

        path = await session.end(metadata={"summary": "s"})

        assert path == tmp_path / "sessions/archive/telegram_1" / f"20260301T120001Z-{old_id}.jsonl"
        assert session.session_id != old_id
        assert len(session) == 0
        assert session.last_consolidated == 0
        assert dict(session.metadata) == {
            "model": "m",
            "session_id": session.session_id,
            "previous_session": old_id,
        }
    head, *lines = path.read_bytes().split(b"\n")[:-1]
    line = json.loads(head)
    assert lines == messages
    assert line["last_consolidated"] == 1
    assert line["metadata"]["summary"] == "s"
    assert line["metadata"]["session_id"] == old_id
    assert datetime.fromisoformat(line["metadata"]["ended_at"]) == NOW
    [head] = (tmp_path / "sessions/telegram_1.jsonl").read_bytes().split(b"\n")[:-1]
    assert json.loads(head)["metadata"]["previous_session"] == old_id


async def test_session_without_messages_is_not_archived(make: Make, tmp_path: Path) -> None:
    """Ending what holds nothing does nothing."""
    async with make().open(ADA) as session:
        assert await session.end() is None
        await answer(session, "a")
        await session.end()
        assert await session.end() is None

    assert len(list(tmp_path.glob("sessions/archive/*/*"))) == 1


async def test_recent_ids_stay_known(make: Make) -> None:
    """A redelivered id of an ended session finds its stored reply for 48 h; older ones are forgotten."""
    async with make().open(ADA) as session:
        await answer(session, "old", OLD)
        await session.append([make_line("user", "q", AT, message_id="half")])
        await answer(session, "a")
        path = await session.end()
        assert path is not None

    async with make().open(ADA) as session:
        assert (known := session.journal.known("a")) is not None
        assert (known.kind, known.text) == ("archived", "answer a")
        assert known.extra["archive"] == path.name
        assert known.extra["final"] is True
        assert (half := session.journal.known("half")) is not None
        assert (half.text, half.extra["final"]) == ("", False)
        assert session.journal.known("old") is None
        assert session.find("a") is None


async def test_a_turn_that_runs_goes_over_into_the_fresh_session(make: Make) -> None:
    """Its lines are in the fresh session alone, so that it goes on there; without others nothing ends."""
    running = [
        make_line("user", "q", AT, message_id="half"),
        make_line("assistant", None, AT, message_id="half", tool_calls=[{"id": "c1"}]),
    ]
    async with make().open(ADA) as session:
        await session.append(running)
        assert await session.end() is None
        await session.append([make_line("assistant", "done", AT, message_id="half", final=True)])
        await session.append([line | {"message_id": "next"} for line in running])
        path = await session.end()

        assert path is not None
        assert [line["message_id"] for line in session.lines()] == ["next", "next"]
        assert session.journal.known("next") is None
        await session.append([make_line("assistant", "too", AT, message_id="next", final=True)])

    async with make().open(ADA) as session:
        assert session.find("next") == Exchange(start=0, stop=3, final=2, tail=True)
    archived = [json.loads(raw) for raw in path.read_bytes().split(b"\n")[1:-1]]
    assert [line["message_id"] for line in archived] == ["half"] * 3


async def test_a_turn_that_others_entered_goes_over_whole(make: Make) -> None:
    """Its newest line may be that of another message: the turn begins with its own."""
    async with make().open(ADA) as session:
        await answer(session, "a")
        await session.append([make_line("user", "q", AT, message_id="b")])
        await session.append([make_line("user", "r", AT, message_id="c", part_of="b")])
        assert session.find("b") == Exchange(start=2, stop=4, final=None, tail=True)
        assert session.find("c") == Exchange(start=3, stop=4, final=None, tail=False)

        await session.end()

        assert [line["message_id"] for line in session.lines()] == ["b", "c"]
        done = make_line("assistant", "s", AT, message_id="b", final=True, answers=["b", "c"])
        await session.append([done])
        await session.end()

    async with make().open(ADA) as session:
        known = [session.journal.known(id_) for id_ in ("b", "c")]
        assert [one and one.extra.get("by") for one in known] == [None, "b"]


async def test_a_parked_letters_lines_end_with_their_session(make: Make) -> None:
    async with make().open(ADA) as session:
        await session.append([make_line("user", "q", AT, message_id="parked")])
        await session.journal.conclude("parked", "parked", reason="refused")

        assert await session.end() is not None
        assert len(session) == 0


async def test_interrupted_ending_is_replaced(make: Make, tmp_path: Path) -> None:
    """An archive left by an ending that was cut short is replaced, and listed once at most."""
    store = make()
    async with store.open(ADA) as session:
        await answer(session, "a")
        session_id = session.session_id
        data = session.path.read_bytes()
    folder = tmp_path / "sessions/archive/telegram_1"
    folder.mkdir(parents=True)
    (folder / archive.name_of(NOW - timedelta(days=1), session_id)).write_bytes(data)

    assert [(row.id, row.active) for row in await store.rows()] == [(session_id, True)]
    async with store.open(ADA) as session:
        await answer(session, "b")
        path = await session.end()

    assert list(folder.iterdir()) == [path]
    assert {row.id: row.active for row in await store.rows()}[session_id] is False


async def test_ended_session_is_found_by_its_ulid(make: Make, tmp_path: Path) -> None:
    """An ended session is read by its ULID, and files of other names are no archives."""
    async with make().open(ADA) as session:
        await answer(session, "a")
        session_id = session.session_id
        path = await session.end()
    for name in (
        "notes.txt",
        ".x.tmp",
        "20260301T120001Z-short.jsonl",
        f"20269901T120001Z-{session_id}.jsonl",
    ):
        (tmp_path / "sessions/archive/telegram_1" / name).write_text("x")
    (tmp_path / "sessions/archive/file").write_text("x")

    view = await make().look_up(session_id)

    assert view is not None
    assert (view.key, view.path, len(view)) == (ADA, path, 2)
    assert await make().look_up("01KJMMA2G01YBHZZBBY3RWPAPM") is None
    assert await make().look_up("../x") is None
    [found] = archive.of_stem(Layout(tmp_path), "telegram_1")
    assert (found.session_id, found.ended_at, found.stem) == (session_id, NOW, "telegram_1")
    assert list(archive.everywhere(Layout(tmp_path))) == [found]
    assert list(archive.everywhere(Layout(tmp_path / "nowhere"))) == []
