"""The command line beside a running gateway: sessions cleared or ended in mid-turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.harness import Daemon, answer_to, ask, command
from tests.support.model_server import ModelServer, Reply
from tests.support.place import archives, contents, transcript, with_model
from tests.support.until import until
from tests.support.verdict import check


@asynccontextmanager
async def in_mid_turn(workspace: Path, before: Reply, running: str) -> AsyncIterator[InMidTurn]:
    """Have one turn in a chat, and a second one run, whose model answers once ``end`` is set."""
    async with ModelServer() as model:
        end = asyncio.Event()
        model.script += [before, Reply(text=f"stub: {running}", held=end)]
        async with Daemon(workspace, config=with_model(model)) as daemon:
            assert await ask(daemon, "web:a", "0", "zero")
            asking = asyncio.create_task(ask(daemon, "web:a", "1", running))
            stored = f'"{running}"'.encode()
            await until(lambda: stored in transcript(workspace, "web_a").read_bytes(), 120)
            await model.arrived(2)
            yield InMidTurn(daemon, asking, end)
            await asking
            assert await daemon.stop() == 0


@dataclass(frozen=True)
class InMidTurn:
    """A daemon in which a turn runs, and who waits for its answer."""

    daemon: Daemon
    asking: asyncio.Task[dict[str, Any] | None]
    end: asyncio.Event


async def test_a_cleared_session_ends_its_running_turn_unwritten_and_for_good(tmp_path: Path) -> None:
    async with in_mid_turn(tmp_path, Reply(text="poisoned"), "more poison") as turn:
        assert (await command(tmp_path, "sessions", "clear", "web:a"))[0] == 0
        turn.end.set()
        await turn.daemon.said("turn.fenced")
        answer = await answer_to(turn.daemon, "web:a", "2", "hello")

    assert answer["reply"] == "stub: hello"
    assert contents(tmp_path, "web_a") == ["hello", "stub: hello"]


async def test_a_session_ended_by_hand_while_its_turn_runs_still_answers_that_message(tmp_path: Path) -> None:
    async with in_mid_turn(tmp_path, Reply(text="to zero"), "one") as turn:
        assert (await command(tmp_path, "sessions", "new", "web:a"))[0] == 0
        turn.end.set()
        first = await turn.asking
        second = await answer_to(turn.daemon, "web:a", "2", "two")

    assert first
    assert first["reply"] == "stub: one"
    assert second["reply"] == "stub: two"
    assert len(archives(tmp_path, "web_a")) == 1
    assert check(tmp_path, {"web_a": ["web:0", "web:1", "web:2"]}).sound


async def test_what_a_command_wrote_by_another_path_is_there_after_a_kill(tmp_path: Path) -> None:
    """The gateway appends its lines below its own workspace, and the next start finds them nowhere else."""
    workspace, link, source = tmp_path / "w", tmp_path / "link", tmp_path / "source.jsonl"
    workspace.mkdir()
    link.symlink_to(workspace)
    head = {"_type": "metadata", "key": "cli:old", "created_at": "2026-01-01T00:00:00", "metadata": {}}
    line = {"role": "user", "content": "from elsewhere", "timestamp": "2026-01-01T00:00:00"}
    source.write_text(f"{json.dumps(head)}\n{json.dumps(line)}\n")

    async with Daemon(workspace) as daemon:
        code, _ = await command(link, "sessions", "import", "--from", "nanobot", str(source))
        before = contents(workspace, "cli_old")
        await daemon.kill()
    async with Daemon(workspace) as daemon:
        answer = await answer_to(daemon, "cli:old", "1", "and on")

    assert (code, before) == (0, ["from elsewhere"])
    assert answer["reply"] == "echo: and on"
    assert contents(workspace, "cli_old") == ["from elsewhere", "and on", "echo: and on"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "source.jsonl", "w"]
