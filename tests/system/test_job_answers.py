"""Whole gateways whose jobs have nothing to say, fail, or go by ``HEARTBEAT.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model, write
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, told, with_telegram
from tests.system.test_schedules import soon, texts

pytestmark = guarantee(
    "interfaces", "A job with nothing to say is silent, and a failing one sends one notice until it succeeds."
)

TO = ("--to", f"telegram:{ADA}")
IN_CHAT = (*TO, "--session", "chat")


async def add(workspace: Path, *words: str) -> str:
    return (await told(workspace, "cron", "add", *words)).strip()


async def row_of(workspace: Path, job_id: str) -> dict[str, Any]:
    rows = json.loads(await told(workspace, "cron", "list", "--json"))
    found: dict[str, Any] = next(row for row in rows if row["id"] == job_id)
    return found


def statuses(workspace: Path) -> dict[str, Any]:
    jobs = json.loads((workspace / "cron" / "jobs.json").read_text())["jobs"]
    return {job["id"]: job["state"].get("lastStatus") for job in jobs}


def answers(workspace: Path, stem: str) -> list[str]:
    return [line["content"] for line in lines_of(workspace, stem) if line["role"] == "assistant"]


async def test_a_job_with_nothing_to_say_shows_nothing(tmp_path: Path) -> None:
    """Neither message, nor draft, nor typing, in the chat's session as in its own; it counts as answered."""
    # A draft would be sent within the seconds that the answer takes to be written.
    quiet = "[[say:**NO_REPLY**.]] [[slow:1]]"
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        config = with_model(model, **with_telegram(server, stream=True))
        async with Daemon(tmp_path, config=config) as daemon:
            here = await add(tmp_path, "--at", soon(8), "--message", quiet, *IN_CHAT)
            own = await add(tmp_path, "--at", soon(8), "--message", quiet, *TO)
            stems = (f"telegram_{ADA}", f"cron_{own}")
            await until(lambda: all((tmp_path / f"sessions/{stem}.jsonl").exists() for stem in stems))
            await until(lambda: all("unsent" in str(lines_of(tmp_path, stem)) for stem in stems))
            actions = list(server.actions)
            server.write(ADA, "[[say:NO_REPLY]] but people are answered")
            await server.until(lambda: texts(server) == ["NO_REPLY"], timeout_s=120)
            await daemon.said("letter.delivered")
            # The outcome of a run is noted behind its answer.
            await until(lambda: statuses(tmp_path) == {here: "ok", own: "ok"})

    assert [sent.versions for sent in server.sent_to(ADA)] in ([["NO_REPLY"]], [[]])
    assert actions == []
    assert answers(tmp_path, stems[0]) == ["**NO_REPLY**.", "NO_REPLY"]
    assert answers(tmp_path, stems[1]) == ["**NO_REPLY**."]


async def test_a_job_that_fails_tells_its_chat_once_until_it_succeeds(tmp_path: Path) -> None:
    """Run after run comes to nothing, told once over a restart; a success, then the next failure is told."""
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        config = with_model(model, **with_telegram(server))
        async with Daemon(tmp_path, config=config) as daemon:
            job_id = await add(tmp_path, "--every", "30d", "--message", "[[refuse]] x", "--name", "news", *TO)
            for run in range(3):
                await told(tmp_path, "cron", "run", job_id)
                await daemon.said("letter.parked", run + 1)
            await server.until(lambda: len(server.sent_to(ADA)) >= 1, timeout_s=120)
        async with Daemon(tmp_path, config=config) as daemon:
            await told(tmp_path, "cron", "run", job_id)
            await daemon.said("letter.parked")
            change(tmp_path, "fine")
            await told(tmp_path, "cron", "run", job_id)
            await server.until(lambda: texts(server)[-1] == "stub: fine", timeout_s=120)
            change(tmp_path, "[[refuse]] again")
            await told(tmp_path, "cron", "run", job_id)
            await server.until(lambda: len(server.sent_to(ADA)) == 3, timeout_s=120)
            status = (await row_of(tmp_path, job_id))["state"]

    first, fine, again = texts(server)
    assert fine == "stub: fine"
    assert first == again
    assert first.startswith("The job “news” failed: ")
    assert first.endswith("Further failures are not reported until it succeeds again.")
    assert status["lastStatus"] in ("error", "ok")


def change(workspace: Path, message: str) -> None:
    """Edit the one job by hand."""
    path = workspace / "cron" / "jobs.json"
    content = json.loads(path.read_bytes())
    content["jobs"][0]["payload"]["message"] = message
    path.write_text(json.dumps(content))


async def test_a_heartbeat_asks_what_its_file_holds_and_is_silent_where_all_is_well(tmp_path: Path) -> None:
    """No file, and one without a task, ask no model; the chat's own file comes before the workspace's."""
    own = tmp_path / "files" / "chats" / f"telegram_{ADA}" / "HEARTBEAT.md"
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        async with Daemon(tmp_path, config=with_model(model, **with_telegram(server))) as daemon:
            job_id = await add(tmp_path, "--heartbeat", "1s", *TO)

            async def skipped() -> bool:
                state = (await row_of(tmp_path, job_id))["state"]
                return state["lastError"] == "HEARTBEAT.md contains no task"

            while not await skipped():
                pass
            write(tmp_path / "HEARTBEAT.md", "# Tasks\n\n<!-- none\nyet -->\n- [ ]\n")
            assert model.turns == []
            write(tmp_path / "HEARTBEAT.md", "# Tasks\n- [ ] all well [[say:HEARTBEAT_OK: all is well]]\n")
            await daemon.said("turn.replied", 0)
            await until(lambda: (tmp_path / f"sessions/cron_{job_id}.jsonl").exists())
            write(own, "- look [[say:the roof leaks]]\n")
            await server.until(lambda: len(server.sent_to(ADA)) >= 1, timeout_s=120)
            await told(tmp_path, "cron", "remove", job_id)

    assert set(texts(server)) == {"the roof leaks"}
    assert answers(tmp_path, f"cron_{job_id}")[0] == "HEARTBEAT_OK: all is well"
    asked = model.turns[0].text
    assert asked.startswith("This is a heartbeat")
    assert "- [ ] all well" in asked
    assert "answer with the one word HEARTBEAT_OK" in str(model.turns[0].messages)
