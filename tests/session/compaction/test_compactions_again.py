"""A conversation that was compacted is compacted again when that is due, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from session.compaction.compactions import AT_ONCE, Compactions
from session.compaction.presets import numbers_of
from session.context.request import Asking
from session.errors import StoreError
from session.models.model import Meter
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from session.turn.turn import Request
from session.turn.turn_compaction import TurnCompaction
from tests.session.compactions_place import KEY, Chat, chat

BEHIND = ("overlay", "budget", "annabelle")
QUICK = {"annabelle": {"max_chars": 4_000, "min_turns": 3, "cooldown_s": 0.0}}


def annabelle() -> dict[str, Any]:
    """The preset's own numbers, in a window that nothing here fills."""
    return {name: value for name, value in asdict(numbers_of("annabelle")).items() if name != "preset"} | {
        "window": 128_000
    }


@pytest.mark.parametrize("preset", BEHIND)
async def test_a_turn_that_was_asked_before_a_compaction_begins_no_other(tmp_path: Path, preset: str) -> None:
    """Its request was too long; what is stored when it ends is not."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        hold = await place.until_it_sums_up()
        place.model.asked.clear()
        place.model.answers = asyncio.Event()
        turn = asyncio.create_task(place.say())
        await place.model.asked.wait()
        hold.set()
        await place.compactions.settled(KEY)
        compacted = await place.kinds()
        place.model.answers.set()
        await turn

        assert len(compacted) == 1
        assert await place.kinds() == compacted
        assert len(place.model.summaries) == 1


@pytest.mark.parametrize("what", ["undo", "overlay", "new"])
async def test_what_waits_behind_others_looks_again_whether_it_is_due(tmp_path: Path, what: str) -> None:
    """Between the turn and its summary a person may have made the conversation shorter."""
    async with chat(tmp_path) as place:
        others = place.model.hold = asyncio.Event()
        for number in range(AT_ONCE):
            place.key = SessionKey(f"cli:other-{number}")
            await place.until_it_sums_up(number + 1)
        place.key = KEY
        while not place.behind():
            await place.say(settle=False)
        async with place.store.open(KEY) as session:
            at = place.turns.now()
            if what == "new":
                await session.end()
                await session.append([make_line("user", "hello", at, message_id="n")])
            elif what == "undo":
                since = len(session) - 2
                undo = make_line("system", "", at, kind="undo", message_id="u", **{"from": since})
                await session.append([undo])
            else:
                await session.append([make_line("system", "S", at, kind="overlay", first_kept=4)])
        before = await place.lines()
        others.set()
        await place.compactions.settled(KEY)

        assert len(place.model.summaries) == AT_ONCE
        assert await place.lines() == before


async def test_a_turn_that_would_wait_for_it_takes_the_one_that_has_just_ended(tmp_path: Path) -> None:
    """The summary comes in while the turn stores its question: its request is built again, and fits."""
    async with chat(tmp_path) as place:
        hold = await place.until_it_sums_up()
        request = Request(id="long", key=KEY, text="x" * 3_000)
        line = make_line("user", request.text, place.turns.now(), message_id=request.id)
        async with place.store.open(KEY) as session:
            asking = Asking(
                session,
                request,
                await place.turns.turn_context(session, request),
                model=place.model,
                toolbox=place.turns.toolbox,
                limits=place.turns.limits,
                workspace=None,
                embeddings=None,
                meter=Meter(),
            )

            async def store() -> None:
                hold.set()
                await place.compactions.settled(KEY)
                await session.append([line])

            prompt = await TurnCompaction(place.compactions, session, asking, Meter()).prompt(line, store)

        assert len(place.model.summaries) == 1
        assert await place.kinds() == ["overlay"]
        assert prompt.messages[-1]["content"] == request.text


async def test_annabelle_compacts_from_eight_turns_on(tmp_path: Path) -> None:
    """However long they are."""
    async with chat(tmp_path, "annabelle", **annabelle()) as place:
        place.model.tokens = 2_500
        for _ in range(7):
            await place.say()
        assert place.model.summaries == []

        await place.say()
        assert await place.kinds() == ["compact"]


async def test_annabelle_compacts_over_twenty_thousand_characters(tmp_path: Path) -> None:
    """However many turns they are."""
    async with chat(tmp_path, "annabelle", **annabelle()) as place:
        # With its question 2,000 characters a turn; the newest has no answer yet.
        place.model.tokens = 480
        for _ in range(10):
            await place.say()
        assert place.model.summaries == []

        await place.say()
        assert await place.kinds() == ["compact"]


@pytest.mark.parametrize("consolidated", [False, True])
async def test_annabelle_rests_for_two_minutes(tmp_path: Path, consolidated: bool) -> None:
    """However much is said after a compaction, also where memory has taken in some of it."""
    async with chat(tmp_path, "annabelle", **annabelle()) as place:
        place.model.tokens = 2_500
        while not place.model.summaries:
            await place.say()
        if consolidated:
            async with place.store.open(KEY) as session:
                await session.checkpoint(last_consolidated=3)
        place.clock.forward(118)
        for _ in range(12):
            await place.say()
        assert len(place.model.summaries) == 1

        place.clock.forward(3)
        await place.say()
        assert len(place.model.summaries) == 2


class Waiting(Compactions):
    """Begins compactions that wait for a test, and do nothing."""

    def __init__(self, place: Chat) -> None:
        super().__init__(place.compactor, rules=place.rules_now, left=place.note_left, now=place.turns.now)
        self.begun = asyncio.Event()
        self.times = 0
        self.ends = asyncio.Event()

    async def compact(self, *_: Any, **__: Any) -> bool:
        self.times += 1
        self.begun.set()
        await self.ends.wait()
        return True


async def test_a_turn_that_ends_together_with_a_compaction_begins_the_next(tmp_path: Path) -> None:
    """The loop has not come to tell of its end yet, and nothing else would begin another."""
    async with chat(tmp_path) as place, place.store.open(KEY) as session:
        compactions = Waiting(place)
        background = asyncio.create_task(compactions.run())
        await asyncio.sleep(0)
        compactions.after_turn(session, due=lambda: True)
        await compactions.begun.wait()

        asyncio.get_running_loop().call_soon(compactions.ends.set)
        # Woken behind the compaction, in the same pass of the loop.
        await compactions.ends.wait()
        compactions.after_turn(session, due=lambda: True)
        assert await compactions.settled(KEY)

        assert compactions.times == 2
        assert not await compactions.settled(KEY)
        background.cancel()
        await asyncio.wait([background])


async def until_it_leaves(place: Chat) -> None:
    """Talk until a session has ended behind a turn, and what it owes to memory is on its way."""
    while not place.leaving.is_set():
        await place.say(settle=False)
        async with asyncio.timeout(30):
            while place.behind() and not place.leaving.is_set():
                await asyncio.sleep(0)


async def test_what_an_archive_owes_to_memory_is_seen_to_once(tmp_path: Path) -> None:
    """The next turn does not do again what is being done behind the last one."""
    async with chat(tmp_path, "annabelle", **QUICK["annabelle"]) as place:
        place.leaves = asyncio.Event()
        await until_it_leaves(place)
        async with asyncio.timeout(10):
            await place.say(settle=False)
        assert place.left == []

        place.leaves.set()
        await place.compactions.settled(KEY)
        assert len(place.left) == 1


async def test_what_could_not_be_seen_to_is_by_the_next_turn(tmp_path: Path) -> None:
    """A disk that refuses behind the turn leaves nothing undone for good."""
    async with chat(tmp_path, "annabelle", **QUICK["annabelle"]) as place:
        place.left_fails = [StoreError("full"), StoreError("full")]
        await until_it_leaves(place)
        await place.compactions.settled(KEY)
        assert place.left == []
        with pytest.raises(StoreError):
            await place.say(id="again")
        assert place.left == []

        await place.say(id="again")
        [ended] = archive.of_stem(place.store.layout, "cli_ada")
        assert place.left == [ended.session_id]


async def test_a_session_that_ends_before_its_archive_was_seen_to_sees_to_both(tmp_path: Path) -> None:
    """A person compacts at the moment in which the background has ended a session."""
    async with chat(tmp_path, "annabelle", **QUICK["annabelle"]) as place:
        place.leaves = asyncio.Event()
        await until_it_leaves(place)
        place.leaves, gate = None, place.leaves
        for _ in range(2):
            await place.say(settle=False)
        async with place.store.open(KEY) as session:
            assert await place.compactions.asked(session, "", "c") is not None
        gate.set()

        ended = [one.session_id for one in archive.of_stem(place.store.layout, "cli_ada")]
        assert len(ended) == 2
        assert sorted(place.left) == sorted(ended)
