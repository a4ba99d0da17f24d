"""Real nanobot writes, we go on, real nanobot reads: 0.1.4.post3 and 0.2.2, by their own classes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.models.model import Answer, ToolCall
from session.store.store import Session, Store
from session.tools.files import Ls
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from session.turn.commands import Commands, parse
from session.turn.turn import Request, StopSwitch
from tests.contracts.models import Script, Step
from tests.session.transcript.test_edge_sessions import EDGES, FOREIGN, key_of, workspace_with
from tests.session.turn_place import turns_of
from tests.support import peers
from tests.support.guarantee import guarantee
from tests.support.peers import NANOBOT_014, NANOBOT_022, Peer

pytestmark = [
    pytest.mark.timeout(peers.FIRST_USE_S),
    pytest.mark.slow,
    guarantee("sessions", "nanobot and the gateway read each other's transcripts."),
]
SAMPLES = Path(__file__).parent.parent.parent / "data" / "nanobot-samples" / "v014"
ADA = "telegram:12345678"
AT = "2026-03-01T10:00:00.000001+00:00"
WEIRD = 'Привет 世界 👩‍👩‍👧‍👦 "quoted" \\ back\u2028slash\x85 \x01 ende'
LS = ToolCall("call_ls|fc_1", "ls", '{"path": "."}')
BOTH = pytest.mark.parametrize("nanobot", [NANOBOT_014, NANOBOT_022], ids=lambda peer: peer.name)


def exchange(number: int) -> list[dict[str, Any]]:
    """A question, a tool call, its result and an answer, as their loop stores them."""
    call = {"id": f"call_{number}", "type": "function"}
    call["function"] = {"name": "list_dir", "arguments": '{"path": "."}'}  # type: ignore[assignment]
    return [
        {"role": "user", "content": f"question {number} {WEIRD}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "a\nb", "tool_call_id": call["id"], "name": "list_dir"},
        {"role": "assistant", "content": f"answer {number}", "tools_used": ["list_dir"]},
    ]


class Theirs:
    """One version of nanobot on one workspace."""

    def __init__(self, peer: Peer, workspace: Path, home: Path) -> None:
        self.peer, self.workspace, self.home = peer, workspace, home

    def do(self, do: str, **request: Any) -> Any:
        return peers.ask(self.peer, self.home, do=do, workspace=str(self.workspace), **request)

    def read(self, key: str = ADA) -> dict[str, Any]:
        """Load one session; fails where it warned, or where its get_history raised."""
        return self.read_all([key])[key]

    def read_all(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.do("read", keys=list(keys))
        for key, session in found.items():
            assert session["warnings"] == [], key
            assert isinstance(session["history"], list), (key, session["history"])
        return found


@pytest.fixture
def theirs(nanobot: Peer, tmp_path: Path) -> Theirs:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    return Theirs(nanobot, workspace, home)


class Ours:
    """The session package on a workspace, with a model that answers by script."""

    def __init__(self, workspace: Path) -> None:
        self.store = Store(workspace, zone=UTC)
        self.model = Script()
        self._turns = turns_of(self.model, [Ls()], workspace / "files")

    async def turn(self, text: str, *steps: Step, key: str = ADA) -> None:
        self.model.steps += steps
        async with self.store.open(SessionKey(key)) as session:
            request = Request(id=f"id of {text[:40]}", key=session.key, text=text)
            await self._turns.run(session, request, stop=StopSwitch())


@asynccontextmanager
async def ours(workspace: Path) -> AsyncIterator[Ours]:
    place = Ours(workspace)
    yield place
    await place.store.aclose()


def contents(history: Sequence[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in history]


@BOTH
async def test_their_session_goes_on_here_and_there_again(theirs: Theirs) -> None:
    """Old and new messages stand there in order, tools too; theirs keep their bytes; and so once more."""
    old = [message for number in range(10) for message in exchange(number)]
    theirs.do("write", key=ADA, messages=old, metadata={"theirs": 1}, last_consolidated=16)
    path = theirs.workspace / "sessions" / "telegram_12345678.jsonl"
    their_lines = path.read_bytes().split(b"\n")[1:-1]

    async with ours(theirs.workspace) as here:
        await here.turn(f"new {WEIRD}", Answer("", tool_calls=[LS], finish="tool_calls"), "done")
        sent = [message for message in here.model.prompts[0].messages if message["role"] == "user"]
        async with here.store.open(SessionKey(ADA)) as session:
            await session.checkpoint(metadata={"name": "named"})
    there = theirs.read()

    assert path.read_bytes().split(b"\n")[1:41] == their_lines
    new = [("user", f"new {WEIRD}"), ("assistant", None), ("tool", "."), ("assistant", "done")]
    found = contents(there["history"])
    assert found[:24] == [(message["role"], message["content"]) for message in old[16:]]
    assert [(role, content) for role, content in found[24:] if role != "tool"] == [new[0], new[1], new[3]]
    assert there["history"][25]["tool_calls"][0]["function"]["arguments"] == '{"path": "."}'
    assert there["history"][26]["tool_call_id"] == there["history"][25]["tool_calls"][0]["id"] == LS.id
    assert (there["last_consolidated"], there["metadata"]["theirs"]) == (16, 1)
    assert there["metadata"]["name"] == "named"
    # Their offset says that here begins what memory does not hold.
    assert sent[0]["content"] == f"question 4 {WEIRD}"

    theirs.do("add", key=ADA, messages=exchange(99))
    async with ours(theirs.workspace) as here:
        await here.turn("last", "end")
        async with here.store.open(SessionKey(ADA)) as session:
            assert session.find(f"id of {f'new {WEIRD}'[:40]}") is not None
            await session.checkpoint(last_consolidated=len(session) - 2)
    assert contents(theirs.read()["history"]) == [("user", "last"), ("assistant", "end")]
    assert theirs.read()["count"] == 40 + 4 + 4 + 2


@BOTH
async def test_new_here_is_an_empty_session_there(theirs: Theirs) -> None:
    """After ``/new`` they find no message and go on; the archive of what they wrote is one of theirs, too."""
    theirs.do("write", key=ADA, messages=exchange(1), metadata={"theirs": 1}, last_consolidated=2)

    async def ended(session: Session) -> bool:
        return True

    async with ours(theirs.workspace) as here:
        commands = Commands(status=lambda key: [], memory=None, ended=ended, left=None)  # type: ignore[arg-type]
        async with here.store.open(SessionKey(ADA)) as session:
            command = parse("/new")
            assert command is not None
            await commands.run(session, command, Request(id="n", key=session.key, text="/new"))
        empty = theirs.read()
        theirs.do("add", key=ADA, messages=[{"role": "user", "content": "anew"}])
        await here.turn("and here", "answered")
    (archived,) = (theirs.workspace / "sessions" / "archive" / "telegram_12345678").glob("*.jsonl")
    archived.rename(theirs.workspace / "sessions" / "cli_archived.jsonl")

    assert (empty["count"], empty["last_consolidated"], empty["metadata"]["theirs"]) == (0, 0, 1)
    there = theirs.read_all([ADA, "cli:archived"])
    assert [content for _, content in contents(there[ADA]["history"])] == ["anew", "and here", "answered"]
    assert there["cli:archived"]["count"] == 4
    assert there["cli:archived"]["history"][-1]["content"] == "answer 1"


@BOTH
async def test_our_records_are_system_messages_there(theirs: Theirs) -> None:
    """Overlay, undo, note and compact lines load there and hide nothing."""
    theirs.do("write", key=ADA, messages=exchange(1))
    records = [
        make_line(
            "system", "the summary", AT, kind="overlay", first_kept=2, tokens_before=9, read_files=["a"]
        ),
        make_line("system", "", AT, **{"kind": "undo", "from": 5}),
        make_line("system", "edited", AT, kind="note", edits="id of one"),
        make_line("system", "s", AT, kind="compact", metadata={"type": "compact", "previousSession": "x"}),
    ]

    async with ours(theirs.workspace) as here:
        for number, record in enumerate(records):
            await here.turn(f"turn {number}", f"reply {number}")
            async with here.store.open(SessionKey(ADA)) as session:
                await session.append([record])
    there = theirs.read()

    assert there["count"] == 4 + 3 * len(records)
    said = contents(there["history"])[4:]
    expected: list[tuple[str, str]] = []
    for number, record in enumerate(records):
        expected += [("user", f"turn {number}"), ("assistant", f"reply {number}")]
        expected.append(("system", record["content"]))
    assert said == expected


@BOTH
async def test_damaged_files_load_there_after_our_first_write(theirs: Theirs) -> None:
    """Whatever a file went through: one turn here, and nanobot reads every message in it without a word."""
    workspace_with(theirs.workspace, *EDGES, FOREIGN)
    untouched = (theirs.workspace / "sessions" / f"{FOREIGN}.jsonl").read_bytes()

    async with ours(theirs.workspace) as here:
        for stem in EDGES:
            await here.turn("next", "reply", key=key_of(stem))
        await here.turn("apart", "reply", key=key_of(FOREIGN))

    for stem, there in zip(EDGES, theirs.read_all([key_of(stem) for stem in EDGES]).values(), strict=True):
        assert there["count"] == EDGES[stem].messages + 2, stem
        assert contents(there["history"])[-2:] == [("user", "next"), ("assistant", "reply")], stem
        assert there["last_consolidated"] == EDGES[stem].offset, stem
    assert (theirs.workspace / "sessions" / f"{FOREIGN}.jsonl").read_bytes() == untouched


@BOTH
async def test_samples_say_there_what_they_said_before(theirs: Theirs) -> None:
    """What the real get_history gave for files of 0.1.4 still stands before the turn that was added here."""
    keys: dict[str, list[Any]] = {}
    for path in sorted((SAMPLES / "expected").glob("*.get_history.json")):
        golden = json.loads(path.read_bytes())
        keys[golden["key"]] = golden["get_history_default"]
        stem = path.name.removesuffix(".get_history.json")
        (theirs.workspace / "sessions").mkdir(exist_ok=True)
        (theirs.workspace / "sessions" / f"{stem}.jsonl").write_bytes(
            (SAMPLES / "sessions" / f"{stem}.jsonl").read_bytes()
        )
    before = theirs.read_all(list(keys))

    async with ours(theirs.workspace) as here:
        for key in keys:
            await here.turn("next", "reply", key=key)

    after = theirs.read_all(list(keys))
    for key, golden in keys.items():
        assert contents(after[key]["history"])[-2:] == [("user", "next"), ("assistant", "reply")], key
        assert after[key]["history"][:-2] == before[key]["history"], key
        if theirs.peer is NANOBOT_014:
            assert before[key]["history"] == golden, key
