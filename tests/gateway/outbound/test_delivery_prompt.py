"""A question with buttons: where they stand, and what takes its place when it was answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.message import Button, Outbound
from channels.testing import Shown
from gateway.outbound.preview import LivePreviews
from tests.gateway.delivery_place import Place, reply, until_empty
from tests.gateway.outbound.test_preview import stage

PROMPT = "fake:1#notice.approval.x"
BUTTONS = [Button(label=name, value=f"/{name}") for name in ("allow", "deny", "third")]
LONG = "A question that is longer than one chunk of this platform."


def prompt(text: str = LONG) -> Outbound:
    return reply(1, text, kind="notice").model_copy(
        update={"id": PROMPT, "buttons": BUTTONS, "replaced_by": f"{PROMPT}.done"}
    )


def resolved() -> Outbound:
    return reply(1, "Allowed by Ada", kind="notice").model_copy(update={"id": f"{PROMPT}.done"})


async def test_buttons_stand_below_the_last_chunk_and_the_answer_takes_its_place(tmp_path: Path) -> None:
    """No more of them than the platform takes. The first chunk of a long question stays."""
    place = Place(tmp_path)
    await place.delivered(prompt(), resolved())

    chunks = place.channel_texts(LONG)
    assert [[each.value for each in chunk.buttons] for chunk in place.platform.chunks] == [
        *[[]] * (len(chunks) - 1),
        ["/allow", "/deny"],
    ]
    assert place.platform.texts() == [*chunks[:-1], "Allowed by Ada"]


async def test_the_same_question_again_is_shown_once(tmp_path: Path) -> None:
    """After a crash it is put again; whoever delivers knows it by its id, and its answer finds it."""
    place = Place(tmp_path)
    async with place.open() as mailbox:
        await place.put(mailbox, prompt("May it?"))
        await until_empty(mailbox)
        await place.put(mailbox, prompt("May it?"), resolved(), resolved())
        await until_empty(mailbox)

    assert place.platform.texts() == ["Allowed by Ada"]
    assert len(place.platform.chunks) == 1


async def test_where_the_question_is_gone_the_answer_is_a_message(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.open() as mailbox:
        await place.put(mailbox, prompt("May it?"))
        await until_empty(mailbox)
        place.platform.messages.clear()
        await place.put(mailbox, resolved())
        await until_empty(mailbox)

    assert place.platform.texts() == ["Allowed by Ada"]


@pytest.mark.parametrize("said", [prompt("May it?"), reply(1, "Please wait.", kind="notice")])
async def test_the_reply_stands_below_the_question(tmp_path: Path, said: Outbound) -> None:
    """What was written before a question or a notice stays as it is, and grows into no answer above it."""
    place = Place(tmp_path)

    async with place.mailbox() as mailbox:

        def previews(send_log: object) -> LivePreviews:
            return LivePreviews(
                channel=place.channel,
                mailbox=mailbox,
                send_log=send_log,  # type: ignore[arg-type]
                limiter=place.limiter,
            )

        async with place.delivering(mailbox, previews=previews) as send_log:
            place.platform.messages["m0"] = Shown("m0", "ada", "Let me se")
            await send_log.begin_preview("fake:ada", "fake:1#reply")
            await send_log.preview_sent("fake:ada", "fake:1#reply", "m0")
            await place.put(mailbox, said, reply(1, "Done."))
            await until_empty(mailbox)

    assert place.platform.texts() == ["Let me se", said.text, "Done."]


async def test_a_preview_after_the_question_is_a_message_of_its_own(tmp_path: Path) -> None:
    """A platform that knows nonces does not take it for the preview that was left above the question."""
    place = Place(tmp_path, safe_to_repeat=True)
    place.platform.remembers = True
    async with stage(place, deliver=True) as on:
        await on.writes("Let me see what may be done", for_s=1)
        await place.put(on.mailbox, prompt("May it?"))
        await until_empty(on.mailbox)

        await on.writes("It is allowed, and")
        await on.tell("delta", " done")
        await on.time.pass_by(1)
        assert place.platform.texts() == ["Let me see what may be done", "May it?", "It is allowed, and done"]

        await place.put(on.mailbox, resolved(), reply(1, "Done."))
        await until_empty(on.mailbox)

    assert place.platform.texts() == ["Let me see what may be done", "Allowed by Ada", "Done."]
