"""Which call a word without an id is about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.approvals.answers import ALLOWED_SAID, SEVERAL_WAIT, UNSEEN_SAID, Answers
from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval, Call
from tests.support.clock import Clock

CHAT = "telegram:-5"
CALL = Call(CHAT, CHAT, "m1", 1, "c1", "shell", "{}", "/w/files")
START = datetime(2026, 1, 31, 9, 15, 7, 400_000, tzinfo=UTC)


class Place:
    """A chat that is asked about one call after another."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock(START)
        self.files = ApprovalFiles(folder, clock=self.clock)
        self.answers = Answers(self.files)

    def ask(self, number: int) -> Approval:
        call = replace(CALL, number=number)
        return self.files.ask(Approval.of(call, self.clock.now, timeout_s=600))

    async def say(self, at: datetime | None, via: str = "m7") -> str:
        return await self.answers.say("allow", "", chat=CHAT, by="Ada", via=via, at=at)

    def state(self, asked: Approval) -> str:
        found = self.files.find(asked.id)
        assert found is not None
        return found.state


async def test_it_is_not_about_a_call_that_was_asked_about_later(tmp_path: Path) -> None:
    """Another person decided over the one that it was about."""
    here = Place(tmp_path)
    first = here.ask(1)
    here.files.decide(first.id, "allowed", chat=CHAT, by="Bob", via="p1")
    here.clock.forward(seconds=2)
    written = here.clock.now
    here.clock.forward(seconds=2)
    second = here.ask(2)

    assert await here.say(written) == UNSEEN_SAID.format(ids=second.id)
    assert here.state(second) == "waiting"


async def test_it_is_about_the_only_one_that_waited_then(tmp_path: Path) -> None:
    here = Place(tmp_path)
    first = here.ask(1)
    here.clock.forward(seconds=2)
    written = here.clock.now
    here.clock.forward(seconds=2)
    second = here.ask(2)

    assert await here.say(here.clock.now) == SEVERAL_WAIT.format(ids=f"{first.id} | {second.id}")
    assert await here.say(written) == ALLOWED_SAID
    assert (here.state(first), here.state(second)) == ("allowed", "waiting")
    # The same message again is the same word.
    assert await here.say(written) == ALLOWED_SAID
    assert here.state(second) == "waiting"


@pytest.mark.parametrize(
    "at",
    [START.replace(microsecond=0), START, START + timedelta(minutes=9), START + timedelta(days=400), None],
)
async def test_a_time_in_whole_seconds_and_none_do_no_harm(tmp_path: Path, at: datetime | None) -> None:
    here = Place(tmp_path)
    asked = here.ask(1)

    assert await here.say(at) == ALLOWED_SAID
    assert here.state(asked) == "allowed"
