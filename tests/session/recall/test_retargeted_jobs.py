"""A job that answers somebody else from a new session on: what it told before stays with whom it was told."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from session.context.context_parts import ContextParts, RecentSessions
from session.context.request import Request
from session.context.scopes import Scopes
from session.library.library import Library
from session.recall import recall
from session.recall.index import WordIndex
from session.recall.update import ScopeFiles, bring_up
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp
from tests.session.recall.place import ADA, BOB, Place, place

JOB = SessionKey("cron:job1")
DESK = SessionKey("cli:ada")
PEOPLE = {"ada": [ADA, DESK], "bob": [BOB]}


async def told(here: Place, text: str, *answered: str) -> str:
    """Let the job answer chats, one after the other; return the ULID of its session."""
    async with here.store.open(JOB) as session:
        for chat in answered:
            await here.scope_resolver.of(session, Request("1", JOB, "go", answer_to=chat))
        at = stamp(datetime.now(UTC), UTC)
        lines = [make_line("user", "go", at, message_id="1"), make_line("assistant", text, at, final=True)]
        await session.append(lines)
        return str(session.session_id)


async def ended(here: Place, text: str, *answered: str) -> str:
    """Let it answer, and begin another session."""
    session_id = await told(here, text, *answered)
    async with here.store.open(JOB) as session:
        await session.end(metadata={"summary": f"About: {text}"})
    return session_id


async def begun(here: Place) -> None:
    here.scope_resolver.scopes = Scopes(here.workspace, kind="chat", people=PEOPLE)
    for key in (ADA, DESK, BOB):
        await here.say(key, "hello", "hi")


@pytest.mark.parametrize("apart", [False, True])
async def test_a_search_finds_what_was_told_to_the_same_person_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """Also where another process reads the files; what it tells from now on is found by whom it tells it."""
    if apart:
        monkeypatch.setattr(recall, "BULK_BYTES", 0)
    async with place(tmp_path) as here:
        await begun(here)
        await ended(here, "chemotherapy of Bob", BOB)
        await ended(here, "chemotherapy of somebody", ADA, BOB)
        await ended(here, "chemotherapy of a parrot", DESK)
        await told(here, "chemotherapy of a cat", ADA)

        for key in (ADA, DESK, JOB):
            assert sorted(await here.texts(key, "chemotherapy")) == [
                "chemotherapy of a cat",
                "chemotherapy of a parrot",
            ]


async def test_another_process_reads_no_more_than_it_is_told_to(here: Place, tmp_path: Path) -> None:
    await begun(here)
    await ended(here, "chemotherapy", BOB)
    of_ada = await told(here, "groceries", ADA)
    layout = here.store.layout
    there = ScopeFiles(layout, tmp_path / "memory/people/ada", [(JOB, "cron_job1")], "", {JOB: [(ADA,)]})

    done = await asyncio.to_thread(bring_up, tmp_path / "of-ada.db", there, threading.Event(), within_s=None)

    assert done == "whole"
    index = WordIndex(tmp_path / "of-ada.db")
    assert [source.session for source in index.sources() or ()] == [of_ada]
    index.close()


async def test_an_index_that_held_them_lets_go_of_them(here: Place) -> None:
    await begun(here)
    await told(here, "chemotherapy of Ada", ADA)
    assert await here.texts(ADA, "chemotherapy") == ["chemotherapy of Ada"]

    await told(here, "chemotherapy of both", BOB)
    await ended(here, "and more")
    await told(here, "chemotherapy of a cat", ADA)

    assert await here.texts(ADA, "chemotherapy") == ["chemotherapy of a cat"]


async def test_its_next_turn_is_told_of_no_conversation_with_somebody_else(here: Place) -> None:
    """Before its new session has a line of its own, too."""
    await begun(here)
    await ended(here, "the cat", ADA)
    await ended(here, "chemotherapy", BOB)
    parts = ContextParts(
        here.workspace,
        library=Library(here.workspace),
        recent=RecentSessions(here.store.layout, most=3, days=14),
        zone=ZoneInfo("UTC"),
        zone_name="UTC",
        clock=lambda: datetime.now(UTC),
    )

    async with here.store.open(JOB) as session:
        request = Request("2", JOB, "go", answer_to=ADA)
        scope = await here.scope_resolver.of(session, request)
        found = await parts.parts(session, request, scope, notes="", tools=())

    assert scope.name == "people/ada"
    assert "About: the cat" in str(found)
    assert "chemotherapy" not in str(found)


async def test_facts_of_an_ended_session_go_to_whom_it_answered(here: Place) -> None:
    await begun(here)
    of_bob = await ended(here, "chemotherapy", BOB)
    of_nobody = await ended(here, "tick")
    of_ada = await told(here, "the cat", ADA)
    each = (of_bob, of_nobody, of_ada, None)

    scopes = [(await here.scope_resolver.of_session(JOB, session_id)).name for session_id in each]

    assert scopes == ["people/bob", "chats/cron_job1", "people/ada", "people/ada"]
