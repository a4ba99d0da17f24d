"""Mode ``collect``: messages that wait together are answered together, each known for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from channels.tables import QueueMode
from gateway.turns.collect import QueueRules
from session.errors import ModelAway, ModelRefused
from session.models.model import Prompt
from tests.gateway.waits import until
from tests.gateway.worker_rig import Rig, rig
from tests.support.guarantee import guarantee

COLLECT = QueueRules("collect", collect_s=0.0)
SLOWLY = QueueRules("collect", collect_s=0.1)


def asked(prompt: Prompt) -> list[str]:
    return [str(message["content"]) for message in prompt.messages]


async def collected(r: Rig, *texts: str, then: str | None = None, **fields: Any) -> None:
    """Let messages wait behind one that runs, then let it end."""
    await r.begin("first", "m0")
    for number, text in enumerate(texts, 1):
        await r.put(text, f"m{number}", **fields)
    if then is not None:
        await r.put(then, "t1")
    await r.until_in_lane(1 + len(texts) + (then is not None))
    r.model.release.set()


async def test_messages_that_wait_are_answered_by_one_turn(tmp_path: Path) -> None:
    """Each keeps its user line; one answer names all, and no other reply is sent."""
    async with rig(tmp_path, "zero", "both", queue=COLLECT) as r:
        await collected(r, "one", "two", "three")

        replies = await r.replies(2)
        await r.settled()

        assert [(reply.id, reply.text) for reply in replies] == [("m0#reply", "zero"), ("m1#reply", "both")]
        assert r.unread == 0
        assert asked(r.model.prompts[1]) == ["first", "zero", "one", "two", "three"]
        lines = await r.lines()
        assert [line["message_id"] for line in lines if line["role"] == "user"] == ["m0", "m1", "m2", "m3"]
        assert (lines[-1]["message_id"], lines[-1]["answers"]) == ("m1", ["m1", "m2", "m3"])
        assert "answers" not in lines[1]


async def test_a_single_message_is_answered_as_ever(tmp_path: Path) -> None:
    async with rig(tmp_path, queue=COLLECT) as r:
        await r.put("one", "m1")

        assert await r.texts(1) == ["script: one"]
        assert "answers" not in (await r.lines())[1]
        assert "part_of" not in (await r.lines())[0]


async def test_by_default_each_is_answered_for_itself(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "one", "two") as r:
        await collected(r, "1", "2")

        assert await r.texts(3) == ["zero", "one", "two"]


async def test_a_channel_may_have_a_mode_of_its_own(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", queue=QueueRules("followup", {"foreign": "collect"}, 0)) as r:
        await collected(r, "1", "2")

        assert await r.texts(2) == ["zero", "both"]


async def test_messages_that_come_shortly_after_one_another_are_collected(tmp_path: Path) -> None:
    async with rig(tmp_path, "all", queue=QueueRules("collect", collect_s=1.0)) as r:
        for number in range(5):
            await r.put(f"line {number}", f"m{number}")

        assert await r.texts(1) == ["all"]
        await r.settled()
        assert len(r.model.prompts) == 1
        assert (await r.lines())[-1]["answers"] == [f"m{number}" for number in range(5)]


async def test_who_never_pauses_is_answered_all_the_same(tmp_path: Path) -> None:
    """The wait for more is bounded, however many come."""
    async with rig(tmp_path, queue=SLOWLY) as r:
        number = 0
        while not r.unread:
            await r.put("more", f"m{number}")
            number += 1
            await until(lambda: True)

        assert r.unread


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("/help", {}),
        ("press", {"kind": "action"}),
        ("hello", {"sender": Sender(id="2")}),
        ("hello", {"answer_to": "foreign:bob"}),
        ("tick", {"source": "cron"}),
    ],
)
async def test_a_collection_ends_before_what_is_answered_for_itself(
    tmp_path: Path, text: str, fields: dict[str, Any]
) -> None:
    async with rig(tmp_path, queue=COLLECT) as r:
        await r.begin("first", "m0")
        for id_, said, more in (("m1", "1", {}), ("m2", "2", {}), ("x", text, fields), ("m3", "3", {})):
            await r.put(said, id_, **more)
        await r.until_in_lane(5)
        r.model.release.set()

        replies = [reply.id for reply in await r.replies(4)]
        await r.settled()

        assert replies == ["m0#reply", "m1#reply", "x#reply", "m3#reply"]
        served = [line["answers"] for line in await r.lines() if "answers" in line]
        assert served == [["m1", "m2"]]


async def test_an_edit_changes_its_message_and_ends_a_collection(tmp_path: Path) -> None:
    async with rig(tmp_path, queue=COLLECT) as r:
        await r.begin("first", "m0")
        await r.put("one", "m1", platform_id="1")
        await r.put("tow", "m2", platform_id="2")
        await r.put("two", "e2", platform_id="2", kind="edit")
        await r.put("three", "m3", platform_id="3")
        await r.until_in_lane(5)
        r.model.release.set()
        await r.replies(3)
        await r.settled()

        said = [line for line in await r.lines() if line["role"] != "assistant"]
        assert [(line["role"], line["content"]) for line in said] == [
            ("user", "first"),
            ("user", "one"),
            ("user", "two"),
            ("user", "three"),
        ]


@guarantee("once", "Each of several messages with one answer is recognised when it is redelivered.")
async def test_a_message_that_comes_again_is_known_by_the_answer_that_names_it(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", queue=COLLECT) as r:
        await collected(r, "one", "two")
        await r.replies(2)
        await r.settled()
        for id_ in ("m1", "m2"):
            await r.put(id_, id_)
        await r.settled()

        # The one that has a reply gets it again, the other one nothing.
        assert [(reply.id, reply.text) for reply in await r.replies(1)] == [("m1#reply", "both")]
        assert r.unread == 0
        assert len(r.model.prompts) == 2


async def test_a_message_that_comes_again_after_its_session_ended_is_known(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", queue=COLLECT) as r:
        await collected(r, "one", "two")
        await r.replies(2)
        await r.put("/new", "n1")
        await r.replies(1)
        await r.put("two", "m2")
        await r.settled()

        assert r.unread == 0
        assert len(r.model.prompts) == 2


async def test_an_outage_is_waited_for_together(tmp_path: Path) -> None:
    away = ModelAway("503", cause="unreachable", after_s=0.01)
    async with rig(tmp_path, "zero", away, away, "both", queue=COLLECT) as r:
        await collected(r, "one", "two")

        replies = [reply for reply in await r.replies(3) if reply.kind == "reply"]
        await r.settled()

        assert [reply.text for reply in replies] == ["zero", "both"]
        users = [line["message_id"] for line in await r.lines() if line["role"] == "user"]
        assert users == ["m0", "m1", "m2"]


async def test_one_message_that_is_refused_takes_no_other_with_it(tmp_path: Path) -> None:
    """The turn of all failed for good: each is asked alone, and only the poison is parked."""

    def answer(prompt: Prompt) -> str:
        running = asked(prompt)[-3:]
        if "poison" in running[-1] or "poison" in running:
            raise ModelRefused("no")
        return f"about {running[-1]}"

    steps = ["zero", *[answer] * 4]
    async with rig(tmp_path, *steps, queue=COLLECT) as r:
        await collected(r, "one", "poison")
        replies = await r.replies(3)
        parked = await r.parked()
        await r.settled()

        assert [(reply.id, reply.kind) for reply in replies] == [
            ("m0#reply", "reply"),
            ("m1#reply", "reply"),
            ("m2#notice.refused", "notice"),
        ]
        assert [letter.id for letter in parked] == ["m2"]


async def test_a_stop_ends_them_all(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "a long answer", queue=COLLECT) as r:
        await collected(r, "one", "two")
        await r.replies(1)
        r.model.release.clear()
        await until(lambda: len(r.model.prompts) == 2)
        await r.put("/stop", "s1")
        r.model.release.set()

        assert await r.texts(1) == ["Stopped."]
        await r.settled()
        assert r.unread == 0
        closing = (await r.lines())[-1]
        assert (closing["stopped"], closing["answers"]) == (True, ["m1", "m2"])


async def test_undo_and_retry_take_the_messages_together(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", "again", queue=COLLECT) as r:
        await collected(r, "one", "two")
        await r.replies(2)
        await r.put("/retry", "r1")

        assert await r.texts(1) == ["again"]
        assert asked(r.model.prompts[2]) == ["first", "zero", "one\n\ntwo"]


async def test_the_echo_repeats_them_all(tmp_path: Path) -> None:
    async with rig(tmp_path, queue=COLLECT) as r:
        r.model.plain = True
        await collected(r, "one", "two")

        assert await r.texts(2) == ["script: first", "script: one\n\ntwo"]


@pytest.mark.parametrize(
    ("mode", "said"), [("followup", "one after the other"), ("collect", "together"), ("steer", "together")]
)
async def test_a_chat_that_piles_up_is_told_how_it_is_answered(
    tmp_path: Path, mode: QueueMode, said: str
) -> None:
    async with rig(tmp_path, pending_per_chat=3, queue=QueueRules(mode, collect_s=0.0)) as r:
        await r.begin("first", "m0")
        for number in range(1, 6):
            await r.put(str(number), f"m{number}")

        (notice,) = await r.replies(1)
        r.model.release.set()
        await r.settled()

    assert notice.id.endswith("#notice.busy")
    assert said in notice.text
