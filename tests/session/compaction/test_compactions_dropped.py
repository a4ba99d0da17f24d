"""A summary that fails, comes too late or is no longer wanted changes nothing."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.errors import BadAnswer, ContextTooLong, ModelAway, ModelRefused
from session.models.model import Answer, ToolCall
from session.store.store import Store
from session.transcript import archive
from session.transcript.transcript import make_line
from session.turn.stop import StopSwitch
from tests.session.compactions_place import AWAY, KEY, QUICK, Chat, chat
from tests.support.guarantee import guarantee


async def test_too_long_a_second_time_is_said(tmp_path: Path) -> None:
    """What to do is in the words for the chat; the message is not asked a third time."""
    async with chat(tmp_path, "off") as place:
        for _ in range(4):
            await place.say()
        place.model.takes_tokens = 10
        with pytest.raises(ContextTooLong) as caught:
            await place.say()

        assert "/compact" in caught.value.said
        assert "/new" in caught.value.said
        assert len(place.model.prompts) == 6


FAILURES: dict[str, Any] = {
    "away": AWAY,
    "refused": ModelRefused("no"),
    "bad": BadAnswer("nothing"),
    "empty": Answer(" "),
    "too long": Answer("x" * 100_000),
    "error page": Answer("<!DOCTYPE html><html><body>502</body></html>"),
    "no headings": Answer("They talked."),
    "calls": Answer("", tool_calls=[ToolCall("c", "look", "{}")], finish="tool_calls"),
}


@guarantee("sessions", "A failed summary changes nothing, and the turn continues.")
@pytest.mark.parametrize("what", FAILURES)
async def test_without_a_summary_nothing_changes(tmp_path: Path, what: str) -> None:
    """The turn goes on while it fits; there is no second try before the cooldown is over."""
    async with chat(tmp_path, window=4_000, reserve_tokens=10**6) as place:
        place.model.sums_up = lambda prompt: FAILURES[what]
        while not place.model.summaries:
            await place.say()
        for _ in range(2):
            await place.say()
        assert len(place.model.summaries) == 1
        assert await place.kinds() == []

        place.clock.forward(121)
        place.model.sums_up = lambda prompt: None
        await place.say()
        assert await place.kinds() == ["overlay"]


async def test_without_a_summary_what_does_not_fit_is_said(tmp_path: Path) -> None:
    async with chat(tmp_path) as place:
        place.model.sums_up = lambda prompt: Answer("")
        while not place.model.summaries:
            await place.say()
        asked = len(place.model.prompts)
        with pytest.raises(ContextTooLong) as caught:
            await place.say("x" * 8_000)
        assert "/new" in caught.value.said
        assert len(place.model.prompts) == asked
        assert await place.kinds() == []


async def until_a_summary_finds_it_away(place: Chat) -> None:
    place.model.sums_up = lambda prompt: AWAY
    while place.compactor.rests_s(KEY) == 0:
        await place.say()


async def test_an_outage_is_not_told_as_too_long(tmp_path: Path) -> None:
    """The letter waits for the model, as every other does."""
    async with chat(tmp_path) as place:
        await until_a_summary_finds_it_away(place)
        place.model.refuses = lambda prompt: AWAY
        for _ in range(2):
            with pytest.raises(ModelAway):
                await place.say("x" * 8_000, id="long")
        assert await place.kinds() == []


async def test_after_an_outage_a_request_that_does_not_fit_is_compacted_at_once(tmp_path: Path) -> None:
    """The model answers again, and says itself that it is too long: no cooldown stands in its way."""
    async with chat(tmp_path) as place:
        await until_a_summary_finds_it_away(place)
        place.model.sums_up = lambda prompt: None
        place.model.takes_tokens = place.rules.window
        reply = await place.say("x" * 3_000)

        assert reply.text
        assert await place.kinds() == ["overlay"]


async def test_a_slow_summary_is_given_up(tmp_path: Path) -> None:
    async with chat(tmp_path, timeout_s=0.01) as place:
        place.model.hold = asyncio.Event()
        while not place.model.summaries:
            await place.say()
        assert place.compactor.rests_s(KEY) > 0
        assert await place.kinds() == []


@guarantee("sessions", "A summary that no longer fits its transcript is discarded.")
@pytest.mark.parametrize("preset", ["overlay", "annabelle"])
@pytest.mark.parametrize("what", ["new", "clear", "undo", "deleted", "edited", "overlay"])
async def test_a_summary_that_no_longer_fits_is_dropped(tmp_path: Path, preset: str, what: str) -> None:
    """Where the transcript did anything but grow, not a byte of it changes."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        hold = await place.until_it_sums_up()
        path = place.store.layout.transcript("cli_ada")
        async with place.store.open(KEY) as session:
            at = place.turns.now()
            if what == "new":
                await session.end()
            elif what == "undo":
                undo = make_line("system", "", at, kind="undo", message_id="u", **{"from": 0})
                await session.append([undo])
            elif what == "deleted":
                gone = str(session.line(0)["message_id"])
                note = make_line("system", "", at, kind="note", edits=gone, deleted=True, message_id="d")
                await session.append([note])
            elif what == "overlay":
                await session.append([make_line("system", "S", at, kind="overlay", first_kept=2)])
        if what == "clear":
            await place.store.clear(KEY)
        if what == "edited":
            # An edit by hand comes later than the write before it.
            written = path.stat()
            path.write_bytes(path.read_bytes().replace(b"fact-0001", b"fact-0000"))
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns + 10**9))
        before = path.read_bytes() if path.exists() else b""
        ended = len(archive.of_stem(place.store.layout, "cli_ada"))

        hold.set()
        await place.compactions.settled(KEY)
        assert (path.read_bytes() if path.exists() else b"") == before
        assert len(archive.of_stem(place.store.layout, "cli_ada")) == ended
        await place.say("goes on")


async def test_an_undo_of_what_is_kept_does_not_matter(tmp_path: Path) -> None:
    async with chat(tmp_path) as place:
        hold = await place.until_it_sums_up()
        async with place.store.open(KEY) as session:
            since = len(session) - 2
            undo = make_line("system", "", place.turns.now(), kind="undo", message_id="u", **{"from": since})
            await session.append([undo])
        hold.set()
        await place.compactions.settled(KEY)
        assert await place.kinds() == ["undo", "overlay"]
        await place.say("on")
        assert f"fact-{place.count - 1:04}" not in place.told()


@pytest.mark.parametrize("preset", ["overlay", "annabelle"])
async def test_another_process_that_took_the_key_is_left_alone(tmp_path: Path, preset: str) -> None:
    """A summary that comes back to a key that is no longer ours is not stored."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        hold = await place.until_it_sums_up()
        other = Store(tmp_path, zone=UTC)
        async with other.open(KEY) as session:
            await session.append([make_line("user", "there", place.turns.now(), message_id="t")])
            before = session.path.read_bytes()
            hold.set()
            await place.compactions.settled(KEY)
            assert session.path.read_bytes() == before
        await other.aclose()
        assert not place.store.layout.archive("cli_ada").exists()


async def test_a_turn_that_is_stopped_in_its_summary_leaves_nothing_behind(tmp_path: Path) -> None:
    """It closes as every stopped turn does; the next one compacts."""
    async with chat(tmp_path, "archive") as place:
        place.model.hold = asyncio.Event()
        stop = StopSwitch()

        async def pull() -> None:
            await place.model.summing.wait()
            stop.pull()

        pulling = asyncio.create_task(pull())
        reply = None
        while reply is None or not reply.silent:
            reply = await place.say(stop=stop)
        await pulling
        assert (await place.lines())[-1]["stopped"] is True
        assert await place.kinds() == []
        place.model.hold = None
        await place.say()
        assert await place.kinds() == ["compact"]


async def test_what_an_archive_owes_to_memory_is_seen_to_after_a_restart(tmp_path: Path) -> None:
    """A process that died between the new session and the durable job is made good by the next turn."""
    async with chat(tmp_path, "archive") as place:
        while not place.left:
            await place.say()
        again = Chat(tmp_path, place.rules)
        await again.say("hello")
        await again.say("hello")
        assert again.left == place.left
        await again.store.aclose()
