"""The official client of OpenAI's API against a running daemon, on both kinds of queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.until import until

TOKEN = "correct-horse-battery-staple"


AGENTS: dict[str, Any] = {
    "coder": {"persona": "You are CODER.", "model": {"max_output_tokens": 77}},
    "clerk": {"choosable": False},
    "porter": {"choosable": False},
}
BINDINGS = [{"agent": "clerk", "chat": "web:books", "fixed": True}]


@asynccontextmanager
async def serving(
    workspace: Path, queue: dict[str, Any], **more: Any
) -> AsyncIterator[tuple[Daemon, ModelServer, openai.AsyncOpenAI]]:
    """A daemon with a model of its own, and the client for it."""
    async with ModelServer() as model:
        config = with_model(model, **{"http.token": TOKEN}, **queue, **more)
        async with Daemon(workspace, config=config) as daemon, client_of(daemon) as client:
            yield daemon, model, client


def client_of(daemon: Daemon, **options: Any) -> openai.AsyncOpenAI:
    web = httpx.AsyncClient(trust_env=False, timeout=60)
    given = {"api_key": TOKEN, "max_retries": 0, "http_client": web, **options}
    return openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", **given)


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def ask(client: openai.AsyncOpenAI, text: str = "", *, user: str = "ada", **more: Any) -> Any:
    named = {"user": user} if user else {}
    given = {"model": "chat-gateway", "messages": said(text), **named, **more}
    return await client.chat.completions.create(**given)


async def streamed(stream: Any) -> tuple[str, list[Any]]:
    chunks = [chunk async for chunk in stream]
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks


async def test_what_the_client_can_do(tmp_path: Path, queue: dict[str, Any]) -> None:
    """Plain, streaming, models, several chats side by side, and errors as the client knows them."""
    async with serving(tmp_path, queue) as (_, model, client):
        plain = await ask(client, "My name is Ada.")
        pirate = [{"role": "system", "content": "Be a pirate."}, *said("Who am I?")]
        later = await ask(client, model="openai/stub", messages=pirate)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        text, chunks = await streamed(
            await ask(client, "[[long:200]]", user="", extra_headers={"X-Chat-Id": "bob"}, **more)
        )
        beside = await asyncio.gather(*(ask(client, f"[[delay:0.3]] {n}", user=f"chat{n}") for n in range(4)))
        names = [each.id async for each in client.models.list()]
        one = await client.models.retrieve("chat-gateway")
        refused = []
        for options, words in (
            ({"api_key": "wrong"}, {}),
            ({}, {"model": "gpt-nowhere"}),
            ({}, {"n": 2}),
        ):
            with pytest.raises(openai.APIStatusError) as error:
                await ask(client.with_options(**options), "hi", user="", **words)
            refused.append(error.value)

    assert plain.choices[0].message.content == "stub: My name is Ada."
    assert plain.choices[0].finish_reason == "stop"
    assert plain.usage is not None
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens > 0
    # The gateway keeps what was said; what the client says of it is not read.
    assert later.choices[0].message.content == "stub: Who am I?"
    # Only who reads along has the model asked for a stream.
    assert [bool(each.body.get("stream")) for each in model.turns[:3]] == [False, False, True]
    asked = next(str(each.messages) for each in model.seen if "Who am I?" in str(each.messages[-1]))
    assert "My name is Ada." in asked
    assert "pirate" not in asked
    assert len(text) == 200
    assert len(chunks) > 4
    assert chunks[-1].usage.total_tokens > 0
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert [str(each.choices[0].message.content).split() for each in beside] == [
        ["stub:", str(number)] for number in range(4)
    ]
    assert names == ["chat-gateway", "openai/stub"]
    assert one.id == "chat-gateway"
    assert [type(error) for error in refused] == [
        openai.AuthenticationError,
        openai.NotFoundError,
        openai.BadRequestError,
    ]
    assert refused[1].code == "model_not_found"
    assert refused[1].body["hint"] == "GET /v1/models lists them"  # type: ignore[index]


@guarantee("once", "An API request that a crash interrupts is answered once when the client repeats it.")
async def test_a_repeat_is_not_asked_twice(tmp_path: Path, queue: dict[str, Any]) -> None:
    """A request that the death of the daemon interrupts is repeated by the client, and answered once."""
    async with serving(tmp_path, queue) as (daemon, model, client):
        release = asyncio.Event()
        model.script.append(Reply("once", held=release))
        header = {"Idempotency-Key": "k1"}
        patient = client.with_options(max_retries=10)
        asking = asyncio.create_task(ask(patient, "How often?", extra_headers=header))
        await model.arrived(1)
        release.set()
        await daemon.kill()
        await daemon.start()
        answer = await asking
        again = await ask(client, "How often?", extra_headers=header)
        with pytest.raises(openai.ConflictError):
            await ask(client, "Another text", extra_headers=header)
        async with httpx.AsyncClient(base_url=daemon.url, trust_env=False) as web:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            listed = (await web.get("/v1/sessions", headers=headers)).json()["sessions"]

    assert answer.choices[0].message.content == again.choices[0].message.content
    assert answer.id == again.id == "chatcmpl-web:k1"
    assert [(each["key"], each["message_count"]) for each in listed] == [("web:ada", 2)]


async def test_who_breaks_off_stops_the_turn(tmp_path: Path, queue: dict[str, Any]) -> None:
    """As with OpenAI a closed stream ends its turn; with an Idempotency-Key it goes on for the repeat."""
    async with serving(tmp_path, queue) as (_, model, client):
        # An answer is four pieces: the word to stop has seconds to arrive before the last one.
        slowly, text = "[[long:4000]] [[slow:1.5]]", "[[long:4000]] [[slow:0.05]]"
        stream = await ask(client, slowly, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await until(lambda: any(each.outcome == "aborted" for each in model.seen), 30)

        repeated = {"user": "bob", "stream": True, "extra_headers": {"Idempotency-Key": "keep"}}
        kept = await ask(client, text, **repeated)
        async for chunk in kept:
            if chunk.choices[0].delta.content:
                break
        await kept.close()
        answer, _ = await streamed(await ask(client, text, **repeated))

    assert len(answer) == 4000
    assert [each.outcome for each in model.seen] == ["aborted", "answered"]


@guarantee(
    "interfaces", "An API request that names an agent is answered by that agent, under the rules of `/agent`."
)
async def test_a_model_names_an_agent(tmp_path: Path, queue: dict[str, Any]) -> None:
    """One chat has one agent at a time: naming another ends the conversation; what may not be is refused."""
    async with serving(tmp_path, queue, agents=AGENTS, bindings=BINDINGS) as (daemon, model, client):

        async def told_by(name: str, user: str, text: str, key: str = "") -> str:
            header = {"Idempotency-Key": key} if key else {}
            answer = await ask(client, text, user=user, model=name, extra_headers=header)
            return str(answer.choices[0].message.content)

        names = [each.id async for each in client.models.list()]
        told = [
            await told_by("default", "ada", "one"),
            await told_by("coder", "ada", "two", "k2"),
            await told_by("chat-gateway", "ada", "three"),
            await told_by("coder", "ada", "two", "k2"),
            await told_by("default", "ada", "/agent"),
            await told_by("default", "ada", "four"),
            await told_by("clerk", "books", "five"),
        ]
        text, _ = await streamed(await ask(client, "six", model="coder", user="bob", stream=True))
        refused = []
        for name, user in (("coder", "books"), ("clerk", "ada"), ("porter", "ada"), ("codre", "ada")):
            with pytest.raises(openai.APIStatusError) as error:
                await told_by(name, user, "never asked")
            refused.append(error.value)
        # They wait for one another in the line of their chat, each with the agent that it names.
        await asyncio.gather(*(told_by(("coder", "default")[n % 2], "both", f"side {n}") for n in range(4)))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=daemon.url, trust_env=False, headers=headers) as web:
            listed = (await web.get("/v1/sessions")).json()["sessions"]

    assert names == ["chat-gateway", "openai/stub", "default", "coder", "clerk"]
    assert told[:4] == ["stub: one", "stub: two", "stub: three", "stub: two"]
    assert told[4].startswith("coder answers here")
    assert (told[5:], text) == (["stub: four", "stub: five"], "stub: six")
    asked = {seen.text: seen for seen in model.turns}
    by_coder = {text for text, seen in asked.items() if "CODER" in str(seen.body)}
    assert by_coder == {"two", "three", "six", "side 0", "side 2"}
    assert len(model.turns) == len(asked) == 10
    # Nothing that one agent was told is seen by another.
    assert "stub: one" not in str(asked["two"].messages)
    assert "stub: two" in str(asked["three"].messages)
    assert [type(each) for each in refused] == [
        *[openai.PermissionDeniedError] * 3,
        openai.NotFoundError,
    ]
    assert "has assigned clerk to this chat" in refused[0].message
    assert "clerk cannot be chosen in a chat" in refused[1].message
    of_ada = sorted((each["agent"], each["message_count"]) for each in listed if each["key"] == "web:ada")
    assert of_ada == [("coder", 4), ("default", 2), ("default", 2)]
