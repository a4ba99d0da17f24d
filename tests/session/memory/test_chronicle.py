"""Each ended session gets its summary, each begun one its name: once, checked, and within the budget."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from session.context.recent import RecentSessions
from session.disk.layout import Layout
from session.errors import BadAnswer, ContextTooLong, ModelAway, ModelRefused
from session.memory import title_prompt
from session.memory.titles import SessionTitles
from session.models.model import Answer, Echo, Prompt, ToolCall
from session.store import switch_session
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp
from tests.session.background.test_jobs import victim
from tests.session.memory_place import ADA, BOB, START, Place, place, talk

TALKED = "They talked."
NAMING = title_prompt.NAME_INSTRUCTIONS
BAD = [
    Answer(""),
    Answer("  \n"),
    Answer("<!DOCTYPE html><html><body>502</body></html>"),
    Answer('{"error": {"message": "overloaded"}}'),
    Answer("x" * 5000),
    Answer("They", finish="length"),
    Answer("", [ToolCall("c", "ls", "{}")]),
    ModelRefused("policy"),
]


def exchange(question: str, answer: str, id_: str, *, minute: int = 0) -> list[dict[str, Any]]:
    at = stamp(START + timedelta(minutes=minute), UTC)
    return [
        make_line("user", question, at, message_id=id_),
        make_line("assistant", answer, at, message_id=id_, final=True),
    ]


def ended(workspace: Path, key: str = "telegram_1") -> list[dict[str, Any]]:
    """Line 1's metadata of the ended sessions, oldest first."""
    paths = sorted((workspace / "sessions/archive" / key).glob("*.jsonl"))
    return [json.loads(path.read_text().split("\n")[0])["metadata"] for path in paths]


def kept(workspace: Path) -> list[str]:
    return sorted(path.name for path in (workspace / "state/jobs").glob("*.summary.json"))


async def name_of(house: Place, key: SessionKey = ADA) -> object:
    return (await house.store.look(key)).metadata.get("name")


# -- summaries -------------------------------------------------------------------------------------------


async def test_an_ended_session_gets_its_summary(tmp_path: Path) -> None:
    """Made in the background by the small model of what was said; no message is touched."""
    async with place(tmp_path, run=True, small_model="openai/small") as house:
        await house.said(ADA, talk(4))
        await house.new(ADA)
        (path,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
        before = path.read_bytes().split(b"\n", 1)[1]
        await house.jobs.settled()

        assert [one.get("summary") for one in ended(tmp_path)] == [TALKED]
        assert path.read_bytes().split(b"\n", 1)[1] == before
        (asked,) = house.model.prose
        assert asked.model == "openai/small"
        assert not asked.tools
        assert "[2026-01-31T09:15] USER: message 0" in asked.messages[-1]["content"]
        assert kept(tmp_path) == []
        assert house.jobs.shown()["budget"]["calls_last_hour"] == 2


async def test_a_summary_reaches_the_next_requests_of_its_own_chat_alone(tmp_path: Path) -> None:
    """The newest ones of the last days, of this key; the last words stand in until there is one."""
    async with place(tmp_path) as house:
        recent = RecentSessions(Layout(tmp_path), most=3, days=14)

        async def shown(key: SessionKey = ADA) -> list[str]:
            view = await house.store.look(key)
            found = recent.of(key, view.stem, active=view.session_id, now=house.clock())
            return [one.summary for one in found]

        await house.said(ADA, exchange("the time?", "noon", "a"))
        await house.said(BOB, exchange("secret", "kept", "b"))
        async with house.store.open(ADA) as session:
            await session.change(
                lambda *hands: switch_session.split_after_idle(*hands, by="c", due=lambda _: True)
            )
            await house.jobs.ended(session)
        await house.new(BOB)
        assert await shown() == ["It ended with the question: the time? — and the answer: noon"]

    async with place(tmp_path, run=True) as house:

        def about(prompt: Prompt) -> Answer:
            secret = "secret" in prompt.messages[-1]["content"]
            return Answer("Bob has a secret." if secret else "Ada asked.")

        house.model.wrote = [about, about]
        await house.jobs.looked.wait()
        await house.jobs.settled()
        assert await shown() == ["Ada asked."]
        assert await shown(BOB) == ["Bob has a secret."]
        house.clock.advance(15 * 24 * 3600)
        assert await shown() == []


@pytest.mark.parametrize("answer", BAD)
async def test_what_is_no_summary_is_asked_for_three_times(tmp_path: Path, answer: Any) -> None:
    """Nothing is written; the next tries come later, and after the third none."""
    async with place(tmp_path, run=True) as house:
        house.model.wrote = [answer] * 3
        await house.said(ADA, talk(4))
        await house.new(ADA)
        for wait in (60, 600, 6000):
            await house.jobs.settled()
            house.clock.advance(wait - 1)
            await house.jobs.settled()
            house.clock.advance(1)
        await house.jobs.settled()

        assert len(house.model.prose) == 3
        assert [one.get("summary") for one in ended(tmp_path)] == [None]
        assert kept(tmp_path) == []
        assert house.jobs.shown()["written"] == {"summaries": 0, "names": 0, "failures": 3}


async def test_tries_are_counted_over_restarts(tmp_path: Path) -> None:
    async with place(tmp_path, run=True) as house:
        house.model.wrote = [Answer("")]
        await house.said(ADA, talk(4))
        await house.new(ADA)
        await house.jobs.settled()
        assert len(kept(tmp_path)) == 1
        clock = house.clock

    async with place(tmp_path, run=True, clock=clock) as house:
        await house.jobs.looked.wait()
        await house.jobs.settled()
        assert house.model.prose == []
        clock.advance(60)
        await house.jobs.settled()
        assert [one.get("summary") for one in ended(tmp_path)] == [TALKED]


async def test_an_outage_is_no_failure(tmp_path: Path) -> None:
    async with place(tmp_path, run=True) as house:
        house.model.wrote = [ModelAway("gone", cause="unreachable")] * 4
        await house.said(ADA, talk(4))
        await house.new(ADA)
        for _ in range(8):
            await house.jobs.settled()
            house.clock.advance(600)
        await house.jobs.settled()

        assert [one.get("summary") for one in ended(tmp_path)] == [TALKED]
        assert house.jobs.shown()["written"]["failures"] == 0


async def test_the_budget_holds_summaries_up(tmp_path: Path) -> None:
    async with place(tmp_path, run=True, calls_per_hour=1) as house:
        await house.said(ADA, talk(4))
        await house.new(ADA)
        await house.jobs.settled()
        assert len(house.model.prose) + len(house.model.seen) == 1
        house.clock.advance(3601)
        await house.jobs.settled()

        assert (len(house.model.prose), len(house.model.seen)) == (1, 1)
        assert kept(tmp_path) == []


async def test_a_session_that_the_model_finds_too_long_is_shown_in_parts(tmp_path: Path) -> None:
    """Its beginning and its end, each time half of it."""
    async with place(tmp_path, run=True) as house:
        house.model.wrote = [ContextTooLong("9000 > 8000")]
        await house.said(ADA, [line | {"content": f"{line['content']} {'y' * 9000}"} for line in talk(30)])
        await house.new(ADA)
        await house.jobs.settled()

        first, second = (len(asked.messages[-1]["content"]) for asked in house.model.prose)
        assert 150_000 < first < 165_000
        assert 75_000 < second < 85_000
        text = house.model.prose[-1].messages[-1]["content"]
        assert "message 0" in text
        assert "message 29" in text
        assert "left out" in text


@pytest.mark.parametrize("lines", [talk(1), [make_line("system", "x", "", kind="note")]])
async def test_where_nobody_was_answered_nobody_is_asked(tmp_path: Path, lines: Any) -> None:
    async with place(tmp_path, run=True) as house:
        await house.said(ADA, lines)
        await house.new(ADA)
        await house.jobs.settled()

        assert house.model.prose == []
        assert kept(tmp_path) == []


async def test_a_session_that_a_compaction_ended_gets_none(tmp_path: Path) -> None:
    """What it was about opens the one behind it."""
    async with place(tmp_path, run=True) as house:
        await house.said(ADA, talk(4))
        async with house.store.open(ADA) as session:
            await session.end()
            name = next((tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")).name
            more = {"type": "compact", "previousSession": name}
            await session.append([make_line("system", "s", "", kind="compact", metadata=more)])
            await house.jobs.ended(session)
        await house.jobs.settled()

        assert house.model.prose == []
        assert len(house.model.seen) == 1


async def test_an_overlay_stands_for_what_it_covers_and_withdrawn_words_stay_out(tmp_path: Path) -> None:
    async with place(tmp_path, run=True) as house:
        overlay = make_line("system", "Earlier they met.", "", kind="overlay", first_kept=2)
        undo = make_line("system", "", "", kind="undo", **{"from": 5})
        await house.said(ADA, [*talk(4), overlay, *talk(2, start=4), undo])
        await house.new(ADA)
        await house.jobs.settled()

        text = house.model.prose[0].messages[-1]["content"]
        assert "Earlier they met." in text
        assert [f"message {n}" in text for n in range(6)] == [False, False, True, True, False, False]


async def test_opened_again_it_has_no_summary_until_it_ends_again(tmp_path: Path) -> None:
    """A summary that was asked for meanwhile is not written into a session that went on."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(4))
        await house.new(ADA)
        (old,) = ended(tmp_path)

        async def meanwhile(_: Prompt) -> Answer:
            async with house.store.open(ADA) as session:
                await session.change(
                    lambda *hands: switch_session.reopen(*hands, session_id=old["session_id"])
                )
                await session.append(talk(2, start=4))
                await session.end()
                await house.jobs.ended(session)
            return Answer("too old")

        house.model.wrote = [meanwhile]
        task = asyncio.ensure_future(house.jobs.run())
        await house.jobs.looked.wait()
        await house.jobs.settled()
        house.clock.advance(15)
        await house.jobs.settled()
        task.cancel()
        await asyncio.wait([task])

        (now,) = ended(tmp_path)
        assert now["summary"] == TALKED
        assert "message 5" in house.model.prose[-1].messages[-1]["content"]


async def test_echo_writes_nothing(tmp_path: Path) -> None:
    async with place(tmp_path, model=Echo()) as house:
        await house.turn(ADA, exchange("a", "b", "m"))
        await house.new(ADA)

    assert [one.get("summary") for one in ended(tmp_path)] == [None]
    assert [one.get("name") for one in ended(tmp_path)] == [None]


WRITTEN = ["write.before", "write.after", "renew.before", "renew.after", "forget.before", "forget.after"]


@pytest.mark.parametrize("point", WRITTEN)
async def test_a_kill_costs_at_most_one_more_request(tmp_path: Path, point: str) -> None:
    """Wherever it dies the summary is written once, by the next start."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(10))

    assert await victim(tmp_path, "ended", point) == -signal.SIGKILL
    assert await victim(tmp_path, "rest", "none") == 0

    assert [one["summary"] for one in ended(tmp_path)] == ["Ada and the assistant talked."]
    assert kept(tmp_path) == []
    asked = (tmp_path / "summaries").read_text().count("call")
    assert asked == (2 if point in ("write.after", "renew.before") else 1)


# -- names -----------------------------------------------------------------------------------------------


async def test_the_first_exchange_gives_the_name(tmp_path: Path) -> None:
    """Once, into line 1; later turns ask for none."""
    async with place(tmp_path, run=True) as house:
        house.model.wrote = [Answer('"Trains to Lisbon."\n')]
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await house.jobs.settled()
        await house.turn(ADA, exchange("Thanks", "Welcome", "b"))
        await house.jobs.settled()

        assert await name_of(house) == "Trains to Lisbon"
        (asked,) = house.model.prose
        assert "Which train to Lisbon?" in asked.messages[-1]["content"]
        assert "The 9:15." in asked.messages[-1]["content"]
        (row,) = await house.store.rows()
        assert row.as_dict()["name"] == "Trains to Lisbon"


async def test_a_name_that_a_person_gave_stays(tmp_path: Path) -> None:
    """Given before, or while the model was thinking."""
    async with place(tmp_path, run=True) as house:
        async with house.store.open(ADA) as session:
            await session.checkpoint(metadata={"name": "Mine"})
        await house.turn(ADA, exchange("a", "b", "m"))
        await house.jobs.settled()
        assert house.model.prose == []

        async def meanwhile(_: Prompt) -> Answer:
            async with house.store.open(BOB) as session:
                await session.checkpoint(metadata={"name": "Bob's"})
            return Answer("The model's")

        house.model.wrote = [meanwhile]
        await house.turn(BOB, exchange("a", "b", "m"))
        await house.jobs.settled()

        assert (await name_of(house), await name_of(house, BOB)) == ("Mine", "Bob's")


async def test_a_session_that_ended_meanwhile_is_named_where_it_lies(tmp_path: Path) -> None:
    """And the one that began in its place is not."""
    async with place(tmp_path, run=True) as house:

        async def meanwhile(_: Prompt) -> Answer:
            async with house.store.open(ADA) as session:
                await session.end()
            return Answer("Old one")

        house.model.wrote = [meanwhile]
        await house.turn(ADA, exchange("a", "b", "m"))
        await house.jobs.settled()

        assert [one["name"] for one in ended(tmp_path)] == ["Old one"]
        assert await name_of(house) is None


async def test_a_session_that_ends_before_its_name_is_written_is_named_where_it_lies(tmp_path: Path) -> None:
    """It was the active one at the last look, and its ending came first to the files."""
    async with place(tmp_path) as house:
        await house.said(ADA, exchange("a", "b", "m"))
        house.model.wrote = [Answer("Old one")]
        async with house.store.open(ADA) as session:
            handle = house.store._handles.get(ADA)
            assert handle is not None

            async def waiting(count: int) -> None:
                while len(handle.turn._waiters or ()) < count:
                    await asyncio.sleep(0)

            await handle.turn.acquire()
            chronicle = SessionTitles(house.memory, house.store)
            naming = asyncio.ensure_future(chronicle.name(ADA, session.session_id))
            await waiting(1)
            ending = asyncio.ensure_future(session.end())
            await waiting(2)
            handle.turn.release()
            await asyncio.gather(ending, naming)

        assert [one.get("name") for one in ended(tmp_path)] == ["Old one"]
        assert await name_of(house) is None


async def test_a_session_that_ends_with_its_first_exchange_is_named(tmp_path: Path) -> None:
    """It ended before anybody came to ask for its name; a kill behind that costs no name."""
    async with place(tmp_path) as house:
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await house.new(ADA)

    async with place(tmp_path, run=True) as house:
        house.model.wrote = [
            lambda prompt: Answer("Trains" if prompt.messages[0]["content"] == NAMING else TALKED)
        ] * 2
        await house.jobs.looked.wait()
        await house.jobs.settled()

        assert [(one["name"], one["summary"]) for one in ended(tmp_path)] == [("Trains", TALKED)]
        assert await name_of(house) is None
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_process_that_ends_with_its_first_exchange_leaves_the_name_to_the_next(
    tmp_path: Path,
) -> None:
    """As one does that sends a single message; the session is still the active one."""
    async with place(tmp_path) as house:
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await house.jobs.aclose()

    async with place(tmp_path, run=True) as house:
        house.model.wrote = [Answer("Trains")]
        await house.jobs.looked.wait()
        await house.jobs.settled()

        assert await name_of(house) == "Trains"
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_process_that_ends_looks_at_its_jobs_only_where_they_change(tmp_path: Path) -> None:
    """A job that ends while the others are written down takes itself out of the list."""

    class OfTheLoop(dict[Any, Any]):
        def __iter__(self) -> Any:
            asyncio.get_running_loop()
            return super().__iter__()

    async with place(tmp_path) as house:
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        house.jobs._due = OfTheLoop(house.jobs._due)
        await house.jobs.aclose()

        assert len(list((tmp_path / "state/jobs").glob("*.json"))) == 1


@pytest.mark.parametrize("answer", [*BAD, Answer("y" * 241), Answer("'*'")])
async def test_a_failure_is_not_retried_for_ever(tmp_path: Path, answer: Any) -> None:
    """Three tries in all, over turns and restarts."""
    clock = None
    for start in range(2):
        async with place(tmp_path, run=True, clock=clock) as house:
            clock = house.clock
            house.model.wrote = [answer] * 9
            for number in range(4):
                await house.turn(ADA, exchange("a", "b", f"{start}-{number}"))
                await house.jobs.settled()
                clock.advance(600)
                await house.jobs.settled()
            assert len(house.model.prose) == (3 if start == 0 else 0)
            assert await name_of(house) is None


def test_a_name_is_one_line_of_at_most_60_characters() -> None:
    long = title_prompt.read_name(
        Answer("A very long name that goes on about many things, and does not stop there")
    )

    assert long == "A very long name that goes on about many things, and does…"
    assert title_prompt.read_name(Answer("\n**Trains**\nand more")) == "Trains"
    assert len(title_prompt.read_name(Answer("z" * 200))) == 60
    with pytest.raises(BadAnswer):
        title_prompt.read_name(Answer('""'))


def test_a_long_summary_ends_with_a_sentence() -> None:
    text = title_prompt.read_summary(Answer("A sentence of words.\n" * 100))

    assert len(text) <= title_prompt.MAX_SUMMARY_CHARS
    assert text.endswith("words.")
    assert "\n" not in text
