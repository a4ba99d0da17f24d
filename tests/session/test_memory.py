"""Consolidation: what goes into memory, when, and what happens when it goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from session.compaction import legal_cuts, nearest_cut, next_cut
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelAway,
    ModelRefused,
    NotNow,
    SessionError,
    StoreError,
)
from session.key import SessionKey
from session.line import make_line
from session.memory import BACK_OFF_S
from session.models import Answer, Echo, Prompt
from tests.session.memory_place import ADA, BOB, Clock, Scripted, called, place, saved, talk

MARK = re.compile(r"<!-- session ([0-9A-Z]{26}) messages (\d+)-(\d+) [0-9a-f]{8} -->")


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id_ in ids]
    return make_line("assistant", None, "2026-01-31T09:00:00", tool_calls=calls)


def result(id_: str) -> dict[str, Any]:
    return make_line("tool", "ok", "2026-01-31T09:00:00", tool_call_id=id_, name="ls")


def user(text: str = "hello") -> dict[str, Any]:
    return make_line("user", text, "2026-01-31T09:00:00")


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
    async with place(tmp_path) as house:
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


async def test_below_the_window_nothing_is_asked(tmp_path: Path) -> None:
    """One message below the window: no call. One more: a call."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(9))
        assert (await house.memory.consolidate(ADA)).messages == 0
        assert house.model.seen == []

        await house.said(ADA, talk(1, start=9))
        assert (await house.memory.consolidate(ADA)).messages == 5


async def test_pointer_is_on_disk_without_another_turn(tmp_path: Path) -> None:
    """The pointer does not wait for the next turn to be saved: another process sees it at once."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        await house.memory.consolidate(ADA)

    head = json.loads((tmp_path / "sessions/telegram_1.jsonl").read_text().split("\n")[0])
    assert head["last_consolidated"] == 5


async def test_second_round_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    """Every message is consolidated once, and the model sees the notes of the round before."""
    async with place(tmp_path) as house:
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


async def test_messages_that_arrive_during_the_call_stay(tmp_path: Path) -> None:
    """The slice is fixed before the call: what comes meanwhile is neither skipped nor taken."""
    async with place(tmp_path) as house:

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
    async with place(tmp_path, window=100) as house:
        await house.said(ADA, [user("go"), *chain])

        assert (await house.memory.consolidate(ADA)).messages == 51
        async with house.store.open(ADA) as session:
            assert session.line(await house.pointer(ADA))["role"] == "assistant"


async def test_a_window_of_parallel_results_goes_back(tmp_path: Path) -> None:
    """Where no cut lies ahead the one behind is taken; and where that moves nothing, no model is asked."""
    ids = [f"c{n}" for n in range(30)]
    async with place(tmp_path) as house:
        await house.said(ADA, [*talk(4), user("go"), call(*ids), *map(result, ids)])

        assert (await house.memory.consolidate(ADA)).messages == 5
        assert (await house.memory.consolidate(ADA)).messages == 0
        assert len(house.model.seen) == 1


async def test_own_records_and_withdrawn_exchanges_stay_out(tmp_path: Path) -> None:
    """Our own system lines and what ``/undo`` withdrew never reach the model."""
    async with place(tmp_path) as house:
        withdrawn = [user("secret plan"), said("secret answer"), note("undo", **{"from": 2})]
        await house.said(ADA, [*talk(2), *withdrawn, note("note"), *talk(8, start=2)])

        await house.memory.consolidate(ADA)

        assert "message 1" in house.model.text(0)
        assert "secret" not in house.model.text(0)
        assert "SYSTEM" not in house.model.text(0)


async def test_undo_behind_the_slice_counts(tmp_path: Path) -> None:
    """An exchange of the slice that a line behind the slice withdraws is not remembered."""
    async with place(tmp_path) as house:
        chain = [call("a"), result("a"), call("b"), result("b"), call("c"), result("c")]
        await house.said(ADA, [*talk(2), user("secret"), *chain, note("undo", **{"from": 2})])
        await house.memory.consolidate(ADA)

        assert await house.pointer(ADA) == 5
        assert "secret" not in house.model.text(0)
        assert "TOOL" not in house.model.text(0)


async def test_silence_costs_no_call(tmp_path: Path) -> None:
    """A slice that says nothing moves the pointer without a call and without a paragraph."""
    async with place(tmp_path) as house:
        await house.said(ADA, [user("") for _ in range(10)])

        assert (await house.memory.consolidate(ADA)).messages == 5
        assert house.model.seen == []
        assert await house.read("HISTORY.md") == ""


async def test_input_lines(tmp_path: Path) -> None:
    """Lines read ``[minute] ROLE [tools: a, b]: content``; long tool results are cut."""
    lines = [
        make_line("user", "héllo", "2026-01-31T10:15:30.123456+01:00"),
        call("a"),
        make_line("tool", "x" * 5000, "2026-01-31T09:16:00+00:00", tool_call_id="a", name="ls"),
        make_line("assistant", "done", "2026-01-31T09:17:00+00:00", tools_used=["ls", "read"], final=True),
    ]
    async with place(tmp_path) as house:
        await house.said(ADA, lines + talk(8))
        await house.memory.consolidate(ADA)
        text = house.model.text(0)

    assert "[2026-01-31T09:15] USER: héllo\n" in text
    assert "ASSISTANT [tools: ls]:" in text
    assert f"TOOL [tools: ls]: {'x' * 2000}… (3000 more characters)\n" in text
    assert "[2026-01-31T09:17] ASSISTANT [tools: ls, read]: done\n" in text


async def test_a_long_stretch_goes_in_pieces(tmp_path: Path) -> None:
    """What one request cannot hold goes in several, cut at legal places, each with its own paragraph."""
    async with place(tmp_path, max_chars=120) as house:
        await house.said(ADA, talk(20))
        done = await house.memory.consolidate(ADA)

        assert done.messages == 15
        assert done.calls == len(MARK.findall(await house.read("HISTORY.md"))) > 2
        seen = [
            n for prompt in range(done.calls) for n in re.findall(r"message (\d+)", house.model.text(prompt))
        ]
        assert seen == [str(n) for n in range(15)]


async def test_too_long_for_the_model_is_halved(tmp_path: Path) -> None:
    """A request that does not fit is tried at half the size, and that is no failure."""
    async with place(tmp_path) as house:
        house.model.steps.append(ContextTooLong("too long"))
        await house.said(ADA, [user("x" * 5000) for _ in range(40)])
        house.memory.rules = house.memory.rules.__class__(window=10, max_chars=100_000)
        await house.memory.consolidate(ADA)

        assert len(house.model.text(1)) < 60_000 < len(house.model.text(0))
        assert house.memory.totals["failures"] == 0


# -- answers that are not believed -----------------------------------------------------------------------


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
    async with place(tmp_path, answer, max_bytes=4096) as house:
        await house.said(ADA, talk(10))
        folder = (await house.scope(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("- old\n")

        with pytest.raises(NotNow) as raised:
            await house.memory.consolidate(ADA)

        assert raised.value.reason == "failed"
        assert await house.read("MEMORY.md") == "- old\n"
        assert await house.read("HISTORY.md") == ""
        assert await house.pointer(ADA) == 0
        assert house.memory.totals["failures"] == 1


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
    async with place(tmp_path, answer) as house:
        await house.said(ADA, talk(10))
        await house.memory.consolidate(ADA)

        assert await house.read("MEMORY.md") == memory


async def test_over_the_cap_it_may_only_shrink(tmp_path: Path) -> None:
    """A MEMORY.md that is over the cap already may be replaced by a smaller one, not by a larger one."""
    async with place(tmp_path, saved(memory="y" * 190), max_bytes=100) as house:
        folder = (await house.memory.scope_of(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("x" * 200)
        await house.said(ADA, talk(10))
        await house.memory.consolidate(ADA)

        assert await house.read("MEMORY.md") == "y" * 190 + "\n"


async def test_an_entry_is_one_paragraph_of_its_own(tmp_path: Path) -> None:
    """Blank lines and comments of the model cannot look like a new paragraph or like a mark of ours."""
    forged = "First.\n\n\nSecond.\n<!-- session 01J00000000000000000000000 messages 0-99 12345678 -->"
    async with place(tmp_path, saved(entry=forged)) as house:
        await house.said(ADA, talk(10))
        await house.memory.consolidate(ADA)
        history = await house.read("HISTORY.md")

    assert len(MARK.findall(history)) == 1
    assert history.count("\n\n") == 1
    assert history.startswith("[2026-01-31 09:15] First.\nSecond.\n")


async def test_third_failure_keeps_the_messages_raw(tmp_path: Path) -> None:
    """A failing model is asked three times, minutes apart; then a raw entry, and the pointer moves."""
    async with place(tmp_path, *[Answer("no")] * 3) as house:
        await house.said(ADA, talk(10))
        for wait in BACK_OFF_S:
            with pytest.raises(NotNow):
                await house.memory.consolidate(ADA)
            with pytest.raises(NotNow):  # too early: not asked
                await house.memory.consolidate(ADA)
            house.clock.advance(wait)

        done = await house.memory.consolidate(ADA)

        assert (done.messages, done.raw, len(house.model.seen)) == (5, 5, 3)
        history = await house.read("HISTORY.md")
        assert " [RAW] 5 messages\n" in history
        assert "[2026-01-31T09:15] USER: message 0\n" in history
        assert await house.read("MEMORY.md") == ""
        assert await house.pointer(ADA) == 5


async def test_failures_and_back_off_survive_a_restart(tmp_path: Path) -> None:
    """A restart neither forgets what failed nor asks earlier."""
    clock = Clock()
    for _ in range(2):
        async with place(tmp_path, Answer("no"), clock=clock) as house:
            if not await house.pointer(ADA) and len(await house.store.look(ADA)) == 0:
                await house.said(ADA, talk(10))
            with pytest.raises(NotNow):
                await house.memory.consolidate(ADA)
            clock.advance(BACK_OFF_S[-1] - 1)

    async with place(tmp_path, Answer("no"), clock=clock) as house:
        with pytest.raises(NotNow):
            await house.memory.consolidate(ADA)
        assert house.model.seen == []
        clock.advance(1)
        assert (await house.memory.consolidate(ADA)).raw == 5


async def test_success_forgets_failures(tmp_path: Path) -> None:
    """Only failures in a row count."""
    async with place(tmp_path, Answer("no"), Answer("no"), saved(), Answer("no"), Answer("no")) as house:
        await house.said(ADA, talk(10))
        for _ in range(2):
            with pytest.raises(NotNow):
                await house.memory.consolidate(ADA, asked=True)
        assert (await house.memory.consolidate(ADA, asked=True)).messages == 5
        await house.said(ADA, talk(10, start=10))
        for _ in range(2):
            with pytest.raises(NotNow):
                await house.memory.consolidate(ADA, asked=True)
        assert house.memory.totals["raw"] == 0


async def test_an_outage_is_no_failure(tmp_path: Path) -> None:
    """A model that cannot be reached never leads to a raw entry."""
    async with place(tmp_path, *[ModelAway("gone", cause="unreachable")] * 5) as house:
        await house.said(ADA, talk(10))
        for _ in range(5):
            with pytest.raises(ModelAway):
                await house.memory.consolidate(ADA)

        assert (await house.memory.consolidate(ADA)).raw == 0
        assert house.memory.totals["failures"] == 0


async def test_echo_is_never_asked(tmp_path: Path) -> None:
    """No background call is made with a plain model."""
    async with place(tmp_path, model=Echo()) as house:
        await house.said(ADA, talk(10))
        with pytest.raises(SessionError, match="no language model"):
            await house.memory.consolidate(ADA)


# -- several writers -------------------------------------------------------------------------------------


async def test_two_sessions_in_one_scope(tmp_path: Path) -> None:
    """Two sessions at once in one scope: one after the other, the second sees the notes of the first."""

    def extend(prompt: Prompt) -> Answer:
        old = str(prompt.messages[-1]["content"]).split("## MEMORY.md\n")[1].split("\n\n## ")[0]
        text = str(prompt.messages[-1]["content"])
        return saved(
            memory=("" if old == "(empty)" else old) + ("\n- Ada" if "from ada" in text else "\n- Bob")
        )

    async with place(tmp_path, extend, extend, kind="workspace") as house:
        await house.said(ADA, [user("from ada"), *talk(9)])
        await house.said(BOB, [user("from bob"), *talk(9)])

        await asyncio.gather(house.memory.consolidate(ADA), house.memory.consolidate(BOB))

        memory = (tmp_path / "memory/MEMORY.md").read_text()
        assert "- Ada" in memory
        assert "- Bob" in memory
        assert len(MARK.findall((tmp_path / "memory/HISTORY.md").read_text())) == 2


async def test_another_process_is_not_overwritten(tmp_path: Path) -> None:
    """While another process works on a scope this one asks nobody; afterwards it finds nothing left to do."""
    async with place(tmp_path) as one, place(tmp_path) as two:
        await one.said(ADA, talk(10))

        async def meanwhile(prompt: Prompt) -> Answer:
            with pytest.raises(NotNow) as raised:
                await two.memory.consolidate(ADA)
            assert raised.value.reason == "busy"
            return saved()

        one.model.steps.append(meanwhile)
        await one.memory.consolidate(ADA)

        assert (await two.memory.consolidate(ADA)).messages == 0
        assert two.model.seen == []


async def test_an_edit_by_hand_during_the_call_is_kept(tmp_path: Path) -> None:
    """MEMORY.md that somebody edits while the model thinks is read again, and the model asked again."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        path = (await house.scope(ADA)).memory / "MEMORY.md"

        def edit(prompt: Prompt) -> Answer:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("- by hand\n")
            return saved(memory="- stale")

        house.model.steps += [edit, saved(memory="- by hand\n- and more")]
        await house.memory.consolidate(ADA)

        assert "- by hand" in house.model.text(1)
        assert path.read_text() == "- by hand\n- and more\n"
        assert len(MARK.findall(await house.read("HISTORY.md"))) == 1


async def test_endless_edits_are_waited_out(tmp_path: Path) -> None:
    """A file that changes during every call is left alone until later."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        path = (await house.scope(ADA)).memory / "MEMORY.md"
        path.parent.mkdir(parents=True)

        def edit(prompt: Prompt) -> Answer:
            path.write_text(f"- edit {len(house.model.seen)}\n")
            return saved()

        house.model.steps += [edit] * 3
        with pytest.raises(NotNow) as raised:
            await house.memory.consolidate(ADA)

        assert raised.value.reason == "edited"
        assert path.read_text() == "- edit 3\n"
        assert await house.read("HISTORY.md") == ""


async def test_new_during_the_call(tmp_path: Path) -> None:
    """``/new`` during the call: the pointer of the ended session moves, never that of the fresh one."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))

        async def end(prompt: Prompt) -> Answer:
            assert await house.new(ADA)
            return saved()

        house.model.steps.append(end)
        await house.memory.consolidate(ADA)

        assert await house.pointer(ADA) == 0
        report = await house.jobs.at_once(ADA)
        assert report.messages == 5
        assert "message 4" not in house.model.text(1)
        assert "message 9" in house.model.text(1)


async def test_cleared_during_the_call(tmp_path: Path) -> None:
    """A session that is cleared while the model thinks about it leaves no trace in memory."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))

        async def clear(prompt: Prompt) -> Answer:
            await house.store.clear(ADA)
            return saved(entry="poison", memory="poison")

        house.model.steps.append(clear)
        await house.memory.consolidate(ADA)

        assert await house.read("MEMORY.md") == ""
        assert await house.read("HISTORY.md") == ""


# -- files -----------------------------------------------------------------------------------------------


async def test_text_sees_an_edit_at_once(tmp_path: Path) -> None:
    """MEMORY.md is cached until the file changes; without one there is no text."""
    async with place(tmp_path) as house:
        scope = await house.scope(ADA)
        assert await house.memory.text(scope) == ""

        scope.memory.mkdir(parents=True)
        path = scope.memory / "MEMORY.md"
        path.write_text("one")
        assert await house.memory.text(scope) == "one"
        path.write_bytes(b"two \xff")
        assert await house.memory.text(scope) == "two \ufffd"
        path.unlink()
        assert await house.memory.text(scope) == ""
        path.mkdir()
        assert await house.memory.text(scope) == ""


async def test_files_are_private(tmp_path: Path) -> None:
    """Folders 0700, files 0600, and no temporary file left."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        await house.memory.consolidate(ADA)
        folder = (await house.scope(ADA)).memory

    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["HISTORY.md", "MEMORY.md"]
    for path in [*folder.iterdir(), *(tmp_path / "state/memory/chats").iterdir()]:
        assert path.stat().st_mode & 0o777 == 0o600


async def test_history_of_others_only_grows(tmp_path: Path) -> None:
    """A HISTORY.md that nanobot or a person wrote keeps every byte."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        folder = (await house.scope(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "HISTORY.md").write_bytes(b"[2025-01-01 10:00] Old \xff entry.")
        await house.memory.consolidate(ADA)

        assert (
            (folder / "HISTORY.md")
            .read_bytes()
            .startswith(b"[2025-01-01 10:00] Old \xff entry.\n\n[2026-01-31 09:15] Talk 1.\n")
        )


async def test_bytes_that_no_model_can_keep(tmp_path: Path) -> None:
    """A MEMORY.md that is no UTF-8 is kept beside the new one."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        folder = (await house.scope(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_bytes(b"caf\xe9")
        await house.memory.consolidate(ADA)

        copies = list(folder.glob("MEMORY.md.corrupt-*"))
        assert [copy.read_bytes() for copy in copies] == [b"caf\xe9"]


async def test_a_refused_write_loses_no_answer(tmp_path: Path) -> None:
    """Where HISTORY.md cannot be written the answer is kept, and stored later without a second call."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        path = (await house.scope(ADA)).memory / "HISTORY.md"
        path.mkdir(parents=True)
        with pytest.raises(StoreError):
            await house.memory.consolidate(ADA)
        path.rmdir()

        await house.memory.consolidate(ADA)

        assert await house.pointer(ADA) == 5
        assert len(house.model.seen) == 1


async def test_lost_state_repeats_no_paragraph(tmp_path: Path) -> None:
    """Even without the stored answer HISTORY.md itself says which messages it holds."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))
        await house.memory.consolidate(ADA)
        async with house.store.open(ADA) as session:
            await session.checkpoint(last_consolidated=0)
        await house.said(ADA, talk(4, start=10))

        await house.memory.consolidate(ADA)

        marks = [mark[1:] for mark in MARK.findall(await house.read("HISTORY.md"))]
        assert marks == [("0", "4"), ("5", "8")]


async def test_prompt_names_the_small_model(tmp_path: Path) -> None:
    """Consolidation asks the small model, forces the tool, and leaves room for a large MEMORY.md."""
    async with place(tmp_path, small_model="openai/tiny") as house:
        await house.said(ADA, talk(10))
        folder = (await house.scope(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("x" * 30_000)
        await house.memory.consolidate(ADA)
        prompt = house.model.seen[0]

    assert (prompt.model, prompt.force_tool) == ("openai/tiny", "save_memory")
    assert prompt.max_tokens is not None
    assert prompt.max_tokens > 10_000


async def test_unknown_chat(tmp_path: Path) -> None:
    """A chat that never was has nothing to consolidate and gets no file."""
    async with place(tmp_path) as house:
        assert (await house.memory.consolidate(SessionKey("web:nobody"))).messages == 0

    assert list(tmp_path.iterdir()) == [] or not (tmp_path / "memory").exists()


def test_scripted_is_what_tests_think() -> None:
    """The scripted model counts as a real one."""
    assert not Scripted().plain
