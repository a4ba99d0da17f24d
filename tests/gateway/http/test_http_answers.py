"""How answers of a model end, through a running gateway: cut, broken off, empty, with thoughts in tags."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.gateway.http_place import Place, open_place
from tests.support.model_server import ModelServer, Reply


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def place(tmp_path: Path, server: ModelServer) -> AsyncIterator[Place]:
    model = {"name": "openai/stub", "api_base": server.url}
    async with open_place(tmp_path, model=model, tools={"direct": ["ls"]}) as place:
        # The first answer waits for LiteLLM to be imported.
        place.http.timeout = 120
        yield place


async def said(place: Place, text: str, **more: Any) -> tuple[str, str]:
    answer = (await place.post(text, wait=60, **more)).json()
    return answer["reply"], answer["kind"]


def asked(text: str, **more: object) -> dict[str, object]:
    return {"model": "chat-gateway", "messages": [{"role": "user", "content": text}], **more}


async def test_an_answer_that_was_cut_says_so(place: Place, server: ModelServer) -> None:
    """People read it behind the text, a block of code closed before; programs by finish_reason alone."""
    server.script.append(Reply(text="Half\n```py\nx = 1", finish="length"))
    reply, kind = await said(place, "long, please")
    assert reply.startswith("Half\n```py\nx = 1\n```\n\n(The answer was cut off at ")
    assert '"go on"' in reply
    assert kind == "reply"

    for finish, reason in (("length", "length"), ("max_tokens", "length"), ("stop", "stop")):
        server.script += [Reply(text="Half an ans", finish=finish)] * 2
        whole = await place.http.post("/v1/chat/completions", json=asked("more"))
        choice = whole.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Half an ans", reason)
        streamed = await place.http.post("/v1/chat/completions", json=asked("more", stream=True))
        assert f'"finish_reason":"{reason}"' in streamed.text
        assert "cut off" not in streamed.text


async def test_calls_that_were_cut_are_not_run(place: Place, server: ModelServer) -> None:
    """The model is told why and what to do; two answers in a row that are cut so end the turn."""
    cut = Reply(tool_calls=[("ls", '{"path": "."}'), ("ls", '{"pa')], finish="length")
    server.script += [cut, Reply(tool_calls=[("ls", '{"path": "."}')]), cut, Reply(text="done")]
    assert await said(place, "work") == ("done", "reply")
    results = [message["content"] for message in server.turns[-1].messages if message["role"] == "tool"]
    assert ["max_output_tokens" in text and "smaller pieces" in text for text in results] == [
        True,
        True,
        False,
        True,
        True,
    ]

    before = len(server.turns)
    server.script += [cut, cut]
    reply, kind = await said(place, "work again")
    assert kind == "notice"
    assert "token limit" in reply
    assert len(server.turns) == before + 2
    parked = (await place.http.get("/v1/parked")).json()["parked"][-1]
    assert "model.max_output_tokens" in str(parked)


async def test_an_empty_answer_is_asked_for_once_more(place: Place, server: ModelServer) -> None:
    server.script += [Reply(text=""), Reply(text="here")]
    assert await said(place, "one") == ("here", "reply")
    server.script += [Reply(kind="nochoices"), Reply(text="there")]
    assert await said(place, "two") == ("there", "reply")

    server.script.append(Reply(text="", reasoning="well", finish="length"))
    assert (await said(place, "three"))[1] == "notice"
    parked = (await place.http.get("/v1/parked")).json()["parked"][-1]
    assert "raise model.max_output_tokens" in str(parked)


async def test_half_an_answer_is_never_taken_for_all_of_it(place: Place, server: ModelServer) -> None:
    """The provider says that it broke off: it is asked again."""
    server.script += [Reply(text="Half an ans", finish="error"), Reply(text="All of it.")]

    assert await said(place, "hello") == ("All of it.", "reply")


@pytest.mark.parametrize("stream", [False, True])
async def test_people_see_no_thoughts(place: Place, server: ModelServer, stream: bool) -> None:
    """In tags or in blocks, streamed or not: what is shown is the answer, and so is what is stored."""
    blocks = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Hi."},
    ]
    for content in ("<think>hm</think>\n\nHi.", blocks):
        server.script.append(Reply(text=content))
        answer = await place.http.post("/v1/chat/completions", json=asked("hello", stream=stream))
        assert "Hi." in answer.text
        assert "hm" not in answer.text
    server.script.append(Reply(text="bye"))
    await said(place, "and?", chat="openai-local")
    assert "<think>" not in str(server.turns[-1].messages)


async def test_a_count_that_cannot_be_makes_no_chat_too_long(place: Place, server: ModelServer) -> None:
    """Some servers sum up counts: the chat is neither compacted for them nor refused."""
    for number in range(4):
        counts = {"prompt_tokens": 900_000 * (number + 1), "completion_tokens": 5}
        server.script.append(Reply(text=f"answer {number}", usage=counts))
        assert await said(place, f"question {number}") == (f"answer {number}", "reply")

    assert not any(seen.is_summary for seen in server.seen)
    assert [message["content"] for message in server.turns[-1].messages][-2:-1] == ["answer 2"]


async def test_a_client_gets_one_answer(place: Place, server: ModelServer) -> None:
    """A stream that broke is begun anew: what was sent goes on, or the client's stream ends with an error."""
    server.script += [Reply(text="Good morning to you", kind="cut"), Reply(text="Good morning to you")]
    on = await place.http.post("/v1/chat/completions", json=asked("hi", stream=True, user="on"))
    server.script += [Reply(text="Good morning to you", kind="cut"), Reply(text="Hello there")]
    other = await place.http.post("/v1/chat/completions", json=asked("hi", stream=True, user="other"))

    assert text_of(on.text) == "Good morning to you"
    assert "[DONE]" in on.text
    assert text_of(other.text) in "Good morning to you"
    assert '"server_error"' in other.text
    assert "[DONE]" not in other.text


def text_of(stream: str) -> str:
    frames = [line.removeprefix("data: ") for line in stream.split("\n\n") if line.startswith("data: {")]
    choices = [orjson.loads(frame).get("choices") for frame in frames]
    return "".join(each[0]["delta"].get("content", "") for each in choices if each)


async def test_a_file_is_named_as_it_was_answered(place: Place, server: ModelServer) -> None:
    """And a WebSocket goes on from the id of a frame; what is neither id nor seq is refused."""
    sent = await place.http.post("/v1/media", content=b"figures", params={"name": "a.txt"})
    answer = await place.post("look", attachments=[sent.json()], wait=60)
    assert answer.json()["kind"] == "reply"

    url = str(place.http.base_url).replace("http", "ws").rstrip("/")
    async with connect(f"{url}/v1/ws?key=web:ada&last_id=0", proxy=None) as socket:
        frame = orjson.loads(await socket.recv())
    assert frame["kind"] == "reply"
    for wrong in ("nonsense", "web:no#reply"):
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"{url}/v1/ws?key=web:ada&last_id={quote(wrong)}", proxy=None)
        assert caught.value.response.status_code == 400
    await place.post("again", wait=60)
    async with connect(f"{url}/v1/ws?key=web:ada&last_id={quote(frame['id'])}", proxy=None) as socket:
        assert orjson.loads(await socket.recv())["seq"] == frame["seq"] + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_without_a_session(place: Place, server: ModelServer, stream: bool) -> None:
    """All goes to the model as given, nothing is stored, and how it failed is told by a status."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    messages = [
        {"role": "system", "content": "Be a pirate."},
        {"role": "user", "content": "hi", "name": "ada"},
        {"role": "assistant", "content": "Arr"},
    ]
    body = {"model": "chat-gateway", "messages": messages, "stream": stream, "tools": [tool]}
    body |= {"tool_choice": "required", "temperature": 0.1, "max_tokens": 7, "api_base": "http://127.0.0.1:9"}
    body |= {"response_format": {"type": "json_object"}}
    head = {"X-Chat-Id": "none"}
    server.script += [
        Reply(tool_calls=[("f", '{"a": 1}')]),
        Reply(text="Half", finish="length"),
        Reply(status=400),
        Reply(status=429),
    ]

    called = await place.http.post("/v1/chat/completions", json=body, headers=head)
    cut = await place.http.post("/v1/chat/completions", json=body, headers=head)
    refused = [await place.http.post("/v1/chat/completions", json=body, headers=head) for _ in "ab"]

    seen = server.seen[0].body
    assert seen["messages"] == messages
    assert {name: seen.get(name) for name in ("tools", "tool_choice", "temperature", "max_tokens")} == {
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0.1,
        "max_tokens": 7,
    }
    assert seen["response_format"] == {"type": "json_object"}
    assert called.headers["x-ignored"] == "api_base"
    assert '"name":"f"' in called.text
    assert '"finish_reason":"tool_calls"' in called.text
    assert '"finish_reason":"length"' in cut.text
    assert [answer.status_code for answer in refused] == [400, 429]
    assert (await place.http.get("/v1/sessions")).json()["sessions"] == []


async def test_a_call_without_a_session_keeps_the_caps(tmp_path: Path, server: ModelServer) -> None:
    model = {"name": "openai/stub", "api_base": server.url}
    async with open_place(tmp_path, model=model, limits={"turns_per_person_per_hour": 1}) as place:
        place.http.timeout = 120
        head = {"X-Chat-Id": "none"}
        answers = [
            await place.http.post("/v1/chat/completions", json=asked("hi"), headers=head) for _ in "ab"
        ]

    assert [answer.status_code for answer in answers] == [200, 429]
