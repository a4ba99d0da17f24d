"""What a letter is answered with: each once, each in its order, a repeat with the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound
from gateway.dispatch.control_order import WatchOrder
from gateway.dispatch.worker import DispatchRules
from session.errors import BadAnswer
from session.models.model import Answer, OnDelta, Prompt
from session.transcript.key import slot_of
from session.turn.turn import TurnLimits
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig, rig
from tests.support.guarantee import guarantee
from tests.support.until import until


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
        assert await r.say("one", "m1") == first
        assert len(r.model.prompts) == 1


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("/nwe", "/new"), ("/hlep", "/help"), ("/xyzzy", "/help"), ("/stats", "/status")],
)
async def test_an_unknown_command_is_answered_with_the_nearest_and_never_sent_to_the_model(
    tmp_path: Path, typed: str, answer: str
) -> None:
    async with rig(tmp_path) as r:
        assert answer in await r.say(typed, "m1")
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


async def test_replies_and_notices_are_numbered_without_gap(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", BadAnswer("x"), "three") as r:
        for number, text in enumerate(["a", "b", "/help", "c"]):
            await r.put(text, f"m{number}")

        replies = await r.replies(4)

        assert [reply.meta["seq"] for reply in replies] == [1, 2, 3, 4]


Ended = tuple[str, str, str]


async def test_the_adapters_meta_comes_back_beside_the_answers_own(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("hello", "m1", platform_id="77", meta={"token": "t", "seq": 99})
        await r.put("/help", "m2", meta={"token": "u"})

        first, second = await r.replies(2)

        assert (first.reply_to, first.meta) == ("77", {"token": "t", "seq": 1})
        assert second.meta == {"token": "u", "seq": 2}


async def test_an_answer_for_another_chat_goes_there_and_quotes_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put(
            "report",
            "cron:j1@x",
            key="cron:j1",
            source="cron",
            cron_job_id="j1",
            answer_to="foreign:ada",
            platform_id="5",
            meta={"token": "t"},
        )

        (reply,) = await r.replies(1)

        assert (reply.id, reply.in_reply_to) == ("cron:j1@x#reply", "cron:j1@x")
        assert (reply.key, reply.channel, reply.chat_id) == ("foreign:ada", "foreign", "ada")
        assert (reply.reply_to, reply.meta) == (None, {})
        assert [line["content"] for line in await r.lines("cron:j1")] == ["report", "script: report"]


async def test_the_session_of_a_job_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for n in range(2):
            await r.put("report", f"m{n}", key="cron:a:b", source="cron", answer_to="foreign:ada")
            await r.put("/new", f"n{n}", key="cron:a:b", answer_to="foreign:ada")
            await r.replies(2)
        await r.say("hi", "m9", key="foreign:ada")

        rows = {(row.key, row.source, row.cron_job_id) for row in await r.store.rows()}
        assert rows == {("cron:a:b", "cron", "a:b"), ("foreign:ada", "interactive", None)}
        assert (await r.store.look("cron:a:b")).metadata["source"] == "cron"  # type: ignore[arg-type]


class Ends:
    """Notes how letters ended."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.times: list[int] = []

    def __call__(self, inbound: Inbound, status: str, error: str, duration_ms: int) -> None:
        self.ended.append((inbound.id, status, error))
        self.times.append(duration_ms)


async def ends(folder: Path, *steps: Any, puts: int) -> Ends:
    r = Rig(folder, Script(steps), DispatchRules())
    noted = Ends()
    r.more["letter_ended"] = noted
    async with r.open():
        for n in range(puts):
            await r.put("go", f"m{n}", key="foreign:ada")
        await until(lambda: len(noted.ended) == puts)
    return noted


async def test_whoever_counts_runs_is_told_how_each_letter_ended(tmp_path: Path) -> None:
    from session.errors import ModelRefused

    noted = await ends(tmp_path, "fine", ModelRefused("no"), puts=2)

    assert noted.ended == [("m0", "ok", ""), ("m1", "error", "refused")]
    assert all(0 <= took < 20_000 for took in noted.times)


async def test_a_count_that_fails_brings_no_letter_back(tmp_path: Path) -> None:
    def broken(inbound: Inbound, status: str, error: str, duration_ms: int) -> None:
        raise RuntimeError(inbound.id)

    r = Rig(tmp_path, Script(), DispatchRules())
    r.more["letter_ended"] = broken
    async with r.open():
        await r.put("a", "m1")
        await r.put("b", "m2")

        assert await r.texts(2) == ["script: a", "script: b"]
    assert len(r.model.prompts) == 2


class Asked(Script):
    """Remembers of each request whether its answer was wanted piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.in_pieces: list[bool] = []

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.in_pieces.append(on_delta is not None)
        return await super().ask(prompt, on_delta)


SLOT = slot_of(ADA)


@pytest.mark.parametrize(
    ("order", "streams", "in_pieces"),
    [
        (None, False, False),
        # ``model.stream = "always"``: an answer that is stopped keeps its text also where nobody read along.
        (None, True, True),
        ({"slots": [SLOT]}, False, True),
        ({"slots": "all"}, False, True),
        ({"slots": [(SLOT + 1) % 256]}, False, False),
        ({"slots": [SLOT], "reads": False}, False, False),
        ({"slots": "all", "channel": "foreign"}, False, True),
        ({"slots": "all", "channel": "foreign", "reads": False}, False, False),
        ({"slots": "all", "channel": "telegram"}, False, False),
    ],
)
async def test_an_answer_is_written_piece_by_piece_for_whoever_reads_along(
    tmp_path: Path, order: dict[str, Any] | None, streams: bool, in_pieces: bool
) -> None:
    """Who waits for its end, or reads another channel, does not."""
    model = Asked()
    built = Rig(tmp_path, model, DispatchRules())
    built.limits = TurnLimits(streams=streams)
    async with built.open() as r:
        if order is not None:
            await told(r, **order)
        await r.say("one", "m1")

        assert model.in_pieces == [in_pieces]


async def told(r: Rig, **order: Any) -> None:
    """Have an order told, and return when the daemon has acted on it."""
    await r.mailbox.tell("control", 0, WatchOrder(id="w", for_s=60, **order).to_bytes())
    await r.mailbox.tell("control", 0, WatchOrder(id="m", for_s=60, slots=[], channel="mark").to_bytes())
    await until(lambda: r.events.watched("mark:it"))
