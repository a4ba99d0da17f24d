"""What a stream of OpenAI's API is made of, and how its errors look; the client itself is in tests/system."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import orjson
import pytest

from gateway.app import logging as logs
from gateway.app.status import status_of
from gateway.errors import MailboxDown
from gateway.http.completions import Diverged, Written
from gateway.service.chats import ChatService
from gateway.service.records import Record
from gateway.service.tokens import Tokens
from session.errors import StoreError
from session.transcript.key import SessionKey
from tests.gateway.http_place import Place, open_place
from tests.support.until import until

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        place.http.headers["Authorization"] = f"Bearer {TOKEN}"
        yield place


MESSAGES = [{"role": "user", "content": "hi"}]


def asked(text: object, **more: object) -> dict[str, object]:
    return {"model": "chat-gateway", "messages": [{"role": "user", "content": text}], **more}


def test_pieces_end_as_the_answer_does() -> None:
    """Pieces that were lost are made up for; a text before a tool call stands apart; nothing comes twice."""
    plain = Written()
    assert [
        plain.more("Good "),
        plain.more("mor"),
        plain.whole("Good morning"),
        plain.whole("Good morning"),
    ] == [
        "Good ",
        "mor",
        "ning",
        "",
    ]
    tools = Written()
    assert tools.more("I look.") == "I look."
    tools.other()
    assert tools.whole("Found it.") == "\n\nFound it."
    again = Written()
    assert again.more("Good mor") == "Good mor"
    again.anew()
    assert [again.more("Good "), again.more("morning"), again.whole("Good morning!")] == ["", "ning", "!"]
    for other in ("Hel", "Hello, good morning"):
        again.anew()
        with pytest.raises(Diverged):
            again.more(other)
        with pytest.raises(Diverged):
            again.whole(other)
    silent = Written()
    silent.other()
    assert silent.whole("all") == "all"


def test_many_pieces_cost_as_much_as_their_text() -> None:
    """A copy of all that was sent for each piece took the loop ten seconds and more for this answer."""
    pieces = [f"{number:0100}" for number in range(20_000)]
    written = Written()
    began = time.process_time()
    for piece in pieces:
        written.more(piece)
    rest = written.whole("".join(pieces) + "!")

    assert rest == "!"
    assert time.process_time() - began < 1.0


async def test_a_stream(place: Place) -> None:
    """Chunks of one id: the role, the pieces, the reason to end; then the usage and the end."""
    model = place.gate()
    model.let.set()
    body = asked("hello", stream=True, stream_options={"include_usage": True}, user="ada")
    answer = await place.http.post("/v1/chat/completions", json=body)
    frames = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    chunks = [orjson.loads(frame) for frame in frames[:-1]]

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert frames[-1] == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "got hello"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_stands_for_one_text(place: Place, stream: bool) -> None:
    """Streamed or not: a client would ask again after an error that is said to be the server's."""
    model = place.gate()
    model.let.set()
    key = {"Idempotency-Key": "k1"}
    first = await place.http.post("/v1/chat/completions", json=asked("one"), headers=key)

    other = await place.http.post("/v1/chat/completions", json=asked("two", stream=stream), headers=key)

    assert (first.status_code, other.status_code) == (200, 409)
    assert "another message" in other.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_queue_that_confirms_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def away(*_: object) -> None:
        raise MailboxDown("the queue did not confirm the message in time")

    monkeypatch.setattr(ChatService, "_put", away)
    answer = await place.http.post("/v1/chat/completions", json=asked("one", stream=stream))

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "did not confirm" in answer.json()["error"]["message"]


async def test_a_store_that_refuses_in_the_middle_of_a_stream(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream ends with an error that says what to do, and is no crash."""
    model = place.gate()

    async def refused(*_: object) -> None:
        raise StoreError("Too many open files", hint="raise the limit")

    monkeypatch.setattr(Record, "standing", refused)
    answer = await place.http.post("/v1/chat/completions", json=asked("one", stream=True))
    model.let.set()
    error = orjson.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]

    assert error["code"] == "server_error"
    assert "Too many open files" in error["message"]
    assert error["hint"] == "the message is saved and will be answered once the disk works"
    assert "Traceback" not in caplog.text


async def test_what_gets_no_answer(place: Place) -> None:
    """A message that is stopped is an error that says so, plain and in a stream."""
    model = place.gate()
    for stream in (False, True):
        model.begun.clear()
        asking = asyncio.create_task(
            place.http.post("/v1/chat/completions", json=asked("hello", stream=stream, user="ada"))
        )
        await model.begun.wait()
        await place.http.post("/v1/stop", json={"key": "web:ada"})
        answer = await asking
        if stream:
            error = orjson.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 422
            error = answer.json()["error"]
        assert error["code"] == "no_answer"
        assert error["message"].startswith("Stopped.")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "chat-gateway", "messages": []}, "messages"),
        ({"model": "chat-gateway", "messages": [{"role": "system", "content": "x"}]}, "role user"),
        (asked("  "), "role user"),
        (asked("hi", n=2), "n:"),
        (asked("hi", tools=[{}], tool_choice="required"), "tool_choice"),
        (asked("hi", tool_choice={"type": "function", "function": {"name": "ls"}}), "tool_choice"),
        (asked("hi", functions=[{}], function_call={"name": "ls"}), "function_call"),
        (asked("hi", response_format={"type": "json_object"}), "response_format"),
        (asked("hi", messages=[*MESSAGES, {"role": "assistant", "content": "so"}]), "role user"),
        (asked("hi", messages=[*MESSAGES, {"role": "tool", "content": "4"}]), "role user"),
        (asked([{"type": "input_audio", "input_audio": {}}]), "input_audio"),
        (asked([{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]), "data URL"),
        (asked([{"type": "image_url", "image_url": {"url": "data:image/png;base64,=é"}}]), "base64"),
        (asked([{"type": "image_url", "image_url": {}}]), "image_url"),
    ],
)
async def test_what_cannot_be_asked(place: Place, body: dict[str, object], words: str) -> None:
    """400 in OpenAI's form, naming what is wrong."""
    answer = await place.http.post("/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_what_is_not_read_is_named(place: Place) -> None:
    """In a header of both kinds of answers; what is as it would be anyway is not named."""
    told = {"role": "system", "content": "Be a pirate."}
    body = asked("hi", temperature=0.1, max_tokens=5, tools=[{"type": "function"}], tool_choice="auto")
    body |= {"response_format": {"type": "text"}, "n": 1, "stop": None, "user": "ada"}
    past = [told, *MESSAGES, {"role": "assistant", "content": "so"}, *MESSAGES]

    for stream in (False, True):
        many = {**body, "messages": past, "stream": stream}
        answer = await place.http.post("/v1/chat/completions", json={**many, "bad name\n": 1})
        names = set(answer.headers["x-ignored"].split(", "))
        assert names == {"system", "history", "temperature", "max_tokens", "tools", "tool_choice"}
    plain = await place.http.post("/v1/chat/completions", json=asked("hi", user="ada"))
    assert "x-ignored" not in plain.headers


async def test_a_picture_comes_as_a_file(place: Place) -> None:
    """A data URL is an attachment of the message, with or without a text; several texts are one message."""
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = (await place.http.post("/v1/chat/completions", json=asked(texts, user="ada"))).json()
    assert said["choices"][0]["message"]["content"] == "echo: a\nb"
    png = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n1").decode()
    picture = {"type": "image_url", "image_url": {"url": png}}
    for parts in ([picture], [{"type": "text", "text": "look"}, picture]):
        answer = await place.http.post("/v1/chat/completions", json=asked(parts, user="ada"))
        assert answer.status_code == 200
    lines = (await place.services.store.look(SessionKey("web:ada"))).lines()
    files = [line["attachments"][0] for line in lines if line.get("attachments")]
    assert [(file["kind"], file["mime"]) for file in files] == [("photo", "image/png")] * 2
    assert (place.application.settings.workspace / files[0]["ref"]).read_bytes().endswith(b"1")


async def test_errors_of_the_server_have_the_form_too(place: Place) -> None:
    """What is refused before a route sees it is said as OpenAI says it: token, right, size, and the hint."""
    reader = Tokens(place.application.settings.state).add("reader", "read")
    path = "/v1/chat/completions"
    answers = [
        await place.http.post(path, json=asked("x"), headers={"Authorization": "Bearer wrong"}),
        await place.http.post(path, json=asked("x"), headers={"Authorization": f"Bearer {reader}"}),
        await place.http.post(path, json=asked("x" * 2**21)),
        await place.http.post(path, content=b"{"),
    ]

    assert [answer.status_code for answer in answers] == [401, 403, 413, 400]
    assert [answer.json()["error"]["type"] for answer in answers] == [
        "authentication_error",
        "permission_error",
        "invalid_request_error",
        "invalid_request_error",
    ]
    assert all(answer.json()["error"]["hint"] for answer in answers)
    assert all("x-request-id" in answer.headers for answer in answers)


async def test_the_chat_without_a_name(place: Place) -> None:
    """Without a name each token has a chat of its own; a header names another."""
    bot = {"Authorization": f"Bearer {Tokens(place.application.settings.state).add('bot', 'write')}"}
    await place.http.post("/v1/chat/completions", json=asked("one"), headers=bot)
    await place.http.post("/v1/chat/completions", json=asked("two"))
    await place.http.post("/v1/chat/completions", json=asked("three"), headers={"X-Chat-Id": "x"})

    async def keys() -> set[str]:
        rows = (await place.http.get("/v1/sessions")).json()["sessions"]
        return {row["key"] for row in rows}

    await until(lambda: keys(), 10)
    assert await keys() == {"web:openai-bot", "web:openai-http.token", "web:x"}


async def test_the_log_names_the_request(place: Place) -> None:
    """A line that a request causes has its id."""
    lines = StringIO()
    logs.setup(place.application.settings.model_copy(), stream=lines, at_least="info")
    try:
        await place.http.get(
            "/v1/status", headers={"Authorization": "Bearer no", "X-Request-Id": "find-me-7"}
        )
    finally:
        logging.captureWarnings(capture=False)

    assert "find-me-7" in lines.getvalue()


async def test_a_quiet_stream_says_that_it_is_still_there(place: Place) -> None:
    """A comment after each pause, then the answer; the end of the daemon ends one that still waits."""
    model = place.gate()
    place.server.chats.heartbeat_s = 0.05
    quiet = 0
    text = ""
    body = asked("hello", stream=True, user="ada")
    async with place.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            quiet += line == ": still here"
            text += line
            if quiet == 3:
                model.let.set()
    model.let.clear()
    model.begun.clear()
    waiting = asyncio.create_task(place.http.post("/v1/chat/completions", json={**body, "user": "bob"}))
    await model.begun.wait()
    place.server.chats.closing.set()
    ended = (await waiting).text

    assert quiet >= 3
    assert '"content":"hello"' in text
    assert "data: [DONE]" in text
    assert orjson.loads(ended.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "server_error"


async def test_a_store_that_refuses(place: Place) -> None:
    """Whoever waits for the whole is refused before it is kept; a stream, whose status is out, says why."""
    transcript = place.application.settings.workspace / "sessions/web_ada.jsonl"
    transcript.parent.mkdir(exist_ok=True)
    transcript.mkdir()

    whole = [await place.http.post("/v1/chat/completions", json=asked("hello", user="ada")) for _ in "ab"]
    assert {answer.status_code for answer in whole} == {503}
    assert (await status_of(place.application))["queues"]["inbound"]["count"] == 0

    streamed = await place.http.post("/v1/chat/completions", json=asked("hello", user="ada", stream=True))
    *_, last = streamed.text.strip().split("\n\n")
    error = orjson.loads(last.removeprefix("data: "))["error"]
    assert "the answer could not be stored" in error["message"]
    assert error["hint"] == "the message is saved and will be answered once the disk works"

    transcript.rmdir()
    answer = await place.http.post("/v1/chat/completions", json=asked("are you there", user="ada"))
    assert answer.status_code == 200


async def test_a_repeat_names_the_files_again(place: Place, tmp_path: Path) -> None:
    """A client whose connection broke learns where they are, over each of the ways in."""
    file = tmp_path / "files" / "chats" / "web_ada" / "may.txt"
    file.parent.mkdir(parents=True)
    file.write_text("figures")
    text = "see [the figures](may.txt)"
    body = {"model": "echo", "user": "ada", "messages": [{"role": "user", "content": text}]}
    key = {"Idempotency-Key": "one"}

    first = await place.post(text, id="one", wait=30)
    repeated = await place.post(text, id="one", wait=30)
    completed = await place.http.post("/v1/chat/completions", json=body, headers=key)
    streamed = await place.http.post("/v1/chat/completions", json={**body, "stream": True}, headers=key)

    assert first.json()["files"] == repeated.json()["files"] == [str(file)]
    assert completed.json()["choices"][0]["message"]["files"] == [str(file)]
    assert orjson.dumps([str(file)]).decode() in streamed.text
