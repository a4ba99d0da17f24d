"""Whose word counts where a turn waits, whatever is put into the queue; and what the waiting costs nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound, Sender, now_text
from channels.pairing import Pairing
from gateway.app.approvals import Deciders
from gateway.config.settings import Settings
from gateway.turns.approvals import NOT_YOURS_SAID
from gateway.turns.letter_rules import LetterRules
from session.approvals.answers import NOTHING_WAITS, UNKNOWN_SAID, UNSEEN_SAID, Answers
from session.approvals.files import ApprovalFiles
from session.approvals.gate import Gate
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

    def __init__(self, folder: Path, model: Script, rules: LetterRules) -> None:
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
    built = Asking(folder, Script(steps), LetterRules())
    built.more = more
    async with built.open():
        yield built


async def test_a_job_in_the_chat_itself_decides_over_nothing(tmp_path: Path) -> None:
    """A model that makes a job whose message is ``/approve`` has allowed itself nothing."""
    async with asking(tmp_path, call("1"), "done") as rig:
        await rig.put("count", "m1")
        (prompt,) = await rig.replies(1)
        await rig.put("/approve", "job", source="cron")
        assert await rig.texts(1) == [NOT_YOURS_SAID]
        assert rig.tool.calls == []

        await rig.put("/approve", "m2", sender=Sender(id="1", name="Ada"))
        told = {out.id: out.text for out in await rig.replies(3)}

    assert told == {
        "m2#reply": "Allowed.",
        f"{prompt.id}.done": "Allowed by Ada (1): `count`",
        "m1#reply": "done",
    }
    assert rig.tool.calls == ["1"]


async def test_a_letter_of_somebody_else_decides_over_nothing(tmp_path: Path) -> None:
    """What another program puts into the queue is looked at again where it counts."""
    async with asking(tmp_path, call("1"), decides=lambda inbound: inbound.sender.id == "1") as rig:
        await rig.put("count", "m1")
        await rig.replies(1)
        await rig.put("/approve", "m2", sender=Sender(id="2"))

        assert await rig.texts(1) == [NOT_YOURS_SAID]
        assert [each.state for each in rig.files.all()] == ["waiting"]


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
        await rig.put("count", "m1")
        await rig.replies(1)
        (waiting,) = rig.files.waiting(ADA)
        now = rig.files.now()
        times = {"received_at": now_text(now), told: now_text(now - timedelta(seconds=3))}
        await rig.put(word, "m2", **times)

        assert await rig.texts(1) == [UNSEEN_SAID.format(ids=waiting.id)]
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


async def test_a_word_of_another_process_wakes_the_turn(tmp_path: Path) -> None:
    """The file is all that two daemons share: the one that waits looks at it."""
    async with asking(tmp_path, call("1"), "done") as rig:
        await rig.put("count", "m1")
        await rig.replies(1)
        (waiting,) = rig.files.waiting(ADA)
        ApprovalFiles(tmp_path / "state", clock=rig.clock).decide(
            waiting.id, "denied", chat="", by="Bob", via=""
        )

        assert await rig.texts(2) == ["Denied by Bob: `count` is not run.", "done"]


async def test_a_drain_waits_for_no_word(tmp_path: Path) -> None:
    """The daemon ends at once; its letter comes again to the next one, which asks no second time."""
    async with asking(tmp_path, call("1")) as rig:
        await rig.put("count", "m1")
        (prompt,) = await rig.replies(1)
        assert await rig.worker.drain(5)

    async with asking(tmp_path, "done") as rig:
        (again,) = await rig.replies(1)
        assert again.id == prompt.id
        rig.clock.now += timedelta(minutes=11)
        await rig.put("/approve", "m2")

        assert (await rig.texts(1))[0] == NOTHING_WAITS


@pytest.mark.parametrize(
    ("key", "sender", "group", "decides"),
    [
        ("telegram:7", "7", False, True),
        ("telegram:8", "8", False, True),
        ("telegram:9", "9", False, False),
        ("telegram:-100", "7", True, True),
        ("telegram:-100", "8", True, True),
        ("telegram:-100", "9", True, False),
        ("telegram:-100", "", True, False),
        # Everybody is let in there, for a chat of their own; in a group that says nothing.
        ("discord:5", "9", False, True),
        ("discord:5", "9", True, False),
        ("web:ann", "", False, True),
        ("cli:direct", "", False, True),
        ("foreign:ann", "", False, True),
    ],
)
def test_who_decides(tmp_path: Path, key: str, sender: str, *, group: bool, decides: bool) -> None:
    """People of the list and approved ones; those who are welcome decide in their own chat."""
    tables = {"telegram": {"allow_from": ["7"]}, "discord": {"direct": "open"}}
    settings = Settings.model_validate({"workspace": tmp_path, "channels": tables})
    Pairing(settings.state).admit("telegram", "8", kind="person", name="Ada")
    channel, _, chat_id = key.partition(":")
    letter = Inbound(
        v=1,
        id="m",
        key=key,
        channel=channel,
        chat_id=chat_id,
        text="x",
        sender=Sender(id=sender),
        group=group,
    )

    assert Deciders(settings)(letter) is decides
