"""Queue modes through a running daemon, on both kinds of queue: one answer for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.discord_server import DiscordServer
from tests.support.foreign import foreign, inbound
from tests.support.harness import Daemon, ask, until_running
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, on, with_model
from tests.system.platform_place import with_discord

LOOK = [("ls", '{"path": "."}')]


@asynccontextmanager
async def serving(
    workspace: Path, queue: dict[str, Any], mode: str, *script: Reply
) -> AsyncIterator[tuple[Daemon, ModelServer]]:
    async with ModelServer() as model:
        model.script.extend(script)
        limits = {"limits.queue_mode": mode, "limits.collect_s": 0.0}
        async with Daemon(workspace, config=with_model(model, **limits) | queue) as daemon:
            yield daemon, model


def said(model: ModelServer, number: int) -> list[str]:
    """The texts of the people in a request, without what the turn is told besides."""
    found = [str(one["content"]) for one in model.seen[number].messages if one["role"] == "user"]
    return [text.rpartition("</gateway-context>")[2].strip() for text in found]


async def reply_to(asked: asyncio.Task[dict[str, Any] | None]) -> tuple[str, str]:
    answer = await asked
    assert answer is not None
    return answer["kind"], answer["reply"]


async def test_messages_that_wait_are_collected(tmp_path: Path, queue: dict[str, Any]) -> None:
    release = asyncio.Event()
    first, all_of_them = Reply("zero", held=release), Reply("both")
    async with (
        serving(tmp_path, queue, "collect", first, all_of_them) as (daemon, model),
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(ask(daemon, "web:ann", "m0", "first"))]
        await model.arrived(1)
        for number in (1, 2):
            asked.append(group.create_task(ask(daemon, "web:ann", f"m{number}", f"line {number}")))
            await until_running(daemon, number)
        release.set()

        replies = [await reply_to(one) for one in asked]
        assert replies == [("reply", "zero"), ("reply", "both"), ("reply", "both")]
        assert said(model, 1) == ["first", "line 1", "line 2"]
    assert lines_of(tmp_path, "web_ann")[-1]["answers"] == ["web:m1", "web:m2"]


async def test_a_message_steers_the_turn_that_runs(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    queue = on(broker, broker_name)
    release = asyncio.Event()
    looking = Reply(tool_calls=LOOK, held=release)
    async with (
        serving(tmp_path, queue, "steer", looking, Reply("both")) as (daemon, model),
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(ask(daemon, "web:ann", "m1", "line 1"))]
        await model.arrived(1)
        asked.append(group.create_task(ask(daemon, "web:ann", "m2", "line 2")))
        await until_running(daemon, 1)
        release.set()

        assert [await reply_to(one) for one in asked] == [("reply", "both")] * 2
        assert said(model, 1) == ["line 1", "line 2"]
        assert len(model.seen) == 2
    roles = [(line["role"], line["message_id"]) for line in lines_of(tmp_path, "web_ann")]
    assert roles[2:] == [("tool", "web:m1"), ("user", "web:m2"), ("assistant", "web:m1")]


async def test_a_message_interrupts_the_turn_that_runs(tmp_path: Path) -> None:
    """Whoever waits for the answer to the stopped message gets that of the next one."""
    async with (
        serving(tmp_path, {}, "interrupt", Reply("never", held=asyncio.Event()), Reply("both")) as (
            daemon,
            model,
        ),
        asyncio.TaskGroup() as group,
    ):
        asked = [group.create_task(ask(daemon, "web:ann", "m1", "line 1"))]
        await model.arrived(1)
        asked.append(group.create_task(ask(daemon, "web:ann", "m2", "line 2")))

        assert [await reply_to(one) for one in asked] == [("reply", "both")] * 2
        assert said(model, 1) == ["line 1", "line 2"]
    assert lines_of(tmp_path, "web_ann")[-1]["answers"] == ["web:m1", "web:m2"]


async def test_who_may_not_interrupt_is_told_how_all_that_wait_are_answered(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Another person of a group waits; told once, in words that hold: one answer serves these, too."""
    config = on(broker, broker_name, **{"limits.queue_mode": "interrupt", "limits.pending_per_chat": 2})
    async with ModelServer() as model, foreign(broker.url, name=broker_name) as client:
        release = asyncio.Event()
        model.script.extend([Reply("for ann", held=release), Reply("for bob")])
        async with Daemon(tmp_path, role="session", config=with_model(model) | config) as daemon:

            async def write(who: str, number: int) -> None:
                sender, id_ = {"id": who, "name": who}, f"{who}{number}"
                await client.put(
                    inbound("foreign:all", id_, f"{who} says {number}", sender=sender, group=True)
                )

            await write("ann", 1)
            await model.arrived(1)
            for number in range(1, 4):
                await write("bob", number)
            await until_running(daemon, 3)
            release.set()
            busy, *replies = await client.collect("foreign", 3)

        assert (busy["id"], busy["kind"]) == ("bob2#notice.busy", "notice")
        how = "All will be answered, those that one person wrote in a row together."
        assert busy["text"] == f"2 messages of this chat wait. {how}"
        assert [(each["id"], each["text"]) for each in replies] == [
            ("ann1#reply", "for ann"),
            ("bob1#reply", "for bob"),
        ]
        assert said(model, 1)[-3:] == [f"bob says {number}" for number in (1, 2, 3)]


async def test_a_message_deleted_on_discord_is_not_sent_again(tmp_path: Path) -> None:
    async with DiscordServer() as server, ModelServer() as model:
        direct = server.dm("ada")
        config = with_model(model) | with_discord(server)
        async with Daemon(tmp_path, config=config):
            await server.connected(within_s=120)
            secret = server.write(direct, "secret", user="ada")
            await server.sent_count(1, within_s=120)
            server.delete(secret)
            server.write(direct, "and on", user="ada")
            await server.sent_count(2, within_s=120)

            assert said(model, 1) == ["and on"]
    notes = [line for line in lines_of(tmp_path, f"discord_{direct.id}") if line.get("kind") == "note"]
    assert [(note["edits"], note["message_id"]) for note in notes] == [
        (f"discord:{secret}", f"discord:{secret}:d")
    ]


async def test_collected_messages_survive_the_death_of_their_daemon(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """A foreign program puts three at once and gets one answer, though the daemon dies as the first ends."""
    limits = {"limits.queue_mode": "collect", "limits.collect_s": 2.0}
    config = on(broker, broker_name, **limits)
    async with (
        Daemon(tmp_path, role="session", config=config, kill_at="ack.after:1") as daemon,
        foreign(broker.url, name=broker_name) as client,
    ):
        for number in range(3):
            await client.put(inbound("foreign:ann", f"m{number}", f"line {number}"))
        await daemon.reborn()
        # It is answered behind them: by then each of them has ended.
        await client.put(inbound("foreign:ann", "last", "/help"))
        taken = await client.collect("foreign", 2)

    told = {reply["id"]: reply["text"] for reply in taken}
    assert list(told) == ["m0#reply", "last#reply"]
    assert told["m0#reply"] == "echo: line 0\n\nline 1\n\nline 2"
    lines = lines_of(tmp_path, "foreign_ann")
    assert [line["message_id"] for line in lines] == ["m0", "m1", "m2", "m0"]
    assert lines[3]["answers"] == ["m0", "m1", "m2"]


async def test_another_daemon_goes_on_with_a_collection(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """The first is killed while the model is asked: the other one asks once more, for all of them."""
    async with ModelServer() as model:
        model.script.append(Reply("never", held=asyncio.Event()))
        limits = {"limits.queue_mode": "collect", "limits.collect_s": 2.0}
        config = with_model(model, **limits) | on(broker, broker_name)
        async with (
            Daemon(tmp_path, role="session", config=config) as one,
            foreign(broker.url, name=broker_name) as client,
        ):
            for number in range(3):
                await client.put(inbound("foreign:ann", f"m{number}", f"line {number}"))
            await model.arrived(1)
            async with Daemon(tmp_path, role="session", config=config):
                await one.kill()
                (reply,) = await client.collect("foreign", 1)

        assert reply["id"] == "m0#reply"
        assert said(model, 0) == said(model, 1) == ["line 0", "line 1", "line 2"]
        assert len(model.seen) == 2
    lines = lines_of(tmp_path, "foreign_ann")
    assert [line["message_id"] for line in lines] == ["m0", "m1", "m2", "m0"]
