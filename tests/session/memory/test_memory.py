"""Consolidation: what goes into memory, when, and what happens when it goes wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from session.compaction.cuts import legal_cuts, nearest_cut, next_cut
from session.errors import ContextTooLong
from session.models.model import Answer, Prompt
from session.transcript.line import make_line
from tests.session.memory_lines import MARK, user
from tests.session.memory_place import ADA, Scripted, open_workspace, saved, talk


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id_ in ids]
    return make_line("assistant", None, "2026-01-31T09:00:00", tool_calls=calls)


def result(id_: str) -> dict[str, Any]:
    return make_line("tool", "ok", "2026-01-31T09:00:00", tool_call_id=id_, name="ls")


def said(text: str = "hi") -> dict[str, Any]:
    return make_line("assistant", text, "2026-01-31T09:00:00")


def note(kind: str, **fields: Any) -> dict[str, Any]:
    return make_line("system", "", "2026-01-31T09:00:00", kind=kind, **fields)


# -- where one may cut -----------------------------------------------------------------------------------


def test_legal_cuts() -> None:
    """User lines and assistant lines without a pending call are legal; results and our records never."""
    lines = [user(), call("a", "b"), result("a"), result("b"), said(), note("note"), user(), said()]

    assert list(legal_cuts(lines)) == [0, 1, 4, 6, 7]


def test_no_cut_between_parallel_results() -> None:
    """While one of two parallel calls has no result yet, nothing behind it is legal."""
    lines = [user(), call("a", "b"), result("a"), said("too early"), result("b")]

    assert list(legal_cuts(lines)) == [0, 1]


def test_a_lost_result_blocks_one_line_only() -> None:
    """A call whose result was lost stops waiting at the next assistant line."""
    lines = [user(), call("a"), call("b"), result("b"), said()]

    assert list(legal_cuts(lines)) == [0, 1, 4]


def test_next_and_nearest() -> None:
    """The cut moves forward; where there is none, back."""
    lines = [user(), said(), call("a"), result("a"), result("x")]

    assert next_cut(lines, 1) == 1
    assert next_cut(lines, 3) is None
    assert nearest_cut(lines, 3) == 2


def test_odd_tool_calls_are_no_obstacle() -> None:
    """``tool_calls`` of a wrong shape count as none."""
    lines: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "tool_calls": ["x"]},
        said(),
    ]

    assert list(legal_cuts(lines)) == [0, 1, 2]


# -- what goes -------------------------------------------------------------------------------------------


async def test_window_slice(tmp_path: Path) -> None:
    """A full window moves all but its newest half, and the pointer moves with it at once."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))

        done = await workspace.memory.consolidate(ADA)

        assert (done.messages, done.calls, done.raw) == (5, 1, 0)
        assert await workspace.pointer(ADA) == 5
        assert "message 4" in workspace.model.text(0)
        assert "message 5" not in workspace.model.text(0)
        assert await workspace.read("MEMORY.md") == "- fact 1\n"
        history = await workspace.read("HISTORY.md")
        assert history.startswith("[2026-01-31 09:15] Talk 1.\n<!-- session ")
        assert MARK.findall(history)[0][1:] == ("0", "4")
        assert history.endswith(" -->\n\n")


async def test_below_the_window_nothing_is_asked(tmp_path: Path) -> None:
    """One message below the window: no call. One more: a call."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(9))
        assert (await workspace.memory.consolidate(ADA)).messages == 0
        assert workspace.model.seen == []

        await workspace.said(ADA, talk(1, start=9))
        assert (await workspace.memory.consolidate(ADA)).messages == 5


async def test_pointer_is_on_disk_without_another_turn(tmp_path: Path) -> None:
    """The pointer does not wait for the next turn to be saved: another process sees it at once."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)

    head = json.loads((tmp_path / "sessions/telegram_1.jsonl").read_text().split("\n")[0])
    assert head["last_consolidated"] == 5


async def test_second_round_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    """Every message is consolidated once, and the model sees the notes of the round before."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)
        await workspace.said(ADA, talk(10, start=10))
        await workspace.memory.consolidate(ADA)

        assert [re.findall(r"message (\d+)", workspace.model.text(n)) for n in (0, 1)] == [
            [str(n) for n in range(5)],
            [str(n) for n in range(5, 15)],
        ]
        assert "- fact 1" in workspace.model.text(1)
        assert (await workspace.read("HISTORY.md")).count("[2026-01-31") == 2


async def test_messages_that_arrive_during_the_call_stay(tmp_path: Path) -> None:
    """The slice is fixed before the call: what comes meanwhile is neither skipped nor taken."""
    async with open_workspace(tmp_path) as workspace:

        async def arrive(prompt: Prompt) -> Answer:
            await workspace.said(ADA, talk(20, start=10))
            return saved()

        workspace.model.steps.append(arrive)
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)

        assert await workspace.pointer(ADA) == 5
        await workspace.memory.consolidate(ADA)
        assert "message 5" in workspace.model.text(1)
        assert "message 24" in workspace.model.text(1)
        assert await workspace.pointer(ADA) == 25


async def test_a_window_of_one_tool_chain(tmp_path: Path) -> None:
    """101 messages of one turn, no user boundary in sight: cut before an assistant line all the same."""
    chain = [line for n in range(50) for line in (call(f"c{n}"), result(f"c{n}"))]
    async with open_workspace(tmp_path, window=100) as workspace:
        await workspace.said(ADA, [user("go"), *chain])

        assert (await workspace.memory.consolidate(ADA)).messages == 51
        async with workspace.store.open(ADA) as session:
            assert session.line(await workspace.pointer(ADA))["role"] == "assistant"


async def test_a_window_of_parallel_results_goes_back(tmp_path: Path) -> None:
    """Where no cut lies ahead the one behind is taken; and where that moves nothing, no model is asked."""
    ids = [f"c{n}" for n in range(30)]
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, [*talk(4), user("go"), call(*ids), *map(result, ids)])

        assert (await workspace.memory.consolidate(ADA)).messages == 5
        assert (await workspace.memory.consolidate(ADA)).messages == 0
        assert len(workspace.model.seen) == 1


async def test_own_records_and_withdrawn_exchanges_stay_out(tmp_path: Path) -> None:
    """Our own system lines and what ``/undo`` withdrew never reach the model."""
    async with open_workspace(tmp_path) as workspace:
        withdrawn = [user("secret plan"), said("secret answer"), note("undo", **{"from": 2})]
        await workspace.said(ADA, [*talk(2), *withdrawn, note("note"), *talk(8, start=2)])

        await workspace.memory.consolidate(ADA)

        assert "message 1" in workspace.model.text(0)
        assert "secret" not in workspace.model.text(0)
        assert "SYSTEM" not in workspace.model.text(0)


async def test_undo_behind_the_slice_counts(tmp_path: Path) -> None:
    """An exchange of the slice that a line behind the slice withdraws is not remembered."""
    async with open_workspace(tmp_path) as workspace:
        chain = [call("a"), result("a"), call("b"), result("b"), call("c"), result("c")]
        await workspace.said(ADA, [*talk(2), user("secret"), *chain, note("undo", **{"from": 2})])
        await workspace.memory.consolidate(ADA)

        assert await workspace.pointer(ADA) == 5
        assert "secret" not in workspace.model.text(0)
        assert "TOOL" not in workspace.model.text(0)


async def test_silence_costs_no_call(tmp_path: Path) -> None:
    """A slice that says nothing moves the pointer without a call and without a paragraph."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, [user("") for _ in range(10)])

        assert (await workspace.memory.consolidate(ADA)).messages == 5
        assert workspace.model.seen == []
        assert await workspace.read("HISTORY.md") == ""


async def test_input_lines(tmp_path: Path) -> None:
    """Lines read ``[minute] ROLE [tools: a, b] (whose words): content``; long tool results are cut."""
    lines = [
        make_line("user", "héllo", "2026-01-31T10:15:30.123456+01:00"),
        call("a"),
        make_line("tool", "x" * 5000, "2026-01-31T09:16:00+00:00", tool_call_id="a", name="ls"),
        make_line("assistant", "done", "2026-01-31T09:17:00+00:00", tools_used=["ls", "read"], final=True),
    ]
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, lines + talk(8))
        await workspace.memory.consolidate(ADA)
        text = workspace.model.text(0)

    assert "[2026-01-31T09:15] USER: héllo\n" in text
    assert "ASSISTANT [tools: ls]:" in text
    assert f"TOOL [tools: ls] (from a file): {'x' * 2000}… (3000 more characters)\n" in text
    assert "[2026-01-31T09:17] ASSISTANT [tools: ls, read]: done\n" in text


async def test_a_long_stretch_goes_in_pieces(tmp_path: Path) -> None:
    """What one request cannot hold goes in several, cut at legal places, each with its own paragraph."""
    async with open_workspace(tmp_path, max_chars=120) as workspace:
        await workspace.said(ADA, talk(20))
        done = await workspace.memory.consolidate(ADA)

        assert done.messages == 15
        assert done.calls == len(MARK.findall(await workspace.read("HISTORY.md"))) > 2
        seen = [
            n
            for prompt in range(done.calls)
            for n in re.findall(r"message (\d+)", workspace.model.text(prompt))
        ]
        assert seen == [str(n) for n in range(15)]


async def test_too_long_for_the_model_is_halved(tmp_path: Path) -> None:
    """A request that does not fit is tried at half the size, and that is no failure."""
    async with open_workspace(tmp_path) as workspace:
        workspace.model.steps.append(ContextTooLong("too long"))
        await workspace.said(ADA, [user("x" * 5000) for _ in range(40)])
        workspace.memory.rules = workspace.memory.rules.__class__(window=10, max_chars=100_000)
        await workspace.memory.consolidate(ADA)

        assert len(workspace.model.text(1)) < 60_000 < len(workspace.model.text(0))
        assert workspace.memory.totals["failures"] == 0


def test_scripted_is_what_tests_think() -> None:
    """The scripted model counts as a real one."""
    assert not Scripted().plain
