"""Commands of Discord, the promise of an answer, and answers that are streamed where one was promised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.base import Chunk
from channels.errors import SendUnknown
from channels.message import Button, Outbound
from gateway.queue.mailbox import Post, outbound
from session.turn.command_names import DESCRIPTIONS
from tests.channels.discord.discord_place import Record, adapter, chunk, running
from tests.gateway.delivery_place import Place as Sending
from tests.gateway.outbound.test_preview import stage
from tests.support.discord_rest import Interaction
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel

# -- commands ------------------------------------------------------------------------------------


async def test_a_command_is_promised_an_answer_at_once_and_waits_for_its_turn(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """Though the queue is away the interaction is deferred; the command comes after earlier messages."""
    record = Record()
    record.gate.clear()
    async with running(server, state, record=record) as run:
        server.write(general, "first")
        await record.until(lambda: record.begun)
        command = server.interact("compact", {"focus": "the plan"}, channel=general)
        await server.until(lambda: command.acked)
        assert record.begun == ["first"]
        record.gate.set()
        arrival = await record.text("/compact the plan")

        assert (arrival.kind, arrival.mentioned) == ("command", True)
        assert arrival.id == f"discord:i{command.id}"
        assert command.deferred
        assert await run.channel.send(chunk(general.id, "done", meta=arrival.meta))
        assert command.answers == ["done"]


@pytest.mark.parametrize("text", ["done", "\n\ndone \n"])
async def test_an_answer_whose_outcome_is_unknown_is_shown_once(
    server: DiscordServer, general: Channel, state: Path, text: str
) -> None:
    """What was promised holds it already, without the white space around it."""
    server.fail("PATCH", "/webhooks/*/*/messages/@original", drop="after")
    async with running(server, state) as run:
        command = server.interact("status", channel=general)
        arrival = await run.record.text("/status")
        with pytest.raises(SendUnknown):
            await run.channel.send(chunk(general.id, text, meta=arrival.meta))
        assert command.original is not None
        assert await run.channel.send(chunk(general.id, text, meta=arrival.meta)) == command.original.id

    assert command.answers == ["done"]
    assert [each.via for each in server.sent] == ["interaction"]


async def test_an_answer_that_comes_too_late_for_its_interaction_is_a_plain_message(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """After 15 minutes the interaction is over; the answer still reaches the channel."""
    async with running(server, state) as run:
        command = server.interact("retry", channel=general)
        arrival = await run.record.text("/retry")
        server.interactions.token_s = 0.0
        sent = await run.channel.send(chunk(general.id, "late", meta=arrival.meta))

        assert command.answers == []
        assert server.messages[sent].content == "late"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, 404, 500])
async def test_the_promise_of_an_answer_that_will_not_come_is_taken_back(
    server: DiscordServer, general: Channel, state: Path, fault: int | None
) -> None:
    """Nobody looks at "is thinking…" for a command that was dismissed; where Discord refuses, all goes on."""
    if fault is not None:
        server.fail("DELETE", "/webhooks/*/*/messages/@original", status=fault, times=None)
    async with running(server, state, record=Record(will_hear=False)) as run:
        command = server.interact("status", channel=general)
        await server.called("DELETE", f"/webhooks/*/{command.token}/messages/@original")
        server.write(general, "hello")
        await run.record.text("hello")

        assert command.deferred
        assert command.original is not None
        assert (command.original.id in server.messages) == (fault is not None)


@pytest.mark.parametrize("fault", ["answer lost", "refused"])
async def test_a_deferral_that_goes_wrong(
    server: DiscordServer, general: Channel, state: Path, fault: str
) -> None:
    """One whose answer was lost is known to stand; without one the command is answered plainly."""
    if fault == "answer lost":
        server.fail("POST", "/interactions/*/*/callback", drop="after")
    else:
        server.fail("POST", "/interactions/*/*/callback", status=404, code=10062)
    async with running(server, state) as run:
        command = server.interact("help", channel=general)
        arrival = await run.record.text("/help")

        assert command.deferred == bool(arrival.meta) == (fault == "answer lost")


async def test_the_menu_is_replaced(server: DiscordServer, state: Path) -> None:
    """Every command is registered, those with an argument as one optional text."""
    channel, _ = adapter(server, state)
    await channel.register({"new": "begins anew", "compact": "compacts " + "x" * 200})
    await channel.aclose()

    new, compact = server.commands
    assert (new["name"], new["description"], "options" in new) == ("new", "begins anew", False)
    assert [(each["type"], each["required"]) for each in compact["options"]] == [(3, False)]
    assert len(compact["description"]) == 100


async def test_words_are_given_with_each_command_that_takes_some(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """Those of the gateway's own, and those bound to an agent; what arrives is what a person would type."""
    async with running(server, state) as run:
        await run.channel.register(DESCRIPTIONS | {"code": "asks the agent coder"})
        taken = {each["name"]: [one["name"] for one in each.get("options", ())] for each in server.commands}
        for command, words in (("code", {"message": "fix it"}), ("agent", {"name": "coder"}), ("code", {})):
            server.interact(command, words, channel=general)
            await run.record.text(" ".join([f"/{command}", *words.values()]))

    assert {name: options for name, options in taken.items() if options} == {
        "agent": ["name"],
        "approve": ["id"],
        "code": ["message"],
        "compact": ["focus"],
        "deny": ["id"],
        "forget": ["number"],
        "resume": ["number"],
    }


SENTENCE = "This is the beginning of"


def shown(server: DiscordServer, channel: Channel) -> list[str]:
    """List what stands in a channel, oldest first; a promise that is not kept yet is no text."""
    return [server.messages[str(number)].content for number in channel.messages]


@pytest.mark.parametrize("words", [3, 1_500])
async def test_the_answer_to_a_command_fills_its_place_and_stays_in_order(
    server: DiscordServer, general: Channel, state: Path, words: int
) -> None:
    """While it is written nothing stands beside "is thinking…", and its other chunks stand below it."""
    text = " ".join(f"word{number}" for number in range(words))
    place = Sending(state.parent)
    async with running(server, state) as run:
        place.channel = run.channel  # type: ignore[assignment]
        chunks = place.channel_texts(text)
        command = server.interact("retry", channel=general)
        arrival = await run.record.text("/retry")
        key = f"discord:{general.id}"
        async with stage(place, deliver=True) as on:
            await on.tell("started", asked=arrival.id, key=key)
            await on.tell("delta", SENTENCE, asked=arrival.id, key=key)
            await on.time.pass_by(3)
            assert shown(server, general) == [""]

            out = Outbound(
                id=f"{arrival.id}#reply",
                key=key,
                channel="discord",
                chat_id=general.id,
                text=text,
                in_reply_to=arrival.id,
                meta=dict(arrival.meta),
            )
            await on.mailbox.put(Post(outbound("discord"), key, out.id, out.to_bytes()))
            await server.sent_count(len(chunks))

    assert shown(server, general) == chunks
    assert command.answers == chunks[:1]


async def test_a_later_piece_leaves_the_promise_alone(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """Where the first chunk stands elsewhere, another one in its place would be read before it."""
    place = Sending(state.parent)
    text = " ".join(f"word{number}" for number in range(500))
    async with running(server, state) as run:
        place.channel = run.channel  # type: ignore[assignment]
        first, second = place.channel_texts(text)
        command = server.interact("retry", channel=general)
        meta = (await run.record.text("/retry")).meta
        await server.until(lambda: command.deferred)
        out = Outbound(
            id="x#reply",
            key=f"discord:{general.id}",
            channel="discord",
            chat_id=general.id,
            text=text,
            meta=dict(meta),
        )
        async with place.mailbox() as mailbox, place.delivering(mailbox) as send_log:
            preview = await run.channel.send(chunk(general.id, "word0 word1"))
            await send_log.begin_preview(out.key, out.id)
            await send_log.preview_sent(out.key, out.id, preview)
            await mailbox.put(Post(outbound("discord"), out.key, out.id, out.to_bytes()))
            await server.sent_count(2)

    assert shown(server, general) == ["", first, second]


@asynccontextmanager
async def promised(
    server: DiscordServer, general: Channel, state: Path
) -> AsyncIterator[tuple[Any, Interaction, dict[str, Any]]]:
    """A channel in which a command was promised an answer: its adapter, the command, the meta of both."""
    async with running(server, state) as run:
        command = server.interact("retry", channel=general)
        meta = dict((await run.record.text("/retry")).meta)
        await server.until(lambda: command.deferred)
        yield run.channel, command, meta


@pytest.mark.parametrize("what", ["a file", "buttons"])
@pytest.mark.parametrize("tries", [1, 2])
async def test_what_cannot_fill_the_promise_takes_its_place(
    server: DiscordServer, general: Channel, state: Path, what: str, tries: int
) -> None:
    """A file, or an answer that can be pressed: "is thinking…" stood beside it for fifteen minutes."""
    (file := state.parent / "plan.txt").write_text("plan")
    async with promised(server, general, state) as (channel, command, meta):
        assert shown(server, general) == [""]
        if what == "a file":
            answer = Chunk(general.id, file, "n1", meta=meta)
        else:
            answer = chunk(general.id, "May it?", meta=meta, buttons=(Button(label="yes", value="allow"),))
        sent = {await channel.send(answer) for _ in range(tries)}
        later = await channel.send(chunk(general.id, "done", "n2", meta=meta))

    assert len(sent) == 1
    assert general.messages == [int(*sent), int(later)]
    assert command.answers == []


async def test_a_promise_that_is_kept_stays_when_a_file_comes_first_in_another_try(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """What stands there is an answer, of whichever chunk."""
    (file := state.parent / "plan.txt").write_text("plan")
    async with promised(server, general, state) as (channel, command, meta):
        await channel.send(chunk(general.id, "here it is", meta=meta))
        await channel.send(Chunk(general.id, file, "n2", meta=meta))

    assert command.answers == ["here it is"]
    assert shown(server, general)[0] == "here it is"
