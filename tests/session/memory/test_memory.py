"""Consolidation: what goes into memory, when, and what happens when it goes wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from session.errors import ContextTooLong
from session.models.model import Answer, Prompt
from session.transcript.line import make_line
from tests.session.memory_place import ADA, MARK, Workspace, open_workspace, saved, talk, user


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id_ in ids]
    return make_line("assistant", None, "2026-01-31T09:00:00", tool_calls=calls)


def result(id_: str) -> dict[str, Any]:
    return make_line("tool", "ok", "2026-01-31T09:00:00", tool_call_id=id_, name="ls")


def said(text: str = "hi") -> dict[str, Any]:
    return make_line("assistant", text, "2026-01-31T09:00:00")


def note(kind: str, **fields: Any) -> dict[str, Any]:
    return make_line("system", "", "2026-01-31T09:00:00", kind=kind, **fields)


# -- what goes -------------------------------------------------------------------------------------------


async def test_window_slice(house: Workspace) -> None:
    """A full window moves all but its newest half, and the pointer moves with it at once."""
    await house.said(ADA, talk(10))

    done = await house.memory.consolidate(ADA)

    assert (done.messages, done.calls, done.raw) == (5, 1, 0)
    assert await house.pointer(ADA) == 5
    assert "message 4" in house.model.text(0)
    assert "message 5" not in house.model.text(0)
    assert await house.read("MEMORY.md") == "- fact 1\n"
    history = await house.read("HISTORY.md")
    assert history.startswith("[2026-01-31 09:15] Talk 1.\n<!-- session ")
    assert MARK.findall(history)[0][1:] == ("0", "4")
    assert history.endswith(" -->\n\n")


async def test_below_the_window_nothing_is_asked(house: Workspace) -> None:
    """One message below the window: no call. One more: a call."""
    await house.said(ADA, talk(9))
    assert (await house.memory.consolidate(ADA)).messages == 0
    assert house.model.seen == []

    await house.said(ADA, talk(1, start=9))
    assert (await house.memory.consolidate(ADA)).messages == 5


async def test_second_round_goes_on_where_the_first_ended(house: Workspace) -> None:
    """Every message is consolidated once, and the model sees the notes of the round before."""
    await house.said(ADA, talk(10))
    await house.memory.consolidate(ADA)
    await house.said(ADA, talk(10, start=10))
    await house.memory.consolidate(ADA)

    assert [re.findall(r"message (\d+)", house.model.text(n)) for n in (0, 1)] == [
        [str(n) for n in range(5)],
        [str(n) for n in range(5, 15)],
    ]
    assert "- fact 1" in house.model.text(1)
    assert (await house.read("HISTORY.md")).count("[2026-01-31") == 2


async def test_messages_that_arrive_during_the_call_stay(house: Workspace) -> None:
    """The slice is fixed before the call: what comes meanwhile is neither skipped nor taken."""

    async def arrive(prompt: Prompt) -> Answer:
        await house.said(ADA, talk(20, start=10))
        return saved()

    house.model.steps.append(arrive)
    await house.said(ADA, talk(10))
    await house.memory.consolidate(ADA)

    assert await house.pointer(ADA) == 5
    await house.memory.consolidate(ADA)
    assert "message 5" in house.model.text(1)
    assert "message 24" in house.model.text(1)
    assert await house.pointer(ADA) == 25


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


async def test_own_records_and_withdrawn_exchanges_stay_out(house: Workspace) -> None:
    """Our own system lines and what ``/undo`` withdrew never reach the model."""
    withdrawn = [user("secret plan"), said("secret answer"), note("undo", **{"from": 2})]
    await house.said(ADA, [*talk(2), *withdrawn, note("note"), *talk(8, start=2)])

    await house.memory.consolidate(ADA)

    assert "message 1" in house.model.text(0)
    assert "secret" not in house.model.text(0)
    assert "SYSTEM" not in house.model.text(0)


async def test_undo_behind_the_slice_counts(house: Workspace) -> None:
    """An exchange of the slice that a line behind the slice withdraws is not remembered."""
    chain = [call("a"), result("a"), call("b"), result("b"), call("c"), result("c")]
    await house.said(ADA, [*talk(2), user("secret"), *chain, note("undo", **{"from": 2})])
    await house.memory.consolidate(ADA)

    assert await house.pointer(ADA) == 5
    assert "secret" not in house.model.text(0)
    assert "TOOL" not in house.model.text(0)


async def test_silence_costs_no_call(house: Workspace) -> None:
    """A slice that says nothing moves the pointer without a call and without a paragraph."""
    await house.said(ADA, [user("") for _ in range(10)])

    assert (await house.memory.consolidate(ADA)).messages == 5
    assert house.model.seen == []
    assert await house.read("HISTORY.md") == ""


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


async def test_too_long_for_the_model_is_halved(house: Workspace) -> None:
    """A request that does not fit is tried at half the size, and that is no failure."""
    house.model.steps.append(ContextTooLong("too long"))
    await house.said(ADA, [user("x" * 5000) for _ in range(40)])
    house.memory.rules = house.memory.rules.__class__(window=10, max_chars=100_000)
    await house.memory.consolidate(ADA)

    assert len(house.model.text(1)) < 60_000 < len(house.model.text(0))
    assert house.memory.totals["failures"] == 0
