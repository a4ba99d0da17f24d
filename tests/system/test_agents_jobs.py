"""Whole gateways whose jobs are an agent's: asked of that one alone, whoever answers in the chat by then."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command
from tests.support.model_server import ModelServer, Seen
from tests.support.place import head_of, lines_of, transcript, with_model
from tests.support.until import until
from tests.system.test_schedules import call

pytestmark = guarantee(
    "leaks", "A job runs only with the agent that created it, and a kill does not repeat its answer."
)

KEY, STEM = "cli:ann", "cli_ann"
CODER: dict[str, Any] = {"coder": {"persona": "You are CODER.", "model": {"name": "openai/other"}}}
JOB = {"every": "1d", "to": KEY}


class Ann:
    """Writes into her chat, looks on there, and has jobs run."""

    def __init__(self, daemon: Daemon, http: httpx.AsyncClient) -> None:
        self.daemon = daemon
        self._http = http
        # What she was told, by the id of what it answers.
        self.told: dict[str, list[str]] = {}
        self._count = 0

    async def says(self, text: str) -> str:
        self._count += 1
        answer = await answer_to(self.daemon, KEY, f"{self.daemon.pid}-{self._count}", text)
        return str(answer["reply"])

    async def runs(self, job_id: str) -> str:
        return await self.hears((await self.http("POST", f"/v1/cron/{job_id}/run"))["id"])

    async def hears(self, message_id: str) -> str:
        await until(lambda: message_id in self.told)
        return self.told[message_id][0]

    async def http(self, method: str, path: str, **body: Any) -> Any:
        answer = await self._http.request(method, path, json=body or None)
        assert answer.is_success, answer.text
        return answer.json()

    async def jobs(self) -> dict[str, dict[str, Any]]:
        """Return the jobs by what they ask."""
        return {row["payload"]["message"]: row for row in (await self.http("GET", "/v1/cron"))["jobs"]}

    async def look_on(self, begun: asyncio.Event) -> None:
        async with self._http.stream("GET", "/v1/events", params={"key": KEY}) as stream:
            begun.set()
            async for line in stream.aiter_lines():
                event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if event.get("kind") in ("reply", "notice"):
                    self.told.setdefault(event["in_reply_to"], []).append(event["text"])


@contextlib.asynccontextmanager
async def serving(workspace: Path, config: dict[str, Any]) -> AsyncIterator[Ann]:
    async with (
        Daemon(workspace, config=config) as daemon,
        httpx.AsyncClient(base_url=daemon.url, timeout=60) as http,
    ):
        ann, begun = Ann(daemon, http), asyncio.Event()
        looking = asyncio.create_task(ann.look_on(begun))
        await begun.wait()
        try:
            yield ann
        finally:
            looking.cancel()


async def test_a_job_stays_with_the_agent_that_made_it(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Its words and answers reach no other agent, and the chat keeps its own; one that is gone loses none."""
    async with ModelServer() as model:
        config = with_model(model, agents=CODER, **queue)
        async with serving(tmp_path, config) as ann:
            here, own = await made(ann)
            listed, run = await ran_apart(tmp_path, ann, here, own)
            traced = await ann.http("GET", f"/v1/trace/{run}")
            # What no agent made goes with the chat.
            operators = await ann.http("POST", "/v1/cron", message="of the operator", **JOB)
            assert await ann.runs(operators["id"]) == "stub: of the operator"
            assert model.turns[-1].body["model"] == "stub"
            # With its agent back, the job is part of the chat's conversation again.
            await ann.says("/agent coder")
            assert await ann.runs(here) == "stub: sesame-here"
            assert "sesame-here" in transcript(tmp_path, STEM).read_text()
            await ann.says("/agent default")
            assert (await ann.says("/agent")).startswith("default answers here")
            # What is left to be remembered of an agent that is gone is the default one's work.
            asked = [*model.seen, *model.asides]
        await gone(tmp_path, model, with_model(model, **queue), own)
        async with serving(tmp_path, config) as ann:
            (one, _) = (await ann.http("GET", "/v1/parked"))["parked"]
            await ann.http("POST", f"/v1/parked/{one['id']}/retry")
            assert await ann.hears(one["id"]) == "stub: sesame-own"
            erased, _ = await command(tmp_path, "memory", "erase", KEY, "--yes", config=config)
            assert (await ann.http("GET", "/v1/parked"))["parked"] == []
            assert await ann.daemon.stop() == 0

    # What the jobs said, wherever they ran, goes with their chat.
    assert erased == 0
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]
    assert left == []
    asked = [seen for seen in [*asked, *model.turns] if "sesame" in words_of(seen)]
    assert len(asked) >= 6
    assert all(seen.body["model"] == "other" for seen in asked), [seen.text for seen in asked]
    assert all("CODER" in words_of(seen) for seen in asked if seen in model.turns)
    assert here in listed
    assert f"{own} of the agent coder: every 1d" in listed
    assert [step["step"] for step in traced["steps"]].count("handed on") == 1
    assert (traced["key"], traced["state"]) == (f"cron:{here}", "answered")


def words_of(seen: Seen) -> str:
    return json.dumps(seen.body)


async def made(ann: Ann) -> tuple[str, str]:
    """Have the coder make two jobs, one in the chat's conversation and one in its own: their ids."""
    await ann.says("/agent coder")
    await ann.says(f"make it {call('add', every='1d', message='sesame-here')}")
    await ann.says(f"make it {call('add', every='1d', message='sesame-own', session='job')}")
    rows = await ann.jobs()
    assert [row["payload"]["agent"] for row in rows.values()] == ["coder", "coder"]
    return rows["sesame-here"]["id"], rows["sesame-own"]["id"]


async def ran_apart(workspace: Path, ann: Ann, here: str, own: str) -> tuple[str, str]:
    """Run both while another agent has the chat: the answers come, nothing else of them does.

    Returns:
        What the other agent sees of them, and the id of the run that was handed on.
    """
    await ann.says("/agent default")
    await ann.says("good morning")
    for job_id, said in ((here, "stub: sesame-here"), (own, "stub: sesame-own")):
        assert await ann.runs(job_id) == said
        assert head_of(transcript(workspace, f"cron_{job_id}"))["metadata"]["agent"] == "coder"
    assert await ann.says("what is new") == "stub: what is new"
    await ann.says(f"which jobs {call('list')}")
    assert "sesame" not in transcript(workspace, STEM).read_text()
    listed = [line["content"] for line in lines_of(workspace, STEM) if line["role"] == "tool"][-1]
    return listed, lines_of(workspace, f"cron_{here}")[-1]["message_id"]


async def gone(workspace: Path, model: ModelServer, config: dict[str, Any], own: str) -> None:
    """Run a job whose agent is not configured: told once with its cure, noted, set aside, asked of nobody."""
    asked = len(model.turns)
    async with serving(workspace, config) as ann:
        notice = await ann.runs(own)
        await ann.http("POST", f"/v1/cron/{own}/run")
        await ann.daemon.said("letter.parked", 2)
        assert await ann.says("are you there") == "stub: are you there"

        async def noted() -> bool:
            state = (await ann.jobs())["sesame-own"]["state"]
            return "set [agents.coder] up again" in (state["lastError"] or "")

        await until(noted)
        assert len([text for texts in ann.told.values() for text in texts if "failed" in text]) == 1
    assert "The job “sesame-own” failed: It belongs to the agent coder" in notice
    assert [seen.text.endswith("are you there") for seen in model.turns[asked:]] == [True]


@pytest.mark.parametrize("point", ["settle.before:1", "settle.after:1"])
async def test_a_kill_while_a_run_is_handed_on_answers_it_once(tmp_path: Path, point: str) -> None:
    """Before and behind the hand-over; it goes the same way, though the chat has the job's agent by then."""
    async with ModelServer() as model:
        config = with_model(model, agents=CODER)
        words = ("--message", "sesame", "--to", KEY, "--session", "chat", "--agent", "coder")
        code, job_id = await command(tmp_path, "cron", "add", "--every", "1d", *words, config=config)
        async with Daemon(tmp_path, config=config, kill_at=point) as daemon:
            with contextlib.suppress(httpx.TransportError):
                async with httpx.AsyncClient(base_url=daemon.url) as http:
                    await http.post(f"/v1/cron/{job_id.strip()}/run")
            await daemon.reborn()
            own = transcript(tmp_path, f"cron_{job_id.strip()}")
            await until(lambda: own.exists() and '"final"' in own.read_text())
            for text in ("/agent coder", "good night"):
                assert await ask(daemon, KEY, text[-3:], text) is not None

    assert code == 0
    assert [seen.text for seen in model.turns] == ["sesame", "good night"]
    assert [line["content"] for line in lines_of(tmp_path, own.stem)] == ["sesame", "stub: sesame"]
    assert "sesame" not in str(lines_of(tmp_path, STEM))


async def test_whose_a_job_is_is_checked_and_shown(tmp_path: Path) -> None:
    """On the command line any agent that is configured, over HTTP those that the chat may choose."""
    agents = {**CODER, "clerk": {"choosable": False}}
    async with ModelServer() as model:
        config = with_model(model, agents=agents)
        add = ("cron", "add", "--every", "1d", "--message", "x", "--to", "cli:ann", "--agent")
        codes = [(await command(tmp_path, *add, name, config=config))[0] for name in ("codr", "clerk")]
        _, listed = await command(tmp_path, "cron", "list", config=config)
        async with Daemon(tmp_path, config=config) as daemon, httpx.AsyncClient(base_url=daemon.url) as http:
            body = {"every": "1d", "message": "y", "to": "cli:ann"}
            answers = [
                await http.post("/v1/cron", json={**body, "agent": name})
                for name in ("codr", "clerk", "coder", "default")
            ]
    assert codes == [2, 0]
    assert "clerk" in listed
    assert [answer.status_code for answer in answers] == [400, 403, 201, 201]
    assert "nearest: 'coder'" in answers[0].json()["error"]
    assert [answer.json()["payload"]["agent"] for answer in answers[2:]] == ["coder", "default"]
