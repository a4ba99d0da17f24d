"""Machines that share a workspace and keep their own files on disks of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from session.disk.local_files import homes_of
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.place import on
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram

pytestmark = guarantee(
    "once", "A machine that takes a platform over from another sends only the unsent rest of a reply."
)

FIRST, SECOND = "the first part " * 200, "the second part " * 100


def machine(folder: Path, disk: Path) -> list[str]:
    """Return what starts a program on a machine that has a disk of its own at ``folder``."""
    disk.mkdir()
    return ["unshare", "--mount", "sh", "-c", f'mount --bind {disk} {folder} && exec "$@"', "sh"]


def can_mount() -> bool:
    return os.geteuid() == 0 and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode


def parts(telegram: TelegramServer) -> list[str]:
    """List the beginnings of what the chat was sent, in order."""
    return [sent.text.removeprefix("echo: ")[:10].strip() for sent in telegram.sent_to(ADA)]


@pytest.mark.skipif(
    not can_mount(), reason="a disk of its own needs root, or: unshare --map-root-user --mount"
)
async def test_a_machine_that_takes_a_platform_over_sends_only_the_rest(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Killed between two parts of a reply; the other machine has never seen the first one's ledger."""
    workspace, folder = tmp_path / "w", tmp_path / "local"
    folder.mkdir()
    one, other = (machine(folder, tmp_path / name) for name in ("one", "other"))
    async with TelegramServer() as telegram:
        telegram.add_chat(ADA)
        config: dict[str, Any] = on(
            broker, broker_name, partitions=4, **with_telegram(telegram, stream=False)
        )
        config |= {"model.name": "echo", "state.local_dir": str(folder)}
        first, second, session = (
            Daemon(workspace, role=role, config=config, prefix=where)
            for role, where in (("channels", one), ("channels", other), ("session", one))
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
    homes = homes_of(workspace / "state")
    assert len(homes) == 2
    assert not list((workspace / "state").rglob("*.db*"))
    for disk in ("one", "other"):
        assert list((tmp_path / disk).glob("*/delivery-telegram.db")), disk
