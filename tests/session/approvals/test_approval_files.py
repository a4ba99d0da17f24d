"""What is kept of a call that waits for a person, and which word counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.approvals.answers import ALLOWED_SAID, SEVERAL_WAIT, UNSEEN_SAID, Answers
from session.approvals.files import ApprovalFiles, Decided
from session.approvals.record import Approval, Call
from session.errors import ApprovalLost
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

START = datetime(2026, 1, 31, 9, 15, tzinfo=UTC)
CALL = Call("telegram:1", "telegram:1", "m1", 1, "c1", "write", '{"path": "a"}', "/w/files", "Ada (1)")


def place(tmp_path: Path) -> tuple[ApprovalFiles, Clock]:
    clock = Clock(START)
    return ApprovalFiles(tmp_path, clock=clock), clock


def ask(files: ApprovalFiles, call: Call = CALL) -> Approval:
    return files.ask(Approval.of(call, files.now(), timeout_s=60))


def say(files: ApprovalFiles, id_: str, via: str = "p1", chat: str = "telegram:1") -> Decided:
    return files.decide(id_, "allowed", chat=chat, by="Ada", via=via)


@guarantee("security", "An approval is valid for exactly one tool call.")
@pytest.mark.parametrize(
    "other",
    [
        replace(CALL, tool="shell"),
        replace(CALL, arguments='{"path": "b"}'),
        replace(CALL, folder="/etc"),
        replace(CALL, key="telegram:2"),
        replace(CALL, message_id="m2"),
        replace(CALL, call_id="c2"),
        replace(CALL, number=2),
    ],
)
def test_a_word_is_for_one_call(tmp_path: Path, other: Call) -> None:
    """Whatever differs in the call, it is another one, about which nothing was said."""
    files, _ = place(tmp_path)
    allowed = ask(files)
    say(files, allowed.id)

    asked = ask(files, other)

    assert asked.id != allowed.id
    assert asked.state == "waiting"
    assert ask(files).state == "allowed"


def test_one_word_counts_once(tmp_path: Path) -> None:
    """The same press again is the same word; any other one comes too late."""
    files, _ = place(tmp_path)
    id_ = ask(files).id

    assert say(files, id_).refusal is None
    assert say(files, id_).refusal is None
    assert files.decide(id_, "denied", chat="telegram:1", by="Bob", via="p2").refusal == "decided"
    assert files.begin(id_).state == "allowed"
    assert files.begin(id_).state == "started"


def test_of_many_words_at_once_one_counts(tmp_path: Path) -> None:
    files, _ = place(tmp_path)
    id_ = ask(files).id
    found: list[Decided] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(say(files, id_, via=f"p{n}"))) for n in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(str(each.refusal) for each in found) == ["None", *["decided"] * 7]


def test_a_word_in_another_chat_or_about_nothing_is_unknown(tmp_path: Path) -> None:
    files, _ = place(tmp_path)
    id_ = ask(files).id

    assert say(files, id_, chat="telegram:2").refusal == "unknown"
    for forged in ("a" * 16, "../../etc", "", id_.upper()):
        assert say(files, forged).refusal == "unknown"
    assert ask(files).state == "waiting"


def test_a_word_after_its_time_is_late(tmp_path: Path) -> None:
    files, clock = place(tmp_path)
    id_ = ask(files).id
    clock.forward(seconds=60)

    assert say(files, id_).refusal == "late"
    assert files.waiting() == []
    assert files.expire(id_).state == "expired"
    assert say(files, id_).refusal == "late"


def test_what_a_stopped_turn_asked_is_over(tmp_path: Path) -> None:
    files, _ = place(tmp_path)
    id_ = ask(files).id

    assert [each.id for each in files.cancel("telegram:1", "m1")] == [id_]
    assert say(files, id_).refusal == "cancelled"
    assert files.begin(id_).state == "cancelled"


@pytest.mark.parametrize(
    "change", [lambda text: text.replace('\\"a\\"', '\\"b\\"'), lambda _: "{", lambda _: ""]
)
def test_a_file_that_was_changed_lets_nothing_run(tmp_path: Path, change: Callable[[str], str]) -> None:
    """The hash no longer fits: it cannot be allowed, nor asked again as though nothing had been."""
    files, _ = place(tmp_path)
    id_ = ask(files).id
    say(files, id_)
    path = files.folder / f"{id_}.json"
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before

    with pytest.raises(ApprovalLost):
        ask(files)
    with pytest.raises(ApprovalLost):
        files.begin(id_)
    assert say(files, id_, via="p2").refusal == "unknown"


def test_what_ended_is_deleted_after_two_days_and_with_its_chat(tmp_path: Path) -> None:
    files, clock = place(tmp_path)
    old = ask(files).id
    clock.forward(hours=47)
    young = ask(files, replace(CALL, message_id="m2")).id
    other = ask(files, replace(CALL, key="telegram:2", chat="telegram:2")).id
    clock.forward(hours=2)

    files.prune()
    assert {each.id for each in files.all()} == {young, other}
    assert files.find(old) is None
    assert files.forget("telegram:2") == 1
    assert [each.id for each in files.all()] == [young]


def test_a_call_that_was_begun_is_not_asked_about_again_while_its_letter_may_come(tmp_path: Path) -> None:
    """Nobody knows whether it ran: it stays known for a month, and what was only allowed for two days."""
    files, clock = place(tmp_path)
    begun, allowed = ask(files).id, ask(files, replace(CALL, message_id="m2")).id
    for id_ in (begun, allowed):
        say(files, id_)
    files.begin(begun)
    clock.forward(hours=49)

    files.prune()
    ask(files, replace(CALL, message_id="m3"))
    assert ask(files).state == "started"
    assert files.begin(begun).state == "started"
    assert files.find(allowed) is None

    clock.forward(days=30)
    files.prune()
    assert files.find(begun) is None


# -- a word without an id --------------------------------------------------------------------------------


GROUP = "telegram:-5"
SHELL = Call(GROUP, GROUP, "m1", 1, "c1", "shell", "{}", "/w/files")
BEGUN = datetime(2026, 1, 31, 9, 15, 7, 400_000, tzinfo=UTC)


class Place:
    """A chat that is asked about one call after another."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock(BEGUN)
        self.files = ApprovalFiles(folder, clock=self.clock)
        self.answers = Answers(self.files)

    def ask(self, number: int) -> Approval:
        call = replace(SHELL, number=number)
        return self.files.ask(Approval.of(call, self.clock.now, timeout_s=600))

    async def say(self, at: datetime | None, via: str = "m7") -> str:
        return await self.answers.say("allow", "", chat=GROUP, by="Ada", via=via, at=at)

    def state(self, asked: Approval) -> str:
        found = self.files.find(asked.id)
        assert found is not None
        return found.state


async def test_it_is_not_about_a_call_that_was_asked_about_later(tmp_path: Path) -> None:
    """Another person decided over the one that it was about."""
    here = Place(tmp_path)
    first = here.ask(1)
    here.files.decide(first.id, "allowed", chat=GROUP, by="Bob", via="p1")
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
    [BEGUN.replace(microsecond=0), BEGUN, BEGUN + timedelta(minutes=9), BEGUN + timedelta(days=400), None],
)
async def test_a_time_in_whole_seconds_and_none_do_no_harm(tmp_path: Path, at: datetime | None) -> None:
    here = Place(tmp_path)
    asked = here.ask(1)

    assert await here.say(at) == ALLOWED_SAID
    assert here.state(asked) == "allowed"
