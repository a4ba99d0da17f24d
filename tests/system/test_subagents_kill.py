"""A daemon on RabbitMQ, killed where a subagent is handed over: nothing is lost, started or told twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, on, with_model
from tests.support.team import Team
from tests.support.until import until

pytestmark = guarantee(
    "once",
    "A kill at any step of a subagent starts it once, reports it once, and leaves nothing of it behind.",
)

KEY, STEM = "foreign:ann", "foreign_ann"
# The call of ``spawn``; then the ends of the message, of the task and of the result, in whatever order.
POINTS = (
    "tool.before:1",
    "tool.after:1",
    *(f"{point}:{number}" for point in ("settle.before", "ack.before", "ack.after") for number in (1, 2, 3)),
)


def answers(workspace: Path) -> list[str]:
    return [str(line["content"]) for line in lines_of(workspace, STEM) if line.get("final")]


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_where_it_is_handed_over_loses_and_repeats_nothing(
    tmp_path: Path, broker: Broker, broker_name: str, point: str
) -> None:
    """In a group, where the operator has put the tool on offer."""
    async with ModelServer() as model:
        team = Team(model)
        config = on(broker, broker_name) | with_model(model) | {"tools.groups": ["spawn"]}
        async with (
            Daemon(tmp_path, role="session", config=config, kill_at=point) as daemon,
            Steady(broker.url, name=broker_name) as client,
        ):
            await client.put(inbound(KEY, "m1", "spawn dig"))
            await daemon.reborn()
            await until(lambda: len(answers(tmp_path)) == 2)
            await until(lambda: len({reply["id"] for reply in client.replies}) == 2)
            await until(lambda: not list((tmp_path / "state" / "subagents").rglob("sub_*")))
            assert await daemon.stop() == 0

    users = [line["message_id"] for line in lines_of(tmp_path, STEM) if line["role"] == "user"]
    assert sorted(answers(tmp_path)) == ["begun", "heard dig"]
    assert len(users) == len(set(users)) == 2
    texts = {reply["id"]: reply["text"] for reply in client.replies}
    assert texts == {"m1#reply": "begun", f"{users[1]}#reply": "heard dig"}
    assert team.results[0][2] == "did dig"
    assert len(team.results) == 1
    # At most the request that was under way, of the chat and of the subagent.
    assert len(model.turns) <= 6
