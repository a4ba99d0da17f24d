"""An answer that is streamed, and stands where the menu's command was promised one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.base import Piece
from channels.message import Button, Outbound
from gateway.queue.mailbox import Post, outbound
from tests.channels.discord.discord_place import piece, running
from tests.gateway.delivery_place import Place
from tests.gateway.outbound.test_drafts import stage
from tests.support.discord_interactions import Interaction
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel

SENTENCE = "This is the beginning of"


def shown(server: DiscordServer, channel: Channel) -> list[str]:
    """List what stands in a channel, oldest first; a promise that is not kept yet is no text."""
    return [server.messages[str(number)].content for number in channel.messages]


@pytest.mark.parametrize("words", [3, 1_500])
async def test_the_answer_to_a_command_fills_its_place_and_stays_in_order(
    server: DiscordServer, general: Channel, state: Path, words: int
) -> None:
    """While it is written nothing stands beside "is thinking…", and its other pieces stand below it."""
    text = " ".join(f"word{number}" for number in range(words))
    place = Place(state.parent)
    async with running(server, state) as run:
        place.channel = run.channel  # type: ignore[assignment]
        pieces = place.channel_texts(text)
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
            await server.sent_count(len(pieces))

    assert shown(server, general) == pieces
    assert command.answers == pieces[:1]


async def test_an_answer_to_a_message_is_streamed(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """Nobody was promised anything there."""
    place = Place(state.parent)
    async with running(server, state) as run:
        place.channel = run.channel  # type: ignore[assignment]
        server.write(general, "hello")
        arrival = await run.record.text("hello")
        key = f"discord:{general.id}"
        async with stage(place) as on:
            await on.tell("started", asked=arrival.id, key=key)
            await on.tell("delta", SENTENCE, asked=arrival.id, key=key)
            await on.time.pass_by(3)

    assert shown(server, general) == ["hello", SENTENCE]


async def test_a_later_piece_leaves_the_promise_alone(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """Where the first piece stands elsewhere, another one in its place would be read before it."""
    place = Place(state.parent)
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
        async with place.mailbox() as mailbox, place.delivering(mailbox) as ledger:
            draft = await run.channel.send(piece(general.id, "word0 word1"))
            await ledger.begin_draft(out.key, out.id)
            await ledger.draft_sent(out.key, out.id, draft)
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
            answer = Piece(general.id, file, "n1", meta=meta)
        else:
            answer = piece(general.id, "May it?", meta=meta, buttons=(Button(label="yes", value="allow"),))
        sent = {await channel.send(answer) for _ in range(tries)}
        later = await channel.send(piece(general.id, "done", "n2", meta=meta))

    assert len(sent) == 1
    assert general.messages == [int(*sent), int(later)]
    assert command.answers == []


async def test_a_promise_that_is_kept_stays_when_a_file_comes_first_in_another_try(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """What stands there is an answer, of whichever piece."""
    (file := state.parent / "plan.txt").write_text("plan")
    async with promised(server, general, state) as (channel, command, meta):
        await channel.send(piece(general.id, "here it is", meta=meta))
        await channel.send(Piece(general.id, file, "n2", meta=meta))

    assert command.answers == ["here it is"]
    assert shown(server, general)[0] == "here it is"


async def test_a_promise_is_marked_for_whoever_ends_its_message(
    server: DiscordServer, general: Channel, state: Path
) -> None:
    """The gateway knows no interactions: what is marked is told how it ended, in any case."""
    async with promised(server, general, state) as (_, _, meta):
        assert meta["promised"] is True
