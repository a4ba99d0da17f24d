"""A session gets a name after its first exchange and a summary when it ends: once, checked, in budget."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.context.context_parts import RecentSessions
from session.disk.layout import Layout
from session.errors import BadAnswer, ContextTooLong, ModelAway, ModelRefused
from session.memory import titles
from session.memory.titles import SessionTitles
from session.models.model import Answer, Prompt, ToolCall
from session.store import rollover
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp
from tests.session.background.test_jobs import victim
from tests.session.memory_place import ADA, BOB, START, Workspace, open_workspace, talk
from tests.support.guarantee import guarantee

TALKED = "They talked."
NAMING = titles.NAME_INSTRUCTIONS
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


def ended(folder: Path, key: str = "telegram_1") -> list[dict[str, Any]]:
    """Line 1's metadata of the ended sessions, oldest first."""
    paths = sorted((folder / "sessions/archive" / key).glob("*.jsonl"))
    return [json.loads(path.read_text().split("\n")[0])["metadata"] for path in paths]


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "state/jobs").glob("*.summary.json"))


async def name_of(workspace: Workspace, key: SessionKey = ADA) -> object:
    return (await workspace.store.look(key)).metadata.get("name")


async def test_the_first_exchange_gives_the_name(busy: Workspace) -> None:
    """Once, into line 1; later turns ask for none."""
    busy.model.wrote = [Answer('"Trains to Lisbon."\n')]
    await busy.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
    await busy.jobs.settled()
    await busy.turn(ADA, exchange("Thanks", "Welcome", "b"))
    await busy.jobs.settled()

    assert await name_of(busy) == "Trains to Lisbon"
    (asked,) = busy.model.prose
    assert "Which train to Lisbon?" in asked.messages[-1]["content"]
    assert "The 9:15." in asked.messages[-1]["content"]
    (row,) = await busy.store.rows()
    assert row.as_dict()["name"] == "Trains to Lisbon"


async def test_a_name_that_a_person_gave_stays(busy: Workspace) -> None:
    """Given before, or while the model was thinking."""
    async with busy.store.open(ADA) as session:
        await session.checkpoint(metadata={"name": "Mine"})
    await busy.turn(ADA, exchange("a", "b", "m"))
    await busy.jobs.settled()
    assert busy.model.prose == []

    async def meanwhile(_: Prompt) -> Answer:
        async with busy.store.open(BOB) as session:
            await session.checkpoint(metadata={"name": "Bob's"})
        return Answer("The model's")

    busy.model.wrote = [meanwhile]
    await busy.turn(BOB, exchange("a", "b", "m"))
    await busy.jobs.settled()

    assert (await name_of(busy), await name_of(busy, BOB)) == ("Mine", "Bob's")


class EndsFirst(Store):
    """A store in which an ending of each session that is opened comes first to its files."""

    @asynccontextmanager
    async def open(self, key: SessionKey) -> AsyncIterator[Session]:
        go = threading.Event()

        def end(*writers: Any) -> object:
            assert go.wait(20)
            return rollover.end(*writers, metadata=None)

        async with super().open(key) as session:
            ending_it = asyncio.ensure_future(session.change(end))
            # From here on it has its turn at the files; it goes on once the one who opened waits behind it.
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(go.set)
            yield session
            await ending_it


class HeldFiles(JobFiles):
    """Files of jobs that are written once a test lets them be."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.writing, self.let = threading.Event(), threading.Event()

    def keep(self, job: BackgroundJob) -> None:
        self.writing.set()
        assert self.let.wait(20)
        super().keep(job)


class Struck(JobFiles):
    """Files of jobs of which one that is done is gone before a test lets its job go on."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.struck, self.let = threading.Event(), threading.Event()

    def strike(self, job: BackgroundJob, *, unless: Callable[[], bool] = lambda: False) -> None:
        super().strike(job, unless=unless)
        self.struck.set()
        assert self.let.wait(20)


async def test_a_session_that_ends_before_its_name_is_written_is_named_where_it_lies(
    house: Workspace, tmp_path: Path
) -> None:
    """It was the active one at the last look, and its ending came first to the files."""
    await house.said(ADA, exchange("a", "b", "m"))
    session_id = (await house.store.look(ADA)).session_id
    house.model.wrote = [Answer("Old one")]
    store = EndsFirst(tmp_path, zone=UTC, clock=house.clock)
    await SessionTitles(house.memory, store).name(ADA, session_id)
    await store.aclose()

    assert [old.get("name") for old in ended(tmp_path)] == ["Old one"]
    assert await name_of(house) is None


async def test_a_session_that_ends_with_its_first_exchange_is_named(tmp_path: Path) -> None:
    """It ended before anybody came to ask for its name; a kill behind that costs no name."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await workspace.new(ADA)

    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [
            lambda prompt: Answer("Trains" if prompt.messages[0]["content"] == NAMING else TALKED)
        ] * 2
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()

        assert [(one["name"], one["summary"]) for one in ended(tmp_path)] == [("Trains", TALKED)]
        assert await name_of(workspace) is None
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_process_that_ends_with_its_first_exchange_leaves_the_name_to_the_next(
    tmp_path: Path,
) -> None:
    """As one does that sends a single message; the session is still the active one."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await workspace.jobs.aclose()

    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [Answer("Trains")]
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()

        assert await name_of(workspace) == "Trains"
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_job_that_ends_while_a_process_leaves_its_jobs_behind_is_in_nobodys_way(
    tmp_path: Path,
) -> None:
    """It takes itself out of the list while the others are written down in a thread."""
    files, asked = HeldFiles(tmp_path / "state"), asyncio.Event()

    async def named(_: Prompt) -> Answer:
        await asked.wait()
        return Answer("Trains")

    async with open_workspace(tmp_path, run=True, files=files) as workspace, asyncio.timeout(30):
        workspace.model.wrote = [named, named]
        for key in (ADA, BOB):
            await workspace.turn(key, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        closing = asyncio.create_task(workspace.jobs.aclose())
        assert await asyncio.to_thread(files.writing.wait, 20)
        asked.set()
        await workspace.jobs.settled()
        files.let.set()
        await closing

        assert [await name_of(workspace, key) for key in (ADA, BOB)] == ["Trains", "Trains"]


async def test_a_process_that_ends_as_a_name_was_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """The file of the job is gone, and the job itself was cut off before it could say that it was done."""
    files = Struck(tmp_path / "state")
    async with open_workspace(tmp_path, files=files) as workspace, asyncio.timeout(30):
        workspace.model.wrote = [Answer("Trains")]
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        running = asyncio.create_task(workspace.jobs.run())
        assert await asyncio.to_thread(files.struck.wait, 20)
        running.cancel()
        files.let.set()
        await asyncio.wait((running,))
        await workspace.jobs.aclose()

        assert await name_of(workspace) == "Trains"
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


@pytest.mark.parametrize("answer", [*BAD, Answer("y" * 241), Answer("'*'")])
async def test_a_failure_is_not_retried_for_ever(tmp_path: Path, answer: Any) -> None:
    """Two tries in all, over turns and restarts; the second has more room."""
    clock = None
    for start in range(2):
        async with open_workspace(tmp_path, run=True, clock=clock) as workspace:
            clock = workspace.clock
            workspace.model.wrote = [answer] * 9
            for number in range(4):
                await workspace.turn(ADA, exchange("a", "b", f"{start}-{number}"))
                await workspace.jobs.settled()
                clock.advance(600)
                await workspace.jobs.settled()
            rooms = [prompt.max_tokens for prompt in workspace.model.prose]
            assert rooms == ([200, 800] if start == 0 else [])
            assert await name_of(workspace) is None


def test_a_name_is_one_line_of_at_most_60_characters() -> None:
    long = titles.read_name(
        Answer("A very long name that goes on about many things, and does not stop there")
    )

    assert long == "A very long name that goes on about many things, and does…"
    assert titles.read_name(Answer("\n**Trains**\nand more")) == "Trains"
    assert len(titles.read_name(Answer("z" * 200))) == 60
    with pytest.raises(BadAnswer):
        titles.read_name(Answer('""'))


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
            await session.change(lambda *hands: rollover.split_after_idle(*hands, by="c", due=lambda _: True))
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
async def test_what_is_no_summary_is_asked_for_twice(busy: Workspace, tmp_path: Path, answer: Any) -> None:
    """Nothing is written; the next try comes later and has more room, and after it comes none."""
    busy.model.wrote = [answer] * 3
    await busy.said(ADA, talk(4))
    await busy.new(ADA)
    for wait in (60, 600, 6000):
        await busy.jobs.settled()
        busy.clock.advance(wait - 1)
        await busy.jobs.settled()
        busy.clock.advance(1)
    await busy.jobs.settled()

    assert [prompt.max_tokens for prompt in busy.model.prose] == [1_000, 4_000]
    assert [one.get("summary") for one in ended(tmp_path)] == [None]
    assert kept(tmp_path) == []
    assert busy.jobs.shown()["written"] == {"summaries": 0, "names": 0, "failures": 2}


async def test_an_outage_is_no_failure(busy: Workspace) -> None:
    busy.model.wrote = [ModelAway("gone", cause="unreachable")] * 4
    await busy.said(ADA, talk(4))
    await busy.new(ADA)
    for _ in range(8):
        await busy.jobs.settled()
        busy.clock.advance(600)
    await busy.jobs.settled()

    assert [one.get("summary") for one in ended(busy.folder)] == [TALKED]
    assert busy.jobs.shown()["written"]["failures"] == 0


async def test_a_session_that_the_model_finds_too_long_is_shown_in_parts(busy: Workspace) -> None:
    """Its beginning and its end, each time half of it."""
    busy.model.wrote = [ContextTooLong("9000 > 8000")]
    await busy.said(ADA, [line | {"content": f"{line['content']} {'y' * 9000}"} for line in talk(30)])
    await busy.new(ADA)
    await busy.jobs.settled()

    first, second = (len(asked.messages[-1]["content"]) for asked in busy.model.prose)
    assert 150_000 < first < 165_000
    assert 75_000 < second < 85_000
    text = busy.model.prose[-1].messages[-1]["content"]
    assert "message 0" in text
    assert "message 29" in text
    assert "left out" in text


@pytest.mark.parametrize("lines", [talk(1), [make_line("system", "x", "", kind="note")]])
async def test_where_nobody_was_answered_nobody_is_asked(busy: Workspace, tmp_path: Path, lines: Any) -> None:
    await busy.said(ADA, lines)
    await busy.new(ADA)
    await busy.jobs.settled()

    assert busy.model.prose == []
    assert kept(tmp_path) == []


async def test_a_session_that_a_compaction_ended_gets_none(busy: Workspace, tmp_path: Path) -> None:
    """What it was about opens the one behind it."""
    await busy.said(ADA, talk(4))
    async with busy.store.open(ADA) as session:
        await session.end()
        name = next((tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")).name
        more = {"type": "compact", "previousSession": name}
        await session.append([make_line("system", "s", "", kind="compact", metadata=more)])
        await busy.jobs.ended(session)
    await busy.jobs.settled()

    assert busy.model.prose == []
    assert len(busy.model.seen) == 1


async def test_an_overlay_stands_for_what_it_covers_and_withdrawn_words_stay_out(busy: Workspace) -> None:
    overlay = make_line("system", "Earlier they met.", "", kind="overlay", first_kept=2)
    undo = make_line("system", "", "", kind="undo", **{"from": 5})
    await busy.said(ADA, [*talk(4), overlay, *talk(2, start=4), undo])
    await busy.new(ADA)
    await busy.jobs.settled()

    text = busy.model.prose[0].messages[-1]["content"]
    assert "Earlier they met." in text
    assert [f"message {n}" in text for n in range(6)] == [False, False, True, True, False, False]


async def test_opened_again_it_has_no_summary_until_it_ends_again(house: Workspace, tmp_path: Path) -> None:
    """A summary that was asked for meanwhile is not written into a session that went on."""
    await house.said(ADA, talk(4))
    await house.new(ADA)
    (old,) = ended(tmp_path)

    async def meanwhile(_: Prompt) -> Answer:
        async with house.store.open(ADA) as session:
            await session.change(lambda *hands: rollover.reopen(*hands, session_id=old["session_id"]))
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
    text = titles.read_summary(Answer("A sentence of words.\n" * 100))

    assert len(text) <= titles.MAX_SUMMARY_CHARS
    assert text.endswith("words.")
    assert "\n" not in text
