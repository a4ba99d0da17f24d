"""Messages over HTTP: accepted once durable, answered once, waited for as often as one likes."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from channels.message import Inbound
from gateway.service.client_message import MAX_CHANNELS
from gateway.service.records import MessageStanding, Record
from tests.gateway.http_place import Place, open_place


def user_lines(workspace: Path, stem: str) -> list[dict[str, Any]]:
    lines = (workspace / "sessions" / f"{stem}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("role") == "user"]


async def test_accepted_and_waited_for(place: Place) -> None:
    """Without wait the answer is 202 as soon as the message is durable, with wait it is the reply."""
    accepted = await place.post("hello", id="one")
    answered = await place.post("hello", id="two", wait=30)

    assert (accepted.status_code, accepted.json()) == (202, {"id": "web:one", "key": "web:ada"})
    assert answered.status_code == 200
    assert answered.json() == {"id": "web:two", "key": "web:ada", "reply": "echo: hello", "kind": "reply"}


async def test_wait_ran_out(place: Place, tmp_path: Path) -> None:
    """A wait that runs out says 202; the turn goes on, and its id (in either form) may be waited for."""
    model = place.gate()

    short = await place.post("hello", id="one", wait=0.05)
    model.let.set()
    again = await place.post("hello", id="one", wait=30)
    by_full_id = await place.post("hello", id="web:one", wait=30)

    assert (short.status_code, short.json()) == (202, {"id": "web:one", "key": "web:ada"})
    assert again.json()["reply"] == by_full_id.json()["reply"] == "got hello"
    assert model.asked == ["hello"]
    assert len(user_lines(tmp_path, "web_ada")) == 1


async def test_two_wait_for_one_id(place: Place) -> None:
    """Two clients that wait for the same message both get the one answer; the model is asked once."""
    model = place.gate()

    async with asyncio.TaskGroup() as group:
        first = group.create_task(place.post("hello", id="one", wait=30))
        second = group.create_task(place.post("hello", id="one", wait=30))
        await model.begun.wait()
        model.let.set()

    assert first.result().json()["reply"] == second.result().json()["reply"] == "got hello"
    assert model.asked == ["hello"]


async def test_same_id_is_answered_again_and_stands_for_one_text(place: Place) -> None:
    """Without the model, after `/new` too; another text is a conflict, but not in another chat."""
    model = place.gate()
    model.let.set()
    await place.post("hello", id="one", wait=30)

    repeated = await place.post("hello", id="one", wait=30)
    conflict = await place.post("other", id="one", wait=30)
    elsewhere = await place.post("other", id="one", chat="bob", wait=30)
    helped = [(await place.post("/help", id="h", wait=30)).json() for _ in range(2)]
    ended = await place.post("/new", wait=30)
    archived = await place.post("hello", id="one", wait=30)

    assert repeated.json()["reply"] == archived.json()["reply"] == "got hello"
    assert conflict.status_code == 409
    assert set(conflict.json()) == {"error", "hint"}
    assert elsewhere.json()["reply"] == "got other"
    assert helped[0] == helped[1]
    assert (helped[0]["kind"], "/stop" in helped[0]["reply"]) == ("reply", True)
    assert ended.json()["kind"] == "reply"
    assert model.asked == ["hello", "other"]


async def test_reply_whose_event_was_lost(place: Place) -> None:
    """A waiter finds a reply that was stored although its event never came."""
    model = place.gate()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(place.post("hello", id="one", wait=30))
        await model.begun.wait()
        place.application.events.tell = _silence  # type: ignore[method-assign]
        model.let.set()

    assert waiting.result().json()["reply"] == "got hello"


async def _silence(*_: Any, **__: Any) -> None:
    """Lose an event, as a broken connection to the broker does."""


async def test_key_of_the_terminal(place: Place) -> None:
    """A letter for a `cli` key has a `cli:` id; one for a platform's key keeps that key."""
    cli = await place.http.post(
        "/v1/messages", json={"key": "cli:direct", "text": "hi"}, params={"wait": "30"}
    )
    other = await place.http.post(
        "/v1/messages", json={"key": "telegram:1", "text": "hi"}, params={"wait": "30"}
    )

    assert cli.json()["id"].startswith("cli:")
    assert cli.json()["reply"] == "echo: hi"
    assert (other.json()["key"], other.json()["reply"]) == ("telegram:1", "echo: hi")
    assert other.json()["id"].startswith("web:")


async def test_a_file_that_lies_there_goes_along(place: Place, tmp_path: Path) -> None:
    """Its size is what the disk says; its name has nothing that misleads whoever reads it."""
    ref = f"media/ab/{'ab' * 32}.png"
    (tmp_path / ref).parent.mkdir(parents=True)
    (tmp_path / ref).write_bytes(b"12345")
    file = {"ref": ref, "name": "a\u202e/b.png", "kind": "photo", "mime": "image/png"}

    answer = await place.http.post(
        "/v1/messages", json={"chat_id": "ada", "text": "hi", "attachments": [file]}, params={"wait": "30"}
    )

    assert answer.json()["reply"] == "echo: hi"
    (line,) = user_lines(tmp_path, "web_ada")
    assert line["attachments"] == [{**file, "name": "b.png", "size": 5}]


async def test_stop_ends_the_wait(place: Place) -> None:
    """Who waits for a message that is stopped gets a notice, now and when it asks again."""
    model = place.gate()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(place.post("hello", id="one", wait=30))
        await model.begun.wait()
        stopped = await place.http.post("/v1/stop", json={"key": "web:ada"})
    again = await place.post("hello", id="one", wait=30)

    assert stopped.status_code == 202
    assert waiting.result().json()["kind"] == again.json()["kind"] == "notice"
    assert waiting.result().json()["reply"] == again.json()["reply"]


JSON = "application/json"
BAD = [
    b'{"text":"hi"}',
    b'{"chat_id":"a","key":"web:a","text":"hi"}',
    b'{"chat_id":"","text":"hi"}',
    b'{"chat_id":"a","text":"  "}',
    b'{"chat_id":"a","text":5}',
    b'{"chat_id":"a","text":"hi","colour":"red"}',
    b'{"chat_id":"a","text":"\\ud800"}',
    b'{"chat_id":"a\\udfff","text":"hi"}',
    b'{"key":"nocolon","text":"hi"}',
    b'{"key":"Web:a","text":"hi"}',
    b'{"chat_id":"a","text":"hi","id":""}',
    b'{"chat_id":"a","text":"hi","attachments":[{"ref":"media/../state/gateway.db"}]}',
    b'{"chat_id":"a","text":"hi","attachments":[{"ref":"media/ab/%s.png"}]}' % (b"ab" * 32),
    b'{"chat_id":"a","text":"hi","attachments":[{"ref":"media/ab/%s.png","name":"\\ud800"}]}' % (b"ab" * 32),
    b'{"chat_id":"a","text":"hi","id":"%s"}' % (b"x" * 200),
]
TOLD = [
    (JSON, b"text=hi", "the body is not JSON: ", "send an object"),
    (JSON, b'{"text": "a', "the body is not JSON: ", "send an object"),
    ("text/plain", b'{"chat_id": "a", "text": "hi"}', "is text/plain", "Content-Type: application/json"),
    ("application/x-www-form-urlencoded", b"text=hi", "urlencoded", "Content-Type: application/json"),
    ("", b'{"chat_id": "a", "text": "hi"}', "no Content-Type", "Content-Type: application/json"),
    (JSON, b"[]", "not an object", "send an object"),
    (JSON, b"", "the body is missing", "Content-Type: application/json"),
]


@pytest.mark.parametrize(
    ("kind", "content", "error", "hint"), [*((JSON, content, "", "") for content in BAD), *TOLD]
)
async def test_bad_bodies(place: Place, kind: str, content: bytes, error: str, hint: str) -> None:
    """What makes no message is answered 400, and says why in our form, with what to send instead."""
    headers = {"Content-Type": kind} if kind else {}
    answer = await place.http.post("/v1/messages", content=content, headers=headers)

    assert answer.status_code == 400, answer.text
    assert set(answer.json()) == {"error", "hint"}
    assert answer.json()["error"] and error in answer.json()["error"]
    assert hint in answer.json()["hint"]


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "soon"])
async def test_bad_wait(place: Place, wait: str) -> None:
    """A wait that is no number of seconds is refused."""
    assert (await place.post("hi", wait=wait)).status_code == 400


async def test_what_is_too_large(place: Place) -> None:
    """A text that no chat may send is parked, and the waiter is told; a body over 2 MiB is answered 413."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"chat_id":"a","text":"'
        for _ in range(48):
            yield b"x" * 2**16
        yield b'"}'

    parked = await place.post("x" * (2**20 + 1), wait=30)
    sized = await place.post("x" * (2**21 + 1))
    chunked = await place.http.post("/v1/messages", content=pieces())

    assert (parked.status_code, parked.json()["kind"]) == (200, "notice")
    assert "1 MiB" in parked.json()["reply"]
    assert sized.status_code == chunked.status_code == 413
    assert set(sized.json()) == {"error", "hint"}
    assert (await place.post("hi", wait=30)).status_code == 200


async def test_waiter_at_the_end_of_the_daemon(tmp_path: Path) -> None:
    """A waiter whose message was accepted, but will not run before the daemon ends, gets 202."""
    async with asyncio.TaskGroup() as group, open_place(tmp_path) as place:
        model = place.gate()
        async with place.stream("web:ada") as stream:
            first = group.create_task(place.post("one", wait=30))
            await model.begun.wait()
            second = group.create_task(place.post("two", wait=30))
            await stream.next("queued")
        closing = group.create_task(_close(place, model.let))
        answers = await asyncio.gather(first, second)
        await closing

    assert answers[0].json()["reply"] == "got one"
    assert answers[1].status_code == 202


async def _close(place: Place, let: asyncio.Event) -> None:
    """Drain, as SIGTERM does, and end the server behind it."""
    assert place.application.worker is not None
    draining = asyncio.ensure_future(place.application.worker.drain(30))
    let.set()
    await draining
    place.server.chats.closing.set()


# -- a queue that does not confirm -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), 503, "the disk reported an error: Stale file handle"),
        (TimeoutError(), 500, "internal error"),
    ],
)
async def test_a_disk_that_refuses_is_no_fault_of_ours(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: OSError, status: int, said: str
) -> None:
    """Whoever met it may come again; it is told apart from what nobody foresaw."""

    async def standing(*_: object) -> MessageStanding:
        raise error

    monkeypatch.setattr(Record, "standing", standing)
    answer = await place.post("hello", id="one")

    assert (answer.status_code, answer.json()["error"]) == (status, said)
    assert ("Retry-After" in answer.headers) == (status == 503)


async def test_channels_that_nobody_configured_are_bounded(place: Place) -> None:
    """Each would have a queue for ever; channels that are known already, and others, go on."""
    for number in range(MAX_CHANNELS):
        sent = await place.http.post("/v1/messages", json={"key": f"q{number}:1", "text": "hi"})
        assert sent.status_code == 202
    more = await place.http.post("/v1/messages", json={"key": "more:1", "text": "hi"})
    others = [
        (await place.http.post("/v1/messages", json={"key": key, "text": "hi"})).status_code
        for key in ("q5:2", "web:a", "cli:b")
    ]

    assert more.status_code == 429
    assert "web:NAME" in more.json()["hint"]
    assert others == [202] * 3
    assert not any(name.startswith("outbound.more") for name in await place.application.mailbox.depths())


class Stuck:
    """An intake whose queue never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def accept(self, _: Inbound) -> None:
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.slow
async def test_what_is_cut_off_by_the_end_is_told_so(tmp_path: Path) -> None:
    """503 with a cure and the time to come again; not a fault of ours."""
    stuck = Stuck()
    async with open_place(tmp_path) as place:
        place.server.chats.accept_within_s = 600
        place.application.intake = stuck  # type: ignore[assignment]
        client = httpx.AsyncClient(base_url=place.server.url, timeout=30, trust_env=False)
        body = {"chat_id": "ada", "text": "hello", "id": "one"}
        asking = asyncio.create_task(client.post("/v1/messages", json=body, params={"wait": "20"}))
        await stuck.asked.wait()
    answer = await asking
    await client.aclose()

    assert answer.status_code == 503
    assert answer.json() == {
        "error": "the gateway shut down before this was answered",
        "hint": "send it again once the gateway runs; use the same id to avoid duplicates",
    }
    assert int(answer.headers["Retry-After"]) > 0
