"""A chat goes to another agent while its daemon is killed: changed once, nothing lost, nothing mixed."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, contents, head_of, on, transcript, with_model
from tests.support.until import until
from tests.system.approvals_place import decide, waiting

pytestmark = guarantee(
    "once", "A chat changes its agent once, wherever the gateway is killed, and every process follows."
)

AGENTS: dict[str, Any] = {"coder": {"persona": "You are CODER."}}
BINDINGS = [{"agent": "coder", "command": "code"}]
# Both change the agent; the second one asks it, too.
CHANGES = ("/agent coder", "/code two")
BOTH = ("choose.after:1", "checkpoint.after:1", "settle.before:1")
POINTS = [
    *((point, text) for point in BOTH for text in CHANGES),
    *((point, CHANGES[0]) for point in ("checkpoint.before:1", "checkpoint.after:2", "journal.before:1")),
    ("append.after:1", CHANGES[1]),
]

OVER_RABBITMQ = [
    ("choose.after:1", CHANGES[1]),
    ("publish.after:2", CHANGES[0]),
    ("ack.before:2", CHANGES[1]),
]


def agents_in(workspace: Path, stem: str) -> list[str | None]:
    paths = [*archives(workspace, stem), transcript(workspace, stem)]
    return [head_of(path)["metadata"].get("agent") for path in paths]


@pytest.mark.parametrize(
    ("queue", "point", "text"),
    [
        *(("embedded", point, text) for point, text in POINTS),
        *(("rabbitmq", point, text) for point, text in OVER_RABBITMQ),
    ],
    indirect=["queue"],
)
async def test_a_kill_in_the_middle_of_a_change_changes_once(
    tmp_path: Path, queue: dict[str, Any], point: str, text: str
) -> None:
    """The message that was under way comes again, and what waited behind it is for the new agent."""
    async with ModelServer() as model:
        config = with_model(model, agents=AGENTS, bindings=BINDINGS, **queue)
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, "cli:ann", "1", "one")
            assert await daemon.stop() == 0
        async with Daemon(tmp_path, config=config, kill_at=point) as dying:
            asked = [asyncio.create_task(ask(dying, "cli:ann", "2", text, wait_s=20))]
            assert await dying.died() == -signal.SIGKILL
            await asyncio.gather(*asked)
        async with Daemon(tmp_path, config=config) as daemon:
            answer = await answer_to(daemon, "cli:ann", "2", text)
            again = await ask(daemon, "cli:ann", "2", text)
            await answer_to(daemon, "cli:ann", "3", "three")
            assert await daemon.stop() == 0
        three = next(seen for seen in model.turns if seen.text.endswith("three"))

    assert again == answer
    own = ["two", "stub: two"] if text == "/code two" else []
    assert answer["reply"] == (own[-1] if own else answer["reply"])
    assert own or answer["reply"].startswith("coder answers here")
    assert contents(tmp_path, "cli_ann") == ["one", "stub: one", *own, "three", "stub: three"]
    assert agents_in(tmp_path, "cli_ann") == [None, "coder"]
    assert "CODER" in json.dumps(three.body)
    assert "stub: one" not in json.dumps(three.body)


async def test_what_one_daemon_was_told_holds_in_the_next(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """On RabbitMQ: the one that changed the agent dies in the turn behind it."""
    async with ModelServer() as model:
        config = on(broker, broker_name) | with_model(model, agents=AGENTS, bindings=BINDINGS)
        async with (
            Daemon(tmp_path, role="session", config=config) as first,
            Steady(broker.url, name=broker_name) as client,
        ):
            await client.put(inbound("foreign:ann", "m1", "one"))
            await client.answered("m1#reply")
            await client.put(inbound("foreign:ann", "m2", "/agent coder"))
            await client.answered("m2#reply")
            model.delay_s = 30.0
            await client.put(inbound("foreign:ann", "m3", "two"))
            await client.put(inbound("foreign:ann", "m4", "three"))
            await model.arrived(2)
            await first.kill()
            model.delay_s = 0.0
            async with Daemon(tmp_path, role="session", config=config):
                found = await client.answered("m3#reply", "m4#reply")

    assert found == {"m3#reply": "stub: two", "m4#reply": "stub: three"}
    said = ("one", "two", "three")
    assert contents(tmp_path, "foreign_ann") == [line for text in said for line in (text, f"stub: {text}")]
    assert agents_in(tmp_path, "foreign_ann") == [None, "coder"]
    asked = [json.dumps(seen.body) for seen in model.turns if seen.outcome == "answered"]
    assert ["CODER" in text for text in asked] == [False, True, True]


async def posted(daemon: Daemon, *messages: tuple[str, str]) -> None:
    """Put messages of one chat and wait for no answer."""
    async with httpx.AsyncClient(timeout=30) as client:
        for id_, text in messages:
            body = {"key": "cli:ann", "id": id_, "text": text}
            answer = await client.post(f"{daemon.url}/v1/messages", json=body)
            assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("queue", ["embedded", "rabbitmq"], indirect=True)
async def test_a_change_that_waits_behind_a_turn_stays_behind_it(
    tmp_path: Path, queue: dict[str, Any]
) -> None:
    """Killed while a turn runs, and while a call of the new agent waits: each ends with its own."""
    async with ModelServer() as model:
        agents = {"coder": {**AGENTS["coder"], "tools": {"policy": {"write": "ask"}}}}
        config = with_model(model, agents=agents, **queue, **{"facts.enabled": False})
        async with Daemon(tmp_path, config=config) as daemon:
            model.delay_s = 600.0
            await posted(daemon, ("m1", "one"), ("m2", "/agent coder"), ("m3", "two"))
            await model.arrived(1)
            await daemon.kill()
        model.delay_s = 0.0
        write = '[[tool:write {"path": "n.txt", "content": "by the coder"}]] four'
        async with Daemon(tmp_path, config=config) as daemon:
            two = await ask(daemon, "cli:ann", "m3", "two")
            await posted(daemon, ("m4", write), ("m5", "/agent default"), ("m6", "five"))
            await until(lambda: _waits(daemon))
            await daemon.kill()
        async with Daemon(tmp_path, config=config) as daemon:
            (row,) = await waiting(daemon)
            assert (await decide(daemon, row["id"], "allow"))[0] == 200
            four = await ask(daemon, "cli:ann", "m4", write)
            five = await ask(daemon, "cli:ann", "m6", "five")
            again = await ask(daemon, "cli:ann", "m3", "two")
            assert await daemon.stop() == 0
        requests = [(seen.text, json.dumps(seen.body)) for seen in model.turns if seen.outcome == "answered"]

    assert [answer and answer["reply"] for answer in (two, four, five, again)] == [
        *("stub: two", "stub: four", "stub: five", "stub: two")
    ]
    by = {
        word: "CODER" in body
        for text, body in requests
        for word in ("one", "two", "four", "five")
        if word in text
    }
    assert by == {"one": False, "two": True, "four": True, "five": False}
    assert agents_in(tmp_path, "cli_ann") == [None, "coder", None]
    (note,) = tmp_path.rglob("n.txt")
    assert note.relative_to(tmp_path).as_posix().startswith("agents/coder/files/")
    for _, body in requests:
        assert not ("stub: one" in body and "CODER" in body)
        assert not ("stub: two" in body and "CODER" not in body)


async def _waits(daemon: Daemon) -> bool:
    return len(await waiting(daemon)) == 1


async def test_what_is_imported_into_a_bound_chat_goes_on_with_its_agent(tmp_path: Path) -> None:
    """Of two formats; nothing of it is told to the agent that the chat has later."""
    bindings = [{"agent": "coder", "channel": "web"}]
    nanobot = tmp_path / "web_one.jsonl"
    head = {"_type": "metadata", "key": "web:one", "created_at": "2026-01-01T09:00:00", "metadata": {}}
    said = {"role": "user", "content": "said elsewhere", "timestamp": "2026-01-01T09:00:00"}
    told = {"role": "assistant", "content": "answered elsewhere", "timestamp": "2026-01-01T09:00:01"}
    nanobot.write_text("".join(json.dumps(line) + "\n" for line in (head, said, told)))
    workspace = tmp_path / "workspace"
    async with ModelServer() as model:
        config = with_model(model, agents=AGENTS, bindings=bindings, **{"facts.enabled": False})
        code, _ = await command(
            workspace, *("sessions", "import", "--from", "nanobot", str(nanobot)), config=config
        )
        assert code == 0
        exported = tmp_path / "annabelle.jsonl"
        code, _ = await command(
            workspace,
            *("sessions", "export", "--to", "annabelle", "web:one", "-o", str(exported)),
            config=config,
        )
        assert code == 0
        into = ("sessions", "import", "--from", "annabelle", "--key", "web:two", str(exported))
        code, _ = await command(workspace, *into, config=config)
        assert code == 0
        async with Daemon(workspace, config=config) as daemon:
            for key in ("web:one", "web:two"):
                assert await ask(daemon, key, "m1", f"go on {key}") is not None
            assert await ask(daemon, "web:one", "m2", "/agent default") is not None
            assert await ask(daemon, "web:one", "m3", "with the other") is not None
            assert await daemon.stop() == 0
        one, two, other = (json.dumps(seen.body) for seen in model.turns)

    assert all("CODER" in body and "said elsewhere" in body for body in (one, two))
    assert "elsewhere" not in other
    assert agents_in(workspace, "web_one") == ["coder", None]
    assert agents_in(workspace, "web_two") == ["coder"]
