"""A turn whose calls have to be allowed: it stops where it is, and goes on as after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from session.approvals.files import ApprovalFiles
from session.approvals.gate import MAX_ARGUMENTS_CHARS, AwaitsApproval, Gate
from session.approvals.record import Approval
from session.approvals.rules import Decision, PolicyRules
from session.context.request import Request
from session.models.model import Answer, ToolCall, ToolSpec, Usage
from session.models.spending import Meter
from session.turn.turn import INTERRUPTED, STOPPED, StopSwitch
from tests.session.turn_place import ADA, CALLS, Counter, TurnRig, call, roles, turn_rig, turns_of


class Bell(Counter):
    """Another tool that acts for good."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec("ring", "rings", {"type": "object", "properties": {"n": {"type": "string"}}})


def calls(*wanted: tuple[str, str, str]) -> Answer:
    """Ask for several tools in one answer: id, tool, argument."""
    found = [ToolCall(id_, name, f'{{"n": "{n}"}}') for id_, name, n in wanted]
    return Answer("", tool_calls=found, finish="tool_calls")


class Place:
    """A turn, its gate, and the bell."""

    def __init__(self, rig: TurnRig, folder: Path, policy: dict[str, Decision]) -> None:
        self.rig = rig
        self.bell = Bell(repeatable=False)
        self.files = ApprovalFiles(folder / "state", clock=rig.now)
        self.told: list[str] = []
        tools = [rig.tool, self.bell]
        rig.turns = turns_of(rig.model, tools, folder / "files", clock=rig.now, limits=rig.turns.limits)
        self.gate = rig.turns.gate = Gate(PolicyRules(tools=policy), self.files)
        self.gate.told = self._tell

    async def _tell(self, approval: Approval) -> None:
        self.told.append(approval.state)

    async def waits(self) -> Approval:
        """Run the turn to where it has to wait."""
        with pytest.raises(AwaitsApproval) as wait:
            await self.rig.run()
        return wait.value.approval

    def say(self, approval: Approval, word: Literal["allowed", "denied"] = "allowed") -> None:
        self.files.decide(approval.id, word, chat="cli:ada", by="Ada", via=f"p-{approval.id}")

    async def results(self) -> list[str]:
        return [line["content"] for line in await self.rig.lines() if line["role"] == "tool"]


@asynccontextmanager
async def place(folder: Path, *steps: Any, **policy: Decision) -> AsyncIterator[Place]:
    async with turn_rig(folder, *steps, repeatable=False) as rig:
        yield Place(rig, folder, policy)


async def test_each_call_that_is_asked_for_waits_and_the_others_run_once(tmp_path: Path) -> None:
    """What stands behind a call that waits has not begun, though it may not be repeated."""
    wanted = calls(("c1", "ring", "a"), ("c2", "count", "b"), ("c3", "ring", "c"), ("c4", "count", "d"))
    async with place(tmp_path, wanted, Answer("done"), count="ask") as on:
        first = await on.waits()
        assert on.bell.calls == ["a"]
        assert (await on.waits()).id == first.id
        on.say(first)
        second = await on.waits()
        assert (on.rig.tool.calls, on.bell.calls) == (["b"], ["a", "c"])
        on.say(second, "denied")

        reply = await on.rig.run()

        assert reply.text == "done"
        assert (on.rig.tool.calls, on.bell.calls) == (["b"], ["a", "c"])
        assert await on.results() == [
            "counted a",
            "counted b",
            "counted c",
            "error: not run: Ada denied this call",
        ]
        assert (await on.rig.lines())[1]["asks"] == ["c2", "c4"]
        assert on.told == ["allowed", "denied"]
        assert len(on.rig.model.prompts) == 2


async def test_the_same_call_in_the_next_round_is_asked_anew(tmp_path: Path) -> None:
    """Some models give the same id in each round: an approval is for one call all the same."""
    async with place(tmp_path, call("1"), call("1"), Answer("done"), count="ask") as on:
        first = await on.waits()
        on.say(first)
        second = await on.waits()

        assert second.id != first.id
        assert on.rig.tool.calls == ["1"]


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("begun before a crash", INTERRUPTED),
        ("denied by a policy", "error: not run: the policy of this gateway does not allow count here"),
        ("a file not to be believed", "error: not run: its approval can no longer be read"),
    ],
)
async def test_what_was_allowed_is_not_run_any_more(tmp_path: Path, why: str, said: str) -> None:
    async with place(tmp_path, call("1"), Answer("done"), count="ask") as on:
        approval = await on.waits()
        on.say(approval)
        if why == "begun before a crash":
            on.files.begin(approval.id)
        elif why == "denied by a policy":
            on.gate.rules = PolicyRules(tools={"count": "deny"})
        else:
            (on.files.folder / f"{approval.id}.json").write_text("{}")

        await on.rig.run()

        assert on.rig.tool.calls == []
        assert await on.results() == [said]


async def test_a_call_that_was_never_asked_for_is_asked_for_after_a_crash(tmp_path: Path) -> None:
    """The line was stored, and the gateway died before anybody was asked: the line tells of it."""
    async with place(tmp_path, Answer("done"), count="ask") as on:
        await on.rig.stored({"role": "user", "content": "hello"}, {**CALLS, "asks": ["c1"]})
        on.say(await on.waits())

        await on.rig.run()

        assert await on.results() == ["counted 1"]


async def test_a_turn_that_is_stopped_while_it_waits_runs_nothing(tmp_path: Path) -> None:
    """Its line says that the call was not run; what it cost so far counts."""
    wanted = replace(calls(("c1", "count", "a"), ("c2", "ring", "b")), usage=Usage(100, 20, 0.5))
    async with place(tmp_path, wanted, count="ask") as on:
        approval = await on.waits()
        stop, meter = StopSwitch(), Meter()
        stop.pull()

        async with on.rig.store.open(ADA) as session:
            asked = Request(id="m1", key=ADA, text="hello")
            reply = await on.rig.turns.run(session, asked, stop=stop, meter=meter)

        assert reply.silent
        assert meter.usage == Usage(100, 20, 0.5)
        assert await on.results() == [STOPPED, STOPPED]
        assert roles(await on.rig.lines())[-1] == "assistant"
        assert on.told == ["cancelled"]
        found = on.files.find(approval.id)
        assert found is not None
        assert found.state == "cancelled"


async def test_what_fails_anyway_is_asked_of_nobody(tmp_path: Path) -> None:
    """Arguments that are none, a tool that is not there, and more than a person could read."""
    bad = Answer("", tool_calls=[ToolCall("c1", "count", "no JSON")], finish="tool_calls")
    long = call("x" * MAX_ARGUMENTS_CHARS, id="c2")
    none = calls(("c3", "nothing", "1"))
    async with place(tmp_path, bad, long, none, Answer("done"), **{"*": "ask"}) as on:
        await on.rig.run()

        said = await on.results()
        assert "not JSON" in said[0]
        assert "longer than" in said[1]
        assert "there is no tool" in said[2]
        assert on.files.all() == []
