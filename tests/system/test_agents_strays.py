"""Three agents with two chats, each pair with its own secrets: no request has those of another.

One of the agents has one memory for all of its chats, which no other agent sees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, head_of, transcript, with_model, write
from tests.support.until import until
from tests.system.stray_cast import calls, planted_fact
from tests.system.test_agents import Talk

pytestmark = guarantee("leaks", "Nothing of one agent appears to another, even within one chat.")

SECRET = re.compile(r"sesame-([a-z]+-[a-z]+)-([a-z]+)")
MODELS = {"default": "stub", "coder": "other", "clerk": "third"}
CHATS, AGENTS = ("ann", "bob"), ("default", "clerk", "coder")
KINDS = ("profile", "memory", "known", "file", "said", "old", "task", "fact")


def owner_of(chat: str, agent: str) -> str:
    return "all-clerk" if agent == "clerk" else f"{chat}-{agent}"


OWNERS = sorted({owner_of(chat, agent) for chat, agent in product(CHATS, AGENTS)})


def secret(owner: str, kind: str) -> str:
    return f"sesame-{owner}-{kind}"


def home(workspace: Path, agent: str) -> Path:
    return workspace if agent == "default" else workspace / "agents" / agent


def plant(workspace: Path) -> None:
    """Put a secret of each pair into each kind of file that it has, and a persona into each place for one."""
    for chat, agent in product(CHATS, AGENTS):
        owner, top = owner_of(chat, agent), home(workspace, agent)
        below = "" if agent == "clerk" else f"chats/cli_{chat}"
        memory = top / "memory" / below
        write(memory / "USER.md", secret(owner, "profile") + "\n")
        write(memory / "MEMORY.md", f"- {secret(owner, 'memory')}\n")
        write(memory / "HISTORY.md", f"[2026-01-01 09:00] {secret(owner, 'history')}\n")
        write(memory / "facts.jsonl", planted_fact(secret(owner, "known")))
        write(top / "files" / below / "notes.txt", secret(owner, "file") + "\n")
    write(workspace / "AGENTS.md", "You are WORKSPACE.\n")
    write(workspace / "agents/coder/AGENTS.md", "You are CODER.\n")


def configured(model: ModelServer, more: Mapping[str, Any]) -> dict[str, Any]:
    return with_model(
        model,
        agents={
            "coder": {"model": {"name": "openai/other"}, "tools": {"policy": {"write": "ask"}}},
            "clerk": {"model": {"name": "openai/third"}, "memory": {"scope": "workspace"}},
        },
        **{"model.embedding": "openai/emb", "history.mode": "relevant", "history.exchanges_always": 1},
        **{"facts.idle_s": 1.0, "limits.background_calls_per_hour": 9999, **more},
    )


async def lived(say: Talk, http: httpx.AsyncClient, model: ModelServer, chat: str, agent: str) -> None:
    """Have one pair talk, search, read, start a subagent and a job, in two sessions."""
    key, owner = f"cli:{chat}", owner_of(chat, agent)
    look = (
        ("read", {"path": "notes.txt"}),
        ("grep", {"pattern": "sesame"}),
        ("memory_search", {"query": "sesame said memory"}),
        ("read", {"path": "../../../agents/coder/files/chats/cli_ann/notes.txt"}),
        ("read", {"path": "../agents/clerk/files/notes.txt"}),
        ("read", {"path": f"../../../../files/chats/cli_{chat}/notes.txt"}),
    )
    await say(key, f"/agent {agent}")
    await say(key, f"the former words {secret(owner, 'old')} [[say:much]]")
    await say(key, "/new")
    await say(key, f"the words {secret(owner, 'said')} [[tool:{calls(look)}]]")
    await say(key, f"note this [[fact:{secret(owner, 'fact')}]] [[say:noted]]")
    task = json.dumps({"task": f"look around {secret(owner, 'task')} of {chat}", "label": "dig"})
    await say(key, f"[[tool:spawn {task}]] [[say:begun]]")
    # A job is the chat's, and reads what the agent of the moment has.
    job = {"at": "2099-01-01T09:00", "to": key}
    row = (
        await http.post(
            "/v1/cron", json=job | {"message": f"the job of {chat} and {agent} [[tool:{calls(look[:1])}]]"}
        )
    ).json()
    assert (await http.post(f"/v1/cron/{row['id']}/run")).status_code == 202
    for word in (f"{secret(owner, 'task')} of {chat}", f"the job of {chat} and {agent}"):
        await until(lambda word=word: _ended(model, word))


def _ended(model: ModelServer, word: str) -> bool:
    """Say whether a subagent or job of which this word is the end of the task was answered."""
    seen = [each for each in model.turns if each.outcome == "answered"]
    return any(word in each.text and "spawn" not in each.text for each in seen)


async def test_nothing_of_a_pair_is_seen_by_another(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Files, notes, facts, sessions, recall, vectors, subagents and jobs; verbs and usage tell them apart."""
    plant(tmp_path)
    async with ModelServer() as model:
        config = configured(model, queue)
        async with Daemon(tmp_path, config=config) as daemon:
            say = Talk(daemon)
            async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
                for agent, chat in product(AGENTS, CHATS):
                    await lived(say, http, model, chat, agent)
                await until(lambda: len(_drawn(model)) >= len(OWNERS), 60)
                await instructed(http, say, model)
                await until(lambda: not list((tmp_path / "state/jobs").glob("*.json")), 120)
                # And back again: the former session is archived with its agent.
                for chat in CHATS:
                    await say(f"cli:{chat}", "/agent default")
                    await say(f"cli:{chat}", "the last words")
                sessions = (await http.get("/v1/sessions")).json()["sessions"]
                usage = (await http.get("/v1/usage")).text
            assert await daemon.stop() == 0
        asked(model)
        summed_up(tmp_path, model)
        await kept(tmp_path, config)
    assert "openai/other" in usage
    assert "openai/stub" in usage
    assert {row["agent"] for row in sessions} == set(AGENTS)


def _drawn(model: ModelServer) -> set[str]:
    return {owner for seen in model.seen if seen.tools == ["save_facts"] for owner in _owners(seen.body)}


def _owners(body: object) -> set[str]:
    return {found[1] for found in SECRET.finditer(json.dumps(body))}


def asked(model: ModelServer) -> None:
    """Look at each request: it has the secrets of one pair at most, and all kinds of each were asked with."""
    shown: set[tuple[str, str]] = set()
    for seen in [*model.seen, *model.asides]:
        text = json.dumps(seen.body)
        assert len(_owners(seen.body)) <= 1, _owners(seen.body)
        shown |= {(found[1], found[2]) for found in SECRET.finditer(text)}
        for owner in _owners(seen.body):
            # The model, too, is that of the agent; facts and names are asked with it as well.
            assert seen.body["model"] == MODELS[owner.partition("-")[2]], (owner, text[:300])
        if seen in model.turns and "CODER" in text:
            assert "WORKSPACE" not in text
    assert shown >= set(product(OWNERS, KINDS)), sorted(set(product(OWNERS, KINDS)) - shown)
    for texts in model.embedded:
        assert len(_owners(texts)) <= 1, texts


def summed_up(workspace: Path, model: ModelServer) -> None:
    """Look at each summary of an ended session that a turn was told: it is of one with its own agent."""
    heads = [head_of(path)["metadata"] for chat in CHATS for path in archives(workspace, f"cli_{chat}")]
    whose = {str(head.get("summary")).partition(" (")[0]: head.get("agent", "default") for head in heads}
    told = [
        (seen.body["model"], MODELS[whose[summary]])
        for seen in model.turns
        for summary in re.findall(r"\] (Summary \d+)", json.dumps(seen.body))
    ]
    assert told
    assert [each for each in told if each[0] != each[1]] == []


async def instructed(http: httpx.AsyncClient, say: Talk, model: ModelServer) -> None:
    """The chat's own instructions stand behind the persona of its agent, which stands for the workspace's."""
    sessions = (await http.get("/v1/sessions")).json()["sessions"]
    (row,) = (row for row in sessions if row["key"] == "cli:ann" and row["active"])
    answer = await http.patch(f"/v1/sessions/{row['id']}", json={"instructions": "Speak like a PIRATE."})
    assert answer.status_code == 200, answer.text
    await say("cli:ann", "how do you speak")
    (system,) = (
        seen.messages[0]["content"] for seen in model.turns if seen.text.endswith("how do you speak")
    )
    assert 0 < system.index("You are CODER.") < system.index("Speak like a PIRATE.")
    assert "WORKSPACE" not in system


async def kept(workspace: Path, config: dict[str, Any]) -> None:
    """Look at the files and verbs: sessions with their agent, memory by agent, nothing to repair."""
    for chat in CHATS:
        for path in [*archives(workspace, f"cli_{chat}"), transcript(workspace, f"cli_{chat}")]:
            agent = head_of(path)["metadata"].get("agent", "default")
            found = {match[1] for match in SECRET.finditer(path.read_text())}
            assert found <= {owner_of(chat, agent)}, path
    for agent in AGENTS:
        words = ("memory", "show", "cli:ann", "--agent", agent, "--json")
        _, printed = await command(workspace, *words, config=config)
        assert {found[1] for found in SECRET.finditer(printed)} == {owner_of("ann", agent)}
    # Of files and state of a scope none has a secret of another.
    for path in workspace.rglob("*"):
        name = path.relative_to(workspace).as_posix()
        if path.is_file() and name.startswith(("memory/", "files/", "agents/")):
            agent = name.split("/")[1] if name.startswith("agents/") else "default"
            owners = {match[1] for match in SECRET.finditer(path.read_text())}
            assert all(
                owner.endswith(agent) and (agent == "clerk" or f"cli_{owner.partition('-')[0]}" in name)
                for owner in owners
            ), name
    code, printed = await command(workspace, "sessions", "verify", "--json", config=config)
    assert (code, json.loads(printed)) == (0, [])
    # What is too old is deleted, whichever agent it was with; one that the open session names stays.
    ended = [path for chat in CHATS for path in archives(workspace, f"cli_{chat}")]
    old = [path.rename(path.with_name(f"20200101T000000Z{path.name[16:]}")) for path in ended]
    agents = {path: head_of(path)["metadata"].get("agent", "default") for path in old}
    code, _ = await command(workspace, "sessions", "prune", config={**config, "session.retention_days": 1})
    assert code == 0
    assert {agent for path, agent in agents.items() if not path.exists()} == set(AGENTS)
