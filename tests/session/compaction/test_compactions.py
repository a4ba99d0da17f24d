"""A conversation that grows stays within bounds, and what it says is not lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.errors import MessageTooLong, ModelRefused
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import encode, parse
from tests.session.compaction_talk import facts_of, filled
from tests.session.compactions_place import KEY, PRESETS, QUICK, call, chat
from tests.support.guarantee import guarantee

DATA = Path(__file__).parent.parent.parent / "data"


@guarantee("sessions", "Three compactions in a row lose nothing that was said.")
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
