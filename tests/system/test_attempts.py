"""What a death of whole daemons costs those who were asked: their turns go on at once, and side by side."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, command, until_running
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.support.verdict import check

CHATS = [f"chat{number}" for number in range(10)]
# Stands in for a library whose import takes longer than its process lives.
NEVER_IMPORTED = """
import sys, threading

class Never:
    def find_spec(self, name, path=None, target=None):
        if name == "litellm":
            print("importing for ever", file=sys.stderr, flush=True)
            threading.Event().wait()

sys.meta_path.insert(0, Never())
"""


@guarantee("loss", "All turns that a crash interrupted resume side by side, in another process as well.")
async def test_ten_turns_of_a_killed_daemon_go_on_side_by_side_in_another(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Turns of 3 s: all ten are asked again before the first of them is answered."""
    async with ModelServer() as model:
        config = on(broker, broker_name, partitions=2) | with_model(model)
        first = Daemon(tmp_path, role="session", config=config)
        async with (
            first,
            Daemon(tmp_path, role="session", config=config),
            Steady(broker.url, name=broker_name) as client,
        ):
            all_asked = asyncio.Event()
            model.script += [Reply(kind="hang")] * 10
            model.script += [Reply(text="fine", delay_s=3, held=all_asked)] * 10
            for chat in CHATS:
                await client.put(inbound(f"foreign:{chat}", chat, f"hello {chat}"))
            await model.arrived(10)
            await first.kill()
            killed_at = time.monotonic()
            await model.arrived(20)
            all_asked.set()
            await client.answered(*(f"{chat}#reply" for chat in CHATS))
            print(f"taken over and answered in {time.monotonic() - killed_at:.1f} s")

    assert len(model.seen) == 20
    assert check(tmp_path, {f"foreign_{chat}": [chat] for chat in CHATS}).sound


async def test_kills_during_the_import_of_the_models_library_park_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four daemons die before the first request can be made; the fifth answers."""
    workspace, stub = tmp_path / "workspace", tmp_path / "stub"
    stub.mkdir()
    (stub / "sitecustomize.py").write_text(NEVER_IMPORTED)
    chats = CHATS[:4]
    async with ModelServer() as model:
        config = with_model(model)
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", str(stub))
            for life in range(4):
                async with Daemon(workspace, config=config, anew=True) as daemon:
                    if life == 0:
                        await post(daemon, chats)
                    await daemon.said("importing for ever")
                    await until_running(daemon, *(0 for _ in chats))
                    await daemon.kill()
        assert model.seen == []

        async with Daemon(workspace, config=config) as daemon:
            await model.finished(4)
            await until_running(daemon)

    _, parked = await command(workspace, "parked", "list", "--json", config=config)
    assert parked.strip() == "[]"
    assert check(workspace, {f"web_{chat}": [f"web:{chat}"] for chat in chats}).sound


async def post(daemon: Daemon, chats: list[str]) -> None:
    """Leave a message of each chat, and wait for no answer."""
    async with httpx.AsyncClient(timeout=30) as client:
        for chat in chats:
            body = {"chat_id": chat, "text": f"hello {chat}", "id": chat}
            assert (await client.post(f"{daemon.url}/v1/messages", json=body)).status_code == 202
