"""The parts of an album and of a long paste are one question: one turn and one answer, also after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.discord_server import DiscordServer
from tests.support.foreign import foreign, inbound
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Seen
from tests.support.place import lines_of, on, with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, with_discord, with_telegram

GROUP = -1001234567890
ME = "@gate_test_bot"
LIMIT = 4096


def album(
    server: TelegramServer, chat: int, captions: Sequence[str], *, of: str, names: str, user: int = ADA
) -> list[int]:
    """Let a person send pictures together; each is named after a letter of ``names``."""
    return [
        server.write(
            chat,
            caption,
            user=user,
            files=[("document", f"{name}.png", b"png " + name.encode(), "image/png")],
            media_group_id=of,
        )
        for caption, name in zip(captions, names, strict=True)
    ]


def question(seen: Seen) -> str:
    """What stands in a request behind the last answer, all messages of people together."""
    messages = [str(message["content"]) for message in seen.messages if message["role"] != "system"]
    roles = [message["role"] for message in seen.messages if message["role"] != "system"]
    begin = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    return "\n".join(messages[begin:])


@pytest.mark.timeout(300)
async def test_an_album_and_a_paste_are_one_turn_on_telegram(tmp_path: Path) -> None:
    """In direct chats and groups, whichever part has the mention; others of the chat pass them by."""
    async with TelegramServer() as server, ModelServer() as model:
        config = with_telegram(server, stream=False, groups="mention") | with_model(model)
        async with Daemon(tmp_path, config=config):
            ids = album(server, ADA, ["compare", "", ""], of="1", names="abc")
            first = await server.said(ADA)
            assert all(f"{name}.png" in question(model.seen[0]) for name in "abc")
            assert "compare" in question(model.seen[0])
            assert first.reply_to in (None, server.message_of[ids[0]])

            album(server, GROUP, ["", "", f"{ME} and these?"], of="2", names="def")
            server.write(GROUP, f"{ME} me first", user=77)
            await server.until(lambda: len(server.sent_to(GROUP)) == 2)
            texts = [question(seen) for seen in model.seen[1:]]
            assert "me first" in texts[0]
            assert all(f"{name}.png" in texts[1] for name in "def")
            assert "and these?" in texts[1]

            album(server, GROUP, ["", ""], of="3", names="gh")
            server.write(GROUP, f"{ME} " + "one " * 1018, user=ADA)
            server.write(GROUP, "two " * 1020, user=ADA)
            server.write(GROUP, "three, the end", user=ADA)
            await server.until(lambda: len(server.sent_to(GROUP)) == 3)
            assert all(word in question(model.seen[3]) for word in ("one one", "two two", "the end"))
            assert "g.png" not in str(model.seen[3].messages)

            server.write(ADA, "x" * LIMIT)
            server.write(ADA, "/status")
            server.write(ADA, "y" * (LIMIT - 100))
            await server.said(ADA, lambda sent: sent.text.startswith("stub: y"))
            assert len(model.turns) == 6
            assert "xxx" in question(model.seen[4])

    lines = lines_of(tmp_path, f"telegram_{ADA}")
    asked = [line["message_id"] for line in lines[:3]]
    assert lines[3]["answers"] == asked
    assert [line.get("part_of") for line in lines[:3]] == [None, asked[0], asked[0]]
    group = lines_of(tmp_path, f"telegram_{GROUP}")
    assert [len(line["answers"]) for line in group if "answers" in line] == [3, 3]


@pytest.mark.timeout(300)
async def test_a_paste_is_one_turn_on_discord(tmp_path: Path) -> None:
    """By live events, in a group with the mention in one part; an ordinary message waits for nothing."""
    async with DiscordServer() as server, ModelServer() as model:
        guild = server.guild("home")
        channel, direct = server.channel(guild, "general"), server.dm("ada")
        config = with_discord(server, groups="mention", sweep_s=60) | with_model(model)
        async with Daemon(tmp_path, config=config):
            await server.connected(within_s=120)
            server.write(direct, "a" * 1990, user="ada")
            server.write(direct, "b" * 2000, user="ada")
            server.write(direct, "the end", user="ada")
            await server.sent_count(1, within_s=120)
            assert all(part in question(model.seen[0]) for part in ("a" * 1990, "b" * 2000, "the end"))

            server.write(channel, "c" * 1950, user="ada")
            server.write(channel, "what is it?", user="ada", mentions_bot=True)
            server.write(channel, "hello", user="bob", mentions_bot=True)
            await server.sent_count(3, within_s=120)
            texts = [question(seen) for seen in model.seen[1:]]
            assert any("c" * 1950 in text and "what is it?" in text for text in texts)
            assert len(model.turns) == 3
    lines = lines_of(tmp_path, f"discord_{direct.id}")
    assert lines[-1]["answers"] == [line["message_id"] for line in lines[:3]]


@pytest.mark.timeout(300)
async def test_an_adapter_killed_between_two_parts_still_asks_once(
    tmp_path: Path, queue: dict[str, Any]
) -> None:
    """The first part is in the queue, the second one's file hangs: Telegram has all of them still."""
    async with TelegramServer() as server, ModelServer() as model:
        config = with_telegram(server, stream=False) | with_model(model, **queue)
        async with Daemon(tmp_path, config=config) as daemon:
            hangs = server.fail("getFile", how="hang", containing="file-2")
            ids = album(server, ADA, ["these", "", ""], of="1", names="abc")
            await server.until(lambda: hangs.hits)
            assert server.confirmed < ids[0]
            await daemon.kill()
            hangs.end()
            await daemon.start()
            await server.said(ADA)
            await server.until(lambda: server.confirmed >= ids[-1])
            server.write(ADA, "and now?")
            await server.until(lambda: len(server.sent_to(ADA)) == 2)
        assert all(f"{name}.png" in question(model.seen[0]) for name in "abc")
        assert len(model.turns) == 2
    lines = lines_of(tmp_path, f"telegram_{ADA}")
    assert [len(line.get("answers", ())) for line in lines if line.get("final")] == [3, 0]


@pytest.mark.timeout(300)
async def test_parts_of_any_publisher_are_joined_and_a_lost_one_is_not_waited_for_for_ever(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Another program names no ids: what it puts in a row with one ``part_of`` is one turn, in every mode."""
    config = on(broker, broker_name)

    def part(id_: str, text: str) -> bytes:
        return json.dumps(json.loads(inbound("foreign:ann", id_, text)) | {"part_of": "p1"}).encode()

    async with (
        Daemon(tmp_path, role="session", config=config, kill_at="ack.after:1") as daemon,
        foreign(broker.url, name=broker_name) as client,
    ):
        for each in (part("m1", "one"), part("m2", "two"), inbound("foreign:ann", "m3", "three")):
            await client.put(each)
        await daemon.reborn()
        told = {reply["id"]: reply["text"] for reply in await client.collect("foreign", 2)}

    assert told == {"m1#reply": "echo: one\n\ntwo", "m3#reply": "echo: three"}
