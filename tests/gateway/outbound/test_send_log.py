"""What was sent is remembered over restarts, kills and full disks, and not for ever."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import NewerState, SendLogDown
from gateway.outbound.send_log import Progress, SendLog, SentChunk, SentMessage, forget, sent_for
from tests.gateway.embedded_place import files_at_most
from tests.support.clock import Clock
from tests.support.until import until

KEY, OUT = "fake:ada", "fake:1#reply"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_marks_survive_a_restart(state: Path) -> None:
    """What was begun, sent and taken back is known to the next process."""
    async with SendLog(state, "fake") as send_log:
        assert await send_log.progress(KEY, OUT) == Progress()
        await send_log.trying(KEY, OUT, 0)
        await send_log.sent(KEY, OUT, 0, platform_id="m1")
        await send_log.trying(KEY, OUT, 1)
        await send_log.trying(KEY, OUT, 1)
        await send_log.trying(KEY, OUT, 2)
        await send_log.not_sent(KEY, OUT, 2)
        await send_log.trying(KEY, OUT, 3)
        await send_log.trying(KEY, OUT, 3)
        await send_log.not_sent(KEY, OUT, 3)

    async with SendLog(state, "fake") as send_log:
        assert await send_log.progress(KEY, OUT) == Progress(sent={0: "m1"}, unknown={1: 2, 3: 1})
        assert await send_log.progress("fake:bob", OUT) == Progress()


async def test_a_letter_set_aside_may_be_sent_again(state: Path) -> None:
    """Unknown outcomes are forgotten, accepted chunks are not."""
    async with SendLog(state, "fake") as send_log:
        await send_log.sent(KEY, OUT, 0, platform_id="m1")
        await send_log.trying(KEY, OUT, 1)
        await send_log.set_aside(KEY, OUT)
        assert await send_log.progress(KEY, OUT) == Progress(sent={0: "m1"})


async def test_one_preview_of_a_reply_at_most(state: Path) -> None:
    """A preview is begun once; while its outcome is unknown, or when the reply is on its way, no other is."""
    async with SendLog(state, "fake") as send_log:
        assert await send_log.begin_preview(KEY, OUT) == ""
        assert await send_log.begin_preview(KEY, OUT) is None
        await send_log.preview_sent(KEY, OUT, "m1")
    async with SendLog(state, "fake") as send_log:
        assert await send_log.begin_preview(KEY, OUT) == "m1"
        assert (await send_log.progress(KEY, OUT)).preview == "m1"
        await send_log.drop_preview(KEY, OUT)
        assert await send_log.begin_preview(KEY, OUT) == ""
        await send_log.done(KEY, OUT)
        assert await send_log.begin_preview(KEY, OUT) is None
        await send_log.trying(KEY, "other#reply", 0)
        assert await send_log.begin_preview(KEY, "other#reply") is None
        # One that became the answer takes no other text.
        await send_log.begin_preview(KEY, "last#reply")
        await send_log.preview_sent(KEY, "last#reply", "m2")
        await send_log.done(KEY, "last#reply")
        assert await send_log.begin_preview(KEY, "last#reply") is None


async def test_a_chat_that_moved_twice_is_found(state: Path) -> None:
    """Moves are followed to their end, over restarts; a chat that moved back is where it is."""
    async with SendLog(state, "fake") as send_log:
        await send_log.moved("a", "b")
        await send_log.moved("b", "c")
    async with SendLog(state, "fake") as send_log:
        assert [send_log.address(chat) for chat in ("a", "b", "c", "d")] == ["c", "c", "c", "d"]
        await send_log.moved("c", "a")
        assert [send_log.address(chat) for chat in ("a", "b", "c")] == ["a", "a", "a"]


async def test_a_newer_file_is_left_alone(state: Path) -> None:
    """A version that is not known is refused, and not touched."""
    state.mkdir()
    path = state / "channels.db"
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    before = path.read_bytes()

    with pytest.raises(NewerState, match="version 2"):
        async with SendLog(state, "fake"):
            pass

    with pytest.raises(NewerState, match="version 2"):
        sent_for(state, "fake:1")
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_one_clear_error(state: Path) -> None:
    """The error names the file and a cure."""
    state.mkdir()
    (state / "channels.db").write_bytes(b"not a database at all" * 1_000)

    with pytest.raises(SendLogDown, match=r"channels\.db") as caught:
        async with SendLog(state, "fake"):
            pass
    assert "moved away" in caught.value.hint
    with pytest.raises(SendLogDown, match=r"channels\.db"):
        sent_for(state, "fake:1")
    with pytest.raises(SendLogDown, match=r"channels\.db"):
        forget(state, [KEY], before=None)


async def test_a_full_disk_stores_nothing_and_says_so(state: Path) -> None:
    """A refused mark is not there; when there is room again the next one is taken."""
    async with SendLog(state, "fake") as send_log:
        await send_log.sent(KEY, OUT, 0, platform_id="m1")
        with files_at_most(1), pytest.raises(SendLogDown):
            await send_log.trying(KEY, OUT, 1)
        assert await send_log.progress(KEY, OUT) == Progress(sent={0: "m1"})
        await send_log.trying(KEY, OUT, 1)
        assert await send_log.progress(KEY, OUT) == Progress(sent={0: "m1"}, unknown={1: 1})


async def test_a_cancelled_caller_has_its_mark_made(state: Path) -> None:
    """Once asked for, a mark is written, whoever still waits."""
    async with SendLog(state, "fake") as send_log:
        asking = asyncio.create_task(send_log.sent(KEY, OUT, 0, platform_id="m1"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await send_log.progress(KEY, OUT)).sent == {0: "m1"}


async def test_its_files_are_private(state: Path) -> None:
    """Nobody else may read whom we write to."""
    async with SendLog(state, "fake") as send_log:
        await send_log.done(KEY, OUT)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in state.iterdir()}
    assert set(modes.values()) == {0o600}, modes


async def test_a_closed_send_log_says_so(state: Path) -> None:
    """What is asked after the end is refused and never waits for ever."""
    send_log = SendLog(state, "fake")
    for _ in range(2):
        with pytest.raises(SendLogDown, match="is not open"):
            await send_log.done(KEY, OUT)
        async with send_log:
            await send_log.done(KEY, "before")


def has_thread() -> bool:
    return any(each.name.startswith("send log fake") for each in threading.enumerate())


async def test_no_thread_outlives_a_send_log(state: Path) -> None:
    """Neither one that was closed nor one that could not be opened."""
    async with SendLog(state, "fake"):
        assert has_thread()
    await until(lambda: not has_thread())

    (state / "channels.db").write_bytes(b"not a database at all" * 1_000)
    with pytest.raises(SendLogDown):
        async with SendLog(state, "fake"):
            pass
    await until(lambda: not has_thread())


async def test_the_chunks_of_a_message_that_is_done_are_known_as_long_as_it_is(state: Path) -> None:
    """Whoever traces a message sees what the platform took, as what and when; forgotten with the message."""
    clock = Clock()
    queued_at = clock.now - timedelta(seconds=2)
    async with SendLog(state, "fake", clock=clock) as send_log:
        await send_log.trying(KEY, OUT, 0)
        await send_log.sent(KEY, OUT, 0, platform_id="m1")
        await send_log.trying(KEY, OUT, 1)
        await send_log.sent(KEY, OUT, 1, platform_id="m2", last=True, queued_at=queued_at)
        for _ in range(2):
            await send_log.trying(KEY, "fake:2#reply", 0)
        await send_log.done(KEY, "fake:12")
        await send_log.begin_preview(KEY, "fake:3#reply")

    chunks = [SentChunk(0, clock.now, "m1", 1), SentChunk(1, clock.now, "m2", 1)]
    assert sent_for(state, "fake:1") == [SentMessage(KEY, OUT, queued_at, clock.now, chunks)]
    unfinished = SentMessage(KEY, "fake:2#reply", chunks=[SentChunk(0, clock.now, "", 2)])
    assert sent_for(state, "fake:2") == [unfinished]
    assert sent_for(state, "fake:12") == [SentMessage(KEY, "fake:12", None, clock.now)]
    assert sent_for(state, "fake:3") == []

    clock.now += timedelta(days=8)
    async with SendLog(state, "fake", clock=clock):
        pass
    assert sent_for(state, "fake:1") == []
    assert sent_for(state, "fake:2") == [unfinished]
    assert forget(state, [KEY], before=None) == 2
    assert sent_for(state, "fake:2") == []


OTHER = "fake:bob"
TICK = timedelta(milliseconds=1)


@pytest.mark.parametrize("late", [timedelta(0), TICK])
async def test_a_week_for_what_is_done_and_thirty_days_for_what_is_not(state: Path, late: timedelta) -> None:
    clock = Clock()
    async with SendLog(state, "fake", clock=clock) as send_log:
        await send_log.sent(KEY, "done", 0, platform_id="m1", last=True)
    clock.now += timedelta(days=7) + late
    async with SendLog(state, "fake", clock=clock) as send_log:
        assert await send_log.progress(KEY, "done") == Progress(done=not late)
        await send_log.sent(KEY, "unfinished", 0, platform_id="m1")
        await send_log.begin_preview(KEY, "shown")
        await send_log.preview_sent(KEY, "shown", "m2")
    assert len(sent_for(state, "done")) == (0 if late else 1)

    clock.now += timedelta(days=30) + late
    async with SendLog(state, "fake", clock=clock) as send_log:
        assert await send_log.progress(KEY, "unfinished") == Progress(sent={} if late else {0: "m1"})
        assert await send_log.progress(KEY, "shown") == Progress(preview="" if late else "m2")


async def test_what_is_old_is_forgotten_every_5000_changes(state: Path) -> None:
    """A daemon that is not started anew for months forgets, too; previews and chunks count as messages do."""
    clock = Clock()
    async with SendLog(state, "fake", clock=clock) as send_log:
        await send_log.done(KEY, "old")
        clock.now += timedelta(days=8)
        assert await send_log.begin_preview(KEY, "draft") == ""
        await send_log.sent(KEY, "sent", 0, platform_id="m1")
        await asyncio.gather(*(send_log.trying(KEY, "many", 0) for _ in range(4_996)))
        assert (await send_log.progress(KEY, "old")).done

        await send_log.trying(KEY, "many", 0)

        assert not (await send_log.progress(KEY, "old")).done
        assert (await send_log.progress(KEY, "many")).unknown == {0: 4_997}


async def test_of_ten_thousand_moves_the_oldest_is_forgotten(state: Path) -> None:
    clock = Clock()
    async with SendLog(state, "fake", clock=clock):
        pass
    with sqlite3.connect(state / "channels.db") as file:
        rows = [("fake", f"old{number}", f"new{number}", number) for number in range(9_999)]
        rows.append(("other", "old0", "elsewhere", 0))
        file.executemany("INSERT INTO moved_chats VALUES (?, ?, ?, ?)", rows)
    file.close()

    async with SendLog(state, "fake", clock=clock) as send_log:
        await send_log.moved("a", "b")
        assert send_log.address("old0") == "new0"
        clock.now += TICK
        await send_log.moved("c", "d")
        assert [send_log.address(each) for each in ("old0", "old1", "a", "c")] == ["old0", "new1", "b", "d"]


async def test_letters_done_before_a_time_are_forgotten_with_their_chunks(state: Path) -> None:
    """Those of the keys that are named alone; what is under way stays."""
    clock = Clock()
    async with SendLog(state, "fake", clock=clock) as send_log:
        for key, out_id in ((KEY, OUT), (OTHER, "fake:2#reply")):
            await send_log.sent(key, out_id, 0, platform_id="m1")
            await send_log.sent(key, out_id, 1, platform_id="m2", last=True)
        await send_log.sent(KEY, "fake:3#reply", 0, platform_id="m3")
        await send_log.begin_preview(KEY, "fake:4#reply")

    assert forget(state, [KEY, "fake:none"], before=clock.now) == 0
    assert [len(each.chunks) for each in sent_for(state, "fake:1")] == [2]
    assert forget(state, [KEY, "fake:none"], before=clock.now + TICK) == 1
    assert [len(sent_for(state, f"fake:{number}")) for number in (1, 2, 3)] == [0, 1, 1]

    # For ever: whatever is under way, too.
    assert forget(state, [KEY], before=None) == 2
    assert forget(state, [OTHER], before=None) == 1
    assert sent_for(state, "fake:2") == sent_for(state, "fake:3") == []


async def test_no_byte_of_what_is_forgotten_stays(state: Path) -> None:
    async with SendLog(state, "fake") as send_log:
        for number in range(500):
            await send_log.done("fake:secretive", f"{number}#reply")
        await send_log.done(KEY, OUT)
    path = state / "channels.db"
    before = path.stat().st_size

    assert forget(state, ["fake:secretive"], before=None) == 500

    assert path.stat().st_size < before
    assert not any(b"secretive" in each.read_bytes() for each in state.iterdir())
    assert len(sent_for(state, "fake:1")) == 1


async def test_a_change_that_cannot_be_stored_costs_no_other_of_its_batch(state: Path) -> None:
    async with SendLog(state, "fake") as send_log:
        outcomes = await asyncio.gather(
            send_log.trying(KEY, "x0", 0),
            send_log.trying(KEY, "\ud800", 0),
            send_log.sent(KEY, "odd", 2**70, platform_id="m"),
            send_log.trying(KEY, "x1", 0),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes] == [type(None), SendLogDown, SendLogDown, type(None)]
        assert (await send_log.progress(KEY, "x0")).unknown == {0: 1}


async def test_of_a_batch_that_does_not_fit_what_fits_is_stored(state: Path) -> None:
    async with SendLog(state, "fake") as send_log:
        await send_log.done(KEY, "before")
        with files_at_most(2**19):
            large, small = await asyncio.gather(
                send_log.done(KEY, "x" * 2**20), send_log.trying(KEY, OUT, 0), return_exceptions=True
            )
        assert isinstance(large, SendLogDown)
        assert small is None
        assert await send_log.progress(KEY, OUT) == Progress(unknown={0: 1})


async def test_a_file_without_its_tables_is_an_error_with_a_cure(state: Path) -> None:
    """Whoever forgets is not told that it is done."""
    async with SendLog(state, "fake") as send_log:
        await send_log.done(KEY, OUT)
    with closing(sqlite3.connect(state / "channels.db")) as file:
        file.execute("DROP TABLE chunks")

    with pytest.raises(SendLogDown, match="chunks") as caught:
        forget(state, [KEY], before=None)
    assert "moved away" in caught.value.hint


async def test_without_a_database_nothing_was_sent_and_none_is_made(state: Path) -> None:
    assert sent_for(state, "fake:1") == []
    assert forget(state, [KEY], before=None) == 0
    assert not state.exists()


async def test_two_channels_share_the_file_and_no_moved_chat(state: Path) -> None:
    async with SendLog(state, "fake") as one, SendLog(state, "other") as other:
        await asyncio.gather(
            *(log.trying(KEY, f"{number}", 0) for number in range(50) for log in (one, other))
        )
        await one.moved("a", "b")
        assert (await other.progress(KEY, "1")).unknown == {0: 2}
    async with SendLog(state, "other") as other:
        assert other.address("a") == "a"


async def test_the_pace_of_a_platform_is_known_after_a_restart(state: Path) -> None:
    """What it accepted within a time, and for how long it wants nothing more; of this channel alone."""
    clock = Clock()
    async with SendLog(state, "fake", clock=clock) as send_log, SendLog(state, "other", clock=clock) as other:
        await send_log.sent("fake:old", OUT, 0, platform_id="m1")
        clock.now += timedelta(seconds=50)
        await send_log.sent("fake:a:topic:1", OUT, 0, platform_id="m2")
        await send_log.trying("fake:b", OUT, 0)
        await send_log.sent("other:c", OUT, 0, platform_id="m3")
        await send_log.pause("a", 30.0)
        await send_log.pause("b", 5.0)
        await other.pause("", 60.0)
    clock.now += timedelta(seconds=20)
    async with SendLog(state, "fake", clock=clock) as send_log:
        assert await send_log.recent(60.0) == ([("a:topic:1", 20.0)], [("a", 10.0)])
        clock.now -= timedelta(days=1)
        # A clock that was set back makes no pause longer than it was.
        assert (await send_log.recent(60.0))[1] == [("a", 30.0)]
