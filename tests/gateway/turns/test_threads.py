"""A turn finds the threads that it needs: to begin one holds up the loop until the system has made it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gateway.app.app import Application
from gateway.config.settings import Settings
from gateway.queue.mailbox import INBOUND, Post, outbound
from tests.support.foreign import inbound
from tests.support.model_server import ModelServer
from tests.support.until import until

KEY, TURNS = "bench:one", 24


async def test_a_turn_begins_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a language model, so that facts are drawn and names asked for: their timers look for files."""
    begun: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        begun.append(thread.name)
        start(thread)

    async with ModelServer() as model:
        of_model = {"name": "openai/stub", "api_base": model.url, "api_key": "none"}
        settings = Settings.model_validate({"workspace": tmp_path, "model": of_model})
        async with Application(settings).open() as application:
            await _answered(application, 0, TURNS)
            monkeypatch.setattr(threading.Thread, "start", noted)
            await _answered(application, TURNS, 2 * TURNS)

    # A name, or memory, may be worked on meanwhile.
    assert len(begun) < TURNS // 2, begun


async def _answered(application: Application, first: int, last: int) -> None:
    """Have messages answered, and wait until their replies wait for a platform that there is not."""
    box = outbound("bench")
    for number in range(first, last):
        id_ = f"{KEY}#{number}"
        await application.mailbox.put(Post(INBOUND, KEY, id_, inbound(KEY, id_, "hello")))

        async def there(count: int = number + 1) -> bool:
            depth = (await application.mailbox.depths()).get(box)
            return depth is not None and depth.count >= count

        await until(there)
