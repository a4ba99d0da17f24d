"""An adapter's process dies in the middle of a reply, and another one of the workspace takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.place import on
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram

pytestmark = guarantee(
    "once", "A process that takes a platform over from another sends only the unsent rest of a reply."
)

FIRST, SECOND = "the first part " * 200, "the second part " * 100


def parts(telegram: TelegramServer) -> list[str]:
    """List the beginnings of what the chat was sent, in order."""
    return [sent.text.removeprefix("echo: ")[:10].strip() for sent in telegram.sent_to(ADA)]


async def test_a_process_that_takes_a_platform_over_sends_only_the_rest(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """The first one is killed between two parts of a reply, with both open on the send log."""
    workspace = tmp_path / "w"
    async with TelegramServer() as telegram:
        telegram.add_chat(ADA)
        config: dict[str, Any] = on(
            broker, broker_name, partitions=4, **with_telegram(telegram, stream=False)
        )
        config["model.name"] = "echo"
        first, second, session = (
            Daemon(workspace, role=role, config=config) for role in ("channels", "channels", "session")
        )
        async with session, first:
            await first.said('"event":"delivery.attached"', 0)
            await until(lambda: telegram.called("getUpdates"))
            async with second:
                hanging = telegram.fail("sendMessage", how="hang", containing=SECOND[:50])
                telegram.write(ADA, f"{FIRST}\n\n{SECOND}")
                await until(lambda: hanging.hits == 1, 60)
                assert parts(telegram) == [FIRST[:10].strip()]
                await first.kill()
                await telegram.sent_count(2)
                telegram.write(ADA, "and then")
                await telegram.sent_count(3)
                sent = parts(telegram)
                # The platform takes what the killed machine was sending, or not: here it did not.
                hanging.end()
                assert await second.stop() == 0

    assert sent == [FIRST[:10].strip(), SECOND[:10].strip(), "and then"]
