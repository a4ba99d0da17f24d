"""A conversation that grows stays within bounds, and what it says is not lost."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.compaction.compactions import AT_ONCE, Compactions
from session.compaction.rules import numbers_of
from session.context.request import Asking
from session.errors import BadAnswer, ContextTooLong, MessageTooLong, ModelAway, ModelRefused, StoreError
from session.models.model import Answer, OnDelta, Prompt, ToolCall, Usage
from session.models.spending import Meter
from session.tools.archives import SessionArchiveRead
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import encode, make_line, parse
from session.turn.reply import StopSwitch
from session.turn.turn import Request
from session.turn.turn_compaction import TurnCompaction
from tests.session.compaction_talk import facts_of, filled
from tests.session.compactions_place import AWAY, KEY, PRESETS, QUICK, Chat, Look, Talker, call, chat, limits
from tests.session.turn_place import turns_of
from tests.support.guarantee import guarantee

DATA = Path(__file__).parent.parent.parent / "data"
ARCHIVE = "session_archive_read"


@guarantee("sessions", "Three compactions in a row lose nothing that was said.")
@pytest.mark.parametrize("preset", PRESETS)
async def test_three_compactions_in_a_row_lose_nothing(tmp_path: Path, preset: str) -> None:
    """Every fact that was ever said stands in the next request: in the summary or in a message.

    None of the requests is more than the window, which a provider would refuse.
    """
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        place.model.takes_tokens = place.rules.window
        said: list[str] = []
        while len(place.model.summaries) < 3:
            assert place.count < 60
            reply = await place.say()
            assert set(said) <= set(facts_of(place.told()))
            said += [f"fact-{place.count:04}", *facts_of(reply.text)]
        await place.say()
        assert set(said) <= set(facts_of(place.told()))
        assert len(place.model.prompts) == place.count
        assert await place.kinds() == (["compact"] if preset in ("archive", "annabelle") else ["overlay"] * 3)
        ended = archive.of_stem(place.store.layout, "cli_ada")
        assert [one.session_id for one in ended] == place.left
        assert len(ended) == (3 if preset in ("archive", "annabelle") else 0)


@pytest.mark.parametrize("tools", [0, 1])
async def test_budget_summarises_before_it_would_cut_off(tmp_path: Path, tools: int) -> None:
    """Neither its tokens nor its messages leave out what no summary holds, tool rounds included."""
    numbers = {"window": 128_000, "keep_recent_tokens": 20_000, "history_messages": 16}
    async with chat(tmp_path, "budget", **numbers) as place:
        said: list[str] = []
        for number in range(40):
            place.model.calls = [call(9_000 + number) for _ in range(tools)]
            reply = await place.say()
            assert set(said) <= set(facts_of(place.told()))
            said += [f"fact-{place.count:04}", *facts_of(reply.text)]
        assert len(place.model.summaries) > 2


async def test_an_overlay_is_one_line_behind_what_was_there(tmp_path: Path) -> None:
    """Nothing before it changes; it says what it stands for, and the request begins with it."""
    async with chat(tmp_path) as place:
        while not await place.kinds():
            before = place.store.layout.transcript("cli_ada").read_bytes() if place.count else b""
            await place.say(settle=False)
            between = place.store.layout.transcript("cli_ada").read_bytes()
            await place.compactions.settled(KEY)
        after = place.store.layout.transcript("cli_ada").read_bytes()
        await place.say("go on")

        assert after.startswith(between)
        assert between.startswith(before)
        assert after.count(b"\n") == between.count(b"\n") + 1
        lines = await place.lines()
        [overlay] = [line for line in lines if line.get("kind") == "overlay"]
        kept = lines[overlay["first_kept"]]
        assert overlay["compacted_turns"] == sum(
            line["role"] == "user" for line in lines[: overlay["first_kept"]]
        )
        assert (overlay["read_files"], overlay["modified_files"]) == ([], [])
        assert overlay["tokens_before"] > 500
        opening, second, *_, last = place.model.prompts[-1].messages
        assert opening["role"] == "user"
        assert overlay["content"] in opening["content"]
        assert second["content"] == kept["content"]
        assert last["content"] == "go on"


async def test_what_still_fits_is_compacted_behind_the_turn(tmp_path: Path) -> None:
    """The answer does not wait for the summary, nor does the next message."""
    async with chat(tmp_path) as place:
        hold = await place.until_it_sums_up()
        await place.say("meanwhile", settle=False)
        assert await place.kinds() == []

        hold.set()
        await place.compactions.settled(KEY)
        assert await place.kinds() == ["overlay"]
        assert len(place.model.summaries) == 1
        await place.say("after")
        assert "meanwhile" in place.told()


async def test_what_does_not_fit_is_compacted_before_the_call(tmp_path: Path) -> None:
    """In a tool round, too: the turn goes on from the summary of what was before it."""
    async with chat(tmp_path) as place:
        place.model.takes_tokens = place.rules.window
        place.model.calls = [call(n) for n in range(1, 16)]
        await place.say("look fifteen times")

        assert len(place.model.prompts) == 16
        assert len(place.model.summaries) == 2
        assert set(facts_of(place.told())) >= {f"fact-{n:04}" for n in range(1, 16)}
        lines = [line for line in await place.lines() if "kind" not in line]
        assert [line["role"] for line in lines] == ["user", *["assistant", "tool"] * 15, "assistant"]
        assert lines[-1]["final"] is True


async def test_archive_compacts_before_the_call_even_while_it_fits(tmp_path: Path) -> None:
    """The running message opens the new session behind the summary."""
    async with chat(tmp_path, "archive") as place:
        while not place.model.summaries:
            await place.say(settle=False)

        lines = await place.lines()
        assert [line.get("kind") or line["role"] for line in lines] == ["compact", "user", "assistant"]
        assert lines[0]["metadata"]["type"] == "compact"
        [path] = place.store.layout.archive("cli_ada").glob("*.jsonl")
        assert lines[0]["metadata"]["previousSession"] == path.name
        system, *rest = place.model.prompts[-1].messages
        assert lines[0]["content"] in system["content"]
        assert [message["role"] for message in rest] == ["user"]


async def test_rewrite_keeps_the_last_turns(tmp_path: Path) -> None:
    """They follow the summary, and stand in the archive with all others."""
    async with chat(tmp_path, "annabelle", **QUICK["annabelle"]) as place:
        while not await place.kinds():
            await place.say()
        lines = await place.lines()
        [path] = place.store.layout.archive("cli_ada").glob("*.jsonl")
        ended = parse(path.read_bytes(), stem="cli_ada")

        assert [line["role"] for line in lines] == ["system", *["user", "assistant"] * 2]
        assert lines[0]["compacted_turns"] == place.count - 2
        assert len(ended.messages) == 2 * place.count
        assert list(ended.messages)[-4:] == [encode(line) for line in lines[1:]]


async def test_budget_opens_with_what_the_assistant_says(tmp_path: Path) -> None:
    """A provider that wants a person to begin gets the summary from a person, from then on at once."""
    async with chat(tmp_path, "budget") as place:
        while not await place.kinds():
            await place.say()
        await place.say()
        opening = place.model.prompts[-1].messages[0]
        assert opening["role"] == "assistant"
        assert opening["content"].startswith("<summary>\n")
        assert opening["content"].endswith("\n</summary>")

        place.model.refuses = lambda prompt: (
            ModelRefused("first message must be user") if prompt.messages[0]["role"] == "assistant" else None
        )
        asked = len(place.model.prompts)
        await place.say()
        await place.say()
        roles = [prompt.messages[0]["role"] for prompt in place.model.prompts[asked:]]
        assert roles == ["assistant", "user", "user"]


@pytest.mark.parametrize("preset", [*PRESETS, "off"])
async def test_too_long_for_the_provider_is_compacted_once(tmp_path: Path, preset: str) -> None:
    """Whatever we believed of the window, also with ``off``; the same message is then answered."""
    async with chat(tmp_path, preset, window=1_000_000, max_chars=10**9, history_messages=10**6) as place:
        for _ in range(8):
            await place.say()
        place.model.takes_tokens = 1_000
        reply = await place.say()

        assert reply.text
        assert len(place.model.summaries) == 1
        assert len(place.model.prompts) == 10
        assert facts_of(place.told())[-1] == "fact-0009"


@pytest.mark.parametrize("preset", [*PRESETS, "off"])
async def test_a_message_that_fits_no_window_costs_no_history(tmp_path: Path, preset: str) -> None:
    """Its summary would be paid for, and take the words of all that was said, for nothing."""
    async with chat(tmp_path, preset) as place:
        place.model.takes_tokens = 1_900
        for _ in range(3):
            await place.say()
        with pytest.raises(MessageTooLong):
            await place.say(filled("fact-9999;", 6_000))

        assert place.model.summaries == []
        assert await place.kinds() == []


async def test_a_long_message_is_asked_as_it_is_where_its_model_takes_it(tmp_path: Path) -> None:
    """Whatever we believe of the window."""
    async with chat(tmp_path) as place:
        await place.say()
        reply = await place.say(filled("fact-9999;", 6_000))

        assert reply.text
        assert place.model.summaries == []


async def test_a_person_who_asks_does_not_wait_for_the_background(tmp_path: Path) -> None:
    """What is under way there is given up, and nothing of it comes later."""
    async with chat(tmp_path) as place:
        await place.until_it_sums_up()
        place.model.hold = None
        async with place.store.open(KEY) as session:
            done = await place.compactions.asked(session, "", "c")

        assert done is not None
        assert not await place.compactions.settled(KEY)
        [overlay] = [line for line in await place.lines() if line.get("kind")]
        assert overlay["message_id"] == "c"


FILES = sorted([*(DATA / "edge-sessions").glob("*.jsonl"), *DATA.glob("nanobot-samples/*/sessions/*.jsonl")])


@pytest.mark.parametrize("preset", ["overlay", "archive", "annabelle"])
async def test_files_of_others_are_compacted_whole(tmp_path: Path, preset: str) -> None:
    """Whatever their damage: what was sent before is summed up or still sent, and the chat goes on."""
    compacted = 0
    for number, path in enumerate(FILES):
        stem, data = path.stem, path.read_bytes()
        async with chat(tmp_path / str(number), preset, window=10**6, keep_recent_tokens=60) as place:
            place.key = SessionKey(parse(data, stem=stem).key)
            file = place.store.layout.transcript(stem)
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
            for _ in range(3):
                await place.say()
            before = [message for message in place.model.prompts[0].messages if message["role"] == "user"]
            async with place.store.open(place.key) as session:
                done = await place.compactions.asked(session, "", "c")
            await place.say()

            compacted += done is not None
            prompts = [place.model.prompts[-1], *place.model.summaries]
            shown = "\n".join(str(each.get("content")) for asked in prompts for each in asked.messages)
            for message in before:
                assert str(message["content"]).split()[-1] in shown, path.name
            assert "recovered from broken history" not in place.told()
            assert await place.store.verify() == [], path.name
    assert compacted > 10


BEHIND = ("overlay", "budget", "annabelle")


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
        if what == "new":
            async with place.store.open(KEY) as session:
                await session.end()
                hello = make_line("user", "hello", place.turns.now(), message_id="n")
                await session.append([hello])
        elif what == "undo":
            await place.record("undo", message_id="u", **{"from": len(await place.lines()) - 2})
        else:
            await place.record("overlay", "S", first_kept=4)
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


@pytest.mark.parametrize(("turns", "tokens"), [(8, 2_500), (11, 480)])
async def test_annabelle_compacts_from_eight_turns_and_twenty_thousand_characters_on(
    tmp_path: Path, turns: int, tokens: int
) -> None:
    """However long the turns, or however many: shorter ones have 2,000 characters, the newest no answer."""
    async with chat(tmp_path, "annabelle", **annabelle()) as place:
        place.model.tokens = tokens
        for _ in range(turns - 1):
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

        # So it is by another process.
        again = Chat(tmp_path, place.rules)
        await again.say(id="again")
        [ended] = archive.of_stem(place.store.layout, "cli_ada")
        assert again.left == [ended.session_id]
        await again.store.aclose()


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


WINDOW = 10_000


class Counter(Talker):
    """Counts what it is told to, if anything."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: int | None = None

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        answer = await super().ask(prompt, on_delta)
        return answer if self.counts is None else replace(answer, usage=Usage(self.counts, 10))


@pytest.mark.parametrize("preset", ["overlay", "archive"])
@pytest.mark.parametrize("counts", [8_600, 9_950])
async def test_a_count_over_the_trigger_compacts_however_short_the_text_is(
    tmp_path: Path, preset: str, counts: int
) -> None:
    """Behind the turn while it fits, else before the call; at most half of what we think is kept."""
    numbers = {"window": WINDOW, "keep_recent_tokens": 2_500, "reserve_tokens": 1_500}
    model = Counter()
    async with chat(tmp_path, preset, model=model, **numbers) as place:
        for _ in range(4):
            await place.say()
        model.counts = counts
        await place.say()
        assert await place.kinds() == []

        await place.say()

        assert await place.kinds() == (["compact"] if preset == "archive" else ["overlay"])
        assert len(model.summaries) == 1


@pytest.mark.parametrize("preset", ["overlay", "archive"])
async def test_the_message_that_is_asked_is_weighed(tmp_path: Path, preset: str) -> None:
    """Short messages, then one that is over the trigger by itself: those before it leave."""
    async with chat(tmp_path, preset, window=WINDOW) as place:
        for _ in range(4):
            await place.say()

        await place.say(filled("fact-0099;", 9_800))

        assert await place.kinds() == (["compact"] if preset == "archive" else ["overlay"])
        assert "fact-0001;" not in place.told()
        assert "fact-0099;" in place.told()


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
    "bad": BadAnswer("nothing"),
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


async def test_an_outage_is_not_told_as_too_long_and_what_does_not_fit_is_compacted_after_it(
    tmp_path: Path,
) -> None:
    """The letter waits for the model; when that answers again no cooldown is in the way."""
    async with chat(tmp_path) as place:
        place.model.sums_up = lambda prompt: AWAY
        while place.compactor.rests_s(KEY) == 0:
            await place.say()
        place.model.refuses = lambda prompt: AWAY
        for _ in range(2):
            with pytest.raises(ModelAway):
                await place.say("x" * 3_000, id="long")
        assert await place.kinds() == []

        place.model.refuses = place.model.sums_up = lambda prompt: None
        place.model.takes_tokens = place.rules.window
        assert (await place.say("x" * 3_000, id="long")).text
        assert await place.kinds() == ["overlay"]


@guarantee("sessions", "A summary that no longer fits its transcript is discarded.")
@pytest.mark.parametrize("preset", ["overlay", "annabelle"])
@pytest.mark.parametrize(
    "what", ["new", "clear", "cleared elsewhere", "undo", "deleted", "edited", "overlay"]
)
async def test_a_summary_that_no_longer_fits_is_dropped(tmp_path: Path, preset: str, what: str) -> None:
    """Where the transcript did anything but grow, not a byte of it changes."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        hold = await place.until_it_sums_up()
        path = place.store.layout.transcript("cli_ada")
        if what == "new":
            async with place.store.open(KEY) as session:
                await session.end()
        elif what == "undo":
            await place.record("undo", message_id="u", **{"from": 0})
        elif what == "deleted":
            gone = (await place.lines())[0]["message_id"]
            await place.record("note", edits=gone, deleted=True, message_id="d")
        elif what == "overlay":
            await place.record("overlay", "S", first_kept=2)
        if what == "clear":
            await place.store.clear(KEY)
        if what == "cleared elsewhere":
            place.store.forget(KEY, cleared=True)
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
        await place.record("undo", message_id="u", **{"from": len(await place.lines()) - 2})
        hold.set()
        await place.compactions.settled(KEY)
        assert await place.kinds() == ["undo", "overlay"]
        await place.say("on")
        assert f"fact-{place.count - 1:04}" not in place.told()


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


async def test_what_a_summary_left_out_can_be_read_at_once(tmp_path: Path) -> None:
    """The next round of the turn has the tool, and its result holds the lines word for word."""
    async with chat(tmp_path, "archive") as place:
        tools = [Look(), SessionArchiveRead(place.store.layout, zone=UTC)]
        more = {"limits": limits(place.rules), "compactions": place.compactions}
        place.turns = turns_of(place.model, tools, tmp_path / "files", **more)
        while not place.model.summaries:
            offered = [spec.name for spec in place.model.prompts[-1].tools] if place.count else ["look"]
            assert offered == ["look"]
            place.model.calls = [[ToolCall(f"c{place.count}", ARCHIVE, "{}")]]
            await place.say()

        first, second = place.model.prompts[-2:]
        assert ARCHIVE in [spec.name for spec in first.tools]
        result = str(second.messages[-1]["content"])
        assert result.startswith("The earlier part of this conversation")
        assert "fact-0001" in facts_of(result)
        assert f"fact-{place.count:04}" not in facts_of(result)
