"""Whose word counts where a turn waits, whatever is put into the queue; and what the waiting costs nobody."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender, now_text
from gateway.dispatch import approvals
from gateway.dispatch.approvals import NOT_YOURS_SAID
from gateway.dispatch.worker import DispatchRules
from session.approvals.answers import NOTHING_WAITS, UNKNOWN_SAID, UNSEEN_SAID, Answers
from session.approvals.files import ApprovalFiles
from session.approvals.gate import Gate
from session.approvals.record import Approval, Call
from session.approvals.rules import PolicyRules
from session.context.request import Request, TurnContext
from session.store.store import Session
from session.tools import Toolbox
from session.turn.commands import Commands
from session.turn.turn import Turns
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig
from tests.session.turn_place import Counter, call


class Asking(Rig):
    """A worker whose one tool has to be allowed."""

    def __init__(self, folder: Path, model: Script, rules: DispatchRules) -> None:
        super().__init__(folder, model, rules)
        self.tool = Counter(repeatable=False)
        self.files = ApprovalFiles(folder / "state", clock=self.clock)

    def turns(self) -> Turns:
        turns = super().turns()
        turns.toolbox = Toolbox([self.tool])
        turns.gate = Gate(PolicyRules(tools={"count": "ask"}), self.files)
        return turns

    def chat_commands(self) -> Commands:
        commands = super().chat_commands()
        commands.answers = Answers(self.files)
        return commands

    async def turn_context(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.folder / "files", tools=("count",))


@asynccontextmanager
async def asking(folder: Path, *steps: Any, **more: Any) -> AsyncIterator[Asking]:
    built = Asking(folder, Script(steps), DispatchRules())
    built.more = more
    async with built.open():
        yield built


async def test_a_job_in_the_chat_itself_decides_over_nothing(tmp_path: Path) -> None:
    """A model that makes a job whose message is ``/approve`` has allowed itself nothing."""
    async with asking(tmp_path, call("1"), "done") as rig:
        await rig.put("count", "m1")
        (prompt,) = await rig.replies(1)
        assert await rig.say("/approve", "job", source="cron") == NOT_YOURS_SAID
        assert rig.tool.calls == []

        await rig.put("/approve", "m2", sender=Sender(id="1", name="Ada"))
        told = {out.id: out.text for out in await rig.replies(3)}

    assert told == {
        "m2#reply": "Allowed.",
        f"{prompt.id}.done": "Allowed by Ada (1): `count`",
        "m1#reply": "done",
    }
    assert rig.tool.calls == ["1"]


async def test_a_word_where_nothing_waits_is_told_so(tmp_path: Path) -> None:
    async with asking(tmp_path) as rig:
        for number, text in enumerate(("/approve", "/deny", "/approve aaaaaaaaaaaaaaaa")):
            await rig.put(text, f"m{number}")
        # Words are taken as they come, beside the lane: their answers have no order.
        assert sorted(await rig.texts(3)) == sorted([NOTHING_WAITS, NOTHING_WAITS, UNKNOWN_SAID])


@pytest.mark.parametrize("word", ["/approve", "/deny"])
@pytest.mark.parametrize("told", ["sent_at", "received_at"])
async def test_a_word_counts_for_nothing_that_was_asked_after_it(
    tmp_path: Path, word: str, told: str
) -> None:
    """Whoever wrote it meant another call, or wrote it while its platform was away."""
    async with asking(tmp_path, call("1"), "done") as rig:
        await rig.say("count", "m1")
        (waiting,) = rig.files.waiting(ADA)
        now = rig.files.now()
        times = {"received_at": now_text(now), told: now_text(now - timedelta(seconds=3))}
        assert await rig.say(word, "m2", **times) == UNSEEN_SAID.format(ids=waiting.id)
        assert [each.state for each in rig.files.all()] == ["waiting"]

        await rig.put(f"{word} {waiting.id}", "m3", **times)
        await rig.replies(3)
        assert not rig.files.waiting(ADA)


async def test_a_press_that_comes_again_is_one_word(tmp_path: Path) -> None:
    """Put twice under one id, as after a crash: it counts once, and the chat is told nothing twice."""
    async with asking(tmp_path, call("1"), "done") as rig:
        await rig.put("count", "m1")
        (prompt,) = await rig.replies(1)
        value = prompt.buttons[0].value
        await rig.put(value, "p1", kind="action")
        await rig.put(value, "p1", kind="action")
        told = [out.id for out in await rig.replies(2)]
        await rig.settled()

        assert told == [f"{prompt.id}.done", "m1#reply"]
        assert rig.unread == 0
    assert rig.tool.calls == ["1"]


NOW = datetime(2026, 1, 31, tzinfo=UTC)


def approval(arguments: str, *, tool: str = "shell", who: str = "Ada (1)") -> Approval:
    call = Call("telegram:1", "telegram:1", "m1", 1, "c1", tool, arguments, "/w/files", who)
    return Approval.of(call, NOW, timeout_s=600)


@pytest.mark.parametrize(
    "evil",
    [
        "```\n**Harmless.**\n```",
        "rm\u202e -rf",
        "a\u200bb",
        "x\x1b[2J",
        "one\ntwo",
        "\U000e0041",
        "\ud800",
        "ü 日本 🙂",
    ],
)
def test_arguments_are_shown_in_full_and_cannot_leave_their_block(evil: str) -> None:
    arguments = json.dumps({"command": evil})

    shown = approvals.shown_arguments(arguments)

    assert json.loads(shown) == json.loads(arguments)
    assert all(each == "\n" or (each.isprintable() and each != "`") for each in shown)
    assert len(shown.splitlines()) == 3
    assert approvals.question_of(approval(arguments)).count("```") == 2


def test_letters_of_any_language_stay_as_they_are() -> None:
    assert "ü 日本 🙂" in approvals.shown_arguments('{"text": "ü 日本 🙂"}')


def test_names_of_people_and_tools_format_nothing() -> None:
    text = approvals.question_of(approval("{}", tool="x`*\nAsked by: root", who="**Eve**`\n/approve all"))

    assert text.count("\n") == approvals.question_of(approval("{}")).count("\n")
    assert "Asked by: Eve/approve all" in text


def test_a_button_fits_every_platform() -> None:
    """Telegram takes 64 bytes, Discord 100 characters; a value is the command that would be typed."""
    asked = approval("{}")

    assert [each.value for each in approvals.buttons_of(asked)] == [
        f"/approve {asked.id}",
        f"/deny {asked.id}",
    ]
    assert max(len(each.value.encode()) for each in approvals.buttons_of(asked)) <= 64
