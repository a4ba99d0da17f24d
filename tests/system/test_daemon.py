"""A daemon's life as a process: ready, drained, refused, and what it may never show."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app.daemon import LAST_WORDS_S
from gateway.app.daemons import DaemonRegistry
from tests.support.broker import Broker
from tests.support.foreign import foreign, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, answer_to, ask, until_running
from tests.support.model_server import ModelServer, Reply, model_process
from tests.support.place import lines_of, on, with_model
from tests.support.ports import KeptPort
from tests.support.until import until
from tests.system.terminal import run


async def refused(workspace: Path, **options: Any) -> tuple[int, str]:
    """Start a daemon that must not come up; return its exit code and what it said."""
    daemon = await Daemon(workspace, **options).start(wait=False)
    code = await daemon.died()
    return code, daemon.log.decode()


async def test_ready_is_one_plain_line_with_the_address_and_sigterm_ends_with_0(tmp_path: Path) -> None:
    async with Daemon(tmp_path, anew=True) as daemon:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{daemon.url}/readyz")
        assert answer.status_code == 200
        assert answer.json()["ready"] is True
        # Events stand between plain lines wherever they fall: a slow machine has some before it is ready.
        plain = [line for line in daemon.log.decode().splitlines() if not line.startswith("{")]
        assert [line.split()[0] for line in plain] == ["configuration:", "workspace:", "model", "ready"]
        assert plain[-1] == f"ready {daemon.url}/"
        assert daemon.url.startswith("http://127.0.0.1:")

        assert await daemon.stop() == 0


async def test_a_thread_that_nothing_can_stop_does_not_hold_it_up(tmp_path: Path) -> None:
    config = with_model("http://127.0.0.1:9/v1", **{"limits.drain_s": 0.2})
    async with Daemon(tmp_path, config=config, program=["tests.support.never_loads"]) as daemon:
        asking = asyncio.create_task(ask(daemon, "web:ada", "1", "hello"))
        await until_running(daemon, 0)

        assert await daemon.stop(within_s=30) == 0
        assert b'"daemon.drained"' in daemon.log
        assert await asking is None


async def test_a_library_that_cannot_be_loaded_is_an_outage_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon stays up, says why, and answers what waited as soon as the library can be loaded."""
    repaired = tmp_path / "repaired"
    monkeypatch.setenv("REPAIRED", str(repaired))
    async with ModelServer() as model:
        program = ["tests.support.cannot_load"]
        async with Daemon(tmp_path / "w", config=with_model(model), program=program) as daemon:
            await daemon.said("model.not_loaded")
            asking = asyncio.create_task(ask(daemon, "telegram:1", "1", "hello", wait_s=120))
            await daemon.said("model.away")
            async with httpx.AsyncClient() as client:
                part = (await client.get(f"{daemon.url}/readyz")).json()["parts"]["model"]
            repaired.touch()
            answer = await asking
            assert await daemon.stop() == 0

    assert part["up"] is False
    assert "LiteLLM cannot be loaded" in part["error"]
    assert "TMPDIR" in part["hint"]
    assert answer is not None
    assert answer["kind"] == "reply"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_lets_the_running_turn_end_and_leaves_what_waits(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Also the one of a terminal that is closed, which kernel and shell both tell of."""
    async with ModelServer() as model:
        end = asyncio.Event()
        model.script.append(Reply(text="stub: one", held=end))
        async with Daemon(tmp_path, config=with_model(model)) as daemon:
            first = asyncio.ensure_future(ask(daemon, "web:a", "1", "one"))
            await model.arrived(1)
            async with httpx.AsyncClient(timeout=30) as client:
                two = {"chat_id": "a", "text": "two", "id": "2"}
                assert (await client.post(f"{daemon.url}/v1/messages", json=two)).status_code == 202
            daemon.signal(number)
            # The log says so a moment before nothing more is begun.
            await daemon.said("daemon.draining")
            await until(lambda: bool(DaemonRegistry(tmp_path).ending()))
            if number == signal.SIGHUP:
                daemon.signal(number)
            end.set()

            assert await daemon.died() == 0
            await first

    assert [line["content"] for line in lines_of(tmp_path, "web_a")] == ["one", "stub: one"]
    async with Daemon(tmp_path) as daemon:
        answer = await answer_to(daemon, "web:a", "2", "two")
        assert answer["reply"] == "echo: two"


async def test_a_drain_that_takes_too_long_is_cut_and_a_verb_waits_for_its_end(tmp_path: Path) -> None:
    async with Daemon(tmp_path, config={"model.echo_delay_s": 150, "limits.drain_s": 1}) as daemon:
        asked = asyncio.ensure_future(ask(daemon, "web:a", "1", "one", wait_s=1))
        await until_running(daemon, 0)
        daemon.signal(signal.SIGTERM)
        await until(lambda: bool(DaemonRegistry(tmp_path).ending()))

        listed = await asyncio.to_thread(run, tmp_path, "parked", "list", "--json")
        assert await daemon.died(100) == 0
        await asked

    assert (listed.returncode, listed.stdout) == (0, "[]\n"), listed.stderr


async def test_a_second_sigterm_ends_it_within_3_s(tmp_path: Path) -> None:
    """Before it all verbs say that it is ending; behind it the log says that a turn was cut."""
    async with Daemon(tmp_path, config={"model.echo_delay_s": 150, "limits.drain_s": 150}) as daemon:
        asked = asyncio.ensure_future(ask(daemon, "web:a", "1", "one", wait_s=1))
        await until_running(daemon, 0)
        daemon.signal(signal.SIGTERM)
        await daemon.said("daemon.draining")
        await until(lambda: bool(DaemonRegistry(tmp_path).ending()))
        shown, found = [await asyncio.to_thread(run, tmp_path, "status", *args) for args in ([], ["--json"])]
        verbs = ("parked list", "chat -m hello", "memory erase cli:a --yes", "doctor --json")
        told = await asyncio.gather(*(asyncio.to_thread(run, tmp_path, *verb.split()) for verb in verbs))
        daemon.signal(signal.SIGTERM)

        # Turn and drain would take 150.
        assert await daemon.died(100) == 0
        await asked
    said = [json.loads(line) for line in daemon.log.decode().splitlines() if line.startswith("{")]
    fields = {line["event"]: line for line in said}
    assert fields["daemon.draining"]["within_s"] == 150
    assert fields["daemon.drained"]["all_turns_ended"] is False
    assert (shown.returncode, found.returncode) == (0, 0), shown.stderr + found.stderr
    assert "shutting down; answers in progress have up to " in shown.stdout
    assert "is not running" not in shown.stderr
    for verb, done in zip(verbs[:-1], told, strict=False):
        assert done.returncode == 73, (verb, done)
        assert f"process {daemon.pid} is shutting down and uses the queue; its running turns " in done.stderr
        assert "try: run this again once chat-gateway status no longer shows that process" in done.stderr
    queue = next(check for check in json.loads(told[-1].stdout) if check["name"] == "broker")
    assert queue["level"] == "ok"
    assert queue["text"].endswith("which is shutting down")
    assert json.loads(found.stdout)["ending"] and DaemonRegistry(tmp_path).ending() == []
    # So long it lets itself be held up.
    assert LAST_WORDS_S <= 3


async def test_a_second_sigterm_waits_for_nothing_that_hangs() -> None:
    """The process ends itself in time even where its running turns cannot be cancelled."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HANGS), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        for said in (b"listens\n", b"drains\n"):
            assert await asyncio.wait_for(process.stdout.readline(), 120) == said
            process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.stdout.readline(), 120) == b"hangs\n"
        assert await asyncio.wait_for(process.wait(), 120) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


HANGS = """
import asyncio, types
from gateway.app.daemon import Ending

async def end_now():
    print("hangs", flush=True)
    await asyncio.Event().wait()

async def main():
    ready = asyncio.Event()
    ready.set()
    ending = Ending(types.SimpleNamespace(ready=ready, end_now=end_now, workers=None))
    ending.listen()
    print("listens", flush=True)
    await ending.asked.wait()
    print("drains", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_what_the_embedded_queue_cannot_do_is_refused(tmp_path: Path) -> None:
    """A second daemon with 73, a role of its own with 78; and a port that is taken."""
    async with Daemon(tmp_path):
        code, words = await refused(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        of_port, words_of_port = await refused(tmp_path, config={"http.port": port})
    of_role, words_of_role = await refused(tmp_path, role="session")

    assert (code, of_role) == (73, 78)
    assert "limits.workers" in words
    assert "try: " in words
    assert "RabbitMQ" in words_of_role
    assert (of_port, "http.port" in words_of_port) == (1, True)


async def test_another_number_of_partitions_is_refused_with_78(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    config = on(broker, broker_name, partitions=2)
    async with Daemon(tmp_path / "a", role="session", config=config):
        code, words = await refused(tmp_path / "b", role="session", config={**config, "broker.partitions": 3})

    assert code == 78
    assert "partitions" in words
    assert "set broker.partitions = 2" in words


async def test_unused_notes_of_the_workspace_are_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "MEMORY.md").write_text("notes of an earlier program")

    async with Daemon(tmp_path) as daemon:
        words = daemon.log.decode()

    assert "memory/MEMORY.md" in words
    assert "memory.scope" in words


async def test_sigterm_ends_a_daemon_that_still_waits_for_its_broker(tmp_path: Path) -> None:
    with KeptPort() as away, KeptPort() as port:
        config = {"broker.url": f"amqp://guest:guest@127.0.0.1:{away}/", "http.port": port}
        daemon = await Daemon(tmp_path, role="session", config=config).start(wait=False)
        assert (await readiness(port)).status_code == 503

        assert await daemon.stop() == 0


async def readiness(port: int) -> httpx.Response:
    """Ask whether the daemon is ready, as soon as it listens."""
    async with httpx.AsyncClient(timeout=30) as client:

        async def told() -> httpx.Response | None:
            with contextlib.suppress(httpx.TransportError):
                return await client.get(f"http://127.0.0.1:{port}/readyz")
            return None

        answer: httpx.Response = await until(told, 120)
    return answer


SECRETS = {
    "model.api_key": "sk-planted-1111-model",
    "http.token": "planted-2222-http-token",
    "channels.telegram.token": "333333:planted-telegram-AAAA",
    "channels.discord.token": "planted.4444.discord",
}


@guarantee("security", "No secret appears in output, errors, logs or files.")
@pytest.mark.parametrize("level", ["info", "debug"])
async def test_no_secret_shows_in_output_errors_or_files(
    tmp_path: Path, broker: Broker, broker_name: str, level: str
) -> None:
    """Secrets in every secret key; a run with answers, refusals and errors; then everything is searched."""
    workspace = tmp_path / "workspace"
    password = "planted-5555-broker"
    broker.user(f"user-{broker_name}", password)
    async with model_process(tmp_path / "model.log") as (url, _):
        own_url = broker.url.replace("guest:guest", f"user-{broker_name}:{password}")
        config = {**SECRETS, **on(own_url, broker_name), **with_model(url), "log.level": level}
        async with Daemon(workspace, role="session", config=config) as daemon:
            bearer = {"Authorization": f"Bearer {SECRETS['http.token']}"}
            async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as client:
                for text in ("hello", "[[refuse]] no", "[[status:401 times=1]] key"):
                    await client.post(
                        "/v1/messages?wait=20", json={"chat_id": "a", "text": text}, headers=bearer
                    )
                await client.get("/v1/status", headers={"Authorization": "Bearer wrong"})
                shown = [
                    (await client.get(path, headers=bearer)).text
                    for path in ("/v1/status", "/readyz", "/v1/parked")
                ]
            assert await daemon.stop() == 0

    everything = bytes(daemon.log) + "".join(shown).encode()
    for path in workspace.rglob("*"):
        everything += str(path).encode() + (path.read_bytes() if path.is_file() else b"")
    for name, secret in {**SECRETS, "broker": password}.items():
        assert secret.encode() not in everything, name


async def test_everything_in_the_workspace_is_the_owners_alone(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    async with Daemon(workspace) as daemon:
        await ask(daemon, "web:a", "1", "one")
        await ask(daemon, "web:a", "2", "/new")
        await daemon.stop()

    wide = [
        str(path) for path in [workspace, *workspace.rglob("*")] if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert wide == []


@guarantee("leaks", "Each session key has a safe file of its own, whatever characters it contains.")
async def test_odd_keys_get_safe_files_of_their_own(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """Slashes, dots, NUL, 500 characters, emoji: a file inside sessions/, and no two keys share one."""
    chats = [
        "../../etc/passwd",
        "..",
        ".",
        "a/b",
        "a\\b",
        "a\0b",
        "x" * 500,
        "x" * 501,
        "🦆" * 80,
        "a:b",
        "a_b",
    ]
    config = on(broker, broker_name, partitions=2)
    async with Daemon(tmp_path, role="session", config=config):
        replies = await all_answered(broker.url, broker_name, chats)

    assert {reply["chat_id"]: reply["text"] for reply in replies} == {chat: f"echo: {chat}" for chat in chats}
    files = sorted((tmp_path / "sessions").glob("*.jsonl"))
    assert len(files) == len(chats)
    keys = {json.loads(path.read_bytes().split(b"\n")[0])["key"] for path in files}
    assert keys == {f"odd:{chat}" for chat in chats}
    outside = [
        path for path in tmp_path.iterdir() if path.name not in ("sessions", "state", "memory", "files")
    ]
    assert outside == []


async def all_answered(url: str, name: str, chats: list[str]) -> list[dict[str, Any]]:
    async with foreign(url, name=name) as client:
        for number, chat in enumerate(chats):
            await client.put(inbound(f"odd:{chat}", f"m{number}", chat))
        return await client.collect("odd", len(chats))
