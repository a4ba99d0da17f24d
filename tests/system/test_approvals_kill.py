"""A gateway that dies at any step of an approval: nothing is lost, run twice or shown twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.foreign import foreign, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, on
from tests.support.telegram_chats import Sent
from tests.support.telegram_server import TelegramServer
from tests.system.approvals_place import asks, results, writing, written
from tests.system.platform_place import ADA, with_telegram

STEM = f"telegram_{ADA}"
UNKNOWN = "outcome unknown: interrupted"
# Nobody knows whether the tool acted: it is not run again, and the model is told.
UNDECIDED = ("begun.after", "tool.after")
STEPS = ("asked", "prompt", "decided", "resolved", "begun", "ended")
POINTS = [*(f"{step}.{when}" for step in STEPS for when in ("before", "after")), "tool.after"]


def prompts(server: TelegramServer) -> list[Sent]:
    """Every question that was shown."""
    return [sent for sent in server.sent if "Approval needed:" in sent.versions[0]]


async def allow(server: TelegramServer, daemon: Daemon) -> None:
    """Press, once, as soon as the question is there; return when the turn has ended.

    A kill right behind a send is the platform's own gap, which other tests are about: this is behind it.
    """
    await daemon.said("letter.delivered")
    prompt = await server.said(ADA, lambda sent: "Approval needed:" in sent.versions[0], timeout_s=100)
    server.press(ADA, prompt.message_id, server.buttons(ADA, prompt.message_id)["Allow"])
    await server.said(ADA, lambda sent: sent.text == "noted", timeout_s=100)


@guarantee("once", "A tool call that needs approval asks once and runs at most once, across crashes.")
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_at_any_step_runs_it_once(tmp_path: Path, point: str) -> None:
    async with TelegramServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("noted")])
        config = asks(model) | with_telegram(server)
        async with (
            Daemon(tmp_path, config=config, kill_at=f"{point}:1") as daemon,
            asyncio.TaskGroup() as group,
        ):
            server.write(ADA, "note: milk")
            group.create_task(daemon.reborn())
            group.create_task(allow(server, daemon))

        assert len(model.turns) == 2
        assert len(prompts(server)) == 1
        assert prompts(server)[0].text.startswith("Allowed by")
        assert [sent.text for sent in server.sent if sent not in prompts(server)] == ["noted"]
    assert written(tmp_path) == ([] if point == "begun.after" else ["milk"])
    (result,) = results(lines_of(tmp_path, STEM))
    assert (result == UNKNOWN) is (point in UNDECIDED)


@guarantee("failures", "A crash does not count against a turn that waits for approval.")
async def test_deaths_while_it_waits_are_not_its_fault(tmp_path: Path) -> None:
    """Killed more often than any letter may be begun, it still waits, asks no second time, and goes on.

    A press while it is down counts when it is back: the platform keeps it.
    """
    async with TelegramServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("noted")])
        config = asks(model) | with_telegram(server)
        async with Daemon(tmp_path, config=config) as daemon:
            server.write(ADA, "note: milk")
            await daemon.said("letter.delivered")
            for number in range(4):
                await daemon.kill()
                await daemon.start()
                await daemon.said("approval.asked", number + 2)
            (prompt,) = server.sent
            await daemon.stop()
            server.press(ADA, prompt.message_id, server.buttons(ADA, prompt.message_id)["Allow"])
            await daemon.start()
            await server.said(ADA, lambda sent: sent.text == "noted", timeout_s=100)

        assert len(prompts(server)) == 1
        assert len(model.turns) == 2
    assert written(tmp_path) == ["milk"]


@guarantee("once", "A tool call that needs approval asks once and runs at most once, across crashes.")
async def test_another_daemon_goes_on_with_a_turn_that_waits(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """The one that asked is killed: the next one waits on; without buttons a typed word counts."""
    async with ModelServer() as model:
        model.script.extend([writing("milk"), Reply("noted")])
        config = asks(model) | on(broker, broker_name)
        async with (
            Daemon(tmp_path, role="session", config=config) as one,
            foreign(broker.url, name=broker_name) as client,
        ):
            await client.put(inbound("foreign:ann", "m0", "note: milk"))
            await one.said("approval.asked")
            await one.kill()
            async with Daemon(tmp_path, role="session", config=config) as other:
                await other.said("approval.asked")
                await client.put(inbound("foreign:ann", "m1", "/approve"))
                taken = await client.collect("foreign", 4)

        # The question is put again, under its id: the one that died may not have come so far.
        prompt = taken[0]["id"]
        told = {out["id"]: out["text"] for out in taken if out["id"] != prompt}
        assert prompt.startswith("m0#notice.approval.")
        assert told == {
            "m1#reply": "Allowed.",
            f"{prompt}.done": "Allowed by a person: `write`",
            "m0#reply": "noted",
        }
        assert len(model.turns) == 2
    assert written(tmp_path) == ["milk"]
