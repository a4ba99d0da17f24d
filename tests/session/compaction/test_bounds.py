"""A conversation that grows stays within bounds, and what it says is not lost."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from session.errors import BadAnswer, ContextTooLong, ModelAway, ModelRefused
from session.models.model import Answer, ToolCall
from session.store.store import Store
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import encode, make_line, parse
from session.turn.stop import StopSwitch
from tests.session.bounds_place import KEY, Chat, chat
from tests.session.compaction_talk import facts_of

AWAY = ModelAway("503", cause="unreachable")
DATA = Path(__file__).parent.parent.parent / "data"
PRESETS = ("overlay", "budget", "archive", "annabelle")
QUICK = {"annabelle": {"max_chars": 4_000, "min_turns": 3, "cooldown_s": 0.0}}


def call(n: int) -> list[ToolCall]:
    return [ToolCall(f"c{n}", "look", f'{{"n": "{n:04}"}}')]


@pytest.mark.parametrize("preset", PRESETS)
async def test_three_compactions_in_a_row_lose_nothing(tmp_path: Path, preset: str) -> None:
    """Every fact that was ever said stands in the next request: in the summary or in a message."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        said: list[str] = []
        while len(place.model.summaries) < 3:
            assert place.count < 60
            reply = await place.say()
            assert set(said) <= set(facts_of(place.told()))
            said += [f"fact-{place.count:04}", *facts_of(reply.text)]
        await place.say()
        assert set(said) <= set(facts_of(place.told()))
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


@pytest.mark.parametrize("preset", PRESETS)
async def test_every_request_stays_within_the_window(tmp_path: Path, preset: str) -> None:
    """A provider that takes no more than the window never has to refuse."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        place.model.takes_tokens = place.rules.window
        for _ in range(30):
            await place.say()
        assert len(place.model.prompts) == 30
        assert len(place.model.summaries) >= 2


async def test_an_overlay_is_one_line_behind_what_was_there(tmp_path: Path) -> None:
    """Nothing before it changes; it says what it stands for, and the request begins with it."""
    async with chat(tmp_path) as place:
        while not await place.kinds():
            before = place.store.layout.transcript("cli_ada").read_bytes() if place.count else b""
            await place.say(settle=False)
            between = place.store.layout.transcript("cli_ada").read_bytes()
            await place.bounds.settled(KEY)
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
        await place.bounds.settled(KEY)
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

        place.seconds += 121
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


async def test_an_outage_is_not_told_as_too_long(tmp_path: Path) -> None:
    """The letter waits for the model, as every other does."""
    async with chat(tmp_path) as place:
        place.model.sums_up = lambda prompt: AWAY
        while place.compactor.rests_s(KEY) == 0:
            await place.say()
        place.model.refuses = lambda prompt: AWAY
        for _ in range(2):
            with pytest.raises(ModelAway):
                await place.say("x" * 8_000, id="long")
        assert await place.kinds() == []


async def test_after_an_outage_a_request_that_does_not_fit_is_compacted_at_once(tmp_path: Path) -> None:
    """The model answers again, and says itself that it is too long: no cooldown stands in its way."""
    async with chat(tmp_path) as place:
        place.model.sums_up = lambda prompt: AWAY
        while place.compactor.rests_s(KEY) == 0:
            await place.say()
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


@pytest.mark.parametrize("preset", ["overlay", "annabelle"])
@pytest.mark.parametrize("what", ["new", "clear", "undo", "edited", "overlay"])
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
            elif what == "overlay":
                await session.append([make_line("system", "S", at, kind="overlay", first_kept=2)])
        if what == "clear":
            await place.store.clear(KEY)
        if what == "edited":
            written = path.stat()
            path.write_bytes(path.read_bytes().replace(b"fact-0001", b"fact-0000"))
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns + 10**9))  # by hand, so not at once
        before = path.read_bytes() if path.exists() else b""
        ended = len(archive.of_stem(place.store.layout, "cli_ada"))

        hold.set()
        await place.bounds.settled(KEY)
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
        await place.bounds.settled(KEY)
        assert await place.kinds() == ["undo", "overlay"]
        await place.say("on")
        assert f"fact-{place.count - 1:04}" not in place.told()


@pytest.mark.parametrize("preset", ["overlay", "annabelle"])
async def test_another_process_that_took_the_key_is_left_alone(tmp_path: Path, preset: str) -> None:
    """A summary that comes back to a key that is no longer ours is not stored."""
    async with chat(tmp_path, preset, **QUICK.get(preset, {})) as place:
        hold = await place.until_it_sums_up()
        other = Store(tmp_path, zone=place.store._zone)
        async with other.open(KEY) as session:
            await session.append([make_line("user", "there", place.turns.now(), message_id="t")])
            before = session.path.read_bytes()
            hold.set()
            await place.bounds.settled(KEY)
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


async def test_below_the_trigger_nothing_is_asked(tmp_path: Path) -> None:
    for preset in (*PRESETS, "off"):
        async with chat(tmp_path / preset, preset, window=100_000) as place:
            for _ in range(3):
                await place.say()
            assert place.model.summaries == []


async def test_a_person_who_asks_does_not_wait_for_the_background(tmp_path: Path) -> None:
    """What is under way there is given up, and nothing of it comes later."""
    async with chat(tmp_path) as place:
        await place.until_it_sums_up()
        place.model.hold = None
        async with place.store.open(KEY) as session:
            done = await place.bounds.asked(session, "", "c")

        assert done is not None
        assert not await place.bounds.settled(KEY)
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
                done = await place.bounds.asked(session, "", "c")
            await place.say()

            compacted += done is not None
            prompts = [place.model.prompts[-1], *place.model.summaries]
            shown = "\n".join(str(each.get("content")) for asked in prompts for each in asked.messages)
            for message in before:
                assert str(message["content"]).split()[-1] in shown, path.name
            assert "recovered from broken history" not in place.told()
            assert await place.store.verify() == [], path.name
    assert compacted > 10
