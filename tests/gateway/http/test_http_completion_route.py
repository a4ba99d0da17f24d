"""The short way of a completion takes what is in order, and answers anything else as if it were not there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from pydantic import ValidationError
from starlette.routing import Match

from gateway.http import completion_route
from gateway.http.completion_route import MAX_KEY_HEADER_CHARS, CompletionRoute
from gateway.http.completion_shapes import CompletionIn
from gateway.service.tokens import Tokens
from tests.gateway.http_place import Place, open_place

PATH = "/v1/chat/completions"
TOKEN = "correct-horse-battery-staple"
PLAIN = {"model": "chat-gateway", "messages": [{"role": "user", "content": "hello"}]}
JSON = {"Content-Type": "application/json"}
IN_ORDER: Mapping[str, tuple[dict[str, object], list[tuple[str, str]]]] = {
    "plain": (PLAIN, []),
    "of a user": (PLAIN | {"user": "ada"}, []),
    "streamed": (PLAIN | {"stream": True}, []),
    "with a charset": (PLAIN, [("Content-Type", "application/json; charset=utf-8")]),
    "of a chat": (PLAIN, [("X-Chat-Id", "bob"), ("X-OpenWebUI-Chat-Id", "eve")]),
    "with a key": (PLAIN, [("Idempotency-Key", "k" * MAX_KEY_HEADER_CHARS)]),
}
ODD: Mapping[str, tuple[bytes, list[tuple[str, str]]]] = {
    "no body": (b"", []),
    "no JSON": (b"{", []),
    "a list": (b"[]", []),
    "no UTF-8": (b'{"model": "\xff"}', []),
    "too deep": (b"[" * 100_000, []),
    "no message": (orjson.dumps(PLAIN | {"messages": []}), []),
    "a number for a flag": (orjson.dumps(PLAIN | {"stream": 1}), []),
    "another model": (orjson.dumps(PLAIN | {"model": "nobody"}), []),
    "another type": (orjson.dumps(PLAIN), [("Content-Type", "text/plain")]),
    "an empty key": (orjson.dumps(PLAIN), [("Idempotency-Key", "")]),
    "a long key": (orjson.dumps(PLAIN), [("Idempotency-Key", "k" * (MAX_KEY_HEADER_CHARS + 1))]),
    "a long chat": (orjson.dumps(PLAIN), [("X-Chat-Id", "c" * 5_000)]),
    "a chat that none can have": (orjson.dumps(PLAIN | {"user": "ü" * 512}), []),
    "a decision": (orjson.dumps(PLAIN | {"messages": [{"role": "user", "content": "/approve x"}]}), []),
}


# Of whoever may do all, may look, and may write.
STATUSES = {
    "no JSON": [400, 400, 400],
    "no UTF-8": [400, 400, 400],
    "too deep": [400, 400, 400],
    "another model": [404, 403, 404],
    "a decision": [200, 403, 403],
}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        yield place


async def asked(place: Place, body: bytes, more: list[tuple[str, str]], token: str = TOKEN) -> httpx.Response:
    headers = {**JSON, "Authorization": f"Bearer {token}"} | dict(more)
    return await place.http.post(PATH, content=body, headers=headers)


@pytest.mark.parametrize("name", IN_ORDER)
async def test_what_is_in_order_takes_it(name: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    reads = completion_route._read

    def noted(*given: Any) -> Any:
        found = reads(*given)
        read.append(found is not None)
        return found

    monkeypatch.setattr(completion_route, "_read", noted)
    body, more = IN_ORDER[name]
    place.gate().let.set()

    answer = await asked(place, orjson.dumps(body), more)

    assert answer.status_code == 200, answer.text
    assert "got" in answer.text
    assert read == [True]


@pytest.mark.parametrize("name", ODD)
async def test_anything_else_is_answered_as_without_it(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, more = ODD[name]
    kept = Tokens(place.application.settings.state)
    tokens = [TOKEN, kept.add("reader", "read"), kept.add("writer", "write")]

    with_it = [await asked(place, body, more, token) for token in tokens]
    monkeypatch.setattr(CompletionRoute, "matches", lambda *_: (Match.NONE, {}))
    without = [await asked(place, body, more, token) for token in tokens]

    found = [_error(answer) for answer in with_it]
    assert found == [_error(answer) for answer in without]
    assert [status for status, _ in found] == STATUSES.get(name, [400, 403, 400])


def _error(answer: httpx.Response) -> tuple[int, object]:
    return answer.status_code, answer.json().get("error")


async def test_the_first_content_type_counts(place: Place) -> None:
    """As everywhere else; whoever sends two is looked at where the errors are told."""
    types = [("Content-Type", "text/plain"), ("Content-Type", "application/json")]
    headers = [*types, ("Authorization", f"Bearer {TOKEN}")]

    answer = await place.http.post(PATH, content=orjson.dumps(PLAIN), headers=headers)

    assert answer.status_code == 400
    assert "its Content-Type is text/plain" in answer.json()["error"]["message"]


@pytest.mark.parametrize("messages", [[1] * 1_000, [{"role": "user", "content": [1] * 1_000}]])
def test_of_many_faults_the_first_suffices(messages: list[object]) -> None:
    """Two mebibytes hold a million, and the description of each takes microseconds of the loop."""
    with pytest.raises(ValidationError) as caught:
        CompletionIn.model_validate(PLAIN | {"messages": messages})

    assert caught.value.error_count() <= 2


async def test_another_method_is_told_so(place: Place) -> None:
    answer = await place.http.get(PATH, headers={"Authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 405
