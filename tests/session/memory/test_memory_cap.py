"""A MEMORY.md that would outgrow its limit is shortened once; what loses something is refused, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from session.errors import ModelAway, NotNow
from session.memory.former import FormerMemory
from session.models.model import Answer
from tests.session.memory_lines import MARK
from tests.session.memory_place import ADA, Workspace, open_workspace, saved, talk
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "sessions", "Notes over their limit are shortened once, and a result that loses content is refused."
)

LONG = "# People\n" + "- Ada likes tea.\n" * 40 + "## Work\n" + "- engineer\n" * 20
SHORT = "# People\n- Ada likes tea.\n\n## Work\n- engineer"
OLD = "# People\n- old\n"


async def grown(house: Workspace) -> None:
    """A chat with notes, whose next ones are too long."""
    await house.said(ADA, talk(10))
    folder = (await house.scope(ADA)).memory
    folder.mkdir(parents=True)
    (folder / "MEMORY.md").write_text(OLD)


async def history(house: Workspace) -> list[dict[str, Any]]:
    former = FormerMemory(house.memory, house.known, store=house.store)
    return await former.history(ADA, await house.scope(ADA))


async def test_it_is_shortened_once_by_the_small_model(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, saved(memory=LONG), max_bytes=400, small_model="small") as house:
        house.model.wrote.append(Answer(SHORT))
        await grown(house)

        done = await house.memory.consolidate(ADA)

        assert await house.read("MEMORY.md") == SHORT + "\n"
        assert (done.messages, done.calls, done.raw) == (5, 2, 0)
        (asked,) = house.model.prose
        assert asked.model == "small"
        assert "at most 300 bytes" in asked.messages[0]["content"]
        assert asked.messages[1]["content"] == LONG
        assert house.memory.budget.shown()["calls_last_hour"] == 2
        assert house.memory.totals["merged"] == 1
        (row,) = await FormerMemory(house.memory, house.known, store=house.store).history(
            ADA, await house.scope(ADA)
        )
        assert (row["cause"], row["bytes"]) == ("merge", len(OLD))


REFUSED: dict[str, Any] = {
    "a heading lost": Answer("# People\n- Ada likes tea."),
    "no smaller": Answer(LONG * 2),
    "over the limit": Answer("# People\n## Work\n" + "x" * 400),
    "empty": Answer(" \n"),
    "an error page": Answer("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"),
    "cut off": Answer(SHORT, finish="length"),
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
async def test_what_cannot_stand_for_it_changes_nothing_and_is_said(tmp_path: Path, answer: Answer) -> None:
    async with open_workspace(tmp_path, saved(memory=LONG), max_bytes=400) as house:
        house.model.wrote.append(answer)
        await grown(house)

        with capture_logs() as logs, pytest.raises(NotNow, match="could not be shortened"):
            await house.memory.consolidate(ADA)

        assert await house.read("MEMORY.md") == OLD
        assert await house.read("HISTORY.md") == ""
        assert [entry["event"] for entry in logs] == ["memory.unmerged", "memory.failed"]
        assert house.jobs.shown()["consolidated"]["unmerged"] == 1


async def test_an_outage_while_it_is_shortened_is_no_failure(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, saved(memory=LONG), max_bytes=400) as house:
        house.model.wrote.append(ModelAway("gone", cause="unreachable"))
        await grown(house)

        with pytest.raises(ModelAway):
            await house.memory.consolidate(ADA)

        assert await house.read("MEMORY.md") == OLD
        assert house.memory.totals["failures"] == 0


async def test_after_three_failures_the_messages_are_kept_and_the_notes_stay(tmp_path: Path) -> None:
    answers = [saved(memory=LONG)] * 3
    async with open_workspace(tmp_path, *answers, max_bytes=400) as house:
        house.model.wrote += [Answer("")] * 3
        await grown(house)
        for _ in range(2):
            with pytest.raises(NotNow):
                await house.memory.consolidate(ADA, asked=True)

        done = await house.memory.consolidate(ADA, asked=True)

        assert done.raw == 5
        assert await house.read("MEMORY.md") == OLD
        assert len(MARK.findall(await house.read("HISTORY.md"))) == 1


async def test_a_quotation_stays_one_when_it_is_shortened(tmp_path: Path) -> None:
    marked = LONG + "- The admin is Mallory. (from a web page)\n"
    async with open_workspace(tmp_path, saved(memory=marked), max_bytes=400) as house:
        house.model.wrote.append(Answer(SHORT + "\n- Admin: Mallory"))
        await grown(house)
        await house.memory.consolidate(ADA)

        assert (await house.read("MEMORY.md")).endswith("- Admin: Mallory (from a web page)\n")


async def test_a_heading_that_goes_in_an_answer_goes_not_in_silence(tmp_path: Path) -> None:
    """Notes may drop what is of no more use; it is logged and counted, and the history names it."""
    async with open_workspace(tmp_path, saved(memory="- all new")) as house:
        await grown(house)

        with capture_logs() as logs:
            await house.memory.consolidate(ADA)

        assert ("memory.headings_lost", 1) in [(entry["event"], entry.get("headings")) for entry in logs]
        assert house.jobs.shown()["consolidated"]["headings_lost"] == 1
        (row,) = await FormerMemory(house.memory, house.known, store=house.store).history(
            ADA, await house.scope(ADA)
        )
        assert row["changed"] == "+1 -2 lines; headings gone: People"
