"""Much text is taken in by a process of its own: whatever ends it, searches find everything."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from pathlib import Path

from tests.session.recall.place import ADA, place
from tests.support.bulk import MESSAGES, child_of, fill, is_gone, stopped_in_the_midst, taken_in
from tests.support.guarantee import guarantee
from tests.support.until import until


def sound(index: Path) -> bool:
    file = sqlite3.connect(index)
    try:
        # As FTS5 checks itself; an error is raised where it is not.
        file.execute("INSERT INTO texts (texts) VALUES ('integrity-check')")
        return bool(file.execute("PRAGMA integrity_check").fetchone() == ("ok",))
    finally:
        file.close()


@guarantee("storage", "A kill during indexing leaves an intact search index and no stray process.")
async def test_a_process_that_is_killed_leaves_a_sound_index_which_is_made_whole(tmp_path: Path) -> None:
    """By whoever waits for it, from where it came to."""
    fill(tmp_path, ADA)
    async with place(tmp_path) as here:
        asked = asyncio.ensure_future(here.search(ADA, "ferret of 19777", limit=1, within_s=60))
        child = await stopped_in_the_midst(os.getpid(), here.index())

        os.kill(child, signal.SIGKILL)
        found = await asked

    assert is_gone(child)
    assert (found.all, "19777" in found.hits[0].text) == (True, True)
    assert taken_in(here.index()) == MESSAGES
    assert sound(here.index())


async def test_what_ends_the_background_ends_its_process_at_once(tmp_path: Path) -> None:
    """As the daemon does when it drains; the next one goes on where it stood."""
    fill(tmp_path, ADA)
    async with place(tmp_path) as here:
        keeping = asyncio.ensure_future(here.recall.run())
        child = await stopped_in_the_midst(os.getpid(), here.index())

        keeping.cancel()
        await asyncio.wait([keeping])
        assert is_gone(child)
        assert child_of(os.getpid()) == 0
    before = taken_in(here.index())
    assert 0 < before < MESSAGES

    async with place(tmp_path) as here:
        keeping = asyncio.ensure_future(here.recall.run())
        await until(lambda: taken_in(here.index()) == MESSAGES, within_s=60)
        keeping.cancel()
        await asyncio.wait([keeping])

    assert taken_in(here.index()) == MESSAGES
    assert sound(here.index())


async def test_what_is_cleared_meanwhile_leaves_no_word(tmp_path: Path) -> None:
    """The process meets an index that was begun anew, and a file that is gone."""
    fill(tmp_path, ADA)
    async with place(tmp_path) as here:
        asked = asyncio.ensure_future(here.search(ADA, "ferret", limit=1, within_s=60))
        child = await stopped_in_the_midst(os.getpid(), here.index())
        await here.store.clear(ADA, everything=True)

        os.kill(child, signal.SIGCONT)
        await asked

        assert await here.texts(ADA, "ferret") == []
        left = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert [path.name for path in left if b"ferret" in path.read_bytes()] == []
