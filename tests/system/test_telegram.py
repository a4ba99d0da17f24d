"""Whole gateways with Telegram: a local Bot API, the real client, real processes, both brokers."""

from __future__ import annotations

import asyncio
import json
import random
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import at_rest, contents, lines_of, on, transcript, with_model
from tests.support.socks_server import SocksServer
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, Tap, tapped, told, with_telegram


async def test_a_stranger_pairs_and_is_answered(tmp_path: Path) -> None:
    """Nothing is asked for a stranger; once a code is approved, the next message is answered."""
    async with TelegramServer() as server, Daemon(tmp_path, config=with_telegram(server, direct="pairing")):
        server.write(ADA, "let me in")
        answer = await server.said(ADA)
        code = re.search(r"\b[A-Z0-9]{8}\b", answer.text)
        assert code is not None, answer.text
        await server.until_confirmed(server.write(ADA, "please"))
        await told(tmp_path, "pairing", "approve", code[0])
        greeting = await server.said(ADA, lambda sent: "You are approved" in sent.text)
        update = server.write(ADA, "hello")
        await server.said(ADA, lambda sent: sent.text == "echo: hello")

        assert [sent.text for sent in server.sent_to(ADA)] == [answer.text, greeting.text, "echo: hello"]
        await server.until_confirmed(update)
    assert contents(tmp_path, f"telegram_{ADA}") == ["hello", "echo: hello"]


async def test_telegram_is_reached_through_a_socks_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is taken from the environment, as one that speaks HTTP is."""
    async with TelegramServer() as server, SocksServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with Daemon(tmp_path, config=with_telegram(server)) as daemon:
            server.write(ADA, "hello")
            await server.said(ADA, lambda sent: sent.text == "echo: hello")
            assert await daemon.stop() == 0

    assert proxy.hosts
    assert b"adapter.crashed" not in daemon.log


async def test_adapters_and_sessions_run_apart(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """Messages are taken while no session daemon runs, and answered when one comes."""
    async with TelegramServer() as server:
        whole = on(broker, broker_name, partitions=4, **with_telegram(server))
        async with Daemon(tmp_path, role="channels", config=whole):
            first = server.write(ADA, "one")
            await server.until_confirmed(first)
            assert server.sent == []
            async with Daemon(tmp_path, role="session", config=whole) as session:
                await server.said(ADA, lambda sent: sent.text == "echo: one")
                await _until_shown_up(tmp_path, session)
            server.write(ADA, "two")
            await server.until(lambda: server.confirmed >= first + 1)
        async with Daemon(tmp_path, config=whole):
            await server.said(ADA, lambda sent: sent.text == "echo: two")


@guarantee("loss", "Kills of the Telegram adapter or of the whole gateway under load lose no message.")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("queue", ["rabbitmq", "embedded"], indirect=True)
async def test_a_process_killed_while_300_messages_come_loses_none(
    tmp_path: Path, queue: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """The adapter alone, or adapter, queue and sessions together: all are answered, in order.

    What the platform was told is done had been accepted by the broker.
    """
    async with TelegramServer() as server, AsyncExitStack() as stack:
        config, tap = with_telegram(server, stream=False) | queue, None
        if queue:
            config |= {"broker.partitions": 4}
            await stack.enter_async_context(Daemon(tmp_path, role="session", config=config))
        daemon = Daemon(tmp_path, role="channels" if queue else "all", config=config)
        await stack.enter_async_context(daemon)
        if queue:
            tap = await stack.enter_async_context(
                tapped(request.getfixturevalue("broker"), queue["broker.name"])
            )
        writing = asyncio.create_task(_write(server, 300, chats=40))
        for _ in range(4):
            await _until_more(server, 40, of=300)
            await daemon.kill()
            await _check_confirmed(server, tap)
            await daemon.start()
        written = await writing
        await server.until(lambda: len(_answered(server)) >= 300, timeout_s=120)
        await _check_confirmed(server, tap)

    for chat, texts in written.items():
        got = [sent.text.removeprefix("echo: ") for sent in server.sent_to(chat)]
        assert list(dict.fromkeys(got)) == texts, chat


async def test_topics_and_groups_are_conversations_of_their_own(tmp_path: Path) -> None:
    """Replies go to the topic of their question, and quote it."""
    group = -1001234567890
    async with TelegramServer() as server:
        server.add_chat(group, "supergroup", forum=True, threads={5, 6})
        async with Daemon(tmp_path, config=with_telegram(server, stream=False)):
            update = server.write(group, "@gate_test_bot hello", thread=5)
            server.write(group, "not for the bot", thread=6)
            sent = await server.said(group)

            assert sent.thread == 5
            assert sent.reply_to == server.message_of[update]
    assert len(server.sent) == 1
    assert (tmp_path / "sessions" / f"telegram_{group}_topic_5.jsonl").exists()


async def test_a_group_that_moves_keeps_its_session(tmp_path: Path) -> None:
    """A supergroup goes on where the group was, and a reply that still waited finds it."""
    old, new = -400, -1009876543210
    async with TelegramServer() as server:
        config = with_telegram(server, stream=False, groups="all")
        async with Daemon(tmp_path, config=config):
            server.write(old, "before", user=ADA)
            await server.said(old)
            server.migrate(old, new)
            server.write(new, "after", user=ADA)
            await server.said(new, lambda sent: sent.text == "echo: after")
            await _until_lines(tmp_path, f"telegram_{new}", 4)

    assert contents(tmp_path, f"telegram_{new}") == [
        "before", "echo: before", "after", "echo: after",
    ]  # fmt: skip


@guarantee("failures", "A failing platform does not affect any other channel.")
async def test_a_wrong_token_stops_nothing_else(tmp_path: Path) -> None:
    """The adapter says what is wrong, once; the page and the terminal go on."""
    async with TelegramServer() as server:
        config = with_telegram(server) | {"channels.telegram.token": "1:wrong"}
        async with Daemon(tmp_path, config=config) as daemon:
            await daemon.said("adapter.failed")
            answer = await told(tmp_path, "chat", "-m", "hello")
            status = json.loads(await told(tmp_path, "status", "--json"))

            assert answer == "echo: hello\n"
            assert not status["parts"]["telegram"]["up"]
            assert "token" in status["parts"]["telegram"]["error"]
            assert b"1:wrong" not in daemon.log


@guarantee("order", "The live preview of an answer never appears in the middle of an earlier answer.")
async def test_a_draft_waits_until_the_answer_before_it_is_whole(tmp_path: Path) -> None:
    """While a piece of an answer is held up, the next answer is not shown above it."""
    parts = [f"Part {number}. " + "lorem ipsum " * 330 for number in range(3)]
    async with TelegramServer() as server, ModelServer() as model:
        config = with_telegram(server) | with_model(model)
        async with Daemon(tmp_path, config=config):
            shown = asyncio.Event()
            model.script += [Reply(text="\n\n".join(parts)), Reply(text="word " * 40, half=shown)]
            held = server.fail("sendMessage", how="hang", containing="Part 1")
            server.write(ADA, "one")
            server.write(ADA, "two")
            await model.arrived(2)
            # It types every four seconds: by the second time a draft has long been due.
            typed = len(server.actions)
            await server.until(lambda: len(server.actions) >= typed + 2)
            held.end()
            await server.said(ADA, lambda sent: sent.text.startswith("word"))
            shown.set()
            await server.said(ADA, lambda sent: sent.text == ("word " * 40).strip())

    begun = [sent.text.partition(". ")[0].partition(" word")[0] for sent in server.sent_to(ADA)]
    assert begun == ["Part 0", "Part 1", "Part 2", "word"]


# -- what they share -------------------------------------------------------------------------------


async def _write(server: TelegramServer, count: int, *, chats: int) -> dict[int, list[str]]:
    """Let ``chats`` people write ``count`` messages over some seconds; return the texts by chat."""
    texts: dict[int, list[str]] = {}
    dice = random.Random(7)
    for number in range(count):
        chat = 1000 + dice.randrange(chats)
        text = f"m{number}"
        texts.setdefault(chat, []).append(text)
        server.write(chat, text)
        await asyncio.sleep(dice.random() * 0.04)
    return texts


async def _until_more(server: TelegramServer, more: int, *, of: int) -> None:
    """Wait until that many further messages were answered, or all of them."""
    reached = min(len(_answered(server)) + more, of)
    await server.until(lambda: len(_answered(server)) >= reached, timeout_s=120)


async def _until_shown_up(workspace: Path, session: Daemon) -> None:
    """Wait until the daemon that does not run the adapter tells that it is up."""
    parts: dict[str, Any] = {}
    try:
        async with asyncio.timeout(120):
            while not parts.get("telegram", {}).get("up"):
                parts = json.loads(await told(workspace, "status", "--json"))["parts"]
    except TimeoutError:
        raise AssertionError(f"{parts}\n{session.log.decode()}") from None


async def _check_confirmed(server: TelegramServer, tap: Tap | None) -> None:
    """What was confirmed to the platform is a part of what the broker accepted."""
    if tap is None:
        return
    confirmed = {number for _, number in server.confirmations}
    accepted = {int(id_.rpartition(":")[2]) for id_ in await tap.drain()}
    assert confirmed <= accepted


def _answered(server: TelegramServer) -> set[str]:
    return {sent.text for sent in server.sent}


async def _until_lines(workspace: Path, stem: str, count: int) -> list[dict[str, Any]]:
    """Wait until a transcript has that many lines."""

    def found() -> list[dict[str, Any]] | None:
        if not transcript(workspace, stem).exists():
            return None
        with at_rest(workspace, stem):
            lines = lines_of(workspace, stem)
        return lines if len(lines) >= count else None

    lines: list[dict[str, Any]] = await until(found, 120)
    return lines
