"""What a letter is answered with: each once, each in its order, a repeat with the same words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.turns.letter_rules import LetterRules
from session.errors import BadAnswer
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig, rig
from tests.support.guarantee import guarantee


async def test_a_letter_gets_a_reply_under_an_id_of_its_own(tmp_path: Path) -> None:
    async with rig(tmp_path, "hi") as r:
        await r.put("hello", "m1", platform_id="77")

        (reply,) = await r.replies(1)

        assert (reply.id, reply.in_reply_to, reply.kind, reply.text) == ("m1#reply", "m1", "reply", "hi")
        assert (reply.key, reply.channel, reply.chat_id, reply.reply_to) == (ADA, "foreign", "ada", "77")


@guarantee("once", "A repeated message gets its stored answer again, without another model request.")
async def test_a_message_put_again_after_its_answer_is_answered_again_and_never_asked_again(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, "hi") as r:
        await r.put("hello", "m1")
        first = await r.replies(1)
        await r.put("hello", "m1")

        again = await r.replies(1)

        assert again[0].text == first[0].text
        assert again[0].id == first[0].id
        assert len(r.model.prompts) == 1
        assert len(await r.lines()) == 2


async def test_a_new_put_again_ends_no_second_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("one", "m1")
        await r.put("/new", "m2")
        await r.put("two", "m3")
        replies = await r.texts(3)
        await r.put("/new", "m2")

        assert await r.texts(1) == [replies[1]]
        assert [line["content"] for line in await r.lines()] == ["two", "script: two"]
        assert len(list((tmp_path / "sessions" / "archive" / "foreign_ada").glob("*.jsonl"))) == 1


async def test_after_new_the_model_is_sent_nothing_of_before(tmp_path: Path) -> None:
    """The next message is the whole conversation, in the next turn as well."""
    async with rig(tmp_path) as r:
        for number, text in enumerate(("one", "/new", "two", "three")):
            await r.put(text, f"m{number}")
        await r.replies(4)

        sent = [[str(message["content"]) for message in prompt.messages] for prompt in r.model.prompts]
        assert [len(texts) for texts in sent] == [1, 1, 3]
        assert [any("one" in text for text in texts) for texts in sent] == [True, False, False]


async def test_a_message_of_an_ended_session_stays_known(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("one", "m1")
        await r.put("/new", "m2")
        first, _ = await r.texts(2)
        await r.put("one", "m1")

        assert await r.texts(1) == [first]
        assert len(r.model.prompts) == 1


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("/nwe", "/new"), ("/hlep", "/help"), ("/xyzzy", "/help"), ("/stats", "/status")],
)
async def test_an_unknown_command_is_answered_with_the_nearest_and_never_sent_to_the_model(
    tmp_path: Path, typed: str, answer: str
) -> None:
    async with rig(tmp_path) as r:
        await r.put(typed, "m1")

        assert answer in (await r.texts(1))[0]
        assert r.model.prompts == []


async def test_commands_answer(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for number, text in enumerate(["/help", "/start", "/status", "/memory", "/HELP@some_bot"]):
            await r.put(text, f"m{number}")

        # The status may overtake the others.
        said = {reply.in_reply_to: reply.text for reply in await r.replies(5)}
        help_, start, status, memory, again = (said[f"m{number}"] for number in range(5))
        assert "/new" in help_
        assert help_ == start == again
        assert status.startswith("fine\nsession: ")
        assert "Nothing is remembered" in memory
        assert await r.lines() == []


async def test_a_chat_that_piles_up_is_told_once(tmp_path: Path) -> None:
    async with rig(tmp_path, pending_per_chat=3) as r:
        r.model.release.clear()
        for number in range(8):
            await r.put(str(number), f"m{number}")

        (notice,) = await r.replies(1)
        r.model.release.set()
        replies = await r.replies(8)

        assert notice.id.endswith("#notice.busy")
        assert [reply.in_reply_to for reply in replies] == [f"m{number}" for number in range(8)]


async def test_the_answer_goes_to_the_chat_that_answer_to_names_and_keeps_its_id(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("report", "cron:j@1", key="cron:j", answer_to="foreign:boss")

        (reply,) = await r.replies(1)

        assert (reply.key, reply.channel, reply.chat_id) == ("foreign:boss", "foreign", "boss")
        assert reply.id == "cron:j@1#reply"


async def test_replies_and_notices_are_numbered_without_gap(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", BadAnswer("x"), "three") as r:
        for number, text in enumerate(["a", "b", "/help", "c"]):
            await r.put(text, f"m{number}")

        replies = await r.replies(4)

        assert [reply.meta["seq"] for reply in replies] == [1, 2, 3, 4]


async def test_a_drain_leaves_what_waits_to_the_next_daemon(tmp_path: Path) -> None:
    built = Rig(tmp_path, Script(), LetterRules())
    built.model.release.clear()
    async with built.open() as r:
        await r.put("1", "m1")
        await r.model.held.wait()
        await r.put("2", "m2")
        drained = asyncio.ensure_future(r.worker.drain(20))
        await asyncio.sleep(0)
        r.model.release.set()
        assert await drained
        assert await r.texts(1) == ["script: 1"]
        assert len(r.model.prompts) == 1

    async with rig(tmp_path) as r:
        assert await r.texts(1) == ["script: 2"]


async def test_control_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for body in (b"", b"[]", b'{"do":"stop"}', b'{"do":"watch","slots":[999],"for_s":1}', b'{"do":7}'):
            await r.mailbox.tell("control", 0, body)
        await r.mailbox.tell("control", 0, orjson.dumps({"do": "watch", "slots": "all", "for_s": 5}))
        await r.put("hello", "m1")

        assert await r.texts(1) == ["script: hello"]
