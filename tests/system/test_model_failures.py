"""What a whole gateway does with a model that fails: how often it asks, what it tells, what is set aside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from session.errors import RequestTooLarge
from tests.support.harness import Daemon, answer_to, ask, status
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.place import lines_of, with_model
from tests.support.rate_limit import RateLimit
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram

CHATS = 20
TRIES = 3


def refusing(code: int, message: str, /, **fields: str) -> Reply:
    return Reply(status=code, error={"message": message, "type": "error", **fields})


REFUSED: Mapping[str, Reply] = {
    "moderated": refusing(403, "Your input was flagged for violence by our moderation"),
    "policy": refusing(401, "This content violates our usage policies"),
    "field": refusing(400, "Unrecognized argument", code="bad_field", param="top_k"),
}
COUNTED: Mapping[str, Reply] = {
    "template": refusing(500, "Jinja Exception: Conversation roles must alternate"),
    "overlong": refusing(429, "Request too large for this model: Limit 100, Requested 900"),
    "torn": Reply("an answer that breaks off each time", kind="cut"),
}
# Each is answered, and needs so many requests.
ANSWERED: Mapping[str, int] = {
    "one two three four [[done]]": 1,
    "one two three four [[slow:2]]": 1,
    f"limited [[status:503 retry-after=1 times={TRIES}]]": TRIES + 1,
}


class Failing:
    """Answers what the message of a request names, and notes when it was asked."""

    def __init__(self) -> None:
        self.empty = True
        self.asked: list[tuple[float, str]] = []
        self.releases: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    def __call__(self, seen: Seen) -> Reply | None:
        self.asked.append((time.monotonic(), seen.text))
        if seen.text == "alone":
            self.releases.put_nowait(release := asyncio.Event())
            return Reply(status=502, held=release)
        if seen.text == "unpaid" and self.empty:
            return refusing(429, "You exceeded your current quota", code="insufficient_quota")
        return REFUSED.get(seen.text) or COUNTED.get(seen.text)

    def times(self, text: str) -> list[float]:
        return [at for at, asked in self.asked if asked == text]


async def test_chats_that_a_rate_limit_holds_are_answered_at_its_pace(tmp_path: Path) -> None:
    """Few requests are refused, and none is made before its Retry-After."""
    limited = RateLimit()
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        model.chooses = limited
        answers = await asyncio.gather(*(ask(daemon, f"cli:c{n}", f"m{n}", f"q{n}") for n in range(CHATS)))

    assert [answer and answer["reply"] for answer in answers] == [f"stub: q{n}" for n in range(CHATS)]
    assert len(limited.asked) <= 60
    for n in range(CHATS):
        times = [(at, passed) for at, text, passed in limited.asked if text == f"q{n}"]
        assert [passed for _, passed in times] == [False] * (len(times) - 1) + [True]
        assert all(later - at >= 1 for (at, _), (later, _) in pairwise(times))


async def test_the_failures_of_a_message_are_bounded_and_told(tmp_path: Path) -> None:
    """Other chats are answered meanwhile, and whoever waits hears that a message is set aside."""
    failing = Failing()
    async with ModelServer() as model:
        model.chooses = failing
        config = with_model(
            model, **{"model.timeout_s": 8, "model.stream": "always", "limits.model_tries": TRIES}
        )
        async with Daemon(tmp_path, config=config) as daemon:
            # The first turn imports a library, for so long that a busy machine would run into the time limit.
            await _said(daemon, "first")
            told, odd, others, streams, whole = await asyncio.gather(
                asyncio.gather(*(_said(daemon, text) for text in (*REFUSED, *COUNTED))),
                asyncio.gather(*(_said(daemon, text, key=f"cli:odd{n}") for n, text in enumerate(ANSWERED))),
                _alone(daemon, failing),
                asyncio.gather(*(_completed(daemon, text) for text in ("moderated", "template"))),
                _completed(daemon, "policy", stream=False),
            )
            later = [await _said(daemon, "later", key=f"cli:{text}") for text in ("moderated", "template")]
            parked = {row["key"]: row["reason"] for row in await _parked(daemon)}
            standing, paid = await _unpaid(daemon, failing)

    assert [(answer["kind"], answer["reply"].partition(". ")[0]) for answer in told] == [
        *[("notice", "The model rejected this message, so it was not answered")] * 3,
        ("notice", "The model failed while answering this message"),
        ("notice", RequestTooLarge.said.partition(". ")[0]),
        ("notice", "The model failed while answering this message"),
    ]
    # Three of them were asked by a completion, too.
    assert [len(failing.times(text)) for text in REFUSED] == [2, 2, 1]
    assert [len(failing.times(text)) for text in COUNTED] == [2 * TRIES, TRIES, TRIES]
    # The first try might have met an outage: nobody had been answered since the message came.
    assert len(failing.times("alone")) == 1 + TRIES
    assert [answer["reply"] for answer in others] == [f"stub: hello {n}" for n in range(1 + TRIES)]
    assert [answer["reply"].strip() for answer in odd] == [
        *["stub: one two three four"] * 2,
        "stub: limited",
    ]
    assert {text: len(failing.times(text)) for text in ANSWERED} == ANSWERED
    assert all(after - at >= 1 for at, after in pairwise(failing.times([*ANSWERED][2])))
    assert {answer["reply"] for answer in later} == {"stub: later"}
    # What was set aside is in no request of the message behind it.
    behind = [seen.messages for seen in model.seen if seen.text == "later"]
    assert [[message["role"] for message in messages].count("user") for messages in behind] == [1, 1]
    for text, words in (
        ("moderated", "refused: openai/stub: status 403: Your input was flagged for violence"),
        ("policy", "refused: openai/stub: status 401"),
        ("field", "refused: openai/stub: status 400, bad_field, top_k: Unrecognized argument"),
        ("template", "failed: openai/stub: status 500: Jinja Exception: Conversation roles must alternate"),
        ("overlong", "too_long: openai/stub: status 429"),
        ("torn", "failed: openai/stub"),
        ("alone", "failed: openai/stub: status 502"),
    ):
        assert parked[f"cli:{text}"].startswith(words)
    assert all('"error"' in body and "can see why" in body for _, body in streams)
    assert (whole[0], "can see why" in whole[1]) == (422, True)
    assert (standing["cause"], "add credit" in standing["hint"]) == ("quota", True)
    assert paid["reply"] == "stub: unpaid"


async def test_half_an_answer_is_no_message_once_it_is_parked(tmp_path: Path) -> None:
    """The draft of each try becomes the notice; after it the chat goes on without the half."""
    half = "These words begin an answer. "
    async with TelegramServer() as server, ModelServer() as model:
        torn = Reply(half * 4, kind="cut", slow_s=2.5)
        model.chooses = lambda seen: torn if seen.text == "torn" else None
        config = with_telegram(server) | with_model(model, **{"limits.model_tries": 2})
        async with Daemon(tmp_path, config=config) as daemon:
            asked = server.message_of[server.write(ADA, "torn")]
            drawn = await server.said(ADA, lambda sent: sent.text == half.strip())
            server.write(ADA, "later")
            await server.said(ADA, lambda sent: sent.text == "stub: later")
            (parked,) = await _parked(daemon)
            lines = lines_of(tmp_path, f"telegram_{ADA}")
            assert await daemon.stop() == 0

    failed, answer = server.sent_to(ADA)
    assert (failed.message_id, failed.reply_to) == (drawn.message_id, asked)
    assert failed.text.startswith("The model failed while answering this message")
    assert answer.text == "stub: later"
    assert [seen.text for seen in model.turns] == ["torn", "torn", "later"]
    assert half not in str(model.turns[-1].messages)
    said = [line["content"] for line in lines if line["role"] == "assistant"]
    assert (parked["attempts"], said) == (2, ["stub: later"])


async def _said(daemon: Daemon, text: str, *, key: str = "") -> dict[str, Any]:
    return await answer_to(daemon, key or f"cli:{text}", f"{key}{text}", text, wait_s=120)


async def _alone(daemon: Daemon, failing: Failing) -> list[dict[str, Any]]:
    """Have another message answered between any two tries of one that the server fails on."""
    failed = asyncio.create_task(_said(daemon, "alone"))
    others = []
    for n in range(1 + TRIES):
        release = await failing.releases.get()
        others.append(await _said(daemon, f"hello {n}", key="cli:ann"))
        release.set()
    assert (await failed)["kind"] == "notice"
    return others


async def _completed(daemon: Daemon, text: str, *, stream: bool = True) -> tuple[int, str]:
    said = {"messages": [{"role": "user", "content": text}], "user": f"completed-{text}"}
    async with httpx.AsyncClient(timeout=120) as client:
        body = {"model": "chat-gateway", "stream": stream, **said}
        answer = await client.post(f"{daemon.url}/v1/chat/completions", json=body)
    return answer.status_code, answer.text


async def _parked(daemon: Daemon) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=60) as client:
        found: dict[str, Any] = (await client.get(f"{daemon.url}/v1/parked")).json()
    return list(found["parked"])


async def _unpaid(daemon: Daemon, failing: Failing) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how the model stands while its account is empty, and the answer once it is not."""
    asked = asyncio.create_task(_said(daemon, "unpaid"))

    async def is_known() -> bool:
        return not (await status(daemon))["parts"]["model"]["up"]

    await until(is_known, 120)
    standing: dict[str, Any] = (await status(daemon))["parts"]["model"]
    failing.empty = False
    return standing, await asked
