"""Subagents through a running daemon, on both kinds of queue: begun, told, ended and cleaned away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, command, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import head_of, lines_of, on, transcript, with_model, write
from tests.support.team import Team, results_of, spawning
from tests.support.until import until
from tests.support.usage_rows import usage_in

KEY, STEM = "web:ann", "web_ann"


@asynccontextmanager
async def serving(
    workspace: Path, queue: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[Daemon, Team]]:
    async with ModelServer() as model:
        config = with_model(model) | (queue or {}) | more
        async with Daemon(workspace, config=config) as daemon:
            yield daemon, Team(model)


async def say(daemon: Daemon, id_: str, text: str, key: str = KEY) -> str:
    answer = await answer_to(daemon, key, id_, text)
    return str(answer["reply"])


def answers(workspace: Path, stem: str = STEM) -> list[str]:
    return [str(line["content"]) for line in lines_of(workspace, stem) if line.get("final")]


async def until_answered(workspace: Path, *texts: str, stem: str = STEM) -> None:
    await until(lambda: answers(workspace, stem) == list(texts))


def left_of_subagents(workspace: Path) -> list[str]:
    """Name the files of conversations of subagents."""
    home = workspace / "state" / "subagents"
    return [str(path) for path in home.rglob("*") if path.is_file() and path.name.startswith("sub_")]


def on_record(workspace: Path) -> list[dict[str, Any]]:
    """Return what is on record of subagents."""
    files = (workspace / "state" / "subagents" / "chats").glob("*.json")
    return [row for path in files for row in json.loads(path.read_text())["subagents"]]


@guarantee("leaks", "A subagent sees the facts and files of its parent chat and nothing else.")
async def test_a_result_comes_back_and_nothing_of_the_subagent_stays(
    tmp_path: Path, queue: dict[str, Any]
) -> None:
    """It shares its parent's facts, and nothing else; when its result is told it is cleaned away."""
    memory = tmp_path / "memory" / "chats" / STEM
    write(memory / "MEMORY.md", "- sesame memory\n")
    write(memory / "USER.md", "sesame profile\n")
    write(memory / "HISTORY.md", "[2026-01-01 09:00] sesame history\n")
    fact = {"id": "01KG9NB3H0Q5W4XZ2WM29XRYBN", "text": "Ann likes apples."}
    write(memory / "facts.jsonl", json.dumps(fact) + "\n")
    async with serving(tmp_path, queue) as (daemon, team):
        await say(daemon, "0", "sesame said")
        assert await say(daemon, "1", "spawn count apples") == "begun"
        await until_answered(tmp_path, "stub: sesame said", "begun", "heard count apples")
        await until(lambda: not left_of_subagents(tmp_path))

        (request,) = team.requests
        text = json.dumps(request.body)
        assert "Ann likes apples." in text
        assert "sesame" not in text
        assert sorted(request.tools) == ["edit", "grep", "ls", "read", "skill_read", "write"]
        (label, key, result) = team.results[0]
        assert (label, result) == ("count apples", "did count apples")
        line = next(line for line in lines_of(tmp_path, STEM) if "<subagent-result" in str(line["content"]))
        assert line["sender"] == {"id": "subagent", "name": "count apples"}
        assert [row["state"] for row in on_record(tmp_path)] == ["told"]
        assert "apples" not in json.dumps(on_record(tmp_path))
        async with httpx.AsyncClient(base_url=daemon.url) as http:
            listed = (await http.get("/v1/sessions")).json()["sessions"]
            sent = await http.post("/v1/messages", json={"key": key, "text": "hello"})
        assert [row["key"] for row in listed] == [KEY]
        assert sent.status_code == 400
        told = await status(daemon)
        assert told["subagents"] == []
        assert "outbound.sub" not in told["queues"]
        assert told["queues"]["parked"]["count"] == 0
        assert await daemon.stop() == 0


async def test_it_has_its_parents_files_and_policy_and_no_others(tmp_path: Path) -> None:
    """It may do no more than whoever started it, and nobody is asked in its name."""
    write(tmp_path / "files" / "chats" / "web_bob" / "notes.txt", "sesame\n")
    paths = ("notes.txt", "../web_bob/notes.txt", "../../../memory/chats/web_bob/MEMORY.md")
    policy = {"tools.policy.chats": {KEY: {"write": "deny", "edit": "ask"}}}
    write(tmp_path / "files" / "chats" / STEM / "notes.txt", "seven apples\n")
    async with serving(tmp_path, **policy) as (daemon, team):
        asked = [("read", {"path": path}) for path in paths]
        asked += [
            ("write", {"path": "new.txt", "content": "x"}),
            ("edit", {"path": "notes.txt", "old": "seven", "new": "eight"}),
        ]
        calls = [(name, json.dumps(arguments)) for name, arguments in asked]
        team.work["look"] = Reply(tool_calls=calls)
        assert await say(daemon, "1", "spawn look") == "begun"
        await until(lambda: len(team.results) == 1)

        read, *others, written, edited = team.results[0][2].split(" | ")
        assert [text.startswith("error") for text in others] == [True, True]
        assert "write" not in team.requests[0].tools
        assert "does not allow write" in written
        assert "seven apples" in read
        assert "nobody can be asked here" in edited
        assert await daemon.stop() == 0


async def test_what_works_is_shown_and_ended_by_stop(tmp_path: Path, queue: dict[str, Any]) -> None:
    """In ``/status``, in ``status`` and in the open work of its chat, and nowhere when it has ended."""
    async with serving(tmp_path, queue) as (daemon, team):
        team.work["dig"] = Reply(held=asyncio.Event())
        assert await say(daemon, "1", "spawn dig") == "begun"
        await until(lambda: team.asked == ["dig"])

        assert "subagents: 1 (dig)" in await say(daemon, "2", "/status")
        (row,) = (await status(daemon))["subagents"]
        assert row["parent"] == KEY
        await say(daemon, "3", "hello")
        request = next(seen for seen in team.model.turns if seen.text == "hello")
        assert f"the subagent “dig” ({row['key']}) works" in str(request.messages[-1]["content"])
        assert await say(daemon, "4", "/stop") == "Stopped, including its subagents."

        await until(lambda: team.requests[0].outcome == "aborted")
        await until(lambda: not left_of_subagents(tmp_path))
        assert (await status(daemon))["subagents"] == []
        assert "subagents" not in await say(daemon, "5", "/status")
        assert await say(daemon, "6", "still there?") == "stub: still there?"
        assert team.results == []
        assert await daemon.stop() == 0


@guarantee("sessions", "`/stop` and the end of a conversation stop its subagents in every process.")
@pytest.mark.parametrize("how", ["/new", "/resume", "clear", "new", "close", "resume", "opened"])
async def test_it_ends_with_the_conversation_that_started_it(tmp_path: Path, how: str) -> None:
    """By a command of the chat, over HTTP, and by the command line, which changes the files alone."""
    async with serving(tmp_path) as (daemon, team):
        await say(daemon, "before", "hello")
        before = head_of(transcript(tmp_path, STEM))["metadata"]["session_id"]
        assert "A new conversation begins" in await say(daemon, "0", "/new")
        go = asyncio.Event()
        team.work["dig"] = Reply("dug", held=go)
        assert await say(daemon, "1", "spawn dig") == "begun"
        await until(lambda: team.asked == ["dig"])

        paths = {"clear": "/clear-session", "opened": f"/v1/sessions/{before}/resume"}
        if how.startswith("/"):
            said = {"/new": "A new conversation begins", "/resume": "The conversation continues"}
            assert said[how] in await say(daemon, "2", how)
        elif how in paths:
            async with httpx.AsyncClient(base_url=daemon.url) as http:
                done = await http.post(paths[how], json={"key": KEY})
                assert done.status_code == 200
        else:
            words = [before] if how == "resume" else []
            assert (await command(tmp_path, "sessions", how, KEY, *words))[0] == 0
        go.set()

        await until(lambda: not left_of_subagents(tmp_path))
        assert [row["state"] for row in on_record(tmp_path)] == ["ended"]
        assert await say(daemon, "3", "hello") == "stub: hello"
        assert team.results == []
        assert (await status(daemon))["queues"]["inbound"]["count"] == 0
        assert await daemon.stop() == 0


async def test_one_that_takes_too_long_or_fails_says_so_to_its_parent(tmp_path: Path) -> None:
    async with serving(tmp_path, **{"limits.turn_timeout_s": 6}) as (daemon, team):
        team.work |= {"dig": Reply(kind="hang"), "bad": Reply(status=400, error={"message": "no"})}
        assert await say(daemon, "1", "spawn dig | bad") == "begun"
        await until(lambda: len(team.results) == 2)

        said = {label: text for label, _, text in team.results}
        assert said["dig"].endswith("there is no result: it exceeded the time limit of an answer.")
        assert "there is no result" in said["bad"]
        await until(lambda: len(answers(tmp_path)) == 3)
        assert (await status(daemon))["queues"]["parked"]["count"] == 0
        assert await daemon.stop() == 0


@guarantee("failures", "A chain of subagents that start subagents ends at the hourly limit.")
async def test_results_that_spawn_for_ever_come_to_an_end(tmp_path: Path) -> None:
    """Each result starts the next subagent, until the limit of the hour says no to the model."""
    async with serving(tmp_path) as (daemon, team):
        team.hears = lambda label: spawning(f"{int(label) + 1}")
        assert await say(daemon, "1", "spawn 1") == "begun"
        await until(lambda: len(team.results) == 20, 120)
        await until(lambda: len(answers(tmp_path)) == 21)

        refused = [text for seen in team.model.seen for text in results_of(seen) if text.startswith("error")]
        assert len(refused) == 1
        assert "started 20 subagents within an hour" in refused[0]
        assert len(team.asked) == 20
        assert answers(tmp_path)[-1] == "heard 20"
        assert await daemon.stop() == 0


async def test_what_it_costs_is_its_parents(tmp_path: Path) -> None:
    """All lines of the usage files are the chat's, and its caps count them; none runs out in its midst."""
    limits = {
        "model.name": "openai/gpt-4o-mini",
        "model.max_output_tokens": 1_000,
        "limits.cost_per_chat_per_day_usd": 0.1,
        "limits.turns_per_person_per_hour": 1,
    }
    async with serving(tmp_path, **limits) as (daemon, team):
        big = {"prompt_tokens": 10, "completion_tokens": 150_000, "total_tokens": 150_010}
        team.work["dig"] = Reply("dug", usage=big)
        assert await say(daemon, "1", "spawn dig") == "begun"
        await until(lambda: len(team.results) == 1)
        await until_answered(tmp_path, "begun", "heard dig")

        (chat,) = (await status(daemon))["limits"]
        assert (chat["who"], chat["left"] < 0.011) == (KEY, True)
        assert {row["key"] for row in await usage_in(tmp_path)} == {KEY}
        assert "You have reached the hourly message limit (1)" in await say(daemon, "2", "hello")
        assert len(team.asked) == 1
        assert await daemon.stop() == 0


@guarantee("once", "A chat hears of the end of each subagent exactly once, across processes and crashes.")
async def test_a_daemon_that_dies_leaves_its_subagents_to_another(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Killed in mid-work on RabbitMQ: the next one goes on with it, tells the chat once, and cleans up."""
    async with ModelServer() as model:
        config = on(broker, broker_name, partitions=4) | with_model(model)
        team = Team(model)
        team.work |= {"dig": Reply(held=asyncio.Event()), "look": Reply(held=asyncio.Event())}
        first, second = (Daemon(tmp_path, role="session", config=config) for _ in range(2))
        async with first:
            assert await say(first, "1", "spawn dig | look") == "begun"
            await until(lambda: sorted(team.asked) == ["dig", "look"])
            team.work.clear()
            await first.kill()

        async with second:
            await until(lambda: len(answers(tmp_path)) == 3)
            await until(lambda: not left_of_subagents(tmp_path))
            assert sorted(text for _, _, text in team.results) == ["did dig", "did look"]
            assert len(team.asked) == 4
            assert await second.stop() == 0
    assert sorted(answers(tmp_path)) == ["begun", "heard dig", "heard look"]
