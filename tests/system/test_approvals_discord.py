"""Approvals through a running gateway with Discord, and over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker import Broker
from tests.support.discord_server import DiscordServer
from tests.support.harness import Daemon, answer_to, ask, command
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, on
from tests.support.until import until
from tests.system.approvals_place import asks, decide, results, waiting, writing, written
from tests.system.platform_place import apart, with_discord


async def test_a_button_on_discord_decides(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """Adapters and sessions in processes of their own; a stranger of the channel is refused and told."""
    async with DiscordServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("noted")])
        channel = server.channel(server.guild("home"), "general")
        ada, eve = server.user("ada"), server.user("eve")
        config = asks(model, **{"tools.groups": ["write"]}) | with_discord(server, allow_from=[ada.id])
        async with apart(tmp_path, broker, broker_name, config):
            await server.connected(within_s=120)
            server.write(channel, "note: milk", user=eve)
            (prompt,) = await server.sent_count(1, within_s=120)
            buttons = server.buttons(prompt.id)
            assert '"content": "milk"' in prompt.text

            used = server.press(prompt.id, buttons["Allow"], user=eve)
            await server.until(lambda: used.acked, within_s=120)
            await server.until(lambda: any("approved" in one.text for one in server.sent), within_s=120)
            assert written(tmp_path) == []
            server.press(prompt.id, buttons["Allow"], user=ada)
            await server.until(lambda: any(one.text == "noted" for one in server.sent), within_s=120)

            assert server.messages[prompt.id].content == f"Allowed by Ada ({ada.id}): `write`"
            assert server.buttons(prompt.id) == {}
    assert written(tmp_path) == ["milk"]


async def test_the_operator_decides_over_http(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """The turn that waits hears of the word; the question ends no wait."""
    async with ModelServer() as model:
        model.script.extend([writing("milk"), Reply("not noted")])
        config = asks(model) | on(broker, broker_name)
        async with Daemon(tmp_path, role="session", config=config) as one:
            assert await ask(one, "web:ann", "m1", "note: milk", wait_s=0.1) is None
            await until(lambda: _asked(one), 120)
            (row,) = await waiting(one, key="web:ann")
            assert (row["key"], row["tool"], row["state"]) == ("web:ann", "write", "waiting")
            assert row["arguments"] == '{"path": "notes.txt", "content": "milk"}'
            assert await waiting(one, key="web:bob") == []
            _, shown = await command(tmp_path, "status", config=config)
            assert "write needs approval" in shown

            assert (await decide(one, "a" * 16, "allow"))[0] == 404
            assert (await decide(one, row["id"], "perhaps"))[0] == 400
            assert (await decide(one, row["id"], "deny"))[0] == 200
            assert (await decide(one, row["id"], "allow"))[0] == 409
            answer = await answer_to(one, "web:ann", "m1", "note: milk")

        assert (answer["kind"], answer["reply"]) == ("reply", "not noted")
    assert written(tmp_path) == []
    assert results(lines_of(tmp_path, "web_ann")) == [
        "error: not run: the operator (over HTTP) denied this call"
    ]


async def _asked(daemon: Daemon) -> bool:
    return bool(await waiting(daemon))


async def test_what_the_policy_denies_is_not_offered_and_a_job_is_refused(tmp_path: Path) -> None:
    """A denied tool is no part of a request; where nobody can be asked the model is told."""
    async with ModelServer() as model:
        model.script.extend([Reply("hello"), writing("milk"), Reply("no")])
        policy = {"tools.policy.edit": "deny"}
        async with Daemon(tmp_path, config=asks(model, **policy)) as daemon:
            await ask(daemon, "web:ann", "m1", "hello")
            code, added = await command(
                tmp_path, "cron", "add", "--every", "24h", "--message", "note: milk", "--json"
            )
            assert code == 0, added
            code, _ = await command(tmp_path, "cron", "run", added.split('"id": "')[1][:8])
            assert code == 0
            await model.arrived(3)
            await until(lambda: _said(tmp_path), 120)

        offered = [tool["function"]["name"] for tool in model.turns[0].body["tools"]]
    assert "write" in offered
    assert "edit" not in offered
    assert written(tmp_path) == []


async def _said(workspace: Path) -> bool:
    found = list((workspace / "sessions").glob("cron_*.jsonl"))
    return bool(found) and "nobody can be asked here" in found[0].read_text()
