"""Letters are asked again in the order and at the distance in which they came, and none of them twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from channels.message import MAX_KEY_BYTES
from gateway.errors import GatewayError, Unreachable
from gateway.recording.letter import Letter
from gateway.recording.outcome import Outcome
from gateway.recording.replaying import MOST_WAITS, Plan, key_of, replay, text_of
from gateway.service.outcome import Outcome as Told

T = TypeVar("T")
AT = datetime(2026, 11, 27, 8, tzinfo=UTC)
PLAN = Plan("run", side_by_side=4, within_s=5)


def letter(text: str, came_s: float, ended_s: float, *, key: str = "telegram:1") -> Letter:
    at = AT + timedelta(seconds=came_s)
    return Letter(key, f"id {text}", at, text, Outcome("answered", at, AT + timedelta(seconds=ended_s)))


@dataclass
class Stub:
    """Answers each letter ``takes_s`` after it came; says what happened in ``told``."""

    takes_s: float = 0.01
    told: list[str] = field(default_factory=list)
    refuses: Mapping[str, GatewayError] = field(default_factory=dict)
    fails: Mapping[str, GatewayError] = field(default_factory=dict)
    taken: dict[tuple[str, str], str] = field(default_factory=dict)
    restarts: int = 0
    at_once: int = 0
    most: int = 0

    async def hand_in(self, key: str, text: str, message_id: str) -> None:
        if text in self.refuses:
            raise self.refuses[text]
        if self.taken.setdefault((key, message_id), text) == text:
            self.told.append(f"in {text}")

    async def ask(self, key: str, text: str, message_id: str, *, within_s: float | None = None) -> Told:
        assert self.taken[key, message_id] == text
        if text in self.fails:
            raise self.fails[text]
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(self.takes_s)
        self.at_once -= 1
        self.told.append(f"out {text}")
        return Told("reply", f"re: {text}")

    async def trace(self, message_id: str, key: str | None) -> dict[str, Any]:
        if self.restarts:
            self.restarts -= 1
            raise Unreachable("it starts")
        at = AT.isoformat()
        return {"steps": [{"step": "begun", "at": at}, {"step": "stored", "at": at}]}

    async def over_restarts(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except Unreachable:
                await asyncio.sleep(0)


async def test_a_letter_waits_for_what_was_answered_when_it_came() -> None:
    stub = Stub()

    played = await replay(stub, [letter("a", 0, 1), letter("b", 2, 3), letter("c", 4, 5)], PLAN)

    assert stub.told == ["in a", "out a", "in b", "out b", "in c", "out c"]
    assert [(each.outcome.word, each.reply) for each in played] == [
        ("answered", "re: a"),
        ("answered", "re: b"),
        ("answered", "re: c"),
    ]


async def test_one_that_came_in_between_follows_at_its_distance() -> None:
    stub = Stub(takes_s=0.5)
    now = asyncio.get_running_loop().time
    begun = now()

    await replay(stub, [letter("a", 0, 9), letter("b", 0.2, 10), letter("c", 11, 12)], PLAN)

    assert stub.told == ["in a", "in b", "out a", "out b", "in c", "out c"]
    assert now() - begun >= 0.2 + 0.5 + 0.5


async def test_chats_are_asked_side_by_side_as_many_as_may_be() -> None:
    stub = Stub(takes_s=0.05)
    letters = [letter(f"{n}", n, n + 0.5, key=f"telegram:{n}") for n in range(12)]

    played = await replay(stub, letters, PLAN)

    assert [each.letter for each in played] == letters
    assert stub.most == PLAN.side_by_side


async def test_no_more_answers_are_waited_for_than_there_are_connections() -> None:
    stub = Stub(takes_s=0.05)

    played = await replay(stub, [letter(f"{n}", 0, 9) for n in range(300)], PLAN)

    assert len(played) == 300
    assert stub.most <= MOST_WAITS


async def test_what_is_refused_is_told_and_the_next_ones_are_asked() -> None:
    stub = Stub(refuses={"b": GatewayError("too long")})

    played = await replay(stub, [letter("a", 0, 1), letter("b", 2, 3), letter("c", 4, 5)], PLAN)

    assert [each.fault for each in played] == ["", "too long", ""]
    assert stub.told == ["in a", "out a", "in c", "out c"]


async def test_one_whose_answer_is_refused_ends_no_other() -> None:
    stub = Stub(fails={"b": GatewayError("the daemon answered 500")})

    played = await replay(stub, [letter("a", 0, 1), letter("b", 2, 3), letter("c", 4, 5)], PLAN)

    assert [each.fault for each in played] == ["", "the daemon answered 500", ""]


async def test_a_gateway_that_restarts_is_asked_again_what_became_of_a_letter() -> None:
    stub = Stub(restarts=1)

    (played,) = await replay(stub, [letter("a", 0, 1)], PLAN)

    assert (played.outcome.word, played.fault) == ("answered", "")


async def test_a_long_chat_is_asked_in_a_time_that_grows_with_its_length() -> None:
    letters = [letter("a", n, n + 0.5) for n in range(6000)]

    begun = time.thread_time()
    await replay(Stub(takes_s=0), letters, PLAN)

    assert time.thread_time() - begun < 4


async def test_a_gateway_that_is_gone_ends_it_and_the_same_run_asks_under_the_same_ids() -> None:
    letters = [letter("a", 0, 1), letter("b", 2, 3)]
    stub = Stub(refuses={"b": Unreachable("gone")})

    with pytest.raises(ExceptionGroup) as error:
        await replay(stub, letters, PLAN)
    assert error.group_contains(Unreachable)
    before = dict(stub.taken)
    stub.refuses = {}
    await replay(stub, letters, PLAN)

    assert stub.taken.items() >= before.items()
    assert [*stub.taken.values()] == ["a", "b"]
    stub.taken = {}
    await replay(stub, letters, replace(PLAN, run="other"))
    assert not before.keys() & stub.taken.keys()


def test_its_chats_are_of_the_web_and_apart() -> None:
    assert key_of("run", "telegram:1:topic:2") == "web:replay-run:telegram:1:topic:2"
    long = key_of("run", "telegram:" + "é" * 900)
    assert long.startswith("web:replay-run:")
    assert len(long.encode()) <= MAX_KEY_BYTES
    assert long != key_of("run", "telegram:" + "é" * 901)
    assert key_of("run", "telegram:\ud800").encode().startswith(b"web:replay-run:")


def test_a_letter_without_words_has_the_names_of_its_files() -> None:
    one = letter("", 0, 1)

    assert text_of(replace(one, files=["cat.jpg", "voice"])) == "[cat.jpg]\n[voice]"
    assert text_of(one) == "[empty]"
    assert text_of(replace(one, text="a \ud800")) == "a ?"
