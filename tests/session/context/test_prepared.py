"""A history that is prepared turn by turn is the one that is built anew for each request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.context import prepared as prepared_module
from session.context.context import Part, request
from session.context.prepared import KEPT_FROM, lines_from, prepared
from session.context.request import sent_from
from session.models.model import Echo, PartKind
from session.store.store import Session, Store
from session.transcript.attachments import Album
from session.transcript.history import is_message, visible
from session.transcript.key import SessionKey
from session.transcript.line import decode, dump, make_line
from session.transcript.transcript import Transcript, fresh
from session.turn.turn import Request, StopSwitch, Turns
from tests.contracts.models import Script
from tests.session.turn_place import turns_of
from tests.session.wild_lines import LINES
from tests.support.examples import drawn

ADA = SessionKey("telegram:1")
LONG = 200
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20
TOLD = [Part("Notes", "tea"), Part("Date and time", "now", 5)]
NAMED = {"kind": "photo", "name": "cat.png", "mime": "image/png", "size": 28}
FILES = st.lists(
    st.sampled_from([{**NAMED, "ref": "media/a.png"}, {**NAMED, "ref": "media/gone.png"}, {}, "junk"]),
    max_size=2,
)
IDS = st.sampled_from(["m0", "m1", "m2"])
NOTES = st.fixed_dictionaries(
    {"role": st.just("system"), "kind": st.sampled_from(["note", "note", "undo", "overlay"])},
    optional={
        "deleted": st.just(True),
        "edits": IDS,
        "from": st.integers(0, 9),
        "first_kept": st.integers(0, 9),
    },
)
SAID = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": st.sampled_from(["<gateway-context>", " ", "ü"]),
    },
    optional={"attachments": FILES, "message_id": IDS, "answers": st.just(["m1"]), "part_of": IDS},
)
# How a turn goes on after the question.
CALLED: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
        "reasoning_content": "hm",
    },
    {"role": "tool", "content": "many files " * 9, "tool_call_id": "a", "name": "ls"},
]
# What happens between two requests: lines that are stored, or something that changes all requests.
STEPS = st.lists(
    LINES
    | st.lists(NOTES | SAID, max_size=3)
    | st.tuples(st.just("consolidated"), st.integers(0, 30))
    | st.tuples(st.just("keeps"), st.integers(0, 3))
    | st.tuples(st.just("escapes"), st.booleans())
    | st.sampled_from(["reloaded", "begun anew", "given up"]),
    max_size=8,
)


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    """Have a few lines read at once, so that short histories are of several pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_module, "PIECE", 3)
        yield


class Sees(Echo):
    def takes(self, part: PartKind) -> bool:
        return part == "image"


class Chat:
    """A transcript, and how its requests are made."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.keeps, self.escapes = 2, True
        self.transcript = self.empty()
        self.number = 0

    def empty(self) -> Transcript:
        return fresh("s", ADA, now=NOON, inner={})

    def grow(self, lines: Any) -> None:
        for raw in (dump(line) for line in lines if is_message(line)):
            self.transcript.grow(raw, decode(raw))

    def go_on(self, step: Any) -> None:
        old = self.transcript
        if isinstance(step, list):
            self.grow(step)
        elif step == "begun anew":
            self.transcript = self.empty()
        elif step == "reloaded":
            self.transcript = self.empty()
            self.transcript.last_consolidated = old.last_consolidated
            self.grow(map(decode, old.messages))
        elif step == "given up":
            old.prepared = None
        elif step[0] == "consolidated":
            old.last_consolidated = min(step[1], len(old.messages))
        elif step[0] == "keeps":
            self.keeps = step[1]
        else:
            self.escapes = step[1]

    def anew(self, pending: Any, id_: str) -> Any:
        first = sent_from(self.transcript)
        history = visible(
            [*lines_from(self.transcript, first), *pending],
            last_consolidated=self.transcript.history_start - first,
            running_id=id_,
            keep_results=self.keeps,
            show=Album(self.workspace, Sees()).show(),
        )
        return request(TOLD, history, changing="end" if self.escapes else "system")

    def kept(self, pending: Any, id_: str) -> Any:
        found = prepared(
            self.transcript,
            sent_from(self.transcript),
            pending[0] if pending else None,
            running_id=id_,
            keep_results=self.keeps,
            escapes=self.escapes,
            least=0,
        )
        if found is None:
            return None
        history, escaped = found[0].messages(
            found[1], Album(self.workspace, Sees()).show(), summary_role="user"
        )
        return request(TOLD, history, changing="end" if self.escapes else "system", escaped=escaped)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures")
    (path / "media").mkdir()
    (path / "media" / "a.png").write_bytes(PNG)
    return path


@given(steps=STEPS, stored=st.lists(st.booleans(), min_size=8, max_size=8))
@drawn(600)
def test_it_is_the_history_that_is_built_anew(workspace: Path, steps: Any, stored: Any) -> None:
    """Whatever is stored or changes in between; and no request changes what an earlier one was given."""
    _compare(workspace, steps, stored)


def test_it_is_so_for_what_is_seldom_drawn(workspace: Path) -> None:
    """Pictures beyond those that are shown; a deleted message that turns out to be answered with another."""
    photo = {"role": "user", "attachments": [{**NAMED, "ref": "media/a.png"}]}
    _compare(workspace, [[{**photo, "content": str(number)}] for number in range(8)], [True] * 8)
    said = [{"role": role, "content": role, "message_id": "m2"} for role in ("user", "assistant")]
    deleted = {"role": "system", "kind": "note", "deleted": True, "edits": "m2"}
    both = {"role": "assistant", "content": "to both", "answers": ["m2"]}
    opened = {"role": "user", "content": "first"}
    _compare(workspace, [[opened], [*said, deleted], [both], []], [True] * 4)


def _compare(workspace: Path, steps: Any, stored: Any) -> None:
    chat, given_out = Chat(workspace), []
    for number, (step, store) in enumerate(zip(steps, stored, strict=False)):
        chat.go_on(step)
        id_ = f"r{number}" if number % 3 else "m1"
        user = make_line("user", f"<gateway-context> {number}", "", message_id=id_)
        for pending in ([user], []):
            if not pending and store:
                chat.grow([user, *CALLED])
            sent = chat.kept(pending, id_)
            if sent is not None:
                assert json.dumps(sent) == json.dumps(chat.anew(pending, id_))
                given_out.append((sent, deepcopy(sent)))
        if store:
            chat.grow([make_line("assistant", f"answer {number}", "", message_id=id_, final=True)])
    assert all(sent == as_given for sent, as_given in given_out)


async def test_turns_go_on_from_what_is_kept_and_send_the_same(tmp_path: Path) -> None:
    """Of a long chat each request of later turns is the one before, and what was said since."""
    store, model = Store(tmp_path, zone=UTC), Script()
    turns = turns_of(model, [], tmp_path, clock=lambda: NOON)
    try:
        async with store.open(ADA) as session:
            await session.append(_said(KEPT_FROM))
            for number in range(3):
                await _ask(turns, session, f"q{number}")
            assert session.transcript.prepared is not None
            whole = visible(session.lines(), last_consolidated=0, running_id=None)

        sent = [list(prompt.messages) for prompt in model.prompts]
        assert [len(messages) for messages in sent] == [KEPT_FROM + 1, KEPT_FROM + 3, KEPT_FROM + 5]
        assert sent[2] == whole[:-1]
    finally:
        await store.aclose()


async def test_what_is_kept_is_weighed_and_goes_with_its_conversation(tmp_path: Path) -> None:
    """A cache that is too small for all gives up those that were used longest ago, whole."""
    store = Store(tmp_path, zone=UTC, cache_bytes=200_000)
    turns = turns_of(Script(), [], tmp_path, clock=lambda: NOON)
    others = [SessionKey(f"telegram:{number}") for number in range(2, 5)]
    try:
        async with store.open(ADA) as session:
            await session.append(_said(LONG))
            bare = session.transcript.weight
            await _ask(turns, session, "q")
            assert session.transcript.weight > bare + 2 * LONG * 10
        for key in others:
            async with store.open(key) as session:
                await session.append(_said(LONG))
                await _ask(turns, session, "q")

        assert store.look_here(ADA) is None
        assert store.cached_bytes() <= 200_000
    finally:
        await store.aclose()


def _said(count: int) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [make_line(roles[i % 2], f"{i}: some words", NOON.isoformat()) for i in range(count)]


async def _ask(turns: Turns, session: Session, id_: str) -> None:
    await turns.run(session, Request(id=id_, key=ADA, text=id_), stop=StopSwitch())
