"""The life of a message, told by a running daemon and by its files alone, over both kinds of queue."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command, until_running
from tests.support.model_server import ModelServer, Reply
from tests.support.otlp_receiver import OtlpReceiver, Span
from tests.support.place import lines_of, with_model
from tests.support.team import Team
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.approvals_place import asks, decide, waiting, writing
from tests.system.platform_place import ADA, with_telegram

pytestmark = guarantee(
    "operation", "The history of a message can be read from disk, with or without a running gateway."
)

LOOK = [("ls", '{"path": "."}')]


async def traced(daemon: Daemon, message_id: str, **query: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(f"{daemon.url}/v1/trace/{quote(message_id, safe='')}", params=query)
    return {"status": answer.status_code, **answer.json()}


async def shown(workspace: Path, config: dict[str, Any], *words: str) -> tuple[int, dict[str, Any]]:
    code, out = await command(workspace, "trace", *words, "--json", config=config)
    return code, json.loads(out) if out else {}


async def when(daemon: Daemon, message_id: str, state: str) -> dict[str, Any]:
    """Wait until a message has come to a state; return its history."""

    async def so() -> dict[str, Any] | None:
        found = await traced(daemon, message_id)
        return found if found.get("state") == state else None

    told: dict[str, Any] = await until(so)
    return told


def names(found: dict[str, Any]) -> list[str]:
    return [step["step"] for step in found["steps"]]


def the(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(step for step in found["steps"] if step["step"] == name)


async def test_from_accepted_to_sent(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Each step with its time, in order, by the daemon and by the files without one; no word of anybody."""
    async with TelegramServer() as server, ModelServer() as model:
        model.script += [Reply(tool_calls=LOOK), Reply("nothing there")]
        config = {**with_model(model), **with_telegram(server, stream=False), **queue}
        async with Daemon(tmp_path, config=config) as daemon:
            await server.until_confirmed(server.write(ADA, "what is here?"))
            await server.said(ADA, lambda sent: sent.text == "nothing there")
            server.write(ADA, "/status")
            await server.said(ADA, lambda sent: sent.text.startswith("model:"))
            message_id = str(lines_of(tmp_path, f"telegram_{ADA}")[0]["message_id"])
            await when(daemon, message_id, "delivered")
            found = await traced(daemon, message_id)
            following = message_id.rpartition(":")[0] + f":{int(message_id.rpartition(':')[2]) + 1}"
            status = await when(daemon, following, "delivered")
            unknown = await traced(daemon, "telegram:1:1")
            async with httpx.AsyncClient() as client:
                spent = (await client.get(f"{daemon.url}/v1/usage", params={"days": 2})).json()
            code, by_verb = await shown(tmp_path, config, message_id)
            assert await daemon.stop() == 0
        at_rest = await shown(tmp_path, config, message_id, "--key", f"telegram:{ADA}")
        gone = await shown(tmp_path, config, "telegram:1:1")
        _, by_files = await command(tmp_path, "usage", "--days", "2", "--json", config=config)

    assert (code, at_rest[0], gone[0]) == (0, 0, 1)
    assert names(found) == [
        *("accepted", "queued", "begun", "model", "tool", "model", "stored", "put", "sent", "delivered")
    ]
    assert by_verb["steps"] == found["steps"] == at_rest[1]["steps"]
    # What was sent is noted in whole milliseconds.
    times = [datetime.fromisoformat(step["at"]).isoformat(timespec="milliseconds") for step in found["steps"]]
    assert times == sorted(times)
    assert (found["state"], found["key"]) == ("delivered", f"telegram:{ADA}")
    assert the(found, "model")["prompt"] > 0
    assert the(found, "sent")["platform_id"] == str(server.sent_to(ADA)[0].message_id)
    assert "what is here" not in json.dumps(found)
    assert names(status)[0] == "accepted"
    assert {"stored", "sent"} <= set(names(status))
    assert unknown["status"] == 404
    assert "transcripts" in unknown["error"]
    assert [(row["model"], row["turns"]) for row in spent["models"]] == [("openai/stub", 1)]
    # The background may have named the conversation meanwhile: that is nobody's.
    assert spent["people"] == json.loads(by_files)["people"]
    assert [(row["person"], row["prompt_tokens"]) for row in spent["people"]] == [
        (f"telegram:{ADA}", sum(step.get("prompt", 0) for step in found["steps"]))
    ]


async def test_what_waits_and_what_asks(tmp_path: Path, queue: dict[str, Any]) -> None:
    """A message that waits says so, and so does one whose turn waits for a person; then how that ended."""
    async with ModelServer() as model:
        model.script += [writing(), Reply("done"), Reply("two")]
        async with Daemon(tmp_path, config=asks(model, **queue)) as daemon:
            first = asyncio.create_task(ask(daemon, "cli:ada", "cli:1", "write it down"))
            (open_,) = await until(lambda: waiting(daemon))
            second = asyncio.create_task(ask(daemon, "cli:ada", "cli:2", "and then?"))
            behind = await until(lambda: in_line(daemon, "cli:2"))
            asking = await traced(daemon, "cli:1")
            await decide(daemon, open_["id"], "allow")
            assert await first is not None
            assert await second is not None
            found = await traced(daemon, "cli:1", key="cli:ada")

    assert (asking["state"], behind["state"]) == ("asking", "waiting")
    assert names(behind)[-1] == "queued"
    assert the(found, "decided")["by"] == "the operator (over HTTP)"
    assert found["state"] == "answered"
    order = [step for step in names(found) if step in ("asked", "decided", "tool", "stored")]
    assert order == ["asked", "decided", "tool", "stored"]


async def in_line(daemon: Daemon, message_id: str) -> dict[str, Any] | None:
    found = await traced(daemon, message_id)
    return found if found["status"] == 200 else None


async def test_together_parked_and_lost(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Of messages with one answer each tells whose turn it was; a parked one why, put back or not."""
    release = asyncio.Event()
    async with ModelServer() as model:
        model.script += [Reply("zero", held=release), Reply("both"), Reply(status=400, text="no")]
        config = {**with_model(model), "limits.queue_mode": "collect", "limits.collect_s": 0.0, **queue}
        async with Daemon(tmp_path, config=config) as daemon:
            asked = [asyncio.create_task(ask(daemon, "cli:ada", "cli:0", "zero"))]
            await model.arrived(1)
            running = await traced(daemon, "cli:0")
            asked += [asyncio.create_task(ask(daemon, "cli:ada", f"cli:{n}", f"m{n}")) for n in (1, 2)]
            await until_running(daemon, 2)
            release.set()
            answers = await asyncio.gather(*asked)
            await answer_to(daemon, "cli:ada", "cli:3", "refused")
            parked = await when(daemon, "cli:3", "parked")
            lines = lines_of(tmp_path, "cli_ada")
            served = next(str(line["message_id"]) for line in lines if line.get("part_of"))
            leads = next(str(line["part_of"]) for line in lines if line.get("part_of"))
            together = await traced(daemon, served)
            model.script.append(Reply("now"))
            assert (await command(tmp_path, "parked", "retry", "cli:3", config=config))[0] == 0
            again = await when(daemon, "cli:3", "answered")
            await daemon.kill()
        code, left = await shown(tmp_path, config, "cli:3")

    assert running["state"] == "running"
    assert [answer and answer["reply"] for answer in answers] == ["zero", "both", "both"]
    assert (parked["state"], the(parked, "told")["reason"]) == ("parked", "refused")
    assert the(together, "begun")["turn"] == leads
    assert together["state"] == "answered"
    assert the(together, "stored")["answers"] == [leads, served]
    assert names(again).index("parked") < names(again).index("retried") < names(again).index("stored")
    assert (code, left["state"]) == (0, "answered")


async def test_a_run_of_the_clock_and_a_subagent(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Each has its whole life and its cost; a subagent's spans stand below the turn that started it."""
    with OtlpReceiver() as collector:
        async with ModelServer() as model:
            config = {**with_model(model), **queue, "telemetry.endpoint": collector.url}
            Team(model)
            async with Daemon(tmp_path, config=config) as daemon:
                assert await ask(daemon, "web:ann", "web:1", "spawn count apples") is not None
                subagent = await until(lambda: told(daemon))
                result = await when(daemon, f"{subagent['letter']}#result", "answered")
                asked, inner = await traced(daemon, "web:1"), await traced(daemon, subagent["letter"])
                await command(
                    *(tmp_path, "cron", "add", "--at", "2099-01-01T09:00", "--message", "tick"), config=config
                )
                _, jobs = await command(tmp_path, "cron", "list", "--json", config=config)
                job = json.loads(jobs)[0]["id"]
                _, ran = await command(tmp_path, "cron", "run", job, "--json", config=config)
                run = await when(daemon, json.loads(ran)["id"], "answered")
                assert await daemon.stop() == 0
        code, at_rest = await shown(tmp_path, config, subagent["letter"])

    assert names(run) == ["accepted", "queued", "begun", "model", "stored"]
    assert run["key"] == f"cron:{job}"
    assert the(run, "model")["prompt"] > 0
    assert the(result, "begun")["session_id"] == the(asked, "begun")["session_id"]
    # Its conversation is gone: what it cost is not.
    assert (code, at_rest["key"]) == (0, subagent["subagent"])
    for found in (asked, inner, at_rest):
        assert the(found, "spent")["model"] == "openai/stub"
        assert the(found, "spent")["prompt"] > 0
    assert (inner["state"], at_rest["state"]) == ("answered", "answered")
    _stand_below(collector.spans, the(asked, "begun")["trace_id"])


def _stand_below(spans: list[Span], trace_id: str) -> None:
    """See that the subagent stands below the turn that started it, and that of its result below it."""
    mine = [span for span in spans if span.trace_id == trace_id]
    (inner,) = (span for span in mine if span.name == "subagent")
    turns = sorted((span for span in mine if span.name == "turn"), key=lambda span: span.start_ns)
    assert [inner.parent_id, turns[1].parent_id] == [turns[0].span_id, inner.span_id]
    calls = [span.parent_id for span in mine if span.name == "model call"]
    assert [calls.count(span.span_id) for span in (turns[0], inner, turns[1])] == [2, 1, 1]


async def told(daemon: Daemon) -> dict[str, Any] | None:
    found = await traced(daemon, "web:1")
    steps = [step for step in found.get("steps", []) if step["words"] == "the subagent is told"]
    return steps[0] if steps else None
