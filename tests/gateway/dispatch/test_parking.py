"""What is set aside: at once, or after tries that never ended; its chat is told, its lane goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.queue.mailbox import INBOUND, Post
from session.errors import ContextTooLong, EmptyAnswer, ModelAway, ModelRefused
from session.models.model import Answer, OnDelta, Prompt
from session.turn import commands
from session.turn.turn import QUICK_S
from tests.gateway.worker_rig import ADA, Rig, letter, rig
from tests.support.guarantee import guarantee

REFUSED = "The model rejected this message, so it was not answered. The operator can see why."


async def test_what_cannot_be_read_is_parked_and_the_lane_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "junk", b"not json"))
        assert await r.say("hello", "m1") == "script: hello"
        (parked,) = await r.parked()
        assert (parked.id, parked.key, parked.body) == ("junk", None, b"not json")
        assert parked.reason.startswith("unreadable")


@pytest.mark.parametrize(
    ("text", "why"),
    [("  ", "text is empty, and there is no file"), ("x" * (2**20 + 1), "1 MiB")],
    ids=["empty", "too long"],
)
async def test_a_text_that_cannot_be_asked_asks_no_model_and_its_chat_is_told(
    tmp_path: Path, text: str, why: str
) -> None:
    """It is set aside with its reason, and the next letter of the chat is answered."""
    async with rig(tmp_path) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "m1", letter(text, "m1").to_bytes()))
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)
        assert (notice.id, notice.kind, reply.text) == ("m1#notice.unreadable", "notice", "script: hello")
        assert [line["content"] for line in await r.lines()] == ["hello", "script: hello"]
        (parked,) = await r.parked()
        assert parked.reason.startswith("unreadable: ")
        assert why in parked.reason + notice.text


@guarantee(
    "failures", "A message that can never be answered is parked with one notice, and its chat continues."
)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EmptyAnswer("nothing"), "bad_answer"),
        (ModelRefused("policy"), "refused"),
        (ContextTooLong("9000 > 8000"), "too_long"),
        (Answer(""), "bad_answer"),
    ],
)
async def test_what_will_never_be_answered_is_parked_with_one_notice_and_the_lane_goes_on(
    tmp_path: Path, error: Any, reason: str
) -> None:
    async with rig(tmp_path, error) as r:
        await r.put("poison", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert (notice.id, notice.kind) == (f"m1#notice.{reason}", "notice")
        assert reply.text == "script: hello"
        (parked,) = await r.parked()
        assert (parked.id, parked.key) == ("m1", ADA)
        assert parked.reason.startswith(f"{reason}: ")
        assert all("policy" not in str(line["content"]) for line in await r.lines())


@pytest.mark.slow
async def test_a_fault_of_ours_is_tried_again_and_then_parked(tmp_path: Path) -> None:
    def crash(prompt: Any) -> str:
        raise ZeroDivisionError

    async with rig(tmp_path, *[crash] * 10, attempts=2) as r:
        await r.put("boom", "m1")

        (notice,) = await r.replies(1)

        assert notice.id == "m1#notice.attempts"
        assert len(r.model.prompts) == 2


async def test_an_answer_too_large_to_be_kept_is_parked_and_not_asked_for_again(tmp_path: Path) -> None:
    async with rig(tmp_path, "x" * 2**24) as r:
        await r.put("much", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert notice.id == "m1#notice.too_large"
        assert reply.text == "script: hello"
        assert len(r.model.prompts) == 2


def refuses(prompt: Prompt) -> Answer:
    """Refuse every request that holds the word."""
    if any("forbidden" in str(message["content"]) for message in prompt.messages):
        raise ModelRefused("content policy")
    return Answer("fine")


def takes_its_time(r: Rig) -> None:
    """Let the model take so long that a question is stored before its answer."""
    ask = r.model.ask

    async def later(prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        await asyncio.sleep(3 * QUICK_S)
        return await ask(prompt, on_delta)

    r.model.ask = later  # type: ignore[method-assign]


@guarantee("failures", "A message that the model refuses is left out of the later requests of its chat.")
async def test_a_message_that_is_refused_spoils_no_later_one(tmp_path: Path) -> None:
    """It is stored by the time of the refusal, and would be in every later request of its chat."""
    async with rig(tmp_path, "one", refuses, refuses, refuses) as r:
        takes_its_time(r)
        for number, text in enumerate(("hello", "forbidden thing", "and now?", "still there?"), 1):
            await r.put(text, f"m{number}")

        assert await r.texts(4) == ["one", REFUSED, "fine", "fine"]
        assert [parked.id for parked in await r.parked()] == ["m2"]
        last = r.model.prompts[-1].messages
        assert [message["content"] for message in last] == [
            "hello",
            "one",
            "and now?",
            "fine",
            "still there?",
        ]
        assert "forbidden thing" in [line["content"] for line in await r.lines()]


@pytest.mark.parametrize(
    ("command", "said", "sent"),
    [
        ("/retry", "better", ["hello", "one", "forbidden thing"]),
        ("/undo", commands.WITHDRAWN, ["hello", "one"]),
    ],
)
async def test_a_command_means_the_message_that_was_set_aside_last(
    tmp_path: Path, command: str, said: str, sent: list[str]
) -> None:
    """Not the one before it, whose answer would be taken back."""
    async with rig(tmp_path, "one", refuses, *(["better"] if command == "/retry" else []), "after") as r:
        takes_its_time(r)
        await r.put("hello", "m1")
        await r.put("forbidden thing", "m2")
        assert await r.texts(2) == ["one", REFUSED]
        assert await r.say(command, "c") == said
        await r.say("next", "m3")

        asked = r.asked()
        assert asked == [*sent, *(["better"] if command == "/retry" else []), "next"]


async def test_what_was_set_aside_is_asked_at_the_end_when_it_comes_again(tmp_path: Path) -> None:
    async with rig(tmp_path, refuses, "better") as r:
        takes_its_time(r)
        assert await r.say("forbidden thing", "m1") == REFUSED
        await r.parked()
        await r.put_back("m1")

        assert await r.texts(1) == ["better"]
        assert r.asked() == ["forbidden thing"]


async def test_no_words_of_a_provider_are_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may quote a message."""
    refused = ModelRefused("messages[1].content: 'my doctor says' is not accepted")
    away = ModelAway("cannot read 'my doctor says'", cause="unreachable", after_s=0.01)
    refused.brief = away.brief = "status 400, invalid"
    async with rig(tmp_path, away, refused) as r:
        await r.put("my doctor says", "m1")
        await r.parked()
        await r.settled()

    lines = capsys.readouterr().out.splitlines()
    out = "\n".join(line for line in lines if "[debug" not in line)
    assert any("[debug" in line and "doctor" in line for line in lines)
    assert "turn.failed" in out
    assert "model.away" in out
    assert "doctor" not in out
