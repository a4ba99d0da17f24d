"""What a gateway asks of models that refuse a part of its requests, and what it tells the operator."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.session.mcp.mcp_place import HERE, WILD
from tests.support.harness import Daemon, answer_to, ask, command, status
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.place import with_model, write
from tests.support.strict_provider import refused
from tests.support.until import until

TEXT = {"type": "string"}
# A tool of a server, by its schema; what a model calls it with, and what the server is to get.
FITTED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "any": (
        {"anyOf": [{"properties": {"id": TEXT}, "required": ["id"]}, {"properties": {"$name": TEXT}}]},
        {"name": "x"},
        {"$name": "x"},
    ),
    "one": (
        {"oneOf": [{"$ref": "#/$defs/by id"}], "$defs": {"by id": {"properties": {"@id": TEXT}}}},
        {"id": "x"},
        {"@id": "x"},
    ),
    "all": (
        {
            "allOf": [{"properties": {"a.b": TEXT}, "required": ["a.b"]}],
            "if": {},
            "then": {"properties": {"c": {}}},
        },
        {"a_b": "x", "c": 1},
        {"a.b": "x", "c": 1},
    ),
    "again": ({"allOf": [{"$ref": "#"}] * 2, "properties": {"a": TEXT}}, {"a": "x"}, {"a": "x"}),
    "arrays": (
        {
            "properties": {
                "a": {"type": "array"},
                "b": {"type": ["array", "null"]},
                "c": {"type": "array", "items": [TEXT, {"type": "array"}]},
                "d": {"type": "object", "patternProperties": {"^x": {"type": "array", "items": True}}},
            }
        },
        {"a": [1], "c": ["x", ["y"]], "d": {"x": ["z"]}},
        {"a": [1], "c": ["x", ["y"]], "d": {"x": ["z"]}},
    ),
    "keys": (
        {
            "properties": {
                "$filter": {"type": "object", "properties": {"$eq": TEXT}, "required": ["$eq"]},
                "filter": {"$ref": "#/properties/$filter"},
                "1st": {"type": "array", "items": {"$ref": "#/properties/user.name"}},
                "user.name": {"type": "object", "properties": {"first-name": TEXT}},
                "x" * 70: TEXT,
            }
        },
        {
            "filter_0c097d": {"eq": "x"},
            "filter": {"eq": "y"},
            "_1st": [{"first_name": "z"}],
            "user_name": {"first_name": "z", "free": {"eq": 1}},
        },
        {
            "$filter": {"$eq": "x"},
            "filter": {"$eq": "y"},
            "1st": [{"first-name": "z"}],
            "user.name": {"first-name": "z", "free": {"eq": 1}},
        },
    ),
    "older": (
        {"properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}, "e": {"enum": []}}},
        {"n": 1},
        {"n": 1},
    ),
}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "outside": ({"properties": {"a": {"$ref": "https://example.org/a"}}}, "outside of it"),
    "rows": ({"type": "array", "items": TEXT}, "does not describe an object"),
    "counts": ({"properties": {"a": {"maxLength": -1}}}, "not valid at $.properties.a: maxLength"),
    "inner": (
        {"properties": {"a": {"$ref": "#/default"}}, "default": {"type": 7}},
        "not valid at #/default: type",
    ),
}


def server(workspace: Path, name: str, tools: dict[str, dict[str, Any]], *channels: str) -> dict[str, Any]:
    """Configure a server with these tools, by their schemas, for the direct chats of ``channels``."""
    rows = [{"name": each, "inputSchema": {"type": "object"} | schema} for each, schema in tools.items()]
    folder = workspace / "state/mcp" / name
    write(folder / "list", json.dumps(rows))
    folder.chmod(0o700)
    return {
        "command": [sys.executable, str(WILD), "log", "list"],
        "readable": [str(HERE)],
        "channels": channels,
    }


async def said(daemon: Daemon, key: str, text: str) -> dict[str, Any]:
    return await answer_to(daemon, key, f"{key} {text}", text, wait_s=90)


def rows_of(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in daemon.log.splitlines() if line.startswith(b"{")]
    return [row for row in rows if row["event"] == event]


class Provider:
    """Refuses what some provider refuses about tools; ``bodies`` are the requests of turns."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, seen: Seen) -> Reply | None:
        if fault := refused(seen.body):
            return Reply(status=400, error={"message": fault, "type": "invalid_request_error"})
        if seen.text == "call" and self.calls and seen.messages[-1]["role"] == "user":
            calls, self.calls = self.calls, []
            return Reply(tool_calls=calls)
        return None


def refuses(field: str, words: str, **more: Any) -> Callable[[Seen], Reply | None]:
    body = {"message": words, "type": "invalid_request_error", **more}
    return lambda seen: Reply(status=400, error=body) if seen.body.get(field) is not None else None


OLD, NEW = "max_tokens", "max_completion_tokens"
UNSUPPORTED = "Unsupported parameter: '{}' is not supported with this model. Use '{}' instead."
# The model of an agent, what its server refuses, and what it gets in place of that. LiteLLM's table renames
# the limit for some models and providers, whatever it is called by.
LIMITS: dict[str, tuple[str, Callable[[Seen], Reply | None], str]] = {
    "alias": ("openai/my-gpt5", refuses(OLD, UNSUPPORTED.format(OLD, NEW), param=OLD), NEW),
    "words": ("openai/strict", refuses(OLD, f"Unrecognized request argument supplied: {OLD}"), NEW),
    "older": ("openai/gpt-5-mini", refuses(NEW, UNSUPPORTED.format(NEW, OLD)), OLD),
    "extra": ("openai/o3-mini", refuses(NEW, f"body.{NEW}: Extra inputs are not permitted"), OLD),
    "mapped": ("mistral/new", refuses(OLD, UNSUPPORTED.format(OLD, NEW), param=OLD), NEW),
    "vllm": ("hosted_vllm/new", refuses(OLD, f"{OLD} is deprecated in favor of {NEW}, and refused"), NEW),
}


async def test_the_limit_of_an_answer_has_two_names(tmp_path: Path) -> None:
    """A server that refuses one of them by name is asked with the other, from then on at once."""
    agents = {name: {"model": {"name": named}} for name, (named, _, _) in LIMITS.items()}
    agents |= {name: {"model": {"name": f"openai/{name}"}} for name in ("neither", "picky")}
    bindings = [{"agent": name, "chat": f"cli:{name}"} for name in agents]
    async with ModelServer() as model:
        for table in agents.values():
            table["model"] |= {"api_base": model.url, "api_key": "sk-0123456789", "max_output_tokens": 777}

        def chosen(seen: Seen) -> Reply | None:
            named = seen.body["model"]
            limit = OLD if OLD in seen.body else NEW
            other = {
                "neither": refuses(limit, f"{limit} is not supported"),
                "picky": refuses("tools", "tools[0].function: extra fields not permitted"),
            }
            of_agent = next((each for full, each, _ in LIMITS.values() if full.endswith(f"/{named}")), None)
            choice = of_agent or other.get("picky" if seen.text == "stateless" else named)
            return choice(seen) if choice else None

        model.chooses = chosen
        config = with_model(model, agents=agents, bindings=bindings)
        async with Daemon(tmp_path, config=config) as daemon:
            answers = {
                name: [await said(daemon, f"cli:{name}", f"{name} {number}") for number in range(2)]
                for name in agents
            }
            parts = (await status(daemon))["parts"]
            tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
            body = {"model": "chat-gateway", "messages": [{"role": "user", "content": "stateless"}]}
            async with httpx.AsyncClient(timeout=90, headers={"X-Chat-Id": "none"}) as http:
                stateless = await http.post(
                    f"{daemon.url}/v1/chat/completions", json={**body, "tools": [tool]}
                )
            assert await daemon.stop() == 0

    told = rows_of(daemon, "model.request_reduced")
    for name, (named, _, field) in LIMITS.items():
        bodies = [seen.body for seen in model.turns if seen.text.startswith(f"{name} ")]
        assert [answer["reply"] for answer in answers[name]] == [f"stub: {name} {n}" for n in range(2)], name
        assert len(bodies) == 3
        assert [(body.get(field), {OLD, NEW} & body.keys()) for body in bodies[1:]] == [(777, {field})] * 2
        other = OLD if field == NEW else NEW
        assert [row["left_out"] for row in told if row["model"] == named] == [other]
        assert f"{named}: requests go without {other}" in parts["model"]["error"]
    # Where it is refused under either name the message is, too: the provider's words are the operator's.
    assert {answer["kind"] for answer in answers["neither"]} == {"notice"}
    # However many parts are refused one by one, the tries are few; a client's own tools stay.
    asked = Counter(seen.text for seen in model.turns)
    assert (asked["neither 0"], asked["picky 0"], asked["picky 1"], asked["stateless"]) == (2, 10, 1, 2)
    assert answers["picky"][1]["reply"] == "stub: picky 1"
    assert stateless.status_code == 400


@pytest.mark.ordinary_user
async def test_tools_of_servers_are_such_as_every_provider_takes(tmp_path: Path) -> None:
    """Arguments get back under the server's own names; what is left out the operator reads everywhere."""
    odd = {f"told_{name}": schema for name, (schema, _, _) in FITTED.items()}
    odd |= {name: schema for name, (schema, _) in UNFIT.items()}
    many = {f"t{number}": {} for number in range(90)}
    servers = {
        "odd": server(tmp_path, "odd", odd, "cli:odd"),
        "m1": server(tmp_path, "m1", many, "cli:many", "cli:other"),
        "m2": server(tmp_path, "m2", many, "cli:many", "cli:other"),
    }
    provider = Provider()
    async with ModelServer() as model:
        model.chooses = provider
        config = with_model(model, mcp=servers)
        async with Daemon(tmp_path, config=config) as daemon:

            async def are_up() -> bool:
                parts = (await status(daemon))["parts"]
                return all(parts.get(f"mcp.{name}", {}).get("up") for name in servers)

            await until(are_up, 90)
            provider.calls = [
                (f"mcp_odd_told_{name}", json.dumps(sent)) for name, (_, sent, _) in FITTED.items()
            ]
            answers = [await said(daemon, "cli:odd", "call")]
            for number in range(2):
                answers += [await said(daemon, key, f"hello {number}") for key in ("cli:many", "cli:other")]
            parts = (await status(daemon))["parts"]
            _, listed = await command(tmp_path, "mcp", "list", config=config)
            _, checked = await command(tmp_path, "doctor", "--json", config=config)
            assert await daemon.stop() == 0
    results = [message["content"] for message in model.turns[1].messages if message["role"] == "tool"]
    crowded = [seen.tools for seen in model.turns if seen.text.startswith("hello")]

    assert {answer["kind"] for answer in answers} == {"reply"}
    assert [json.loads(result.partition("\n| ")[2]) for result in results] == [
        got for _, _, got in FITTED.values()
    ]
    offered = [name for name in model.turns[0].tools if name.startswith("mcp")]
    assert offered == sorted(f"mcp_odd_told_{name}" for name in FITTED)
    doctor = {row["name"]: row for row in json.loads(checked)}
    (withheld,) = rows_of(daemon, "mcp.tools_withheld")
    for name, (_, words) in UNFIT.items():
        assert any(each.startswith(f"{name}: ") and words in each for each in withheld["problems"])
        for told in (parts["mcp.odd"]["error"], doctor["mcp.odd"]["text"], listed):
            assert name in told
    # The gateway's own come first, and what is left out is told once.
    assert {len(names) for names in crowded} == {128}
    assert all(names[0] == crowded[0][0] for names in crowded)
    (left_out,) = rows_of(daemon, "tools.left_out")
    assert left_out["count"] == 180 + crowded[0].index("mcp_m1_t0") - 128
    assert not {*left_out["tools"]} & {*crowded[0]}
    assert "a request can have 128 tools" in parts["model"]["error"]


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40
TABLE = "openai/gpt-3.5-turbo"
# An agent's model, what ``model.takes`` says of it, and which of a picture and a paper it is sent.
TAKEN: dict[str, tuple[str, list[str], list[str]]] = {
    "blind": (TABLE, [], []),
    "seeing": (TABLE, ["image"], ["image_url"]),
    "reading": ("openai/nobody-knows-it", ["pdf"], ["file"]),
    "unknown": ("openai/nobody-knows-it", [], ["image_url", "file"]),
    "refusing": ("openai/text-alone", [], []),
}


def kinds_in(seen: Seen) -> list[str]:
    content = seen.messages[-1]["content"]
    return (
        [block["type"] for block in content if block["type"] != "text"] if isinstance(content, list) else []
    )


async def test_pictures_go_to_models_that_take_them_and_no_address_shows_its_key(tmp_path: Path) -> None:
    """``model.takes`` decides, then LiteLLM's table, which the operator is told of; else it is tried once."""
    secrets = ["k3y-of-5", "long-key-of-agents-4711", "key-of-a-platform-0815", "key-of-tools-1234"]
    agents: dict[str, Any] = {
        name: {"model": {"name": named, "takes": takes}} for name, (named, takes, _) in TAKEN.items()
    }
    agents["away"] = {"model": {"name": "openai/away", "api_base": f"http://127.0.0.1:9/v1?key={secrets[1]}"}}
    bindings = [{"agent": name, "chat": f"web:{name}"} for name in agents]
    async with ModelServer() as model:
        for name in TAKEN:
            agents[name]["model"]["api_base"] = model.url
        model.chooses = lambda seen: (
            Reply(status=400, error={"message": "image_url: only text is supported"})
            if seen.body["model"] == "text-alone" and kinds_in(seen)
            else None
        )
        config = with_model(
            f"{model.url}?key={secrets[0]}",
            agents=agents,
            bindings=bindings,
            mcp={"gone": {"url": f"http://127.0.0.1:9/mcp?key={secrets[3]}"}},
            **{"channels.discord.api_base_url": f"http://127.0.0.1:9/api?key={secrets[2]}"},
        )
        async with (
            Daemon(tmp_path, config=config) as daemon,
            httpx.AsyncClient(base_url=daemon.url, timeout=90) as http,
        ):
            files = [
                (await http.post("/v1/media", content=data, params={"name": name})).json()
                for name, data in (("a.png", PNG), ("b.pdf", b"%PDF-1.4\n"))
            ]
            for name in [*TAKEN, "unknown"]:
                said = {"chat_id": name, "text": f"look, {name}", "attachments": files}
                answer = (await http.post("/v1/messages", params={"wait": 60}, json=said)).json()
                assert answer["reply"].startswith(f"stub: look, {name}"), answer
            parts = (await status(daemon))["parts"]
            waiting = asyncio.create_task(ask(daemon, "web:away", "away", "is anybody there?"))
            await daemon.said("model.away")
            shown = [(await http.get(path)).text for path in ("/v1/config", "/v1/status", "/readyz")]
            waiting.cancel()
            verbs = ["config show", "config show --json", "status", "doctor --json"]
            shown += [(await command(tmp_path, *verb.split(), config=config))[1] for verb in verbs]
            await daemon.kill()

    for name, (_, _, kinds) in TAKEN.items():
        sent = [seen for seen in model.turns if seen.text.startswith(f"look, {name}")]
        assert [kinds_in(seen) for seen in sent][-1] == kinds
        # What is not sent is named.
        for kind, file in (("image_url", "a.png"), ("file", "b.pdf")):
            assert kind in kinds or file in str(sent[-1].messages[-1])
    told = {(row["model"], row["left_out"]): row["hint"] for row in rows_of(daemon, "model.request_reduced")}
    assert {*told} == {
        (TABLE, "image"),
        (TABLE, "pdf"),
        ("openai/text-alone", "image"),
        ("openai/text-alone", "pdf"),
    }
    assert all("model.takes" in hint for hint in told.values())
    assert f"{TABLE}: requests go without image: LiteLLM's table lists none for it" in parts["model"]["error"]
    for text in (*shown, daemon.log.decode()):
        assert not [secret for secret in secrets if secret in text]
    assert "http://127.0.0.1:9/v1?***" in shown[0]


async def test_doctor_and_onboard_ask_as_a_turn_does(tmp_path: Path) -> None:
    """Where the model passes only with less, doctor says so; an answer that is cut proves it is there."""

    def plain(seen: Seen) -> Reply:
        for field in ("tools", "stream_options"):
            if seen.body.get(field):
                return Reply(status=400, error={"message": f"{field}: Extra inputs are not permitted"})
        return Reply(text="", reasoning="The user wants me to", finish="length")

    async with ModelServer() as model:
        model.chooses = plain
        config = with_model(model, **{"model.max_output_tokens": 777})
        _, checked = await command(tmp_path, "doctor", "--json", config=config)
        ollama = {"model.name": "ollama/stub", "model.api_base": model.url}
        _, without = await command(tmp_path, "doctor", "--json", config=ollama)
        first = model.seen[0].body
        file = tmp_path / "config.toml"
        words = ("--config", str(file), "onboard", "--yes", "--model", "openai/stub", "--api-base", model.url)
        code, said = await command(tmp_path, *words, "--platform", "none", config={})

    assert (len(first["tools"]), first["stream"], first["max_tokens"]) == (1, True, 777)
    (found,) = [row for row in json.loads(checked) if row["name"] == "model"]
    assert found["level"] == "warn"
    assert found["text"].startswith("openai/stub answers; ")
    for field in ("tools", "stream_options"):
        assert f"requests go without {field}: status 400: {field}: Extra inputs" in found["text"]
    (found,) = [row for row in json.loads(without) if row["name"] == "model"]
    assert found["level"] == "warn"
    assert found["cure"].count('write "ollama_chat/stub"') == 1
    assert (code, 'name = "openai/stub"' in file.read_text()) == (0, True), said
    assert model.seen[-1].body["max_tokens"] == 4096
