"""What ``status`` shows while the queue does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from channels.message import Inbound
from channels.storage import lease
from gateway.__main__ import main
from gateway.app.application import Application
from gateway.app.daemons import DaemonRegistry
from gateway.app.status import readiness_of
from gateway.config.settings import Settings
from gateway.http.server import HttpServer
from gateway.outbound.standing import set_standing
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Depth, Health, Post
from tests.gateway.http_place import open_place
from tests.support.ports import KeptPort
from tests.support.until import until


class Hangs(EmbeddedMailbox):
    """A queue that never says how much waits."""

    async def depths(self, channels: Collection[str] = (), *, recent: bool = False) -> Mapping[str, Depth]:
        await asyncio.Event().wait()
        raise AssertionError

    def health(self) -> Health:
        return Health(up=True, since=datetime.now(UTC))


@pytest.fixture
def port() -> Iterator[int]:
    """Where nobody listens, and nobody begins to."""
    with KeptPort() as port:
        yield port


def application_without_broker(workspace: Path, port: int) -> Application:
    url = f"amqp://me:very-secret@127.0.0.1:{port}/"
    return Application(
        Settings.model_validate({"workspace": workspace, "http": {"port": 0}, "broker": {"url": url}})
    )


async def status_of(application: Application, workspace: Path, *args: str) -> tuple[int, dict[str, object]]:
    """Run ``status`` against a daemon that waits for its broker; return the exit code and its document."""
    server = HttpServer(application)
    server.bind()

    async def never_ready() -> None:
        async with application.open(serve=server.serve):
            raise AssertionError("there is no broker")

    running = asyncio.create_task(never_ready())
    try:
        with DaemonRegistry(workspace).entry(url=server.url, role="all"):
            code = await asyncio.to_thread(main, ["--workspace", str(workspace), "status", *args])
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
                found = orjson.loads((await client.get("/v1/status")).content)
    finally:
        running.cancel()
        await asyncio.wait([running])
    return code, found


async def test_status_without_the_broker_shows_all_but_the_depths(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes, parts, usage and budget are shown; the queue is said to be away, with its cure and exit 69.

    ``--json`` gives its document all the same: no depths, and the queue's error among the parts.
    """
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__URL", "amqp://me:very-secret@127.0.0.1:1/")

    code, found = await status_of(application_without_broker(tmp_path, port), tmp_path)

    shown = capsys.readouterr()
    assert (code, found["queues"], found["lanes"]) == (69, None, [])
    assert found["usage_today"] is not None
    assert found["memory"] is not None
    assert "gateway: not ready" in shown.out
    assert "queue: down (" in shown.out
    assert "today: 0 turns" in shown.out
    assert "error: the queue does not answer" in shown.err
    assert "try: " in shown.err
    assert "broker.url" in shown.err
    assert "very-secret" not in shown.out + shown.err
    code, _ = await status_of(application_without_broker(tmp_path, port), tmp_path, "--json")
    # The daemon is this process too, so that its log is in the output.
    out = capsys.readouterr().out
    document = orjson.loads(out[out.index("{\n") : out.rindex("}") + 1])
    assert (code, document["running"], document["queues"]) == (69, True, None)
    assert document["parts"]["queue"]["error"]


async def test_a_queue_that_hangs_does_not_hang_status(tmp_path: Path) -> None:
    """Where the queue does not count in time, the rest is shown, and the queue's part says so."""
    async with open_place(tmp_path) as place:
        place.application.mailbox = Hangs(tmp_path / "other")
        place.application.depths_within_s = 0.05
        found = (await place.http.get("/v1/status")).json()

    assert found["queues"] is None
    assert "0.05 s" in found["parts"]["queue"]["error"]
    assert found["model"] == "echo"


async def test_a_daemon_says_how_much_media_takes(tmp_path: Path) -> None:
    (tmp_path / "media" / "ab").mkdir(parents=True)
    (tmp_path / "media" / "ab" / "photo.jpg").write_bytes(b"12345")
    async with open_place(tmp_path) as place:
        found = (await place.http.get("/v1/status")).json()

    assert found["media_bytes"] == 5


async def test_it_counts_what_waits_for_a_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_place(tmp_path) as place:
        model = place.gate()
        for number in range(3):
            await place.post("x" * 1_000 + str(number))
        await model.begun.wait()
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            verb = ["--workspace", str(tmp_path), "status"]
            await asyncio.to_thread(main, verb)
            shown = capsys.readouterr().out
            await asyncio.to_thread(main, [*verb, "--json"])
            document = json.loads(capsys.readouterr().out)
        model.let.set()

    held = document["in_memory"]
    assert (held["letters"], held["max_bytes"]) == (3, 64 * 2**20)
    assert 3_000 < held["bytes"] < 6_000
    assert "in memory: 3 messages, 0.0 of 64 MB\n" in shown


async def test_a_session_process_turns_the_channel_down(tmp_path: Path) -> None:
    (tmp_path / "sessions" / "telegram_1.jsonl").mkdir(parents=True)
    letter = Inbound(v=1, id="telegram:1:1", key="telegram:1", channel="telegram", chat_id="1", text="hi")
    state = tmp_path / "state"
    async with (
        open_place(tmp_path, channels={"telegram": {"enabled": True, "token": "1:x"}}) as place,
        lease(state, "telegram"),
    ):
        # As the process that runs the adapter leaves it.
        set_standing(state, "telegram", {"up": True, "since": "2027-01-01", "error": ""})
        before = readiness_of(place.application)[1]["telegram"]
        await place.application.mailbox.put(Post(INBOUND, letter.key, letter.id, letter.to_bytes()))

        def held() -> dict[str, Any] | None:
            part = readiness_of(place.application)[1]["telegram"]
            return part if "1 chat waits" in part["error"] else None

        part = await until(held)
        (tmp_path / "sessions" / "telegram_1.jsonl").rmdir()

    assert (before["up"], before["error"]) == (True, "")
    assert not part["up"]
    assert "telegram_1.jsonl" in part["error"]
