"""A whole gateway with several agents: who answers, what each of them sees, and what a change keeps."""

from __future__ import annotations

import asyncio
import json
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from gateway.dispatch.routing import AGENT_GONE
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import archives, head_of, transcript, with_model, write
from tests.support.until import until
from tests.system.stray_cast import planted_fact
from tests.system.test_sessions import told

NUMBERS = ("one", "two", "four")
AGENTS: dict[str, Any] = {
    "coder": {
        "persona": "You are CODER.",
        "description": "writes code",
        "model": {"name": "openai/coding", "max_output_tokens": 77},
    },
    "clerk": {"choosable": False, "memory": {"scope": "workspace"}},
}
BINDINGS = [
    {"agent": "clerk", "channel": "web"},
    {"agent": "coder", "chat": "web:bound"},
    {"agent": "clerk", "chat": "web:fixed", "fixed": True},
    {"agent": "coder", "command": "code"},
]


def configured(model: ModelServer, **more: Any) -> dict[str, Any]:
    return with_model(model, agents=AGENTS, bindings=BINDINGS, **more)


class Talk:
    """Says one thing after the other, each under an id of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._count = 0

    async def __call__(self, key: str, text: str, id_: str = "") -> str:
        self._count += 1
        answer = await answer_to(self.daemon, key, id_ or f"m{self._count}", text)
        return str(answer["reply"])


def agents_of(workspace: Path, stem: str) -> list[str | None]:
    """Name whose the sessions of a chat are, ended ones first; None: the default one's."""
    paths = [*archives(workspace, stem), transcript(workspace, stem)]
    return [head_of(path)["metadata"].get("agent") for path in paths]


async def test_a_chat_goes_to_another_agent_and_back(tmp_path: Path) -> None:
    """Each has its own persona, limits, model, sessions and notes; what was chosen holds over a restart."""
    async with ModelServer() as model:
        config = configured(model)
        async with Daemon(tmp_path, config=config) as daemon:
            say = Talk(daemon)
            assert await say("cli:ann", "hello one") == "stub: hello one"
            shown = await say("cli:ann", "/agent")
            chosen = await say("cli:ann", "/agent coder")
            assert await say("cli:ann", "hello two") == "stub: hello two"
            status = await say("cli:ann", "/status")
        async with Daemon(tmp_path, config=config) as daemon:
            say = Talk(daemon)
            await say("cli:ann", "hello three", "again1")
            await say("cli:ann", "/agent default", "again2")
            await say("cli:ann", "hello four", "again3")
        one, two, three, four = model.turns
        _, listed = await command(tmp_path, "sessions", "list", "--json", config=config)
        _, cost = await command(tmp_path, "usage", "--json", config=config)

    assert shown.startswith("default answers here. Others: coder (writes code).")
    assert chosen.startswith("coder answers here (writes code).")
    assert "agent: coder" in status.splitlines()
    assert [("CODER" in json.dumps(seen.body)) for seen in (one, two, three, four)] == [
        False,
        True,
        True,
        False,
    ]
    assert [seen.body["max_tokens"] for seen in (one, two)] == [4096, 77]
    # A bill names no model that was never asked.
    assert {each["model"]: each["turns"] for each in json.loads(cost)["models"]} == {
        "openai/stub": 2,
        "openai/coding": 2,
    }
    assert "hello one" not in json.dumps([two.body, three.body])
    assert "hello two" in json.dumps(three.body)
    assert not any(text in json.dumps(four.body) for text in ("hello two", "hello three"))
    assert agents_of(tmp_path, "cli_ann") == [None, "coder", None]
    assert sorted(row["agent"] for row in json.loads(listed)) == ["coder", "default", "default"]


async def test_the_most_specific_binding_decides_and_some_stay(tmp_path: Path) -> None:
    """A channel, a chat within it, one that may not change, and an agent that no chat may choose.

    A bound command asks its agent, and the chat stays with it; of a model that is away its chats are told.
    """
    away = "the model does not answer right now"
    async with ModelServer() as model, Daemon(tmp_path, config=configured(model)) as daemon:
        say = Talk(daemon)
        by_channel, by_chat = await say("web:any", "/agent"), await say("web:bound", "/agent")
        fixed = [await say("web:fixed", text) for text in ("/agent", "/agent coder", "/code do it")]
        closed = [await say("cli:ann", text) for text in ("/agent clerk", "/agent codr", "/agent CODER")]
        bare = [await say("cli:bob", text) for text in ("/code", "/agent")]
        helped = await say("cli:bob", "/help")
        assert model.turns == []

        await say("cli:cem", "hello one")
        assert await say("cli:cem", "/code two [[say:done]]", "code") == "done"
        assert await say("cli:cem", "/code two [[say:done]]", "code") == "done"
        await say("cli:cem", "three")
        _, two, three = model.turns
        waits = asyncio.ensure_future(ask(daemon, "cli:cem", "late", "[[status:503]]"))

        async def is_told() -> bool:
            return away in (await say("cli:cem", "/status")).splitlines()

        await until(is_told)
        assert away not in await say("cli:dan", "/status")
        waits.cancel()

    assert by_channel.startswith("clerk answers here.")
    assert by_chat.startswith("coder answers here")
    assert fixed[0] == "clerk answers here."
    assert fixed[1:] == ["The operator has assigned clerk to this chat, so it cannot be changed."] * 2
    assert closed[0].startswith("clerk cannot be chosen in a chat")
    assert closed[1] == "There is no agent codr. Did you mean coder? Agents: default, coder, clerk."
    assert closed[2].startswith("coder answers here")
    assert all(said.startswith("coder answers here") for said in bare)
    assert "/code talks to the agent coder" in helped
    assert all("CODER" in json.dumps(seen.body) for seen in (two, three))
    assert two.messages[-1]["content"].endswith("two [[say:done]]")
    assert "hello one" not in json.dumps([two.body, three.body])
    assert agents_of(tmp_path, "cli_cem") == [None, "coder"]


@guarantee(
    "loss", "The removal of an agent from the configuration loses nothing and causes one notice in each chat."
)
async def test_what_the_configuration_changes_is_told_and_loses_nothing(tmp_path: Path) -> None:
    """An agent that is gone, and one that is bound anew: the session ends, its chat is told once."""
    async with ModelServer() as model:
        async with Daemon(tmp_path, config=configured(model)) as daemon:
            say = Talk(daemon)
            await say("cli:ann", "/agent coder")
            await say("cli:ann", "hello one")
        without = with_model(model)
        async with Daemon(tmp_path, config=without) as daemon:
            say = Talk(daemon)
            await say("cli:ann", "hello two", "two")
            await say("cli:ann", "hello three", "three")
            events = await told(daemon, "cli:ann", "three")
            notices = [event["text"] for event in events if event["kind"] == "notice"]
            _, checked = await command(tmp_path, "doctor", "--json", config=without)
        async with Daemon(tmp_path, config=configured(model)) as daemon:
            say = Talk(daemon)
            await say("cli:ann", "hello four", "four")
            older = await say("cli:ann", "/resume", "five")
        one, two, four = (next(t for t in model.turns if t.text.endswith(f"hello {n}")) for n in NUMBERS)

    assert notices == [AGENT_GONE.format("coder", "default")]
    assert "[agents] has no coder" in checked
    assert "CODER" in json.dumps(one.body)
    assert "CODER" not in json.dumps(two.body)
    assert "hello one" not in json.dumps(two.body)
    assert "CODER" in json.dumps(four.body)
    assert "hello two" not in json.dumps(four.body)
    assert older.endswith(": 2 messages.")
    assert "hello one" in transcript(tmp_path, "cli_ann").read_text()


async def test_jobs_and_subagents_are_the_agents_of_their_chat(tmp_path: Path) -> None:
    """A job that answers in a chat has the agent of that moment; a subagent that of whoever started it."""
    read = '[[tool:read {"path": "notes.txt"}]]'
    async with ModelServer() as model, Daemon(tmp_path, config=configured(model)) as daemon:
        say = Talk(daemon)
        write(tmp_path / "agents/coder/files/chats/cli_ann/notes.txt", "of the coder\n")
        write(tmp_path / "files/chats/cli_ann/notes.txt", "of the default one\n")
        for home, who in (("agents/coder/", "coder"), ("", "default one")):
            path = tmp_path / f"{home}memory/chats/cli_ann/facts.jsonl"
            write(path, planted_fact(f"the {who} knows"))
        job = {"at": "2099-01-01T09:00", "message": f"the job {read}", "to": "cli:ann"}

        def looked(times: int) -> list[str]:
            """Return the requests that follow a look at the file, once there are so many."""
            seen = [json.dumps(each.body) for each in model.turns if each.messages[-1]["role"] == "tool"]
            seen = [text for text in seen if "of the coder" in text or "of the default one" in text]
            return seen if len(seen) >= times else []

        async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as http:
            row = (await http.post("/v1/cron", json=job)).json()
            for times, agent in enumerate(("coder", "default"), 1):
                await say("cli:ann", f"/agent {agent}")
                assert (await http.post(f"/v1/cron/{row['id']}/run")).status_code == 202
                await until(lambda times=times: answered(model) == 2 * times)
        await say("cli:ann", "/agent coder")
        task = json.dumps({"task": "the task", "label": "dig"})
        assert await say("cli:ann", f"[[tool:spawn {task}]] [[say:begun]]") == "begun"
        await until(lambda: any(seen.text.endswith("the task") for seen in model.turns))
        (third,) = (json.dumps(seen.body) for seen in model.turns if seen.text.endswith("the task"))
        first, second = looked(2)

    assert "of the coder" in first
    assert "CODER" in first
    assert "of the default one" in second
    assert "CODER" not in second
    assert "the coder knows" in third
    assert "the default one knows" not in third
    assert "CODER" in third


def answered(model: ModelServer) -> int:
    return len([seen for seen in model.turns if seen.outcome == "answered"])


async def test_what_is_exported_and_erased_is_of_all_agents(tmp_path: Path) -> None:
    """Notes, files, sessions and indexes that a chat has with any of them; those of other chats stay."""
    async with ModelServer() as model:
        config = configured(model)
        async with Daemon(tmp_path, config=config) as daemon:
            say = Talk(daemon)
            for name, agent in product(("ann", "bob"), ("default", "coder")):
                secret = f"secret-{name}-{agent}"
                await say(f"cli:{name}", f"/agent {agent}")
                calls = [
                    ("write", {"path": "n.txt", "content": secret}),
                    ("memory_search", {"query": secret}),
                ]
                marks = " ".join(f"[[tool:{tool} {json.dumps(given)}]]" for tool, given in calls)
                await say(f"cli:{name}", f"{secret} {marks}")
                home = tmp_path / "agents" / agent if agent != "default" else tmp_path
                write(home / f"memory/chats/cli_{name}/USER.md", f"{secret}\n")
            out = tmp_path.parent / f"{tmp_path.name}.tar"
            into = ("memory", "export", "cli:ann", "-o", str(out))
            code, _ = await command(tmp_path, *into, config=config)
            erased, _ = await command(tmp_path, "memory", "erase", "cli:ann", "--yes", config=config)
            assert await daemon.stop() == 0
    with tarfile.open(out) as tar:
        files = [tar.extractfile(each) for each in tar.getmembers() if each.isfile()]
        data = b"".join(each.read() for each in files if each is not None)

    assert (code, erased) == (0, 0)
    assert b"secret-ann-default" in data
    assert b"secret-ann-coder" in data
    assert b"secret-bob" not in data
    left = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"secret-ann" in each for each in left)
    assert sum(b"secret-bob-coder" in each for each in left) >= 3


async def test_a_former_conversation_is_opened_with_its_agent(tmp_path: Path) -> None:
    """From outside the chat follows it; where its agent is gone, it is refused."""
    async with ModelServer() as model:
        config = configured(model)
        async with Daemon(tmp_path, config=config) as daemon:
            say = Talk(daemon)
            await say("cli:ann", "/agent coder")
            await say("cli:ann", "hello one")
            await say("cli:ann", "/agent default")
            none = await say("cli:ann", "/resume")
            (ended,) = archives(tmp_path, "cli_ann")
            ulid = ended.stem[-26:]
            others = await say("cli:ann", f"/resume {ulid}")
            code, _ = await command(tmp_path, "sessions", "resume", "cli:ann", ulid, config=config)
            await say("cli:ann", "hello two")
            shown, said = await command(
                tmp_path, "memory", "show", "cli:ann", "--agent", "nobody", config=config
            )
        without = with_model(model)
        assert (await command(tmp_path, "sessions", "new", "cli:ann", config=without))[0] == 0
        refused, _ = await command(tmp_path, "sessions", "resume", "cli:ann", ulid, config=without)
        _, two = model.turns

    assert none == "There is no older conversation to go back to."
    assert others == "That conversation is with coder: /agent coder first, then /resume."
    assert (code, shown, said, refused) == (0, 1, "", 1)
    assert "hello one" in json.dumps(two.body)
    assert "CODER" in json.dumps(two.body)
