"""Commands of Discord and the promise of an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.errors import SendUnknown
from session.turn.command_names import DESCRIPTIONS
from tests.channels.discord.discord_place import Record, adapter, piece, running
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel as Place

# -- commands ------------------------------------------------------------------------------------


async def test_a_command_is_promised_an_answer_at_once_and_waits_for_its_turn(
    server: DiscordServer, general: Place, state: Path
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
        assert await run.channel.send(piece(general.id, "done", meta=arrival.meta))
        assert command.answers == ["done"]


async def test_an_answer_of_several_pieces_to_a_command(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The first piece fills what was promised, also when it is repeated; the others go to the channel."""
    async with running(server, state) as run:
        command = server.interact("status", channel=general)
        meta = (await run.record.text("/status")).meta
        one = await run.channel.send(piece(general.id, "one", "a", meta=meta))
        again = await run.channel.send(piece(general.id, "one", "a", meta=meta))
        two = await run.channel.send(piece(general.id, "two", "b", meta=meta))
        await run.channel.edit(general.id, one, piece(general.id, "One").content)  # type: ignore[arg-type]

        assert one == again != two
        assert command.answers == ["One"]
        assert [each.text for each in server.sent if each.id == two] == ["two"]


@pytest.mark.parametrize("text", ["done", "\n\ndone \n"])
async def test_an_answer_whose_outcome_is_unknown_is_shown_once(
    server: DiscordServer, general: Place, state: Path, text: str
) -> None:
    """What was promised holds it already, without the white space around it."""
    server.fail("PATCH", "/webhooks/*/*/messages/@original", drop="after")
    async with running(server, state) as run:
        command = server.interact("status", channel=general)
        arrival = await run.record.text("/status")
        with pytest.raises(SendUnknown):
            await run.channel.send(piece(general.id, text, meta=arrival.meta))
        assert command.original is not None
        assert await run.channel.send(piece(general.id, text, meta=arrival.meta)) == command.original.id

    assert command.answers == ["done"]
    assert [each.via for each in server.sent] == ["interaction"]


async def test_an_answer_that_comes_too_late_for_its_interaction_is_a_plain_message(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """After 15 minutes the interaction is over; the answer still reaches the channel."""
    async with running(server, state) as run:
        command = server.interact("retry", channel=general)
        arrival = await run.record.text("/retry")
        server.interactions.token_s = 0.0
        sent = await run.channel.send(piece(general.id, "late", meta=arrival.meta))

        assert command.answers == []
        assert server.messages[sent].content == "late"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, 404, 500])
async def test_the_promise_of_an_answer_that_will_not_come_is_taken_back(
    server: DiscordServer, general: Place, state: Path, fault: int | None
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
    server: DiscordServer, general: Place, state: Path, fault: str
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
    server: DiscordServer, general: Place, state: Path
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
