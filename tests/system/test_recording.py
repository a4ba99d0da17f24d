"""What was asked of one gateway is recorded and asked again of another, of which no platform hears."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.harness import Daemon, ask, command, until_running
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.place import with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, with_telegram

LOOK = [("ls", '{"path": "."}')]
BOB = 87654321
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}


def answers(seen: Seen) -> Reply | None:
    """Answer by what was asked alone, so that who asks twice hears the same."""
    if seen.text == "what is here?" and not any(m.get("role") == "tool" for m in seen.messages):
        return Reply(tool_calls=LOOK)
    return Reply(f"re: {seen.text}", usage=USAGE)


async def a_day(server: TelegramServer, workspace: Path, model: ModelServer) -> dict[str, Any]:
    """Let two people write, one of them over a turn that is stopped; return the configuration."""
    config = {**with_model(model), **with_telegram(server, stream=False)}
    async with Daemon(workspace, config=config) as daemon:

        async def write(chat: int, text: str, said: str) -> None:
            server.write(chat, text)
            await server.said(chat, lambda sent: said in sent.text)

        await write(ADA, "what is here?", "re: what is here?")
        await write(BOB, "a secret of Bob", "re: a secret of Bob")
        await write(ADA, "wrong", "re: wrong")
        await write(ADA, "/undo", "withdrawn")
        held = asyncio.Event()
        model.chooses = lambda seen: Reply("late", held=held) if seen.text == "think" else answers(seen)
        server.write(ADA, "think")
        await until_running(daemon, 0)
        await write(ADA, "/stop", "Stopped")
        held.set()
        await write(ADA, "/new", "new conversation")
        await write(ADA, "afresh", "re: afresh")
        await ask(daemon, "web:ada", "w1", "over the web")
    return config


async def test_a_day_is_asked_again_and_ends_alike(tmp_path: Path) -> None:
    """Order, outcomes, words and cost are those of before; nobody hears of it; what differs is told."""
    real, shadow, day = tmp_path / "real", tmp_path / "shadow", tmp_path / "day"
    async with TelegramServer() as server, ModelServer() as model:
        model.chooses = answers
        config = await a_day(server, real, model)
        sent = len(server.sent)

        code, out = await command(real, "record", str(day), "--since", "1h", config=config)
        assert (code, out.strip()) == (0, str(day))
        held = asyncio.Event()
        model.chooses = lambda seen: Reply("late", held=held) if seen.text == "think" else answers(seen)
        async with Daemon(shadow, config=with_model(model)) as beside:
            replayed = await replay(real, day, beside, "--run", "one")
            before = len(model.seen)
            again = await replay(real, day, beside, "--run", "one")
            asked_again = len(model.seen) - before
            model.chooses = lambda seen: Reply(status=400) if seen.text == "afresh" else answers(seen)
            other = await replay(real, day, beside, "--run", "two", "--within", "5")
        assert len(server.sent) == sent

    code, found = replayed
    assert found["outcomes"] == found["order"] == []
    assert code == 0
    assert (found["letters"], found["chats"]) == (9, 3)
    # Where a chat is on and who asks are told to the model, and differ in length.
    assert {**found["recorded"], "prompt": 0} == {**found["replayed"], "prompt": 0}
    assert 0 < found["replayed"]["prompt"] < 1.2 * found["recorded"]["prompt"]
    assert found["recorded"]["outcomes"] == {"answered": 7, "withdrawn": 1, "stopped": 1}
    # Five answers, and the tool's round; the one that was stopped counted nothing.
    assert found["recorded"]["completion"] >= 5 * 7
    assert found["recorded"]["tools"] == 1
    assert found["left_out"] == {}
    assert again[0] == 0
    assert asked_again == 0
    code, found = other
    assert code == 1
    assert of(day, "afresh") in [row["letter"] for row in found["outcomes"]]
    assert of(day, "wrong") not in [row["letter"] for row in found["outcomes"]]


async def test_a_masked_one_says_nothing_and_is_asked_all_the_same(tmp_path: Path) -> None:
    real, shadow, day = tmp_path / "real", tmp_path / "shadow", tmp_path / "day"
    config = {"model.name": "echo"}
    async with Daemon(real, config=config) as daemon:
        await ask(daemon, "web:ada", "w1", "my PIN is 1234")
        await ask(daemon, "web:ada", "w2", "/new")
        await ask(daemon, "web:ada", "w3", "and Zoe has it")

        code, _ = await command(real, "record", str(day), "--mask", config=config)
        own = await replay(real, day, daemon)
        await command(real, "record", str(tmp_path / "plain"), config=config)
        refused, _ = await command(real, "replay", str(tmp_path / "plain"), "--into", daemon.url)

    assert code == 0
    assert refused == 1
    # Where it was made is not in it, either.
    assert own[0] == 0
    assert not any(word in day.read_text() for word in ("PIN", "1234", "Zoe", "ada", "w1"))
    async with Daemon(shadow, config=config) as beside:
        code, found = await replay(real, day, beside)
    assert code == 0
    assert found["recorded"]["outcomes"] == found["replayed"]["outcomes"] == {"answered": 3}


async def replay(workspace: Path, day: Path, into: Daemon, *more: str) -> tuple[int, dict[str, Any]]:
    code, out = await command(workspace, "replay", str(day), "--into", into.url, "--json", *more)
    return code, json.loads(out)


def of(day: Path, text: str) -> str:
    """Return the id of a recorded letter."""
    letters = [json.loads(line) for line in day.read_text().splitlines()[1:]]
    return next(str(each["id"]) for each in letters if each["text"] == text)
