"""Each ended session gets its summary: once, checked, and within the budget."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from session.context.recent import RecentSessions
from session.disk.layout import Layout
from session.errors import ContextTooLong, ModelAway
from session.memory import title_prompt
from session.models.model import Answer, Echo, Prompt
from session.store import switch_session
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.session.background.test_jobs import victim
from tests.session.memory_place import ADA, BOB, open_workspace, talk
from tests.session.title_place import BAD, TALKED, ended, exchange, kept
from tests.support.guarantee import guarantee


async def test_an_ended_session_gets_its_summary(tmp_path: Path) -> None:
    """Made in the background by the small model of what was said; no message is touched."""
    async with open_workspace(tmp_path, run=True, small_model="openai/small") as workspace:
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        (path,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
        before = path.read_bytes().split(b"\n", 1)[1]
        await workspace.jobs.settled()

        assert [one.get("summary") for one in ended(tmp_path)] == [TALKED]
        assert path.read_bytes().split(b"\n", 1)[1] == before
        (asked,) = workspace.model.prose
        assert asked.model == "openai/small"
        assert not asked.tools
        assert "[2026-01-31T09:15] USER: message 0" in asked.messages[-1]["content"]
        assert kept(tmp_path) == []
        assert workspace.jobs.shown()["budget"]["calls_last_hour"] == 2


@guarantee("leaks", "A session summary reaches only requests of its own chat.")
async def test_a_summary_reaches_the_next_requests_of_its_own_chat_alone(tmp_path: Path) -> None:
    """The newest ones of the last days, of this key; the last words stand in until there is one."""
    async with open_workspace(tmp_path) as workspace:
        recent = RecentSessions(Layout(tmp_path), most=3, days=14)

        async def shown(key: SessionKey = ADA) -> list[str]:
            view = await workspace.store.look(key)
            found = recent.of(key, view.stem, active=view.session_id, now=workspace.clock())
            return [one.summary for one in found]

        await workspace.said(ADA, exchange("the time?", "noon", "a"))
        await workspace.said(BOB, exchange("secret", "kept", "b"))
        async with workspace.store.open(ADA) as session:
            await session.change(
                lambda *hands: switch_session.split_after_idle(*hands, by="c", due=lambda _: True)
            )
            await workspace.jobs.ended(session)
        await workspace.new(BOB)
        assert await shown() == ["It ended with the question: the time? — and the answer: noon"]

    async with open_workspace(tmp_path, run=True) as workspace:

        def about(prompt: Prompt) -> Answer:
            secret = "secret" in prompt.messages[-1]["content"]
            return Answer("Bob has a secret." if secret else "Ada asked.")

        workspace.model.wrote = [about, about]
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        assert await shown() == ["Ada asked."]
        assert await shown(BOB) == ["Bob has a secret."]
        workspace.clock.advance(15 * 24 * 3600)
        assert await shown() == []


@pytest.mark.parametrize("answer", BAD)
async def test_what_is_no_summary_is_asked_for_twice(tmp_path: Path, answer: Any) -> None:
    """Nothing is written; the next try comes later and has more room, and after it comes none."""
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [answer] * 3
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        for wait in (60, 600, 6000):
            await workspace.jobs.settled()
            workspace.clock.advance(wait - 1)
            await workspace.jobs.settled()
            workspace.clock.advance(1)
        await workspace.jobs.settled()

        assert [prompt.max_tokens for prompt in workspace.model.prose] == [1_000, 4_000]
        assert [one.get("summary") for one in ended(tmp_path)] == [None]
        assert kept(tmp_path) == []
        assert workspace.jobs.shown()["written"] == {"summaries": 0, "names": 0, "failures": 2}


async def test_tries_are_counted_over_restarts(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [Answer("")]
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        await workspace.jobs.settled()
        assert len(kept(tmp_path)) == 1
        clock = workspace.clock

    async with open_workspace(tmp_path, run=True, clock=clock) as workspace:
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        assert workspace.model.prose == []
        clock.advance(60)
        await workspace.jobs.settled()
        assert [one.get("summary") for one in ended(tmp_path)] == [TALKED]


async def test_an_outage_is_no_failure(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [ModelAway("gone", cause="unreachable")] * 4
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        for _ in range(8):
            await workspace.jobs.settled()
            workspace.clock.advance(600)
        await workspace.jobs.settled()

        assert [one.get("summary") for one in ended(tmp_path)] == [TALKED]
        assert workspace.jobs.shown()["written"]["failures"] == 0


async def test_the_budget_holds_summaries_up(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, run=True, calls_per_hour=1) as workspace:
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        await workspace.jobs.settled()
        assert len(workspace.model.prose) + len(workspace.model.seen) == 1
        workspace.clock.advance(3601)
        await workspace.jobs.settled()

        assert (len(workspace.model.prose), len(workspace.model.seen)) == (1, 1)
        assert kept(tmp_path) == []


async def test_a_session_that_the_model_finds_too_long_is_shown_in_parts(tmp_path: Path) -> None:
    """Its beginning and its end, each time half of it."""
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [ContextTooLong("9000 > 8000")]
        await workspace.said(
            ADA, [line | {"content": f"{line['content']} {'y' * 9000}"} for line in talk(30)]
        )
        await workspace.new(ADA)
        await workspace.jobs.settled()

        first, second = (len(asked.messages[-1]["content"]) for asked in workspace.model.prose)
        assert 150_000 < first < 165_000
        assert 75_000 < second < 85_000
        text = workspace.model.prose[-1].messages[-1]["content"]
        assert "message 0" in text
        assert "message 29" in text
        assert "left out" in text


@pytest.mark.parametrize("lines", [talk(1), [make_line("system", "x", "", kind="note")]])
async def test_where_nobody_was_answered_nobody_is_asked(tmp_path: Path, lines: Any) -> None:
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.said(ADA, lines)
        await workspace.new(ADA)
        await workspace.jobs.settled()

        assert workspace.model.prose == []
        assert kept(tmp_path) == []


async def test_a_session_that_a_compaction_ended_gets_none(tmp_path: Path) -> None:
    """What it was about opens the one behind it."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.said(ADA, talk(4))
        async with workspace.store.open(ADA) as session:
            await session.end()
            name = next((tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")).name
            more = {"type": "compact", "previousSession": name}
            await session.append([make_line("system", "s", "", kind="compact", metadata=more)])
            await workspace.jobs.ended(session)
        await workspace.jobs.settled()

        assert workspace.model.prose == []
        assert len(workspace.model.seen) == 1


async def test_an_overlay_stands_for_what_it_covers_and_withdrawn_words_stay_out(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, run=True) as workspace:
        overlay = make_line("system", "Earlier they met.", "", kind="overlay", first_kept=2)
        undo = make_line("system", "", "", kind="undo", **{"from": 5})
        await workspace.said(ADA, [*talk(4), overlay, *talk(2, start=4), undo])
        await workspace.new(ADA)
        await workspace.jobs.settled()

        text = workspace.model.prose[0].messages[-1]["content"]
        assert "Earlier they met." in text
        assert [f"message {n}" in text for n in range(6)] == [False, False, True, True, False, False]


async def test_opened_again_it_has_no_summary_until_it_ends_again(tmp_path: Path) -> None:
    """A summary that was asked for meanwhile is not written into a session that went on."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        (old,) = ended(tmp_path)

        async def meanwhile(_: Prompt) -> Answer:
            async with workspace.store.open(ADA) as session:
                await session.change(
                    lambda *hands: switch_session.reopen(*hands, session_id=old["session_id"])
                )
                await session.append(talk(2, start=4))
                await session.end()
                await workspace.jobs.ended(session)
            return Answer("too old")

        workspace.model.wrote = [meanwhile]
        task = asyncio.ensure_future(workspace.jobs.run())
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        workspace.clock.advance(15)
        await workspace.jobs.settled()
        task.cancel()
        await asyncio.wait([task])

        (now,) = ended(tmp_path)
        assert now["summary"] == TALKED
        assert "message 5" in workspace.model.prose[-1].messages[-1]["content"]


async def test_echo_writes_nothing(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, model=Echo()) as workspace:
        await workspace.turn(ADA, exchange("a", "b", "m"))
        await workspace.new(ADA)

    assert [one.get("summary") for one in ended(tmp_path)] == [None]
    assert [one.get("name") for one in ended(tmp_path)] == [None]


WRITTEN = ["write.before", "write.after", "renew.before", "renew.after", "forget.before", "forget.after"]


@guarantee("once", "A kill while a session summary is written costs at most one more request.")
@pytest.mark.parametrize("point", WRITTEN)
async def test_a_kill_costs_at_most_one_more_request(tmp_path: Path, point: str) -> None:
    """Wherever it dies the summary is written once, by the next start."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))

    assert await victim(tmp_path, "ended", point) == -signal.SIGKILL
    assert await victim(tmp_path, "rest", "none") == 0

    assert [one["summary"] for one in ended(tmp_path)] == ["Ada and the assistant talked."]
    assert kept(tmp_path) == []
    asked = (tmp_path / "summaries").read_text().count("call")
    assert asked == (2 if point in ("write.after", "renew.before") else 1)


def test_a_long_summary_ends_with_a_sentence() -> None:
    text = title_prompt.read_summary(Answer("A sentence of words.\n" * 100))

    assert len(text) <= title_prompt.MAX_SUMMARY_CHARS
    assert text.endswith("words.")
    assert "\n" not in text
