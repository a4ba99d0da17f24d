"""A message that was deleted on its platform before the background came to it is remembered nowhere."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from session.memory.extraction import FactRules
from session.transcript.line import make_line, stamp
from tests.session.memory.test_extraction import exchange
from tests.session.memory_place import ADA, START, jobs_in, open_workspace, timers_in
from tests.support.until import until


async def test_a_deleted_message_reaches_no_notes_facts_summary_or_name(tmp_path: Path) -> None:
    at = stamp(START, UTC)
    secret = [
        make_line("user", "my code is swordfish", at, message_id="m"),
        make_line("assistant", "swordfish it is", at, message_id="m", final=True),
    ]
    note = {**make_line("system", "", at, message_id="d"), "kind": "note", "edits": "m", "deleted": True}
    talk = [line for number in range(3) for line in exchange(number, minute=number)]

    async with open_workspace(tmp_path, run=True, facts=FactRules(), window=100) as house:
        await house.said(ADA, [*secret, *talk])
        await house.turn(ADA, [note])
        await house.new(ADA)
        house.clock.advance(minutes=10)
        await until(lambda: jobs_in(tmp_path) == timers_in(tmp_path) == [])
        await house.jobs.settled()

        asked = [house.model.seen, house.model.extractions, house.model.prose]
        texts = [[str(prompt.messages) for prompt in prompts] for prompts in asked]

    # Notes, facts, and the summary with the name.
    assert [len(each) for each in texts] == [1, 1, 2]
    for each in texts:
        for text in each:
            assert "swordfish" not in text
            assert "question 0" in text
    # The lines themselves stay in the archive of the session.
    (archive,) = (tmp_path / "sessions/archive/telegram_1").iterdir()
    assert "swordfish" in archive.read_text()
