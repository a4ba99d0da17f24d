"""What erases a chat or person: nothing of it stays, nothing of others is touched, wherever it dies."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import durable
from channels.pairing import Pairing, approved
from gateway.__main__ import main
from gateway.app.daemons import DaemonRegistry
from gateway.queue.mailbox import INBOUND, ParkedAs, Post
from session.approvals.files import ApprovalFiles
from session.background import moving
from session.context.scopes import ANSWERS, CHAT
from session.kept.erasing import Owed
from session.kept.subject import Conversation, Nobody
from session.models.model import Answer, OnDelta, Prompt
from session.store.store import Store
from session.subagents.records import SubagentFiles
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.gateway.embedded_place import opened
from tests.gateway.erasing_place import (
    ADA,
    BOB,
    TERMINAL,
    asked,
    eraser,
    holding,
    letter,
    planted,
    talked,
    tree,
    worked,
)
from tests.gateway.http_place import open_place
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.support.place import write
from tests.support.until import until

# Where the key may stay: no message is answered again by its journal.
GUARDS = ("state/keys/", "state/gateway.db")


@guarantee("privacy", "The erasure of a chat or person leaves no byte of it and touches nothing of others.")
async def test_nothing_of_a_person_stays_and_nothing_of_others_is_touched(tmp_path: Path) -> None:
    """In every place, with jobs and subagents; a file that another chat names as well stays."""
    await planted(tmp_path)
    before, journal = tree(tmp_path, "bobwords"), rows(tmp_path, "journal", BOB)
    assert len(before) > 10
    assert len(holding(tmp_path, "sesame")) > 20

    async with eraser(tmp_path) as (erasure, _):
        erased = await erasure.person("ada")

    assert holding(tmp_path, "sesame") == set()
    assert {name for name in holding(tmp_path, ADA) if not name.startswith(GUARDS)} == set()
    assert [rows(tmp_path, table, ADA) for table in ("queue", "parked")] == [[], []]
    assert tree(tmp_path, "bobwords") == before
    assert rows(tmp_path, "journal", BOB) == journal != []
    assert "state/gateway.db" in holding(tmp_path, "bobwords")
    assert len(list((tmp_path / "media").glob("*/*"))) == 3
    kinds = {"transcript", "archive", "original", "journal", "memory", "file", "memory state", "approval"}
    assert set(erased.removed) >= kinds | {
        "letter",
        "media",
        "usage",
        "schedule",
        "pairing",
        "delivery",
        "typed",
    }
    assert any("media/" in line for line in erased.stays)


def rows(workspace: Path, table: str, key: str) -> list[tuple[Any, ...]]:
    """Return the rows of a key in a table of the state database."""
    with durable.reading(workspace / "state" / durable.STATE_FILE) as file:
        found = file.execute(f"SELECT * FROM {table} WHERE CAST(key AS TEXT) = ?", (key,))
        return found.fetchall()


async def test_of_somebody_nobody_knows_nothing_is_erased(tmp_path: Path) -> None:
    await planted(tmp_path)
    before = holding(tmp_path, "sesame")

    async with eraser(tmp_path) as (erasure, _):
        for name in ("eve", "../people/ada", ""):
            with pytest.raises(Nobody):
                await erasure.person(name) if name else await erasure.person("nobody at all")

    assert holding(tmp_path, "sesame") == before


@guarantee("privacy", "The next start completes an interrupted erasure.")
async def test_wherever_it_dies_the_next_start_ends_it(tmp_path: Path) -> None:
    """Before its record is on disk nothing is touched; from then on nothing half-remains."""
    place = tmp_path / "place"
    place.mkdir()
    await planted(place, lean=True)
    whole = holding(place, "sesame")
    bob = tree(place, "bobwords")

    children = await asyncio.to_thread(victims, place)

    assert children > 40
    for number in range(1, children + 1):
        copy = place.with_name(f"place-{number}")
        owed = list((copy / "state" / "erasing").glob("*.json"))
        if not owed and holding(copy, "sesame"):
            assert {name for name in holding(copy, "sesame") if not name.endswith(("-wal", "-shm"))} >= {
                name for name in whole if not name.endswith(("-wal", "-shm"))
            }, number
            continue
        async with eraser(copy) as (erasure, _):
            await erasure.finish()
        assert holding(copy, "sesame") == set(), number
        assert tree(copy, "bobwords") == bob, number
        assert list((copy / "state" / "erasing").iterdir()) == [], number


def victims(folder: Path) -> int:
    command = [sys.executable, "-m", "tests.gateway.erasing_victim", str(folder)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300, cwd=ROOT).stdout)


async def test_an_order_that_cannot_be_carried_out_holds_up_no_other_and_no_start(tmp_path: Path) -> None:
    """It stays, is named in the log at each start, and the rest is erased."""
    await planted(tmp_path)
    owed = Owed(tmp_path / "state")
    async with eraser(tmp_path) as (erasure, _):
        subjects = [await erasure.subject(key=key) for key in (ADA, BOB, TERMINAL)]
        names = ["cli:\udcfc", *(subject.name for subject in subjects)]
        subjects[0] = replace(subjects[0], name=names[0], conversations=(Conversation(names[0], "cli_x"),))
        for subject in subjects:
            owed.keep(subject)
        write(tmp_path / "state" / "erasing" / "0.json", '{"v": 99}')

        with capture_logs() as logs:
            await erasure.finish()

    (tmp_path / "state" / "erasing" / "0.json").unlink()
    assert [each.name for each in owed.left()] == [names[0]]
    assert [name for name in holding(tmp_path, "bobwords") if not name.startswith("media/")] == []
    assert [line["log_level"] for line in logs if line["event"] == "erasure.unfinished"] == ["error"] * 2


async def test_a_conversation_that_began_since_stays(tmp_path: Path) -> None:
    """What a killed process owes is what there was then; a file that says so cannot take more."""
    await planted(tmp_path)
    async with eraser(tmp_path) as (erasure, services):
        subject = await erasure.subject(key=BOB)
        await erasure.key(BOB)
        assert holding(tmp_path, "bobwords") == set()
        async with services.store.open(BOB) as session:
            await session.append(
                [{"role": "user", "content": "a new day", "timestamp": "2026-01-01T09:00:00"}]
            )
        Owed(tmp_path / "state").keep(subject)

        await erasure.finish()

    assert "sessions/telegram_2.jsonl" in holding(tmp_path, "a new day")


async def test_a_listed_group_and_a_job_for_others_stay(tmp_path: Path) -> None:
    """They are others', too: it says by which key they go."""
    await planted(tmp_path)
    group, job = SessionKey("telegram:-5"), SessionKey("cron:both")
    store = Store(tmp_path, zone=UTC)
    async with store.open(group) as session:
        await session.remember({CHAT: "group"})
        await session.append([make_line("user", "sesame in a group", "2026-01-01T09:00:00")])
    async with store.open(job) as session:
        await session.remember({ANSWERS: [ADA, BOB]})
        await session.append([make_line("user", "sesame for both", "2026-01-01T09:00:00")])
    await store.aclose()

    async with eraser(tmp_path, people={"ada": [ADA, TERMINAL, group]}) as (erasure, _):
        erased = await erasure.person("ada")

    assert holding(tmp_path, "sesame") == {"sessions/telegram_-5.jsonl", "sessions/cron_both.jsonl"}
    assert [
        line.split(": ")[0] for line in erased.stays if line.startswith(("telegram:-5", "cron:both"))
    ] == [
        str(group),
        str(job),
    ]


async def test_of_a_group_that_moved_what_its_former_key_has_goes_too(tmp_path: Path) -> None:
    """Its journal holds answers and replies of two days, and is written no more."""
    former, group, other = (SessionKey(f"telegram:-{number}") for number in (5, 1005, 6))
    store = Store(tmp_path, zone=UTC)
    for key, who in ((former, "sesame"), (other, "bobwords")):
        await talked(store, key, who, sessions=1)
        async with store.open(key) as session:
            await session.journal.conclude("c", "command", text=f"{who} in the notes")
    await moving.move(store, former, group)
    async with store.open(former) as session:
        await session.journal.conclude("mv", "silent", reason="moved", to=group)
    await store.aclose()
    bob, journal = tree(tmp_path, "bobwords"), rows(tmp_path, "journal", other)

    async with eraser(tmp_path) as (erasure, _):
        await erasure.key(group)

    assert holding(tmp_path, "sesame") == set()
    assert tree(tmp_path, "bobwords") == bob
    assert rows(tmp_path, "journal", other) == journal != []


@pytest.mark.parametrize("parked", [False, True])
async def test_what_a_job_asks_goes_though_it_was_never_answered(tmp_path: Path, parked: bool) -> None:
    """While the model is away its message is in no conversation yet; that of another chat's job stays."""
    async with opened(tmp_path / "state") as mailbox:
        for key, to, who in (("cron:hers", ADA, "sesame"), ("cron:his", BOB, "bobwords")):
            body = letter(key, f"remind {who}", f"{key}@1", answer_to=to)
            await mailbox.put(Post(INBOUND, key, f"{key}@1", body))
        async with mailbox.take(INBOUND) as letters:
            for _ in range(2 * parked):
                each = await anext(letters)
                await mailbox.park(each, ParkedAs(each.key, "model_away", 1))

    async with eraser(tmp_path) as (erasure, _):
        erased, _ = await erasure.key(ADA)

    assert holding(tmp_path, "sesame") == set()
    assert holding(tmp_path, "bobwords") == {"state/gateway.db"}
    assert erased.removed["letter"].count == 1


async def test_a_person_is_let_in_no_more_and_a_chat_is(tmp_path: Path) -> None:
    """What is kept of an approval beside the id is the name: that goes in both cases."""
    await planted(tmp_path)
    async with eraser(tmp_path) as (erasure, _):
        await erasure.key(BOB)
        assert approved(tmp_path / "state", "telegram").people == {"1", "2"}
        assert {row["name"] for row in Pairing(tmp_path / "state").rows()} == {"sesame", ""}
        await erasure.person("ada")

    assert approved(tmp_path / "state", "telegram").people == {"2"}


async def test_what_was_typed_for_a_chat_of_a_platform_is_forgotten_with_it(tmp_path: Path) -> None:
    """The terminal remembers it in one list for all chats, of which no line says for whom it was."""
    await planted(tmp_path)
    typed = tmp_path / "state" / "chat_history"
    async with eraser(tmp_path, people={}) as (erasure, services):
        await erasure.key(ADA)
        assert b"typed" in typed.read_bytes()
        async with services.store.open(BOB) as session:
            await session.append([make_line("user", "x", "2026-01-01T09:00:00", message_id="cli:1")])
        await erasure.key(BOB)

    assert typed.read_bytes() == b""


class Late:
    """A model whose turn, when it is ended, still writes a file of its chat: as a tool does in its thread."""

    name = "late"
    plain = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.begun = asyncio.Event()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            write(self._path, "sesame")
        raise AssertionError


async def test_what_a_turn_writes_while_it_ends_is_removed_behind_it(tmp_path: Path) -> None:
    """Its client hears that it was deleted; what is asked next is a new conversation."""
    async with open_place(tmp_path) as place:
        services = place.services
        model, before = Late(tmp_path / "files/chats/web_ada/late.txt"), services.turns.model
        services.turns.model = model
        asked = asyncio.ensure_future(place.post("sesame runs", id="1", wait=30))
        await model.begun.wait()
        waiting = asyncio.ensure_future(place.post("sesame waits", id="2", wait=30))
        worker = place.application.worker
        assert worker is not None
        await until(lambda: [len(lane.entries) for lane in worker.lanes] == [2])

        body = {"key": "web:ada", "everything": True}
        assert (await place.http.post("/clear-session", json=body)).status_code == 200

        assert holding(tmp_path, "sesame") == set()
        assert [(await each).json()["kind"] for each in (asked, waiting)] == ["notice", "notice"]
        services.turns.model = before
        assert (await place.post("a new day", wait=30)).json()["reply"] == "echo: a new day"


async def under_way(workspace: Path, key: SessionKey, who: str) -> None:
    """Have a conversation of which a subagent works, and a call waits for a word."""
    store = Store(workspace, zone=UTC)
    await talked(store, key, who)
    await worked(store, key, who)
    await store.aclose()
    ApprovalFiles(workspace / "state").ask(asked(key, who))


@pytest.mark.parametrize("options", [[], ["--everything"]])
@pytest.mark.parametrize("daemon", [True, False])
async def test_a_conversation_that_is_cleared_has_nothing_under_way(
    tmp_path: Path, options: list[str], daemon: bool
) -> None:
    """Its subagent and its waiting call are gone, by a daemon or without; those of another one are not."""
    for key in (ADA, BOB):
        await under_way(tmp_path, key, "sesame")
    state = tmp_path / "state"
    words = ["sessions", "clear", ADA, *options, "--workspace", str(tmp_path)]
    async with contextlib.AsyncExitStack() as stack:
        if daemon:
            place = await stack.enter_async_context(open_place(tmp_path))
            stack.enter_context(DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"))
        assert await asyncio.to_thread(main, words) == 0

        ended = {each.parent for each in SubagentFiles(state).everywhere() if each.state == "ended"}
        live = {each.parent for each in SubagentFiles(state).everywhere() if each.live}
        assert ended <= {ADA}
        assert ADA not in live
        assert [each.call.key for each in ApprovalFiles(state).all()] == [BOB]
