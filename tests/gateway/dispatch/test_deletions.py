"""A deletion takes a message out that waits, and leaves one that was asked out of later requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.tables import QueueMode
from gateway.dispatch.batching import QueueRules
from gateway.dispatch.worker import DispatchRules
from session.errors import ModelAway
from session.models.model import Answer, Prompt
from tests.contracts.models import Script
from tests.gateway.dispatch.test_approvals import Asking, call
from tests.gateway.dispatch.test_parking import takes_its_time
from tests.gateway.worker_rig import ADA, Rig, rig
from tests.support.guarantee import guarantee
from tests.support.until import until

LONG_AWAY = ModelAway("503", cause="unreachable", after_s=60)


def sent(text: str, number: str) -> tuple[str, str, dict[str, Any]]:
    return text, f"m{number}", {"platform_id": number}


def deletion(of: str) -> tuple[str, str, dict[str, Any]]:
    return "", f"{of}:d", {"platform_id": of, "kind": "edit", "meta": {"deleted": True}}


async def delete(r: Rig, of: str) -> None:
    text, id_, fields = deletion(of)
    await r.put(text, id_, **fields)


async def test_a_message_that_waits_is_never_asked(tmp_path: Path) -> None:
    """It ends silently; handed in again, it is known."""
    async with rig(tmp_path) as r:
        await r.line_up(sent("first", "1"), sent("oops", "2"), deletion("2"), sent("third", "3"))

        assert await r.texts(2) == ["script: first", "script: third"]
        await r.settled()
        await r.put("oops", "m2", platform_id="2")
        await r.settled()
        assert r.unread == 0
        known = (await r.store.look(ADA)).journal.known("m2")
        assert known is not None
        assert (known.kind, known.reason) == ("withdrawn", "deleted")
        assert "oops" not in str(await r.lines())


@guarantee("sessions", "A deleted message appears in no later request to the model.")
async def test_a_message_that_was_asked_is_in_no_later_request(tmp_path: Path) -> None:
    """The deletion is noted once, and no edit behind it; the lines stay."""
    async with rig(tmp_path, "one", "two", "three") as r:
        await r.put("secret", "m1", platform_id="1")
        await r.put("other", "m2", platform_id="2")
        await r.replies(2)
        await delete(r, "1")
        await delete(r, "1")
        await r.put("another", "e1", platform_id="1", kind="edit")
        await r.say("third", "m3")

        assert r.asked(2) == ["other", "two", "third"]
        notes = [line for line in await r.lines() if line["role"] == "system"]
        assert [(note["kind"], note["edits"], note["deleted"], note["content"]) for note in notes] == [
            ("note", "m1", True, "")
        ]


async def test_of_messages_that_were_answered_together_one_alone_is_left_out(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", "next", queue=QueueRules("collect", collect_s=0)) as r:
        await r.line_up(sent("first", "0"), sent("secret", "1"), sent("other", "2"))
        await r.replies(2)
        await delete(r, "1")
        await r.say("third", "m3")

        assert r.asked(2) == ["first", "zero", "other", "both", "third"]


async def test_retry_passes_over_a_deleted_message(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", "two", "again") as r:
        await r.put("kept", "m1", platform_id="1")
        await r.put("secret", "m2", platform_id="2")
        await r.replies(2)
        await delete(r, "2")
        assert await r.say("/retry", "r1") == "again"
        assert r.asked(2) == ["kept"]


async def test_a_deletion_of_what_nobody_asked_leaves_no_trace(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await delete(r, "404")
        await r.settled()

        assert await r.lines() == []
        assert (await r.store.look(ADA)).journal.known("404:d") is None


# -- of a message whose turn began -------------------------------------------------------------------------


async def withdrawn(r: Rig, id_: str) -> bool:
    known = (await r.store.look(ADA)).journal.known(id_)
    return known is not None and (known.kind, known.reason) == ("withdrawn", "deleted")


@pytest.mark.parametrize("mode", ["followup", "interrupt"])
async def test_a_call_that_was_allowed_is_run_though_its_message_was_deleted_meanwhile(
    tmp_path: Path, mode: QueueMode
) -> None:
    """Its answer serves the message that it stopped, too."""
    stopped = mode == "interrupt"
    model = Script([*(["a long answer"] if stopped else []), call("1"), "done", "next"])
    r = Asking(tmp_path, model, DispatchRules(queue=QueueRules(mode)))
    async with r.open():
        if stopped:
            await r.begin("one", "m1", platform_id="1")
        await r.put("secret", "m2", platform_id="2")
        await until(lambda: len(model.prompts) == 1 + stopped)
        model.release.set()
        await r.replies(1)
        await r.until_paused()
        await delete(r, "2")
        await r.until_in_lane(2)
        await r.put("/approve", "a1")

        told = {reply.id: reply.text for reply in await r.replies(3)}
        assert (told["a1#reply"], told["m2#reply"]) == ("Allowed.", "done")
        assert r.tool.calls == ["1"]
        await r.settled()
        answer = next(line for line in await r.lines() if line["content"] == "done")
        assert answer.get("answers") == (["m1", "m2"] if stopped else None)
        await r.say("third", "m3")
        assert "secret" not in r.asked(-1)
        assert await withdrawn(r, "m2") is False


async def test_a_turn_whose_tool_acted_is_gone_on_with_by_the_next_process(tmp_path: Path) -> None:
    class Free(Asking):
        def turns(self) -> Any:
            turns = super().turns()
            turns.gate = None
            return turns

    def hangs(_: Prompt) -> str:
        model.release.clear()
        return "never told"

    async def dies() -> None:
        async with Free(tmp_path, model, DispatchRules()).open() as first:
            await first.put("secret", "m1", platform_id="1")
            await until(lambda: len(model.prompts) == 2)
            await delete(first, "1")
            await first.until_in_lane(2)
            raise KeyError

    model = Script([call("1"), hangs, "told"])
    with pytest.raises(ExceptionGroup):
        await dies()
    model.release.set()
    async with Free(tmp_path, model, DispatchRules()).open() as second:
        assert await second.texts(1) == ["told"]
        await second.settled()

        assert len(model.prompts) == 3
        assert [line["content"] for line in await second.lines() if line["role"] == "tool"] == ["counted 1"]
        assert await withdrawn(second, "m1") is False


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_message_deleted_while_the_model_is_away_is_not_asked(
    tmp_path: Path, is_stored: bool
) -> None:
    """Its question, which is stored where the model did not fail at once, is in no request behind it."""
    async with rig(tmp_path, LONG_AWAY, "two", "three") as r:
        if is_stored:
            takes_its_time(r)
        await r.put("secret", "m1", platform_id="1")
        await r.until_paused()
        assert [line["content"] for line in await r.lines()] == ["secret"] * is_stored
        await r.put("other", "m2", platform_id="2")
        await delete(r, "1")
        await r.put("third", "m3")
        await r.until_in_lane(4)
        await r.go_on()

        assert await r.texts(2) == ["two", "three"]
        await r.settled()
        assert [r.asked(number) for number in (1, 2)] == [["other"], ["other", "two", "third"]]
        assert await withdrawn(r, "m1")
        assert r.unread == 0


async def test_a_message_deleted_during_a_try_that_fails_is_not_asked_again(tmp_path: Path) -> None:
    async with rig(tmp_path, "two") as r:
        ask = r.model.ask

        async def fails(prompt: Prompt, _: Any = None) -> Answer:
            r.model.prompts.append(prompt)
            r.model.held.set()
            await r.model.release.wait()
            r.model.ask = ask  # type: ignore[method-assign]
            raise ModelAway("503", cause="unreachable", after_s=0.01)

        r.model.ask = fails  # type: ignore[method-assign]
        await r.begin("secret", "m1", platform_id="1")
        await delete(r, "1")
        await r.put("other", "m2")
        await r.until_in_lane(3)
        r.model.release.set()

        assert await r.ids(1) == ["m2#reply"]
        await r.settled()
        assert r.asked(1) == ["other"]
        assert await withdrawn(r, "m1")


async def test_those_that_waited_together_with_a_deleted_message_are_asked_without_it(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, "zero", LONG_AWAY, "two", queue=QueueRules("collect", collect_s=0)) as r:
        await r.line_up(sent("first", "0"), sent("secret", "1"), sent("other", "2"))
        await r.replies(1)
        await r.until_paused()
        await delete(r, "1")
        await r.until_in_lane(3)
        await r.go_on()

        assert [(reply.id, reply.text) for reply in await r.replies(1)] == [("m2#reply", "two")]
        await r.settled()
        assert r.asked(2) == ["first", "zero", "other"]
        assert await withdrawn(r, "m1")


async def test_one_that_stopped_an_answer_and_was_asked_is_answered_with_it(tmp_path: Path) -> None:
    """Whom it stopped has no letter of its own any more."""
    async with rig(tmp_path, "a long answer", LONG_AWAY, "both", queue=QueueRules("interrupt")) as r:
        await r.begin("one", "m1", platform_id="1")
        await r.put("two", "m2", platform_id="2")
        await until(lambda: len(r.model.prompts) == 2)
        r.model.release.set()
        await r.until_paused()
        await delete(r, "2")
        await r.until_in_lane(2)
        await r.go_on()

        assert [(reply.id, reply.text) for reply in await r.replies(1)] == [("m2#reply", "both")]
        await r.settled()
        assert (await r.lines())[3]["answers"] == ["m1", "m2"]


async def test_a_command_whose_turn_began_is_gone_on_with(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", LONG_AWAY, "again") as r:
        await r.put("hello", "m1", platform_id="1")
        await r.say("/retry", "r1", platform_id="2")
        await r.until_paused()
        await delete(r, "2")
        await r.until_in_lane(2)
        await r.go_on()

        assert await r.texts(1) == ["again"]
        assert r.asked(2) == ["hello"]
