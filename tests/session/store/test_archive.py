"""Ended sessions: their names, what they keep, how they are found; and that a transcript only grows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.models.model import Answer, ToolCall
from session.store.store import Exchange, Session, Store
from session.tools import Toolbox
from session.tools.files import Ls
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from session.turn.turn import Request, StopSwitch, TurnContext, TurnLimits, Turns
from tests.contracts.models import Script
from tests.session.store_place import Make

ADA = SessionKey("telegram:1")
NOW = datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
AT = "2026-03-01T11:00:00.000000+00:00"


@pytest.fixture
def make(make: Make) -> Make:
    return partial(make, clock=lambda: NOW)


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
        messages = [session.transcript.messages[at] for at in range(len(session))]

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


def test_a_session_is_named_behind_those_that_ended_before_whatever_a_wrong_clock_named() -> None:
    """One that ended under a clock a day ahead hides none of those that ended within this second."""
    now = datetime(2026, 1, 1, 9, 0, 0, 400_000, UTC)
    first, second, ahead = "01KDWX1Z00" + "B" * 16, "01KDWX1Z00" + "A" * 16, "01KDZ1R000" + "Z" * 16
    names = [archive.name_of(now, first), archive.name_of(now + timedelta(days=1), ahead)]
    others = [found for name in names if (found := archive.read_name(Path("chat") / name)) is not None]

    assert archive.name_behind(now, second, others) == archive.name_of(now + timedelta(seconds=1), second)
    assert archive.name_behind(now, second, others[1:]) == archive.name_of(now, second)


async def test_a_transcript_only_grows(tmp_path: Path) -> None:
    """Over turns with tools, edits, withdrawals, a new line 1 and a restart."""

    async def around(session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=tmp_path / "files", tools=("ls",))

    call = Answer("", tool_calls=[ToolCall("c1", "ls", '{"path": "."}')], finish="tool_calls")
    model = Script(["first", call, "third"])
    bodies: list[bytes] = []
    for opened in range(2):
        store = Store(tmp_path, zone=UTC)
        turns = Turns(
            model=model,
            toolbox=Toolbox([Ls()]),
            limits=TurnLimits(),
            zone=UTC,
            clock=store.clock,
            turn_context=around,
        )

        def note(path: Path) -> None:
            bodies.append(path.read_bytes().partition(b"\n")[2])

        async with store.open(ADA) as session:
            for number in range(3):
                request = Request(f"m{opened}{number}", ADA, f"question {number}")
                await turns.run(session, request, stop=StopSwitch())
                if session.ahead is not None:
                    await session.ahead.durable()
                note(session.path)
            await session.append([make_line("system", "", AT, kind="note", edits="m00")])
            note(session.path)
            await session.append([make_line("system", "", AT, kind="undo", **{"from": 2})])
            note(session.path)
            await session.checkpoint(metadata={"name": "a name"}, last_consolidated=2)
            note(session.path)
        await store.aclose()

    assert len(set(bodies)) == 10
    for before, after in pairwise(bodies):
        assert after.startswith(before)
