"""``session_archive_read``: the one archive that the ``compact`` line names, page by page, and no other."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from ulid import ULID

from session.models.model import Answer, ToolCall
from session.store.store import Store
from session.tools import MAX_RESULT_BYTES, Toolbox, ToolPlace, ToolResult
from session.tools.archives import PAGE_BYTES, RESULT_CHARS, SessionArchiveRead
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp
from session.transcript.loading import WHOLE_BYTES
from session.turn.turn import Request, StopSwitch
from tests.contracts.models import Script
from tests.session.turn_place import turns_of
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

ADA, EVE = SessionKey("telegram:1"), SessionKey("telegram:2")
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
NAME = "session_archive_read"


def line(role: str, text: str | None, **fields: Any) -> dict[str, Any]:
    return make_line(role, text, stamp(NOON, UTC), **fields)


TALK = [
    line("user", "where is the key?", message_id="m1", sender={"id": "1", "name": "Ada"}),
    line(
        "assistant",
        None,
        tool_calls=[
            {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
        ],
    ),
    line("tool", "under the mat", tool_call_id="c", name="read"),
    line("assistant", "Under the mat.", final=True),
]


class World:
    """A workspace whose conversations can be ended as a compaction ends them."""

    def __init__(self, workspace: Path) -> None:
        self.clock = Clock(NOON)
        self.store = Store(workspace, zone=UTC, clock=self.clock)
        self.model = Script()

    async def say(self, lines: Sequence[dict[str, Any]], key: SessionKey = ADA) -> None:
        async with self.store.open(key) as session:
            await session.append(lines)

    async def compact(self, key: SessionKey = ADA) -> Path:
        """End the session, and open the next one with a line that names the archive; return it."""
        self.clock.forward(hours=1)
        async with self.store.open(key) as session:
            path = await session.end()
            assert path is not None
            await session.append([compact(path.name)])
        return path

    async def read(self, **arguments: Any) -> ToolResult:
        view = await self.store.look(ADA)
        place = ToolPlace(self.store.layout.workspace / "files", ADA, view.stem, view.previous_archive)
        tool = SessionArchiveRead(self.store.layout, zone=BERLIN)
        return await Toolbox([tool]).run(ToolCall("c", NAME, json.dumps(arguments)), place, (NAME,))

    async def ask(self, text: str) -> str:
        """Run a turn with the tool on offer where it has something to do."""
        tool = SessionArchiveRead(self.store.layout, zone=BERLIN)
        turns = turns_of(self.model, [tool], self.store.layout.workspace / "files", clock=self.clock)
        async with self.store.open(ADA) as session:
            reply = await turns.run(session, Request(str(ULID()), ADA, text), stop=StopSwitch())
        return reply.text


def compact(name: str) -> dict[str, Any]:
    more = {"type": "compact", "previousSession": name}
    return line("system", "They looked for a key.", kind="compact", metadata=more)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.aclose()


async def test_an_archive_is_shown_as_flat_text_with_roles_and_times(world: World) -> None:
    await world.say(TALK)
    await world.compact()

    shown = await world.read()

    assert shown.text.splitlines() == [
        "The earlier part of this conversation, ended 2026-01-31 14:00: lines 1 to 4 of 4.",
        "",
        "[1 user Ada, 2026-01-31 13:00]: where is the key?",
        '[2 calls]: read {"path":"a"}',
        "[3 result: read, 2026-01-31 13:00]: under the mat",
        "[4 assistant, 2026-01-31 13:00]: Under the mat.",
        "",
        "[This is the end of the archive.]",
    ]
    assert "has 4 lines" in (await world.read(line=5)).text
    assert (await world.read(line=0)).is_error


async def test_it_is_on_offer_only_where_a_compaction_left_an_archive(world: World) -> None:
    """Before there is a ``compact`` line the model is not told of it, and a call of it is refused."""
    call = Answer("", tool_calls=[ToolCall("c", NAME, "{}")], finish="tool_calls")
    world.model.steps = [call, "no luck"]
    assert await world.ask("first") == "no luck"
    await world.compact()
    world.model.steps = [call, "found it"]

    assert await world.ask("second") == "found it"

    offered = [[spec.name for spec in prompt.tools] for prompt in world.model.prompts]
    assert offered == [[], [], [NAME], [NAME]]
    results = [prompt.messages[-1]["content"] for prompt in world.model.prompts[1::2]]
    assert "there is no tool" in results[0]
    assert "first" in results[1]


async def test_pages_follow_one_another_without_gap_or_repeat(world: World) -> None:
    """Following what each page says reads every line once, however long; each page keeps to its bound."""
    texts = [f"{i}: " + "wörter " * (i * 40) for i in range(60)] + ["ß" * 70_000, "the last"]
    await world.say([line("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(texts)])
    await world.compact()
    arguments: dict[str, Any] = {}
    pages: list[str] = []

    while True:
        page = (await world.read(**arguments)).text
        assert len(page.encode()) <= PAGE_BYTES <= MAX_RESULT_BYTES
        pages.append("\n".join(page.splitlines()[2:-2]))
        last = page.splitlines()[-1]
        if last == "[This is the end of the archive.]":
            break
        arguments = json.loads(last[last.index("{") : last.rindex("}") + 1])

    whole = "".join(pages)
    assert [whole.count(f"]: {i}: wörter") for i in range(1, 60)] == [1] * 59
    assert (whole.count("ß"), whole.count("the last")) == (70_000, 1)
    assert len(pages) > 10


async def test_results_of_tools_are_bounded(world: World) -> None:
    await world.say([*TALK[:2], line("tool", "x" * 50_000, tool_call_id="c", name="read", is_error=True)])
    await world.compact()

    text = (await world.read()).text

    assert f"{'x' * RESULT_CHARS} […, 50000 characters in all]" in text
    assert "[3 failed: read," in text
    assert text.count("x") == RESULT_CHARS


async def test_what_was_withdrawn_or_deleted_is_not_shown(world: World) -> None:
    """Nor are our own records, but for the summary with which the archive itself opened."""
    await world.say([compact("gone"), *TALK, line("system", "", kind="undo", **{"from": 1})])
    await world.say([line("user", "and now?"), line("system", "typo", kind="note", edits="m9")])
    await world.say([line("user", "my secret", message_id="m0"), line("assistant", "kept", message_id="m0")])
    await world.say([line("system", "", kind="note", edits="m0", deleted=True, message_id="d")])
    await world.compact()

    text = (await world.read()).text

    assert [row for row in text.splitlines() if row.startswith("[")] == [
        "[1 summary of what came before, 2026-01-31 13:00]: They looked for a key.",
        "[7 user, 2026-01-31 13:00]: and now?",
        "[This is the end of the archive.]",
    ]


async def test_only_the_newest_archive_is_reached(world: World) -> None:
    """After two compactions the older archive is out of reach, whatever the model asks for."""
    await world.say([line("user", "the oldest")])
    await world.compact()
    await world.say([line("user", "the newer")])
    await world.compact()

    text = (await world.read()).text

    assert "the newer" in text
    assert "the oldest" not in text


async def test_an_archive_that_got_another_name_is_found(world: World) -> None:
    """A session that was opened again and ended once more keeps its ULID, and its name changes."""
    await world.say(TALK)
    path = await world.compact()
    path.rename(path.with_name(f"20300101T000000Z{path.name[16:]}"))

    assert "under the mat" in (await world.read()).text


@guarantee("leaks", "A model reads only the archives of its own chat's compactions.")
@pytest.mark.parametrize("how", ["id", "path", "copied", "of another program"])
async def test_an_archive_of_another_chat_is_never_read(world: World, how: str) -> None:
    """Neither by its ULID, nor by a path, nor where its file lies in the wrong folder."""
    await world.say([line("user", "my secret")], EVE)
    theirs = await world.compact(EVE)
    await world.say(TALK)
    mine = await world.compact()
    if how == "copied":
        os.link(theirs, mine.with_name(theirs.name))
    names = {"path": f"../{theirs.parent.name}/{theirs.name}", "of another program": "20260225T143000.jsonl"}
    await world.say([compact(names.get(how, theirs.name))])

    said = await world.read()

    assert said.is_error
    assert "my secret" not in said.text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("missing", "no longer exists"),
        ("empty", "damaged"),
        ("torn", "lines 1 to 3 of 3. Parts of the file are damaged"),
        ("a folder", "cannot be read"),
    ],
)
async def test_a_missing_or_damaged_archive_is_said_and_the_turn_goes_on(
    world: World, damage: str, said: str
) -> None:
    await world.say(TALK)
    path = await world.compact()
    data = path.read_bytes()
    path.unlink()
    if damage == "empty":
        path.write_bytes(b"\0" * 100)
    elif damage == "torn":
        rows = data.splitlines(keepends=True)
        path.write_bytes(b"".join([*rows[:3], b'{"role": "to\n', *rows[4:]]))
    elif damage == "a folder":
        path.mkdir()
    world.model.steps = [Answer("", tool_calls=[ToolCall("c", NAME, "{}")], finish="tool_calls"), "so be it"]

    assert await world.ask("what was it?") == "so be it"

    assert said in str(world.model.prompts[-1].messages[-1]["content"])


async def test_a_big_archive_is_read_in_its_midst(world: World) -> None:
    """One that is not held in memory as a whole shows the lines that were asked for."""
    await world.say([line("user", f"no. {number} " + "x" * 1000) for number in range(1, 6001)])
    path = await world.compact()

    text = (await world.read(line=5990)).text

    assert path.stat().st_size > WHOLE_BYTES
    assert [f"]: no. {number} " in text for number in (5989, 5990, 6000)] == [False, True, True]
    assert "lines 5990 to 6000 of 6000" in text
