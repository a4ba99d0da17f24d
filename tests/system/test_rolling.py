"""Workers, gateway and adapters are restarted one after the other while people write: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.gateway_team import gone, pids
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import on, with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.support.verdict import check
from tests.system.platform_place import ADA, with_telegram

CHATS = [f"c{number}" for number in range(20)]


@guarantee("loss", "A rolling restart loses, repeats and reorders no message.")
async def test_all_processes_are_restarted_in_turn(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """A gateway with two workers, and the adapters; each message is asked, stored and told once."""
    workspace = tmp_path / "workspace"
    sent: dict[str, list[str]] = {f"foreign_{chat}": [] for chat in CHATS}
    written: list[str] = []
    async with (
        ModelServer() as model,
        TelegramServer() as telegram,
        Steady(broker.url, name=broker_name) as client,
        AsyncExitStack() as lives,
    ):
        model.delay_s = 0.03
        telegram.add_chat(ADA)
        config = with_model(
            model,
            **on(broker, broker_name, partitions=4),
            **with_telegram(telegram, stream=False),
            **{"facts.enabled": False, "memory.window": 100_000, "limits.workers": 2},
        )
        roles = ("session", "channels")
        former = [Daemon(workspace, role=role, config=config) for role in roles]
        after = [Daemon(workspace, role=role, config=config) for role in roles]
        for daemon in former:
            await lives.enter_async_context(daemon)
        enough = asyncio.Event()

        async def write() -> None:
            for number in range(10_000):
                if enough.is_set():
                    return
                for chat in CHATS:
                    id_ = f"{chat}-{number:04}"
                    await client.put(inbound(f"foreign:{chat}", id_, f"say {id_}"))
                    sent[f"foreign_{chat}"].append(id_)
                # A platform takes about one message a second of each chat.
                if number % 4 == 0:
                    written.append(f"word {number:04}")
                    telegram.write(ADA, written[-1])
                await asyncio.sleep(0.4)

        async def go_on() -> None:
            before = len(client.replies)
            await until(lambda: len(client.replies) > before + 20, 60)

        writing = asyncio.create_task(write())
        await go_on()
        for pid in await pids(former[0]):
            os.kill(pid, signal.SIGTERM)
            await gone(pid)
        for old, new in zip(former, after, strict=True):
            await go_on()
            assert await old.stop() == 0
            await lives.enter_async_context(new)
        await go_on()
        enough.set()
        await writing
        ids = [id_ for of in sent.values() for id_ in of]
        await client.answered(*(f"{id_}#reply" for id_ in ids))
        await telegram.until(lambda: len(telegram.sent_to(ADA)) >= len(written))
        asked = [seen.text.splitlines()[-1] for seen in model.turns]
        for daemon in after:
            assert await daemon.stop() == 0

    assert check(workspace, sent).sound
    assert sorted(asked) == sorted([*(f"say {id_}" for id_ in ids), *written])
    # Where a change takes long a chat may be told, too, that many of its messages wait.
    replies = [reply for reply in client.replies if reply["kind"] == "reply"]
    for chat in CHATS:
        told = [reply["in_reply_to"] for reply in replies if reply["key"] == f"foreign:{chat}"]
        assert told == sent[f"foreign_{chat}"]
    assert [sent.text for sent in telegram.sent_to(ADA)] == [f"stub: {word}" for word in written]
