"""What an ended session answered is gone with it: its key's journal keeps the ids of its messages alone."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from session.store import archived
from session.store.fence import Fence
from session.store.store import Store
from tests.session.store_place import ADA, turn


async def test_no_answer_of_a_deleted_session_stays_in_the_journal(tmp_path: Path) -> None:
    """Its messages, which may come again, stay known; those of other sessions as they were."""
    store = Store(tmp_path, zone=UTC)
    for id_, answer in (("a", "sesame"), ("b", "of the next one")):
        async with store.open(ADA) as session:
            lines = turn(id_, answer=answer)
            # The journal keeps those of two days.
            now = store.clock().isoformat()
            await session.append([{**line, "timestamp": now} for line in lines])
            await session.journal.conclude(f"command {id_}", "command", text="done")
            ended, stem = session.session_id, session.stem
            await session.end()
            if id_ == "a":
                first = ended
    journal = store.layout.journal(stem)
    assert b"sesame" in journal.read_bytes()
    before = (await store.look(ADA)).seq

    assert archived.delete(Fence(store.layout, stem, owner="me"), store.layout, stem, first)

    assert b"sesame" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"of the next one" in journal.read_bytes()
    # One that has the journal in memory reads it anew before its next write.
    async with store.open(ADA) as session:
        await session.journal.conclude("c", "silent")
        known = {id_: session.journal.known(id_) for id_ in "ab"}
        assert [(each.kind, each.text) for each in known.values() if each is not None] == [
            ("cleared", ""),
            ("archived", "of the next one"),
        ]
    assert (await store.look(ADA)).seq == before == 4
    await store.aclose()
