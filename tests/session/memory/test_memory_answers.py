"""Answers of a model that are not believed, and notes that would outgrow their limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from session.errors import BadAnswer, ModelAway, ModelRefused, NotNow
from session.memory.memory_commands import MemoryHistory
from session.memory.scope_state import BACK_OFF_S
from session.models.model import Answer
from tests.session.memory_place import ADA, MARK, Clock, Workspace, called, open_workspace, saved, talk
from tests.support.guarantee import guarantee

BAD = {
    "no call": Answer("I have noted it."),
    "another tool": called("{}", name="read"),
    "no JSON": called("{history_entry: "),
    "a list": called("[1, 2]"),
    "missing": saved(memory=...),
    "null": saved(memory=None),
    "empty": saved(entry="  "),
    "a number": saved(entry=7),
    "a list field": saved(memory=["a"]),
    "an empty object": saved(memory={}),
    "an error page": saved(memory="<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"),
    "an error page in the entry": saved(entry="<html>\n<head><title>504</title></head></html>"),
    "an error object": saved(memory='{"error": {"message": "overloaded"}}'),
    "too large": saved(memory="x" * 5000),
    "cut off": Answer("", called('{"history_entry": "a", "memory_update": "b"}').tool_calls, finish="length"),
    "garbage": BadAnswer("nothing came"),
    "refused": ModelRefused("content policy"),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_bad_answer_changes_nothing(tmp_path: Path, answer: Any) -> None:
    """Whatever is wrong with an answer: files and pointer stay, and it is tried again later."""
    async with open_workspace(tmp_path, answer, max_bytes=4096) as workspace:
        # Nor is one that is too long made of use by a merge that is none.
        workspace.model.wrote.append(Answer(""))
        await workspace.said(ADA, talk(10))
        folder = (await workspace.scope(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("- old\n")

        with pytest.raises(NotNow) as raised:
            await workspace.memory.consolidate(ADA)

        assert raised.value.reason == "failed"
        assert await workspace.read("MEMORY.md") == "- old\n"
        assert await workspace.read("HISTORY.md") == ""
        assert await workspace.pointer(ADA) == 0
        assert workspace.memory.totals["failures"] == 1


@pytest.mark.parametrize(
    ("answer", "memory"),
    [
        (saved(memory={"name": "Ädá"}), '{"name": "Ädá"}\n'),
        (called(json.dumps(json.dumps({"history_entry": "a", "memory_update": "twice"}))), "twice\n"),
        (called(json.dumps([{"history_entry": "a", "memory_update": "listed"}])), "listed\n"),
        (saved(memory="about <html> tags"), "about <html> tags\n"),
    ],
)
async def test_odd_but_usable_answers(tmp_path: Path, answer: Answer, memory: str) -> None:
    """Objects become JSON text; doubly encoded arguments are read; mentioning HTML is no error page."""
    async with open_workspace(tmp_path, answer) as workspace:
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)

        assert await workspace.read("MEMORY.md") == memory


async def test_over_the_cap_it_may_only_shrink(tmp_path: Path) -> None:
    """A MEMORY.md that is over the cap already may be replaced by a smaller one, not by a larger one."""
    async with open_workspace(tmp_path, saved(memory="y" * 190), max_bytes=100) as workspace:
        folder = (await workspace.memory.scope_of(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("x" * 200)
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)

        assert await workspace.read("MEMORY.md") == "y" * 190 + "\n"


async def test_an_entry_is_one_paragraph_of_its_own(tmp_path: Path) -> None:
    """Blank lines and comments of the model cannot look like a new paragraph or like a mark of ours."""
    forged = "First.\n\n\nSecond.\n<!-- session 01J00000000000000000000000 messages 0-99 12345678 -->"
    async with open_workspace(tmp_path, saved(entry=forged)) as workspace:
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)
        history = await workspace.read("HISTORY.md")

    assert len(MARK.findall(history)) == 1
    assert history.count("\n\n") == 1
    assert history.startswith("[2026-01-31 09:15] First.\nSecond.\n")


async def test_third_failure_keeps_the_messages_raw(tmp_path: Path) -> None:
    """A failing model is asked three times, minutes apart; then a raw entry, and the pointer moves."""
    async with open_workspace(tmp_path, *[Answer("no")] * 3) as workspace:
        await workspace.said(ADA, talk(10))
        for wait in BACK_OFF_S:
            with pytest.raises(NotNow):
                await workspace.memory.consolidate(ADA)
            # Too early: the model is not asked.
            with pytest.raises(NotNow):
                await workspace.memory.consolidate(ADA)
            workspace.clock.advance(wait)

        done = await workspace.memory.consolidate(ADA)

        assert (done.messages, done.raw, len(workspace.model.seen)) == (5, 5, 3)
        history = await workspace.read("HISTORY.md")
        assert " [RAW] 5 messages\n" in history
        assert "[2026-01-31T09:15] USER: message 0\n" in history
        assert await workspace.read("MEMORY.md") == ""
        assert await workspace.pointer(ADA) == 5


async def test_failures_and_back_off_survive_a_restart(tmp_path: Path) -> None:
    """A restart neither forgets what failed nor asks earlier."""
    clock = Clock()
    for _ in range(2):
        async with open_workspace(tmp_path, Answer("no"), clock=clock) as workspace:
            if not await workspace.pointer(ADA) and len(await workspace.store.look(ADA)) == 0:
                await workspace.said(ADA, talk(10))
            with pytest.raises(NotNow):
                await workspace.memory.consolidate(ADA)
            clock.advance(BACK_OFF_S[-1] - 1)

    async with open_workspace(tmp_path, Answer("no"), clock=clock) as workspace:
        with pytest.raises(NotNow):
            await workspace.memory.consolidate(ADA)
        assert workspace.model.seen == []
        clock.advance(1)
        assert (await workspace.memory.consolidate(ADA)).raw == 5


async def test_only_failures_in_a_row_count(tmp_path: Path) -> None:
    no = Answer("no")
    async with open_workspace(tmp_path, no, no, saved(), no, no) as workspace:
        for start in (0, 10):
            await workspace.said(ADA, talk(10, start=start))
            for _ in range(2):
                with pytest.raises(NotNow):
                    await workspace.memory.consolidate(ADA, asked=True)
            if not start:
                assert (await workspace.memory.consolidate(ADA, asked=True)).messages == 5

        assert workspace.memory.totals["raw"] == 0


async def test_an_outage_is_no_failure(tmp_path: Path) -> None:
    """A model that cannot be reached never leads to a raw entry."""
    async with open_workspace(tmp_path, *[ModelAway("gone", cause="unreachable")] * 5) as workspace:
        await workspace.said(ADA, talk(10))
        for _ in range(5):
            with pytest.raises(ModelAway):
                await workspace.memory.consolidate(ADA)

        assert (await workspace.memory.consolidate(ADA)).raw == 0
        assert workspace.memory.totals["failures"] == 0


LONG = "# People\n" + "- Ada likes tea.\n" * 40 + "## Work\n" + "- engineer\n" * 20
SHORT = "# People\n- Ada likes tea.\n\n## Work\n- engineer"
OLD = "# People\n- old\n"


async def grown(house: Workspace) -> None:
    """A chat with notes, whose next ones are too long."""
    await house.said(ADA, talk(10))
    folder = (await house.scope(ADA)).memory
    folder.mkdir(parents=True)
    (folder / "MEMORY.md").write_text(OLD)


async def history_of(house: Workspace) -> list[dict[str, Any]]:
    former = MemoryHistory(house.memory, house.known)
    return await former.history(ADA, await house.scope(ADA))


@guarantee(
    "sessions", "Notes over their limit are shortened once, and a result that loses content is refused."
)
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
        (row,) = await history_of(house)
        assert (row["cause"], row["bytes"]) == ("merge", len(OLD))


REFUSED: dict[str, Any] = {
    "a heading lost": Answer("# People\n- Ada likes tea."),
    "no smaller": Answer(LONG * 2),
    "over the limit": Answer("# People\n## Work\n" + "x" * 400),
    "empty": Answer(" \n"),
    "an error page": Answer("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"),
    "cut off": Answer(SHORT, finish="length"),
}


@guarantee(
    "sessions", "Notes over their limit are shortened once, and a result that loses content is refused."
)
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
        (row,) = await history_of(house)
        assert row["changed"] == "+1 -2 lines; headings gone: People"
